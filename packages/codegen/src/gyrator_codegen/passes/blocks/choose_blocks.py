"""`choose-blocks`: the numbers of points and of inner elements per block of a program."""

from collections import Counter
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import power_of_two
from gyrator_codegen.lanes import consecutive_inside
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import (
    POSITIONS,
    Bind,
    Load,
    Reduce,
    ReduceKind,
    ScanStep,
    SortStep,
    Store,
)
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Choice, Loop, LoopKind, Method, TiledKernel

_ELEMENT = 4  # bytes of a typical element
_KEPT = 4  # factor for rows that a loop cannot process
_POINTS: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
_ROWS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
_ELEMENTS: tuple[int, ...] = (16, 64, 256, 1024, 2048, 4096)


@frozen
class ChooseBlocks(KernelPass):
    """Divide points into blocks, and process rows of inner elements whole or in blocks.

    Rows of up to `row_bytes` are processed whole. Rows of kernels with a local, which a loop cannot
    process, may be four times as long; rows to sort have at most `sorted` elements, because compile
    time grows quickly with the sorting network. If elements are contiguous from point to point
    rather than along the row, a program processes many rows at once: whole if they have at most
    `across` elements, else by a loop whose blocks of points are within the last axis, if it allows
    blocks of at least `level` points. Rows of up to `again` elements are also processed whole if
    they would be read again after a reduction, fewer of elements narrower than 4 bytes. Dot
    reductions of up to `steps` elements, and others of up to `few`, are done there one element at a
    time.

    A program of a kernel with totals loops over the points that these sum over.
    """

    name: ClassVar[str] = "choose-blocks"
    row_bytes: int = 32768
    sorted: int = 1024
    across: int = 64
    again: int = 512
    level: int = 32
    steps: int = 128
    few: int = 8

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        if tiled.choices:
            return tiled
        kernel = tiled.kernel
        symbols = tuple(a.symbol for a in kernel.axes)
        points: tuple[Loop, ...] = (Loop(LoopKind.GRID, symbols, "XBLOCK"),)
        if not kernel.inner:
            return evolve(tiled, loops=points, choices=(Choice("XBLOCK", _POINTS),))
        summed = tuple(a.symbol for a in kernel.summed)
        across = not consecutive_inside(kernel) and not summed
        block = self._whole(kernel, across)
        reductions, rows, elements = tiled.reductions, _ROWS, _ELEMENTS
        if across and self._stepped(kernel):
            rows, elements = _POINTS, (1,)
        elif block is not None:
            elements = (block,)
            reductions = tuple(evolve(r, method=Method.AT_ONCE) for r in reductions)
            if summed:
                first = Loop(LoopKind.GRID, symbols[: -len(summed)])
                points = first, Loop(LoopKind.LOOP, summed, "XBLOCK")
        elif across and (longest := self._level(kernel)):
            rows = tuple(x for x in _ROWS if x <= longest)
            points = (
                Loop(LoopKind.GRID, symbols[:-1]),
                Loop(LoopKind.GRID, symbols[-1:], "XBLOCK"),
            )
        inner = Loop(LoopKind.LOOP, tuple(a.symbol for a in kernel.inner), "RBLOCK")
        choices = Choice("XBLOCK", rows), Choice("RBLOCK", elements)
        return evolve(tiled, loops=(*points, inner), reductions=reductions, choices=choices)

    def _stepped(self, kernel: Kernel) -> bool:
        """Return whether a loop should process one inner element of many points at a time.

        This is best for short reductions whose points are contiguous, such as depthwise
        convolutions: loads are contiguous, the index of the inner element is the same for all
        points, and no threads exchange partial results.
        """
        inside = [stage for stage in kernel.stages if stage.level is Level.INNER]
        extent = extent_of(kernel.inner)
        if kernel.locals or len(inside) != 1 or not isinstance(extent, Const):
            return False
        folds = [s for s in inside[0].body if isinstance(s, Reduce)]
        if not folds or any(len(s.names) > 1 or s.kind in POSITIONS for s in folds):
            return False
        dots = all(s.kind is ReduceKind.DOT for s in folds)
        others = any(isinstance(s, Store | SortStep | ScanStep | Bind) for s in inside[0].body)
        return 1 < extent.value <= (self.steps if dots else self.few) and not others

    def _whole(self, kernel: Kernel, across: bool) -> int | None:
        """Return the block size that covers all inner elements of a point, or None for a loop."""
        extent = extent_of(kernel.inner)
        if not isinstance(extent, Const):
            return None
        bound = max(self.row_bytes // _ELEMENT, 1024)
        if sorts(kernel):
            bound = self.sorted
        elif kernel.locals:
            bound *= _KEPT
        elif across:
            bound = min(bound, max(self.across, self._held(kernel)))
        block = power_of_two(extent.value)
        return block if block <= bound else None

    def _held(self, kernel: Kernel) -> int:
        """Return the largest number of inner elements to hold rather than to read again."""
        sizes = read_again(kernel)
        widest = max(sizes, default=0)
        if widest >= _ELEMENT:
            return self.again
        # Registers hold narrower elements converted.
        return self.again * widest // _ELEMENT // max(len(sizes), 1)

    def _level(self, kernel: Kernel) -> int:
        """Return the largest block of points that never crosses the end of the last axis, or 0 for
        no restriction.

        The other axes are constant within such a block, so that loads which do not depend on the
        last axis are done once per block. This matters for loops that reduce across contiguous
        points.
        """
        extent = kernel.axes[-1].extent if len(kernel.axes) > 1 else None
        if not isinstance(extent, Const):
            return 0
        longest = extent.value & -extent.value
        return longest if longest >= self.level else 0


def sorts(kernel: Kernel) -> bool:
    """Return whether the kernel sorts its rows."""
    return any(isinstance(s, SortStep) for s in kernel.statements)


def read_again(kernel: Kernel) -> list[int]:
    """Return the element size in bytes of each parameter of which several stages load the inner
    elements of a point."""
    axes = {a.symbol for a in kernel.axes}
    loaded = Counter[str]()
    for stage in kernel.stages:
        if stage.level is Level.INNER:
            loads = (s for s in stage.body if isinstance(s, Load))
            loaded.update({s.buffer for s in loads if axes & s.index.free_symbols})
    return [b.dtype.size for b in kernel.parameters if loaded[b.name] > 1]
