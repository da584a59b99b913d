"""The functions that graphs call in addition to torch's.

They are named after the instructions of the Wrapper IR, take tensors, integers and constants, and
remain single nodes when a graph is retraced. A graph compiler has to support only these,
`operator`, `torch.empty_strided`, `torch.as_strided`, `torch.sym_min`, `torch.sym_max`, dispatcher
overloads and Triton's higher-order op.
"""

from typing import Any

import torch

from gyrator_ir.diagnostics import LayoutError, NanError
from gyrator_ir.host.nodes import Mend
from gyrator_ir.modes import Failure
from gyrator_wrapper_fx.kernels import KernelTable
from gyrator_wrapper_fx.leaf import leaf

Strided = tuple[int, ...]
Body = torch.nn.Module


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: the fake implementation of launches and checks of data."""


# Sizes ----------------------------------------------------------------------------------------


@leaf(opaque=False, pure=True)
def select(condition: bool, a: int, b: int) -> int:
    """Return `a` if a condition on sizes holds, else `b`."""
    return a if condition else b


@leaf(opaque=False, pure=True)
def floordiv_or_zero(a: int, b: int) -> int:
    """Return `a // b`, or 0 if `b` is zero: graphs evaluate both operands of a `select`."""
    return a // b if b != 0 else 0


@leaf(opaque=False, pure=True)
def mod_or_zero(a: int, b: int) -> int:
    """Return `a % b`, or 0 if `b` is zero: graphs evaluate both operands of a `select`."""
    return a % b if b != 0 else 0


@leaf(opaque=False)
def read_scalar(tensor: torch.Tensor) -> int:
    """Return the only element of a tensor as an integer; waits for its device."""
    # A bool or a float would become a symbol that cannot be used in sizes.
    integer = tensor if tensor.dtype == torch.int64 else tensor.to(torch.int64)
    value: Any = integer.item()
    return value  # type: ignore[no-any-return]  # an int, or a symbolic one while tracing


# Checks ---------------------------------------------------------------------------------------


def _fake_conform(
    tensor: torch.Tensor,
    shape: Strided,
    strides: Strided,
    dtype: torch.dtype,
    device: torch.device,
    *_: str,
) -> torch.Tensor:
    """The fake implementation of `conform`: return the tensor if it conforms, else a new one."""
    if (tensor.dtype, tensor.device) == (dtype, device) and not (
        tensor.is_conj() or tensor.is_neg()
    ):
        return tensor
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


@leaf(_fake_conform)
def conform(
    tensor: torch.Tensor,
    shape: Strided,
    strides: Strided,
    dtype: torch.dtype,
    device: torch.device,
    mend: str,
    name: str,
    what: str,
) -> torch.Tensor:
    """Return an external tensor in the layout that the program expects: itself, or a copy.

    Raises LayoutError (GY-RUNTIME-090 for a parameter, GY-RUNTIME-091 for a result of the op
    `what`) if sizes differ, or anything else that `mend` (a value of `gyrator_ir.host.nodes.Mend`)
    does not allow to copy.
    """
    if isinstance(tensor, torch.Tensor) and tuple(tensor.shape) == tuple(shape):
        pending = tensor.is_conj() or tensor.is_neg()
        other = (
            tensor.dtype != dtype
            or tensor.layout is not torch.strided
            or tensor.device.type != device.type
            or device.index not in (None, tensor.device.index)
            or (tensor.numel() > 0 and not _same_strides(tensor, strides))
        )
        if not pending and not other:
            return tensor
        if mend == Mend.ALL or (mend == Mend.PENDING and not other):
            copy = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            # Elements that share memory are written once.
            once = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
            copy[once].copy_(tensor.detach()[once])
            return copy
    expected = f"{dtype} {tuple(shape)}, strides {tuple(strides)}, on {device}"
    raise LayoutError.of_tensor(name, what, tensor, expected)


def _same_strides(tensor: torch.Tensor, strides: Strided) -> bool:
    layout = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(n < 2 or have == want for n, have, want in layout)


@leaf(lambda tensors, others: tuple(tensors))
def separate(
    tensors: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Return the tensors, copied if one of `others`, or an earlier one, shares their storage."""
    storages = {other.untyped_storage()._cdata for other in others}
    result: list[torch.Tensor] = []
    for tensor in tensors:
        shared = tensor.untyped_storage()._cdata in storages
        result.append(tensor.detach().clone() if shared else tensor)
        storages.add(result[-1].untyped_storage()._cdata)
    return tuple(result)


@leaf(_nothing)
def assert_no_nan(tensor: torch.Tensor, what: str) -> None:
    """Raise NanError (GY-RUNTIME-003) if a float or complex tensor contains NaN or infinity."""
    NanError.check(tensor, what)


def _assume(condition: bool, message: str, _: str) -> None:
    """Add the condition to torch's symbolic shapes."""
    torch._check(condition, lambda: message)  # type: ignore[no-untyped-call]


