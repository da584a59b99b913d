"""`replicate-loads`: load values that all rows of a block share, such as the weights of a norm, for
each row.

If such a value is loaded as a single row, its elements are distributed over all threads, one each,
and the compiler converts the other rows to that layout: it moves them through shared memory, and
every thread repeats the computation of each row. A value loaded for each point has the same
vectorised layout as the rows.
"""

from collections.abc import Iterable
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.lanes import consecutive, consecutive_inside
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Axis, Bind, Load, Reduce, ScanStep, SortStep
from gyrator_ir.body.rewrite import AnyStatement, defined, expressions, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.tile.loops import in_one_step
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class ReplicateLoads(KernelPass):
    """Replicate loads along rows that are processed whole and contiguous in memory."""

    name: ClassVar[str] = "replicate-loads"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if not kernel.inner or not in_one_step(tiled) or not consecutive_inside(kernel):
            return tiled
        return evolve(tiled, replicated=_shared(kernel))


def _shared(kernel: Kernel) -> tuple[str, ...]:
    """Return the loads along rows that do not vary from point to point."""
    moving: set[str] = set()
    symbols, row = _symbols(kernel.axes), _symbols(kernel.inner)
    local = {t.name for t in kernel.locals}
    shared: dict[str, None] = {}
    for stage in kernel.stages:
        inner = stage.level is Level.INNER
        varying = set(moving)
        for s in stage.body:
            if _varies(s, varying, symbols):
                varying.update(defined(s))
                if isinstance(s, Bind):
                    symbols.add(s.symbol)
            elif (
                inner
                and isinstance(s, Load)
                and s.buffer not in local
                and not row.isdisjoint(s.index.free_symbols)
                and consecutive(s.index, kernel.inner[-1])
            ):
                shared[s.name] = None
        moving = varying if not inner else moving | _results(stage)
    return tuple(shared)


def _symbols(axes: Iterable[Axis]) -> set[Sym]:
    return {a.symbol for a in axes if a.extent is not ONE}


def _results(stage: Stage) -> set[str]:
    """Return the values of an inner stage that are visible in later stages."""
    return {name for s in stage.body if isinstance(s, Reduce) for name in s.names}


def _varies(s: AnyStatement, moving: set[str], symbols: set[Sym]) -> bool:
    if isinstance(s, Reduce | ScanStep | SortStep) or not moving.isdisjoint(used(s)):
        return True
    return any(not symbols.isdisjoint(e.free_symbols) for e in expressions(s))
