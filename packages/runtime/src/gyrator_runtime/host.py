"""What a host program calls, as one flat namespace.

A generated Python host program is executed with `namespace(...)` as its globals. Everything that
can be prepared once is a function that returns a prepared callable (`allocator`, `extern`,
`Launcher`): a program calls those at its top and the results on each run.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from gyrator_ir.diagnostics import Diagnostic, GyratorError
from gyrator_runtime.device import Allocator, DeviceInterface, Event, Stream
from gyrator_runtime.externs import extern
from gyrator_runtime.native import (
    Buffer,
    Call,
    Const,
    Drop,
    GetItem,
    IntTuple,
    Launch,
    Move,
    Plan,
    PlanProgram,
    Reg,
    Return,
    Runner,
    SizeArg,
    SizeProgram,
)
from gyrator_runtime.philox import seed_offset, seed_tensor

_GUARDS: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


class NanError(GyratorError):
    """A buffer holds NaN while NaN checks are on."""


@functools.cache
def allocator(device: str | torch.device) -> Allocator:
    """Return `allocate(size, stride, dtype)` for `device`: torch's quick entry where it has one."""
    place = torch.device(device)
    quick: Any = getattr(_GUARDS, f"_empty_strided_{place.type}", None)
    if quick is not None and place.index in (None, 0):
        return cast(Allocator, quick)

    def allocate(
        size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=place)

    return allocate


def empty_strided(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str | torch.device,
) -> torch.Tensor:
    """Return an uninitialised tensor; sizes and strides in elements."""
    return allocator(device)(size, stride, dtype)


def empty_pool(nbytes: int, device: str | torch.device) -> torch.Tensor:
    """Return `nbytes` uninitialised bytes (uint8), aligned to 64, from which buffers are cut."""
    return allocator(device)((nbytes,), (1,), torch.uint8)


