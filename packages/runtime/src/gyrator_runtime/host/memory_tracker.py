"""Memory checks of a host program while its text runs.

They verify the memory plan independently, from the addresses of the tensors.
"""

import linecache
import sys
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from attrs import field
from torch.multiprocessing import reductions

from gyrator_ir.define import define
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.host.debug import FILE, TextRuntime

_WEAK: Any = reductions.StorageWeakRef


class MemoryUseError(GyratorError):
    """A host program reused the memory of a live tensor, or leaked memory."""


@define(eq=False)
class _Tracked:
    """A tensor created by the text."""

    tensor: weakref.ref[torch.Tensor]
    owner: int
    """Tensors with the same owner are views of each other."""
    place: tuple[int, int]
    """Address range [start, end) in bytes."""
    line: str


@define(eq=False)
class TrackingRuntime(TextRuntime):
    """Runs the text and checks that live tensors do not overlap.

    Raises:
        MemoryUseError: GY-RUNTIME-005, when a tensor is placed in memory that is still in use;
            GY-RUNTIME-006, when memory that the program dropped is still alive at its end.
    """

    _live: list[_Tracked] = field(factory=list)
    _allocated: list[tuple[Any, str]] = field(factory=list)
    """A weak reference to each storage, and the line that allocated it."""
    _owners: int = 0

    def allocate(self, *layout: Any) -> torch.Tensor:
        """Return a new uninitialised strided tensor."""
        tensor = self._allocate(*layout)
        self._track(tensor, self._owner())
        return tensor

    def pool(self, nbytes: int, device: str) -> torch.Tensor:
        """Return the memory of a pool. Only the parts with tensors are in use."""
        return self._allocate((nbytes,), (1,), "u8", device)

    def from_pool(self, *place: Any) -> torch.Tensor:
        """Return a tensor at a byte offset of a pool."""
        tensor = super().from_pool(*place)
        self._separate(tensor, ())
        self._track(tensor, self._owner())
        return tensor

    def view(self, source: torch.Tensor, *layout: Any) -> torch.Tensor:
        """Return a strided view of a tensor, at an `offset` in elements from its first one."""
        result = super().view(source, *layout)
        for tracked in self._live:
            if tracked.tensor() is source:
                self._track(result, tracked.owner)
                break
        return result

    def reuse(self, source: torch.Tensor, *layout: Any) -> torch.Tensor:
        """Return a tensor in the memory of one that the next line drops."""
        tensor = super().view(source, *layout)
        self._separate(tensor, (source,))
        self._track(tensor, self._owner())
        return tensor

    def run(self, entry: str, args: Sequence[Any]) -> Any:
        """Run the program, and check that only its results remain alive."""
        results = super().run(entry, args)
        self._finish(results)
        return results

    def _finish(self, results: Any) -> None:
        """Raise MemoryUseError if memory other than that of results is alive."""
        result_storages = {
            t.untyped_storage()._cdata for t in results if isinstance(t, torch.Tensor)
        }
        dropped = [(ref, line) for ref, line in self._allocated if ref.cdata not in result_storages]
        leaked = [line for ref, line in dropped if not ref.expired()]
        if leaked:
            message = f"memory is still in use after the program ended, allocated by `{leaked[0]}`"
            help = "an op that was called keeps a reference to an argument"
            raise MemoryUseError.of("GY-RUNTIME-006", message, help=help)

    def _allocate(self, *layout: Any) -> torch.Tensor:
        tensor = super().allocate(*layout)
        self._allocated.append((_WEAK(tensor.untyped_storage()), _line()))
        return tensor

    def _owner(self) -> int:
        self._owners += 1
        return self._owners

    def _track(self, tensor: torch.Tensor, owner: int) -> None:
        self._live = [t for t in self._live if t.tensor() is not None]
        self._live.append(_Tracked(weakref.ref(tensor), owner, _place(tensor), _line()))

    def _separate(self, tensor: torch.Tensor, dropped: Sequence[torch.Tensor]) -> None:
        start, end = _place(tensor)
        for other in self._live:
            live_tensor = other.tensor()
            if live_tensor is None or any(live_tensor is d for d in dropped):
                continue
            if max(start, other.place[0]) < min(end, other.place[1]):
                message = f"`{_line()}` takes memory that is in use since `{other.line}`"
                help = "a bug of the compiler: please report it with the program's trace"
                raise MemoryUseError.of("GY-RUNTIME-005", message, help=help)


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.itemsize


def _line() -> str:
    """Return the current line of the text."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(FILE):
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame else ""
