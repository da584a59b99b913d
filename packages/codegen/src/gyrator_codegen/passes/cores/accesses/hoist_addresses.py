"""`hoist-addresses`: hoist the loop-invariant part of addresses out of the innermost loop."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import ordered
from gyrator_codegen.lanes import split_terms
from gyrator_codegen.nests import Nest, nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, SortStep
from gyrator_ir.body.rewrite import expressions
from gyrator_ir.define import frozen
from gyrator_ir.expr import ZERO, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Level, Stage
from gyrator_ir.tile.nodes import Access, IndexAccess, TiledKernel

_BY_LANE = (Access.GATHERED, Access.RUNS, Access.LANES)


@frozen
class HoistAddresses(KernelPass):
    """Split the indices of accesses into a hoisted part and the rest. This pass runs after
    `hoist-values` and `classify-accesses`."""

    name: ClassVar[str] = "hoist-addresses"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        loops = nest(tiled)
        if loops is None or tiled.transposed:
            return tiled
        body = tiled.kernel.statements
        lanes = {loops.symbol, *(s.symbol for s in body if isinstance(s, Bind))}
        moving: dict[Expr, frozenset[Sym]] = {}
        for stage in tiled.kernel.stages:
            symbols = _stepped(tiled, stage, loops)
            for e in (e for s in stage.body for e in expressions(s)):
                if symbols:
                    moving.setdefault(e, symbols)
        for section in tiled.sections:
            symbols = _stepped(tiled, tiled.kernel.stages[0], loops)
            for _, index in section.indices:
                moving.setdefault(index, symbols)
        for p in tiled.prefetches:
            moving.setdefault(p.index, _stepped(tiled, tiled.kernel.stages[p.stage], loops))

        def split(a: IndexAccess) -> IndexAccess:
            symbols = moving.get(a.index, frozenset())
            if a.kind in _BY_LANE:
                symbols |= lanes  # bound symbols may differ between lanes
            ahead, rest = split_terms(a.index, symbols)
            return a if rest is ZERO else evolve(a, ahead=ahead)

        return evolve(tiled, accesses=tuple(map(split, tiled.accesses)))


def _stepped(tiled: TiledKernel, stage: Stage, loops: Nest) -> frozenset[Sym]:
    """Return the symbols that vary between steps of a stage's innermost loop."""
    inner = [a.symbol for a in tiled.kernel.inner]
    bound = {s.symbol for s in stage.body if isinstance(s, Bind)}
    bound = {symbol for symbol in bound if symbol.name not in tiled.ahead}
    if stage.level is Level.OUTER or not inner:
        around = {loops.symbol, *inner} if loops.across else set()
    elif any(isinstance(s, SortStep) for s in stage.body):
        around = set(inner)
    elif loops.columns:
        around = {loops.symbol}
    elif ordered(stage):
        around = {inner[-1]}
    else:
        last = [x.axes[0] for x in tiled.loops if x.axes[0] in inner][-1]
        around = {last}
    return frozenset(around | bound) if around else frozenset()