@leaf(_assume)
def assert_true(condition: bool, message: str, error: str) -> None:
    """Raise `error` (a value of `gyrator_ir.modes.Failure`) unless a condition on sizes holds."""
    if not condition:
        raise Failure(error).exception(message)


# Memory ---------------------------------------------------------------------------------------


@leaf(opaque=False, pure=True)
def view(
    source: torch.Tensor, shape: Strided, strides: Strided, offset: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return a view of any dtype; offset and strides count elements of `dtype`.

    The offset is relative to the first element of `source`. Raises ValueError if its address is not
    a multiple of the element size.
    """
    return _over_storage(source, shape, strides, offset * dtype.itemsize, dtype)


@leaf(opaque=False, pure=True)
def from_pool(
    pool: torch.Tensor, offset: int, shape: Strided, strides: Strided, dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor at byte `offset` of a pool."""
    return _over_storage(pool, shape, strides, offset, dtype)


def _over_storage(
    source: torch.Tensor, shape: Strided, strides: Strided, offset: int, dtype: torch.dtype
) -> torch.Tensor:
    base = source.detach()
    first = base.storage_offset() * base.itemsize + offset
    start, rest = first // dtype.itemsize, first % dtype.itemsize
    if rest:
        raise ValueError(
            f"a view of {dtype} starts {rest} byte(s) after a multiple of its element size"
        )
    if base.dtype == dtype:
        return torch.as_strided(base, shape, strides, start)
    # The elements of the source's dtype that cover the view, viewed as the other dtype.
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    end = 0 if any(n == 0 for n in shape) else start + last + 1
    count = -(-end * dtype.itemsize // base.itemsize)
    covering = torch.as_strided(base, (count,), (1,), 0).view(dtype)
    return torch.as_strided(covering, shape, strides, start)


# Work -----------------------------------------------------------------------------------------


@leaf(_nothing)
def launch(
    kernels: KernelTable,
    kernel: str,
    tensors: tuple[torch.Tensor, ...],
    sizes: tuple[int, ...],
    writes: tuple[int, ...] = (),
) -> None:
    """Run a kernel of the table. It changes only the tensors at the positions `writes`."""
    kernels.forward(kernel, tensors, sizes)


# Structure ------------------------------------------------------------------------------------


def _first(_: Any, then: Body, __: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results of one arm, whose layout the other arm shares."""
    return tuple(then(*operands))


@leaf(_first)
def branch(
    condition: torch.Tensor | bool, then: Body, otherwise: Body, operands: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Run one of two graph modules on the operands, as `torch.cond` does.

    Unlike in `torch.cond`, results may be operands, and operands may be modified.
    """
    return tuple((then if bool(condition) else otherwise)(*operands))


def _once(
    _: Body, body: Body, carried: tuple[Any, ...], captured: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return the results of one iteration, whose layout all iterations share."""
    return tuple(body(*carried, *captured))


@leaf(_once)
def loop(
    condition: Body, body: Body, carried: tuple[Any, ...], captured: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Replace `carried` by the results of `body` while `condition` returns true."""
    while bool(condition(*carried, *captured)[0]):
        carried = tuple(body(*carried, *captured))
    return tuple(carried)


def _stacked_once(
    _: Body, body: Body, carried: tuple[Any, ...], captured: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return the results of one iteration, stacked."""
    return tuple(torch.stack([value]) for value in body(*carried, *captured))


@leaf(_stacked_once)
def stacking_loop(
    condition: Body, body: Body, carried: tuple[Any, ...], captured: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Run `body` while `condition` returns true, and return the stacked results of all iterations.

    Without an iteration, the stacks contain `carried` alone.
    """
    rows: list[tuple[Any, ...]] = []
    while bool(condition(*carried, *captured)[0]):
        carried = tuple(body(*carried, *captured))
        rows.append(carried)
    return tuple(torch.stack(column) for column in zip(*(rows or [carried]), strict=True))


def _first_step(
    body: Body, _: int, carried: tuple[Any, ...], captured: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return the results of the first iteration, whose layout all iterations share."""
    return tuple(body(0, *carried, *captured))


@leaf(_first_step)
def repeat(
    body: Body, count: int, carried: tuple[Any, ...], captured: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Replace `carried` by the results of `body` for each of 0, 1, ..., `count - 1`."""
    for step in range(count):
        carried = tuple(body(step, *carried, *captured))
    return tuple(carried)


def _body_of(_: Any, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(body(*operands))


@leaf(_body_of)
def within_device(device: torch.device, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run a graph module with a device current."""
    accelerator = torch.accelerator.current_accelerator()
    if device.index is None or accelerator is None or accelerator.type != device.type:
        return tuple(body(*operands))
    with torch.accelerator.device_index(device.index):
        return tuple(body(*operands))


@leaf(_body_of)
def within_profile(label: str, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run a graph module inside a named profiler range."""
    if not torch._C._autograd._profiler_enabled():
        return tuple(body(*operands))
    with torch.profiler.record_function(label):
        return tuple(body(*operands))
