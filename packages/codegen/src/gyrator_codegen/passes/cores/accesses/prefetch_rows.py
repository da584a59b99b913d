"""`prefetch-rows`: prefetch memory in kernels with several passes over each row.

Only the first pass over a row waits for memory; later passes hit the cache and leave memory idle.
The last pass therefore prefetches the loads of the first pass over the next row, and the first pass
prefetches the addresses that later ones store to.
"""

from collections.abc import Sequence
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import static
from gyrator_codegen.lanes import lane_access
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Load, Reduce, Store, StoreMode
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Expr, ShapeFacts, Sym, subs
from gyrator_ir.kernel.nodes import Level, Stage
from gyrator_ir.tile.nodes import Access, Method, Prefetch, TiledKernel

_NO_SYMBOLS: frozenset[Sym] = frozenset()


@frozen
class PrefetchRows(KernelPass):
    """Prefetch rows of constant length along one axis."""

    least: int = 512
    """Minimum size of a row in bytes; prefetching less is not worthwhile..."""
    most: int = 16384
    """... and the maximum, beyond which a row does not stay in the cache."""

    name: ClassVar[str] = "prefetch-rows"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        passes = [n for n, stage in enumerate(kernel.stages) if stage.level is Level.INNER]
        length = static(kernel.inner[0].extent) if len(kernel.inner) == 1 else None
        if len(passes) < 2 or not kernel.axes or length is None:
            return tiled
        loops = nest(tiled)
        if loops is None or loops.across or loops.lanes == 1:
            return tiled
        if any(isinstance(s, Bind) for s in kernel.statements):
            return tiled
        row, first, last = kernel.axes[-1].symbol, passes[0], passes[-1]
        sizes = {b.name: length * b.dtype.size for b in kernel.parameters}
        buffers = {name for name, size in sizes.items() if self.least <= size <= self.most}
        later = [kernel.stages[n] for n in passes[1:]]
        reads = _addresses([kernel.stages[first]], Load, loops.symbol, buffers)
        stores = _addresses(later, Store, loops.symbol, buffers)
        # The second pass of a two-pass reduction is early enough to prefetch for stores.
        reduced = {s.names[0] for s in kernel.stages[first].body if isinstance(s, Reduce)}
        second = any(r.method is Method.TWO_PASS for r in tiled.reductions if r.result in reduced)
        prefetches = [Prefetch(first, buffer, e, write=True, second=second) for buffer, e in stores]
        prefetches += [
            Prefetch(last, buffer, subs(e, {row: row + ONE}))
            for buffer, e in reads
            if row in e.free_symbols
        ]
        return evolve(tiled, prefetches=tuple(prefetches)) if prefetches else tiled


def _addresses(
    stages: Sequence[Stage], kind: type[Load] | type[Store], symbol: Sym, buffers: set[str]
) -> tuple[tuple[str, Expr], ...]:
    addresses: dict[tuple[str, Expr], None] = {}
    for stage in stages:
        for s in stage.body:
            if not isinstance(s, Load | Store) or not isinstance(s, kind) or s.mask is not None:
                continue
            if isinstance(s, Store) and s.mode is not StoreMode.SET:
                continue
            unit = lane_access(s.index, symbol, 1 << 20, _NO_SYMBOLS).kind is Access.UNIT
            if unit and s.buffer in buffers:
                addresses[s.buffer, s.index] = None
    return tuple(addresses)
