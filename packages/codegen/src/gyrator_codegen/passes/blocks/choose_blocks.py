"""`choose-blocks`: how many points and how many elements of them a program holds at once."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.consecutive import consecutive_inside
from gyrator_codegen.extents import power_of_two
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Reduce, ReduceKind, ScanStep, SortStep, Store
from gyrator_ir.expr import Const, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Choice, Loop, LoopKind, Method, TiledKernel

_ELEMENT = 4  # bytes of what most rows hold
_KEPT = 4  # how much longer a row may be where a loop can't do it
_POINTS: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
_ROWS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
_ELEMENTS: tuple[int, ...] = (16, 64, 256, 1024, 2048, 4096)


@frozen
class ChooseBlocks(KernelPass):
    """Cut points into blocks, and hold rows whole or in blocks.

    Rows of up to `row_bytes` are held whole; those that a loop can't do, for they have a local, up
    to four times as much, and those to sort up to `sorted` elements: compilers take ever longer for
    the networks. Where elements are consecutive from point to point rather than along the row, a
    program holds many rows at once, shorter ones of up to `abreast` elements, and loops over blocks
    of points that lie within the last axis, if they have at least `level` points. Folds of products
    of up to `steps` elements are stepped through there.
    """

    name: ClassVar[str] = "choose-blocks"
    row_bytes: int = 32768
    sorted: int = 1024
    abreast: int = 64
    level: int = 32
    steps: int = 128

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        if tiled.choices:
            return tiled
        kernel = tiled.kernel
        symbols = tuple(a.symbol for a in kernel.axes)
        points: tuple[Loop, ...] = (Loop(LoopKind.GRID, symbols, "XBLOCK"),)
        if not kernel.inner:
            return evolve(tiled, loops=points, choices=(Choice("XBLOCK", _POINTS),))
        across = not consecutive_inside(kernel)
        block = self._whole(kernel, across)
        reductions, rows, elements = tiled.reductions, _ROWS, _ELEMENTS
        if across and self._stepped(kernel):
            rows, elements = _POINTS, (1,)
        elif block is not None:
            elements = (block,)
            reductions = tuple(evolve(r, method=Method.AT_ONCE) for r in reductions)
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
        """Say whether a loop takes one inner element of many points at a time.

        That is best for a short fold of products across what is consecutive, as a convolution of
        each channel alone is: what is read lies side by side, and the element's place is the same
        for all.
        """
        inside = [stage for stage in kernel.stages if stage.level is Level.INNER]
        extent = extent_of(kernel.inner)
        if kernel.locals or len(inside) != 1 or not isinstance(extent, Const):
            return False
        folds = [s for s in inside[0].body if isinstance(s, Reduce)]
        dots = bool(folds) and all(s.kind is ReduceKind.DOT for s in folds)
        others = any(isinstance(s, Store | SortStep | ScanStep | Bind) for s in inside[0].body)
        return dots and 1 < extent.value <= self.steps and not others

    def _whole(self, kernel: Kernel, across: bool) -> int | None:
        """Return the block that holds all inner elements of a point, or None for a loop."""
        extent = extent_of(kernel.inner)
        if not isinstance(extent, Const):
            return None
        bound = max(self.row_bytes // _ELEMENT, 1024)
        if sorts(kernel):
            bound = self.sorted
        elif kernel.locals:
            bound *= _KEPT
        elif across:
            bound = min(bound, self.abreast)
        block = power_of_two(extent.value)
        return block if block <= bound else None

    def _level(self, kernel: Kernel) -> int:
        """Return the longest block of points that always lies within the last axis; 0 where blocks
        may be of any length.

        In such a block the other axes stand still: what is loaded by them alone is loaded once, not
        for every point. That matters to loops which fold across what is consecutive.
        """
        extent = kernel.axes[-1].extent if len(kernel.axes) > 1 else None
        if not isinstance(extent, Const):
            return 0
        longest = extent.value & -extent.value
        return longest if longest >= self.level else 0


def sorts(kernel: Kernel) -> bool:
    """Say whether the kernel sorts its rows."""
    return any(isinstance(s, SortStep) for stage in kernel.stages for s in stage.body)
