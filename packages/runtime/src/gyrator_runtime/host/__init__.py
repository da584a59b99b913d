"""Functions that the plans of host programs call in Python.

Some return a prepared callable (`allocator`, `extern`): these are called when a plan is linked, and
their results on each run.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import torch
from torch._C._dynamo import guards

from gyrator_ir.diagnostics import NanError
from gyrator_ir.modes import Failure
from gyrator_ir.types import DType
from gyrator_runtime.host.externs import extern as extern
from gyrator_runtime.host.outside import separate as separate

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {dtype: getattr(torch, dtype.full_name) for dtype in DType}
)
"""PyTorch dtypes by their names in the text form of the IR."""


def allocator(device: str | torch.device) -> Callable[..., torch.Tensor]:
    """Return `f(size, stride, dtype)`, which returns an uninitialised tensor.

    It is PyTorch's fast allocation function (0.4 us instead of 2) if the device has one.
    """
    target = torch.device(device)
    quick: Any = getattr(guards, f"_empty_strided_{target.type}", None)
    if quick is not None and target.index in (None, 0):
        return cast(Callable[..., torch.Tensor], quick)

    def allocate(size: tuple[int, ...], stride: tuple[int, ...], dtype: Any) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=target)

    return allocate


def typed(name: str) -> torch.dtype | torch.layout | torch.memory_format:
    """Return the dtype, layout or memory format `torch.<name>`."""
    value = getattr(torch, name)
    if not isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        raise TypeError(f"torch.{name} is not a dtype, layout or memory format")
    return value


integer = int
"""`integer(size)`: used by plans to store a size in a register."""
size_of, stride_of = torch.Tensor.size, torch.Tensor.stride
"""`size_of(tensor, dim)`, `stride_of(tensor, dim)`, in elements."""


def assert_true(condition: int, message: str, error: str) -> None:
    """Raise `error` (a value of `gyrator_ir.modes.Failure`) with `message` unless `condition` is
    true."""
    if not condition:
        raise Failure(error).exception(message)


def identity(value: Any) -> Any:
    """Return `value`: used by plans to store a constant in a register."""
    return value


def pack(*items: Any) -> list[Any]:
    """Return the arguments as a list: used by plans to pass a list of tensors."""
    return list(items)


def stack(rows: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Return the columns of `rows`, each stacked along a new first dimension."""
    return tuple(map(torch.stack, zip(*rows, strict=True)))


def over_storage(
    base: torch.Tensor,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    offset: int,
) -> torch.Tensor:
    """Return a tensor in the memory of `base`, at a byte `offset` from its first element.

    Outside of autograd. `offset` must be a multiple of the element size.
    """
    if dtype != base.dtype:
        if base.dtype == torch.uint8 and base.is_contiguous() and base.dim() == 1:
            divisible = base.numel() % dtype.itemsize == 0
            if divisible and base.storage_offset() % dtype.itemsize == 0:
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
    guards, "_reinterpret_tensor", _as_strided_reinterpret
)
"""`reinterpret(base, size, stride, offset)`: returns a tensor in the memory of `base`, at an
`offset` in elements from its first one, outside of autograd."""


check_nan = NanError.check
"""`check_nan(tensor, name)`: raises NanError if a tensor contains NaN or infinity."""


def read_scalar(tensor: torch.Tensor) -> bool | int | float | complex:
    """Return the single element of `tensor` as a Python number. Waits for its device."""
    return cast("bool | int | float | complex", tensor.item())


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy `source` to `target`, across dtypes, strides and devices, and return `target`."""
    return target.copy_(source, non_blocking)


def device_guard(device: str | torch.device) -> contextlib.AbstractContextManager[object]:
    """Make `device` current for the duration of a block. Does nothing without an index."""
    target = torch.device(device)
    if target.index is None or not _accelerated(target):
        return contextlib.nullcontext()
    return cast(
        contextlib.AbstractContextManager[object], torch.accelerator.device_index(target.index)
    )


def with_current_device(
    program: Callable[[list[Any]], Any], index: int | None
) -> Callable[[list[Any]], Any]:
    """Return a program that runs with device `index` as the current one.

    Returns `program` itself if there is at most one device or `index` is None.
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
    """Return a named range of PyTorch's profiler, or a null context if no profiler runs."""
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
    """Return Triton's descriptor of a tensor for the Tensor Memory Accelerator.

    RuntimeError for the experimental form (`stable` false), which Triton 3.6 does not have.
    """
    if not stable:
        raise RuntimeError("Triton 3.6 has no experimental TMA descriptors; use TensorDescriptor")
    from triton.tools.tensor_descriptor import TensorDescriptor  # optional

    return TensorDescriptor(base, list(shape), list(base.stride()), list(block))


def _accelerated(device: torch.device) -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type
