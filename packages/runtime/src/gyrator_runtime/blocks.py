"""Large host blocks that are kept for the next call.

glibc maps and unmaps a block of 32 MiB or more on every allocation, so each call pays a page
fault for every 4 KiB: `x + 1` with a 64 MiB result takes 3 to 8 times as long as into memory that
is already mapped. `BlockCache.allocate` hands out blocks again that nobody else refers to any more.

A block is reused only for exactly the same number of bytes, so that a tensor's storage is as large
as eager's. Before a new block is made, idle ones go, as far as needed to keep what is held at or
below the most that was ever in use at one time.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from attrs import define

from gyrator_runtime.device import host_allocator
from gyrator_runtime.host import over_storage

THRESHOLD = 32 << 20
"""Bytes from which glibc always maps a block afresh."""

_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


@define(eq=False)
class _Block:
    base: torch.Tensor  # uint8, the whole storage
    storage: Any  # its Python object, whose references count as well
    nbytes: int
    idle: tuple[int, int] = (0, 0)  # the counts while only this cache refers to it

    def counts(self) -> tuple[int, int]:
        uses = _use_count(self.storage._cdata) if _use_count is not None else 0
        return uses, sys.getrefcount(self.storage)


class BlockCache:
    """Allocates host tensors; keeps large blocks for reuse. Safe to use from many threads."""

    def __init__(self, threshold: int = THRESHOLD) -> None:
        self.threshold = threshold
        self._quick = host_allocator()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._blocks: list[_Block] = []  # the most recently used last
        self._peak = 0

    def allocate(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return an uninitialised tensor; sizes and strides in elements."""
        nbytes = _span(size, stride) * dtype.itemsize
        if nbytes < self.threshold or _use_count is None:
            return self._quick(size, stride, dtype)
        with self._own_lock():
            block = self._take(nbytes)
            # Made under the lock: until then the block looks idle to others.
            return over_storage(block.base, size, stride, dtype, 0)

    def held(self) -> int:
        """Bytes of all blocks, in use or idle, that this cache refers to."""
        with self._own_lock():
            return sum(b.nbytes for b in self._blocks)

    def clear(self) -> None:
        """Forget all blocks; those in use live on until their tensors die."""
        with self._own_lock():
            self._blocks = []

    def _own_lock(self) -> threading.Lock:
        if os.getpid() != self._pid:  # a thread of the parent may have held it at the fork
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _take(self, nbytes: int) -> _Block:
        idle = [b for b in self._blocks if b.counts() == b.idle]
        for block in reversed(idle):
            if block.nbytes == nbytes:
                self._blocks.remove(block)
                self._blocks.append(block)
                self._note_peak(idle, nbytes)
                return block
        self._note_peak(idle, nbytes)
        held = sum(b.nbytes for b in self._blocks) + nbytes
        while idle and held > self._peak:
            victim = idle.pop(0)
            self._blocks.remove(victim)
            held -= victim.nbytes
        base = self._quick((nbytes,), (1,), torch.uint8)
        block = _Block(base, base.untyped_storage(), nbytes)
        self._blocks.append(block)
        del base
        block.idle = block.counts()
        return block

    def _note_peak(self, idle: list[_Block], nbytes: int) -> None:
        in_use = sum(b.nbytes for b in self._blocks) - sum(b.nbytes for b in idle)
        # A block that was found idle is about to be used: `nbytes` stands for it.
        self._peak = max(self._peak, in_use + nbytes)


def _span(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last, 0 for an empty tensor."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
