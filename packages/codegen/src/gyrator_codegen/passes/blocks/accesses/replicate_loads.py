"""`replicate-loads`: what all rows of a block share is loaded for each, as a norm's weights are.

A block of one row is spread over all threads, an element each, and the compiler then spreads the
other rows in the same way: it moves them through shared memory, and has each thread repeat what is
done once a row. Loaded for each point, it lies as they do, in vectors.
"""

from collections.abc import Iterable
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.consecutive import consecutive, consecutive_inside
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Axis, Bind, Load, Reduce, ScanStep, SortStep
from gyrator_ir.body.rewrite import AnyStatement, defined, expressions, used
from gyrator_ir.expr import ONE, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.tile.loops import in_one_step
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class ReplicateLoads(KernelPass):
    """Replicate loads that run along rows which are held whole and consecutive in memory."""

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
        mine = set(moving)
        for s in stage.body:
            if _varies(s, mine, symbols):
                mine.update(defined(s))
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
        moving = mine if not inner else moving | _results(stage)
    return tuple(shared)


def _symbols(axes: Iterable[Axis]) -> set[Sym]:
    return {a.symbol for a in axes if a.extent is not ONE}


def _results(stage: Stage) -> set[str]:
    """Return the values that later stages see."""
    return {name for s in stage.body if isinstance(s, Reduce) for name in s.names}


def _varies(s: AnyStatement, moving: set[str], symbols: set[Sym]) -> bool:
    if isinstance(s, Reduce | ScanStep | SortStep) or not moving.isdisjoint(used(s)):
        return True
    return any(not symbols.isdisjoint(e.free_symbols) for e in expressions(s))
