"""`column-softmax`: compute a softmax down columns by a pass for maxima and another for sums.

Along rows, `two-pass-reductions` processes a block at a time. Down columns, each lane is a point of
its own. An online softmax would cost two exponentials, or one and a selection, per element, and
rescale a sum in a wider type each time.
"""

from collections.abc import Iterator
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import value_names
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.writer import Names
from gyrator_ir.body.nodes import Bind, Let, Reduce, ReduceKind, Store
from gyrator_ir.body.rewrite import defined, live, renamed
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import KernelStatement, Level, Stage
from gyrator_ir.tile.nodes import Method, Reduction, TiledKernel


@frozen
class ColumnSoftmax(KernelPass):
    """Split each `online_softmax` whose lanes are points into two stages, a maximum and a sum of
    exponentials."""

    name: ClassVar[str] = "column-softmax"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        loops = nest(tiled) if tiled.reductions else None
        if loops is None or not loops.across or loops.lanes == 1:
            return tiled
        kernel, names = tiled.kernel, value_names(tiled.kernel)
        stages: list[Stage] = []
        for stage in kernel.stages:
            stages += _split(stage, names)
        if len(stages) == len(kernel.stages):
            return tiled
        old = {r.result: r for r in tiled.reductions}
        reduces = [s for stage in stages for s in stage.body if isinstance(s, Reduce)]
        reductions = tuple(
            old.get(s.names[0], Reduction(s.names[0], Method.ACCUMULATE)) for s in reduces
        )
        kernel = evolve(kernel, stages=tuple(stages))
        return evolve(tiled, kernel=kernel, reductions=reductions)


def _split(stage: Stage, names: Names) -> Iterator[Stage]:
    """Yield the stages that replace a stage: itself with maxima only, and a stage for the sums.

    Stages with stores are not split, since they may store to the buffers that the second stage
    loads again.
    """
    softmaxes = [
        s for s in stage.body if isinstance(s, Reduce) and s.kind is ReduceKind.ONLINE_SOFTMAX
    ]
    if not softmaxes or any(isinstance(s, Store | Bind) for s in stage.body):
        yield stage
        return
    maxima = {s.names[0]: evolve(s, names=s.names[:1], kind=ReduceKind.MAX) for s in softmaxes}
    first = [maxima.get(next(iter(defined(s)), ""), s) for s in stage.body]
    yield Stage(Level.INNER, tuple(first))
    values = [s for s in stage.body if not isinstance(s, Reduce)]
    again = live(values, [s.args[0] for s in softmaxes])
    new = {n: names.take(n) for s in again for n in defined(s)}
    second: list[KernelStatement] = [renamed(s, new, {}) for s in again]
    for s in softmaxes:
        top, total = s.names
        gap, part = names.take(f"{top}_gap"), names.take(f"{top}_part")
        x = new.get(s.args[0], s.args[0])
        second.append(Let(gap, "sub", (x, top), s.dtype))
        second.append(Let(part, "exp", (gap,), s.dtype))
        second.append(Reduce((total,), ReduceKind.SUM, (part,), s.dtype))
    yield Stage(Level.INNER, tuple(second))
