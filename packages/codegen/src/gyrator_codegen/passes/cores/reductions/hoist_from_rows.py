"""`hoist-from-rows`: compute what the rows of a strip share once for each point.

A strip of points is reduced row by row, and its later stages run row by row too. What depends on
the point alone, such as the mean that a gradient subtracts, would be computed again in each row.
"""

from collections import Counter
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import invariant, work
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Const, Let
from gyrator_ir.body.rewrite import defined, live, used, writes
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level, Stage
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class HoistFromRows(KernelPass):
    """Move values from the rows of a strip to a stage of points before them.

    Loads are moved only if there are rows, so this pass runs after `nonempty-rows`.
    """

    name: ClassVar[str] = "hoist-from-rows"
    least: int = 4
    """Minimum saving in a row relative to an addition: that of a division. A row loads each value
    that it uses instead."""

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled)
        if loops is None or not loops.columns or tiled.prefetches:
            return tiled
        stages: list[Stage] = []
        for stage in kernel.stages:
            moving = self._moving(kernel, stage, tiled.nonempty)
            if moving:
                is_first = not stages or stages[-1].level is Level.INNER
                ahead = () if is_first else stages.pop().body
                stages.append(Stage(Level.OUTER, (*ahead, *moving)))
                stage = evolve(stage, body=tuple(s for s in stage.body if s not in moving))
            stages.append(stage)
        moved = evolve(kernel, stages=tuple(stages))
        # Launches pass the buffers in the order of the loads.
        return tiled if moved.reads != kernel.reads else evolve(tiled, kernel=moved)

    def _moving(self, kernel: Kernel, stage: Stage, nonempty: bool) -> tuple[KernelStatement, ...]:
        """Return the statements of a stage of rows that are computed once for each point."""
        if stage.level is Level.OUTER:
            return ()
        symbols = [a.symbol for a in kernel.inner]
        fixed, _ = invariant(stage.body, symbols, set(writes(kernel.statements)), nonempty)
        values = _of_points(fixed)
        moving = live(fixed, [s.name for s in values])
        names = {name for s in moving for name in defined(s)}
        left = {name for s in stage.body if s not in moving for name in used(s)}
        if work(values) - len(left.intersection(s.name for s in values)) < self.least:
            return ()
        # Values of different stages of rows may have the same name.
        counts = Counter(name for s in kernel.statements for name in defined(s))
        is_shared = any(counts[name] > 1 for name in names)
        # Strips have no stages of points that look up indices.
        return () if is_shared or any(isinstance(s, Bind) for s in moving) else moving


def _of_points(fixed: list[KernelStatement]) -> list[Let]:
    """Return the computed values that are not constant."""
    constant: set[str] = set()
    values: list[Let] = []
    for s in fixed:
        if isinstance(s, Const) or (isinstance(s, Let) and constant.issuperset(s.args)):
            constant.update(defined(s))
        elif isinstance(s, Let):
            values.append(s)
    return values
