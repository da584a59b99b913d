"""Conversions between tensors and the arrays of `gyrator_testing`'s interpreters, and torch's
ops for these."""

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


def check_interpreters(purpose: str) -> None:
    """Raise VerificationError (GY-VERIFY-010) if `gyrator_testing`, which `purpose` needs, is
    not installed."""
    try:
        import gyrator_testing  # noqa: F401
    except ImportError as error:
        why = f"{purpose} needs gyrator_testing, which cannot be imported: {error}"
        help = "pip install 'gyrator[verify]'"
        raise VerificationError.of("GY-VERIFY-010", why, help=help) from error


def torch_externs() -> "Externs":
    """Return torch's ops for the interpreters, except those for random seeds."""
    from gyrator_testing.interp.externs import DEFAULT, Dispatched

    own = {key: DEFAULT[key] for key in DEFAULT if key.startswith("gyrator.")}
    return Dispatched(_op, _argument, array_of, own)


def _op(target: str) -> Callable[..., Any]:
    """Return an op; one that consumes random numbers gets the same ones at each call."""
    op = overload(target)
    if torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ()):
        return op

    def seeded(*args: Any, **kwargs: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return op(*args, **kwargs)

    return seeded


def _argument(value: Any) -> Any:
    return from_type_arg(value) if isinstance(value, TypeArg) else tensor_of(value)


def array_of(value: Any) -> Any:
    """Return a tensor as an array that shares its memory; return other values unchanged."""
    from gyrator_testing.interp.dtypes import NUMPY

    if not isinstance(value, Tensor):
        return value
    value = value.detach().resolve_conj().resolve_neg()
    kind = NUMPY[FROM_TORCH[value.dtype]]
    if kind.isbuiltin == 1:
        return value.numpy()
    return value.view(_BITS[value.element_size()]).numpy().view(kind)


def tensor_of(value: Any) -> Any:
    """Return an array as a tensor that shares its memory; return other values unchanged."""
    from gyrator_testing.interp.dtypes import DTYPES

    kind: Any = None if isinstance(value, Tensor) else getattr(value, "dtype", None)
    if kind is None:
        return value
    dtype = DTYPES[kind]
    if value.dtype.isbuiltin == 1:
        return torch.from_numpy(value)
    return torch.from_numpy(value.view(f"i{dtype.size}")).view(TO_TORCH[dtype])


_BITS = {1: torch.int8, 2: torch.int16}
"""Integer types with the sizes of types that NumPy lacks."""
