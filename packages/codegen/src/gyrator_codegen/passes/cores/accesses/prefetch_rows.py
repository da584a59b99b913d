"""`prefetch-rows`: memory is asked for ahead, in kernels that go over each row several times.

Only the first pass over a row waits for memory; the later ones find it in the nearest cache and
leave memory idle. So the last pass asks for what the first pass over the next row will read, and
the first pass for where later ones will store.
"""

from collections.abc import Sequence
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.analysis import static
from gyrator_codegen.lanes import lane_access
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Load, Reduce, Store, StoreMode
from gyrator_ir.expr import ONE, Expr, ShapeFacts, Sym, subs
from gyrator_ir.kernel.nodes import Level, Stage
from gyrator_ir.tile.nodes import Access, Method, Prefetch, TiledKernel

_NO_SYMBOLS: frozenset[Sym] = frozenset()


@frozen
class PrefetchRows(KernelPass):
    """Prefetch rows of a known length along one axis."""

    least: int = 512
    """Bytes of a row: less is not worth asking for..."""
    most: int = 16384
    """... and more does not stay in the cache."""

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
        if any(isinstance(s, Bind) for stage in kernel.stages for s in stage.body):
            return tiled
        row, first, last = kernel.axes[-1].symbol, passes[0], passes[-1]
        sizes = {b.name: length * b.dtype.size for b in kernel.parameters}
        wanted = {name for name, size in sizes.items() if self.least <= size <= self.most}
        later = [kernel.stages[n] for n in passes[1:]]
        reads = _addresses([kernel.stages[first]], Load, loops.symbol, wanted)
        stores = _addresses(later, Store, loops.symbol, wanted)
        # Two passes have time to wait for stores in the second.
        reduced = {s.names[0] for s in kernel.stages[first].body if isinstance(s, Reduce)}
        second = any(r.method is Method.TWO_PASS for r in tiled.reductions if r.result in reduced)
        found = [Prefetch(first, buffer, e, write=True, second=second) for buffer, e in stores]
        found += [
            Prefetch(last, buffer, subs(e, {row: row + ONE}))
            for buffer, e in reads
            if row in e.free_symbols
        ]
        return evolve(tiled, prefetches=tuple(found)) if found else tiled


def _addresses(
    stages: Sequence[Stage], kind: type[Load] | type[Store], symbol: Sym, wanted: set[str]
) -> tuple[tuple[str, Expr], ...]:
    found: dict[tuple[str, Expr], None] = {}
    for stage in stages:
        for s in stage.body:
            if not isinstance(s, Load | Store) or not isinstance(s, kind) or s.mask is not None:
                continue
            if isinstance(s, Store) and s.mode is not StoreMode.SET:
                continue
            unit = lane_access(s.index, symbol, 1 << 20, _NO_SYMBOLS).kind is Access.UNIT
            if unit and s.buffer in wanted:
                found[s.buffer, s.index] = None
    return tuple(found)
