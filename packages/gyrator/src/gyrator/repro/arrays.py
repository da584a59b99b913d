"""Tensors as arrays for the interpreters of `gyrator_testing`, and torch's ops for those."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gyrator_ir.diagnostics import VerificationError
from gyrator_ir.loop.nodes import TypeArg
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH, TO_TORCH, from_type_arg
from gyrator_runtime.host.externs import overload

if TYPE_CHECKING:
    from gyrator_testing.interp.externs import Externs


def check_interpreters(what: str) -> None:
    """Raise VerificationError (GY-VERIFY-010) where `gyrator_testing` is not installed, which
    `what` needs."""
    try:
        import gyrator_testing  # noqa: F401
    except ImportError as error:
        why = f"{what} needs gyrator_testing, which cannot be imported: {error}"
        help = "pip install 'gyrator[verify]'"
        raise VerificationError.of("GY-VERIFY-010", why, help=help) from error


def torch_externs() -> "Externs":
    """Return the dispatcher's own ops, but for the seeds of random numbers."""
    from gyrator_testing.interp.externs import DEFAULT, Dispatched

    own = {key: DEFAULT[key] for key in DEFAULT if key.startswith("gyrator.")}
    return Dispatched(_found, _given, array_of, own)


def _found(target: str) -> Callable[..., Any]:
    """Return an op, which draws the same random numbers at each call."""
    op = overload(target)
    if torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ()):
        return op

    def drawn(*args: Any, **kwargs: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return op(*args, **kwargs)

    return drawn


def _given(value: Any) -> Any:
    return from_type_arg(value) if isinstance(value, TypeArg) else tensor_of(value)


def array_of(value: Any) -> Any:
    """Return a tensor as an array that shares its memory; anything else as it is."""
    from gyrator_testing.interp.dtypes import NUMPY

    if not isinstance(value, Tensor):
        return value
    value = value.detach().resolve_conj().resolve_neg()
    kind = NUMPY[FROM_TORCH[value.dtype]]
    if kind.isbuiltin == 1:
        return value.numpy()
    return value.view(_BITS[value.element_size()]).numpy().view(kind)


def tensor_of(value: Any) -> Any:
    """Return an array as a tensor that shares its memory; anything else as it is."""
    from gyrator_testing.interp.dtypes import DTYPES

    kind: Any = None if isinstance(value, Tensor) else getattr(value, "dtype", None)
    if kind is None:
        return value
    dtype = DTYPES[kind]
    if value.dtype.isbuiltin == 1:
        return torch.from_numpy(value)
    return torch.from_numpy(value.view(f"i{dtype.size}")).view(TO_TORCH[dtype])


_BITS = {1: torch.int8, 2: torch.int16}
"""What has the size of a type that NumPy itself lacks."""
