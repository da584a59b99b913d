"""`classify-accesses`: how each index of a kernel varies across the lanes of a vector."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import linear_position, ordered
from gyrator_codegen.lanes import lane_access
from gyrator_codegen.nests import Nest, nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Load, Reduce, ScanStep, Store
from gyrator_ir.body.rewrite import defined, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ZERO, Expr, ShapeFacts, Sym, linear
from gyrator_ir.kernel.nodes import KernelStatement, Level, Stage
from gyrator_ir.tile.nodes import Access, IndexAccess, TiledKernel

_NO_SYMBOLS: frozenset[Sym] = frozenset()


@frozen
class ClassifyAccesses(KernelPass):
    """Record the kind of access of each index. This pass runs after those that decide loops and
    prefetches."""

    name: ClassVar[str] = "classify-accesses"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        loops = nest(tiled)
        if loops is None:
            return tiled
        bound = _bound_by_lane(tiled, loops)
        indices = dict.fromkeys(_indices(tiled))
        return evolve(tiled, accesses=tuple(classify(e, loops, bound) for e in indices))


def _indices(tiled: TiledKernel) -> Iterator[Expr]:
    for s in tiled.kernel.statements:
        if isinstance(s, Load | Store):
            yield s.index
        elif isinstance(s, IndexValue):
            yield s.expr
    yield from (p.index for p in tiled.prefetches)
    if tiled.kernel.inner:
        yield linear_position(tiled.kernel.inner)


def classify(e: Expr, loops: Nest, bound: frozenset[Sym] = _NO_SYMBOLS) -> IndexAccess:
    """Return how an index varies across lanes; the symbols in `bound` do as well."""
    access = lane_access(e, loops.symbol, loops.lanes, bound)
    symbols = sorted(bound & e.free_symbols, key=lambda s: s.name)
    if loops.lanes == 1:
        return IndexAccess(e, Access.UNIFORM)
    if symbols and (parts := linear(e, [*symbols, loops.symbol])) is not None:
        terms = ((s.name, factor) for s, factor in parts[0].items() if factor is not ZERO)
        return IndexAccess(e, Access.GATHERED, terms=tuple(terms))
    return IndexAccess(e, access.kind, access.stride)


def _bound_by_lane(tiled: TiledKernel, loops: Nest) -> frozenset[Sym]:
    """Return the symbols bound to values that differ between lanes."""
    if not any(isinstance(s, Bind) for s in tiled.kernel.statements):
        return _NO_SYMBOLS
    rows = {x.name for x in tiled.kernel.locals} if loops.across else set()
    staged = {name for r in tiled.reductions for name in r.keep}
    bound: set[Sym] = set()
    values: set[str] = set()
    for stage in tiled.kernel.stages:
        if not _has_lanes(stage, loops):
            continue
        for s in stage.body:
            if _by_lane(s, loops, values, bound, rows, staged):
                values.update(defined(s))
                if isinstance(s, Bind):
                    bound.add(s.symbol)
        if not loops.across:
            values.clear()  # values that outlive a stage are per point
    return frozenset(bound)


def _has_lanes(stage: Stage, loops: Nest) -> bool:
    if loops.across:
        return True
    return stage.level is Level.INNER and not ordered(stage)


def _by_lane(
    s: KernelStatement, loops: Nest, values: set[str], bound: Iterable[Sym], rows: set[str],
    staged: set[str],
) -> bool:  # fmt: skip
    """Return whether a statement's results differ between lanes."""
    if isinstance(s, Const):
        return False
    if isinstance(s, Reduce | ScanStep):  # also if the operands are the same for all lanes
        return loops.across
    if not values.isdisjoint(used(s)) or not staged.isdisjoint(defined(s)):
        return True
    if isinstance(s, Load | IndexValue):
        index = s.index if isinstance(s, Load) else s.expr
        access = lane_access(index, loops.symbol, loops.lanes, frozenset(bound))
        return access.kind is not Access.UNIFORM or (isinstance(s, Load) and s.buffer in rows)
    return False