def as_strided(
    base: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int = 0,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return a view of the storage of `base`.

    `offset` counts elements of the result's dtype from the start of the storage; `dtype` None
    keeps that of `base`.
    """
    if dtype is not None and dtype != base.dtype:
        whole = torch.empty((0,), dtype=dtype, device=base.device)
        return whole.set_(base.untyped_storage(), offset, tuple(size), tuple(stride))
    return torch.as_strided(base, size, stride, offset)


def reinterpret(
    base: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0
) -> torch.Tensor:
    """Return a view as `as_strided` does, but `offset` counts from the first element of `base`.

    Outside autograd, and quicker (about a quarter of the time).
    """
    if _GUARDS is not None and hasattr(_GUARDS, "_reinterpret_tensor"):
        return cast(torch.Tensor, _GUARDS._reinterpret_tensor(base, size, stride, offset))
    return torch.as_strided(base.detach(), size, stride, base.storage_offset() + offset)


def _assert_size_stride(
    tensor: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], name: str = ""
) -> None:
    """AssertionError unless sizes match, and strides do where a size is above 1."""
    if tuple(tensor.shape) != tuple(sizes) or any(
        have != want
        for n, have, want in zip(tensor.shape, tensor.stride(), strides, strict=True)
        if n > 1
    ):
        raise AssertionError(
            f"expected size {tuple(sizes)} stride {tuple(strides)}, got size "
            f"{tuple(tensor.shape)} stride {tensor.stride()}\nError in op: {name}"
        )


def _assert_alignment(tensor: torch.Tensor, alignment: int, name: str = "") -> None:
    """AssertionError unless the first element lies at a multiple of `alignment` bytes."""
    if tensor.data_ptr() % alignment:
        raise AssertionError(f"expected alignment to {alignment} bytes\nError in op: {name}")


assert_size_stride: Callable[..., None] = getattr(
    _GUARDS, "assert_size_stride", _assert_size_stride
)
"""`assert_size_stride(tensor, sizes, strides, name)`: AssertionError unless they match."""

assert_alignment: Callable[..., None] = getattr(_GUARDS, "assert_alignment", _assert_alignment)
"""`assert_alignment(tensor, bytes, name)`: AssertionError unless the data is so aligned."""


def check_nan(tensor: torch.Tensor, name: str) -> None:
    """NanError (GY-RUNTIME-003) where a floating or complex `tensor` holds NaN."""
    if (tensor.is_floating_point() or tensor.is_complex()) and bool(torch.isnan(tensor).any()):
        count = int(torch.isnan(tensor).sum())
        raise NanError(
            Diagnostic(
                "GY-RUNTIME-003",
                f"buffer {name} holds {count} NaN of {tensor.numel()} elements",
                help="look at the operation that made it; checks are an option of the compile",
            )
        )


def read_scalar(tensor: torch.Tensor) -> bool | int | float | complex:
    """Return the one element of `tensor` as a Python number (waits for its device)."""
    return cast("bool | int | float | complex", tensor.item())


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy `source` into `target`, across dtypes, strides and devices; return `target`."""
    return target.copy_(source, non_blocking)


def profile_range(name: str) -> contextlib.AbstractContextManager[object]:
    """A named range in torch's profiler; nothing (0.1 us) while no profiler runs."""
    if torch._C._autograd._profiler_enabled():
        return cast(contextlib.AbstractContextManager[object], torch.profiler.record_function(name))
    return contextlib.nullcontext()


def make_launcher(
    runner: Runner, steps: Sequence[Launch], *, n_args: int | None = None, timed: bool = False
) -> Plan:
    """Return `launcher(*args)`, which runs `steps` in one native call and returns None.

    Argument k is register k of the steps. `n_args` is one more than the highest register used
    unless given.
    """
    used = [b.register for s in steps for b in s.buffers]
    sizes = [x for s in steps for x in (*s.sizes, *(b.offset for b in s.buffers))]
    for size in sizes:
        if isinstance(size, SizeArg):
            used.append(size.register)
        elif isinstance(size, SizeProgram):
            used += [k for name, k in size.code if name == "arg"]
    count = max(used, default=-1) + 1 if n_args is None else n_args
    return runner.plan(PlanProgram(count, count, tuple(steps), timed=timed))


def namespace(runner: Runner, devices: Mapping[str, DeviceInterface]) -> dict[str, object]:
    """Return the globals of a host program: every function of this page, and those below.

    `Launcher(steps, n_args=None, timed=False)` and `HostPlan(program)` make plans on `runner`;
    `device(type)` is the `DeviceInterface`, `device_guard(type, index)`, `current_stream(type)`,
    `new_stream`, `new_event` and `synchronize` ask it.
    """

    def launcher(
        steps: Sequence[Launch], *, n_args: int | None = None, timed: bool = False
    ) -> Plan:
        return make_launcher(runner, steps, n_args=n_args, timed=timed)

    def device(kind: str) -> DeviceInterface:
        return devices[kind]

    def device_guard(kind: str, index: int) -> contextlib.AbstractContextManager[object]:
        return devices[kind].guard(index)

    def current_stream(kind: str, index: int = 0) -> Stream:
        return devices[kind].current_stream(index)

    def new_stream(kind: str, index: int = 0) -> Stream:
        return devices[kind].new_stream(index)

    def stream_guard(kind: str, stream: Stream) -> contextlib.AbstractContextManager[object]:
        return devices[kind].stream_guard(stream)

    def new_event(kind: str) -> Event:
        return devices[kind].new_event()

    def synchronize(kind: str, index: int = 0) -> None:
        devices[kind].synchronize(index)

    here = (
        *(allocator, empty_strided, empty_pool, as_strided, reinterpret, check_nan),
        *(read_scalar, copy, profile_range, extern, seed_offset, seed_tensor),
        *(Buffer, Launch, SizeArg, SizeProgram, Call, Const, Drop, GetItem, IntTuple, Move),
        *(PlanProgram, Reg, Return),
        *(device, device_guard, current_stream, new_stream, stream_guard, new_event, synchronize),
    )
    return {
        **{item.__name__: item for item in here},
        "torch": torch,
        "assert_size_stride": assert_size_stride,
        "assert_alignment": assert_alignment,
        "Launcher": launcher,
        "HostPlan": runner.plan,
    }
