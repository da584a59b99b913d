"""What the plans of host programs call in Python.

What can be prepared once is a function that returns a prepared callable (`allocator`, `extern`):
it is called when a plan is linked, and its result on each run.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import torch

from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.types import DType
from gyrator_runtime.host.externs import extern
from gyrator_runtime.host.outside import separate

__all__ = [
    "DTYPES",
    "NanError",
    "allocator",
    "assert_true",
    "check_nan",
    "copy",
    "device_guard",
    "extern",
    "identity",
    "integer",
    "over_storage",
    "pack",
    "profile_range",
    "read_scalar",
    "separate",
    "size_of",
    "stack",
    "stride_of",
    "tma_descriptor",
    "typed",
    "with_current_device",
]

_GUARDS: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


class NanError(GyratorError, AssertionError):
    """A buffer holds NaN or infinity while NaN checks are on."""


DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {dtype: getattr(torch, dtype.full_name) for dtype in DType}
)
"""torch's element types by their names in the text form of the IR."""


def allocator(device: str | torch.device) -> Callable[..., torch.Tensor]:
    """Return `f(size, stride, dtype)`, which makes an uninitialised tensor.

    Where torch has a quick entry for the device (0.4 us instead of 2) that is the function.
    """
    place = torch.device(device)
    quick: Any = getattr(_GUARDS, f"_empty_strided_{place.type}", None)
    if quick is not None and place.index in (None, 0):
        return cast(Callable[..., torch.Tensor], quick)

    def allocate(size: tuple[int, ...], stride: tuple[int, ...], dtype: Any) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=place)

    return allocate


def typed(name: str) -> torch.dtype | torch.layout | torch.memory_format:
    """Return the element type, layout or memory format called `torch.<name>`."""
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        raise TypeError(f"torch.{name} is no dtype, layout or memory format")
    return found


integer = int
"""`integer(size)`: how a plan puts a size into a register."""
size_of, stride_of = torch.Tensor.size, torch.Tensor.stride
"""`size_of(tensor, dim)`, `stride_of(tensor, dim)`, in elements."""


def assert_true(holds: int, message: str) -> None:
    """RuntimeError with `message` unless `holds`."""
    if not holds:
        raise RuntimeError(message)


def identity(value: Any) -> Any:
    """Return `value`; how a plan puts a constant into a register."""
    return value


def pack(*items: Any) -> list[Any]:
    """Return the arguments as a list; how a plan passes a list of tensors."""
    return list(items)


def stack(rows: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Return the columns of `rows`, each as one tensor with a new first dimension."""
    return tuple(map(torch.stack, zip(*rows, strict=True)))


def over_storage(
    base: torch.Tensor,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    offset: int,
) -> torch.Tensor:
    """Return a tensor in the memory of `base`, `offset` bytes after its first element.

    Outside autograd. `offset` must be a multiple of the element's size.
    """
    if dtype != base.dtype:
        if base.dtype == torch.uint8 and base.is_contiguous() and base.dim() == 1:
            whole = base.numel() % dtype.itemsize == 0
            if whole and base.storage_offset() % dtype.itemsize == 0:
                return reinterpret(base.view(dtype), size, stride, offset // dtype.itemsize)
        start = (base.storage_offset() * base.itemsize + offset) // dtype.itemsize
        empty = torch.empty((0,), dtype=dtype, device=base.device)
        return empty.set_(base.untyped_storage(), start, size, stride)
    return reinterpret(base, size, stride, offset // dtype.itemsize)


def _as_strided_reinterpret(
    base: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    return torch.as_strided(base.detach(), size, stride, base.storage_offset() + offset)


reinterpret: Callable[..., torch.Tensor] = getattr(
    _GUARDS, "_reinterpret_tensor", _as_strided_reinterpret
)
"""`reinterpret(base, size, stride, offset)`: a tensor in the memory of `base`, `offset` elements
after its first one, outside autograd."""


def check_nan(tensor: torch.Tensor, name: str) -> None:
    """NanError (GY-RUNTIME-003) where a floating or complex `tensor` holds NaN or infinity."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return
    wide = tensor.float() if tensor.itemsize == 1 else tensor  # 8-bit floats have no test
    finite = torch.isfinite(wide)
    if bool(finite.all()):
        return
    nans = int(torch.isnan(wide).sum())
    infinite = tensor.numel() - int(finite.sum()) - nans
    raise NanError.of(
        "GY-RUNTIME-003",
        f"buffer {name} holds {nans} NaN and {infinite} infinite of {tensor.numel()} elements",
        help="look at the operation that made it; the check is an option of the compile",
    )


def read_scalar(tensor: torch.Tensor) -> bool | int | float | complex:
    """Return the one element of `tensor` as a Python number (waits for its device)."""
    return cast("bool | int | float | complex", tensor.item())


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy `source` into `target`, across dtypes, strides and devices; return `target`."""
    return target.copy_(source, non_blocking)


def device_guard(device: str | torch.device) -> contextlib.AbstractContextManager[object]:
    """Make `device` the current one of its type for a block; nothing for one without an index."""
    place = torch.device(device)
    if place.index is None or not _accelerated(place):
        return contextlib.nullcontext()
    return cast(
        contextlib.AbstractContextManager[object], torch.accelerator.device_index(place.index)
    )


def with_current_device(
    program: Callable[[list[Any]], Any], index: int | None
) -> Callable[[list[Any]], Any]:
    """Return a program that runs while device `index` of its type is the current one.

    The program itself where there are not several devices, or `index` is None.
    """
    if index is None or torch.accelerator.device_count() < 2:
        return program

    def run(args: list[Any]) -> Any:
        if torch.accelerator.current_device_index() == index:
            return program(args)
        with torch.accelerator.device_index(index):
            return program(args)

    return run


def profile_range(name: str) -> contextlib.AbstractContextManager[object]:
    """A named range in torch's profiler; nothing (0.1 us) while no profiler runs."""
    if torch._C._autograd._profiler_enabled():
        return cast(contextlib.AbstractContextManager[object], torch.profiler.record_function(name))
    return contextlib.nullcontext()


def tma_descriptor(
    base: torch.Tensor,
    shape: tuple[int, ...],
    block: tuple[int, ...],
    element_bytes: int,
    stable: bool,
) -> Any:
    """Return Triton's descriptor of a tensor for the tensor-memory accelerator.

    RuntimeError for the experimental form (`stable` false), which Triton 3.6 no longer has.
    """
    if not stable:
        raise RuntimeError("Triton's experimental TMA descriptors are gone; use TensorDescriptor")
    from triton.tools.tensor_descriptor import TensorDescriptor  # optional

    return TensorDescriptor(base, list(shape), list(base.stride()), list(block))


def _accelerated(place: torch.device) -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == place.type
