"""`interleave-scans`: scan several rows at once."""

from collections.abc import Iterator
from math import prod
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import extent_guess, ordered, static
from gyrator_codegen.passes.cores.unroll_periods import only_sets, same_parameters
from gyrator_codegen.passes.cores.vectorize import LANES_GUESS, choose_vector_axis
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.passes.unroller import Unroller, split_axis
from gyrator_ir.body.nodes import Axis, ScanKind, ScanStep, SortStep
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.tile.plain import untiled


@frozen
class InterleaveScans(KernelPass):
    """Let a point scan several rows, in a kernel whose inner stages are scans along the inner axes.

    Each step of a scan waits for the one before it, which takes several cycles; those of other rows
    need not. Every row is still scanned in order. Sums of integers wait for one cycle, and gain
    nothing. This pass runs before any decisions.
    """

    cores: int = 1
    lanes: int = LANES_GUESS
    """Elements of a vector for which the cost of accesses is compared."""
    rows: int = 4
    """Maximum number of rows of a point."""
    statements: int = 96
    """Maximum number of statements of a kernel."""

    name: ClassVar[str] = "interleave-scans"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if not _only_scans(kernel) or not _waits(kernel):
            return tiled
        if choose_vector_axis(kernel, self.lanes) not in kernel.inner:
            return tiled
        for axis, rows in self._choices(kernel):
            shorter, points = split_axis(kernel, axis, rows)
            unroller = Unroller(kernel, axis.symbol, points)
            stages = (Stage(s.level, tuple(unroller.unrolled(s.body))) for s in kernel.stages)
            interleaved = evolve(shorter, stages=tuple(stages))
            if same_parameters(kernel, interleaved):
                result = untiled(interleaved)
                assert isinstance(result, TiledKernel)
                return result
        return tiled

    def _choices(self, kernel: Kernel) -> Iterator[tuple[Axis, int]]:
        """Yield axes whose rows can be scanned together, with the number of rows, best first."""
        points = prod(extent_guess(a.extent) for a in kernel.axes)
        size = sum(len(stage.body) for stage in kernel.stages)
        rows = self.rows
        while rows > 1:
            if points >= rows * self.cores and size * rows <= self.statements:
                for axis in reversed(kernel.axes):
                    if (static(axis.extent) or 1) % rows == 0:
                        yield axis, rows
            rows //= 2


def _only_scans(kernel: Kernel) -> bool:
    inner = [stage for stage in kernel.stages if stage.level is Level.INNER]
    body = [s for stage in inner for s in stage.body]
    return (
        bool(inner)
        and not kernel.locals
        and all(map(ordered, inner))
        and not any(isinstance(s, SortStep) for s in body)
        and only_sets(kernel)
    )


def _waits(kernel: Kernel) -> bool:
    """Return whether a step of a scan takes longer than one addition of integers."""
    scans = (s for s in kernel.statements if isinstance(s, ScanStep))
    return any(s.kind is not ScanKind.SUM or not s.dtype.is_int for s in scans)
