"""Following the memory of a host program while its text runs.

For whoever doubts a plan of memory: it asks the tensors themselves, and no plan.
"""

import linecache
import sys
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from attrs import define, field
from torch.multiprocessing import reductions

from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.host.debug import FILE, TextRuntime

_WEAK: Any = reductions.StorageWeakRef


class MemoryUseError(GyratorError):
    """A host program gave the memory of a live tensor to another, or kept what it dropped."""


@define(eq=False)
class _Tracked:
    """A tensor that the text made."""

    tensor: weakref.ref[torch.Tensor]
    owner: int
    """Tensors of one owner are views of one another."""
    place: tuple[int, int]
    """Address of its first byte, and behind its last."""
    line: str


@define(eq=False)
class TrackingRuntime(TextRuntime):
    """Runs the text, and compares the memory of the tensors that live.

    MemoryUseError: GY-RUNTIME-005 where a tensor is placed in memory of one that is still in use;
    GY-RUNTIME-006 where memory is held that the program allocated, dropped and did not return.
    """

    _live: list[_Tracked] = field(factory=list)
    _allocated: list[tuple[Any, str]] = field(factory=list)
    """A weak reference to each storage, and the line that it comes from."""
    _owners: int = 0

    def allocate(
        self, sizes: Sequence[int], strides: Sequence[int], dtype: str, device: str
    ) -> torch.Tensor:
        """Return a new strided tensor, uninitialised."""
        made = self._allocate(sizes, strides, dtype, device)
        self._track(made, self._owner())
        return made

    def pool(self, nbytes: int, device: str) -> torch.Tensor:
        """Return memory that tensors are placed in; it is in use where they are."""
        return self._allocate((nbytes,), (1,), "u8", device)

    def from_pool(
        self, pool: torch.Tensor, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...],
        dtype: str,
    ) -> torch.Tensor:  # fmt: skip
        """Return a tensor at a byte offset of a pool."""
        made = super().from_pool(pool, offset, sizes, strides, dtype)
        self._separate(made, ())
        self._track(made, self._owner())
        return made

    def view(
        self, source: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str,
        offset: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """Return a strided view of a tensor, `offset` counted from its first element."""
        made = super().view(source, sizes, strides, dtype, offset)
        for tracked in self._live:
            if tracked.tensor() is source:
                self._track(made, tracked.owner)
                break
        return made

    def reuse(
        self, source: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str,
        offset: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """Return a tensor in the memory of one that the next line drops."""
        made = super().view(source, sizes, strides, dtype, offset)
        self._separate(made, (source,))
        self._track(made, self._owner())
        return made

    def run(self, entry: str, args: Sequence[Any]) -> Any:
        """Run the whole program; then nothing may be held but what it returns."""
        results = super().run(entry, args)
        self._finish(results)
        return results

    def _finish(self, results: Any) -> None:
        """Raise where memory is held that is no result's."""
        kept = {t.untyped_storage()._cdata for t in results if isinstance(t, torch.Tensor)}
        dropped = [(ref, line) for ref, line in self._allocated if ref.cdata not in kept]
        held = [line for ref, line in dropped if not ref.expired()]
        if held:
            message = f"memory is still in use after the program ended, allocated by `{held[0]}`"
            help = "an op that was called keeps a tensor that it was given"
            raise MemoryUseError.of("GY-RUNTIME-006", message, help=help)

    def _allocate(self, *layout: Any) -> torch.Tensor:
        made = super().allocate(*layout)
        self._allocated.append((_WEAK(made.untyped_storage()), _line()))
        return made

    def _owner(self) -> int:
        self._owners += 1
        return self._owners

    def _track(self, tensor: torch.Tensor, owner: int) -> None:
        self._live = [t for t in self._live if t.tensor() is not None]
        self._live.append(_Tracked(weakref.ref(tensor), owner, _place(tensor), _line()))

    def _separate(self, made: torch.Tensor, dropped: Sequence[torch.Tensor]) -> None:
        start, end = _place(made)
        for other in self._live:
            tensor = other.tensor()
            if tensor is None or any(tensor is d for d in dropped):
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
    """Return the line of the text that runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(FILE):
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame else ""
