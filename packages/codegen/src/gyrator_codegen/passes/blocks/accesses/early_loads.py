"""`early-loads`: issue the loads of a block before any computation.

A program waits for memory only once if all its loads are in flight together. Compilers do not move
loads ahead of preceding reductions, stores or divisions.
"""

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import blocks_of
from gyrator_ir.body.nodes import Bind, Load, Store
from gyrator_ir.body.rewrite import defined
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Const, Expr, ShapeFacts
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.tile.loops import extent_of, in_one_step
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class EarlyLoads(KernelPass):
    """Record the loads of points, or of rows processed whole, that can be issued first.

    Loads that points or rows share are not moved: they take as many registers, and hit the cache.
    Only where a kernel has at most `alone` elements for each of the device's `cores` are they moved
    too, since all its programs run at once and none computes while another waits. Of rows, those
    that are needed once for a row are moved too, such as the residual that is added to a product.
    Of rows that a program loops over to sum their columns, those that all of them share are moved
    before the loop. This pass runs after `pair-points`.
    """

    name: ClassVar[str] = "early-loads"
    cores: int = 0
    alone: int = 4096

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        at_once = not tiled.kernel.inner or in_one_step(tiled)
        if tiled.contraction is not None or blocks_of(tiled).tiles or not at_once:
            return tiled
        elements = extent_of((*tiled.kernel.axes, *tiled.kernel.inner))
        few = isinstance(elements, Const) and elements.value <= self.alone * self.cores
        early = tuple(_free(tiled, few))
        return evolve(tiled, early=early) if early else tiled


def _free(tiled: TiledKernel, shared: bool) -> Iterator[str]:
    """Return the loads that can be issued first, with `shared` also those that points or rows
    share."""
    kernel = tiled.kernel
    body = kernel.statements
    changed = {s.buffer for s in body if isinstance(s, Store)} | {t.name for t in kernel.locals}
    bound = {s.symbol for s in body if isinstance(s, Bind)}
    paired = {(p.stage, position) for p in tiled.pairs for position in (p.first, p.second)}
    points = {a.symbol for a in kernel.axes if a.extent is not ONE}
    row = {a.symbol for a in kernel.inner if a.extent is not ONE}
    summed = {a.symbol for a in kernel.summed}
    counts = Counter(n for s in body for n in defined(s))
    earlier: set[tuple[str, Expr]] = set()
    for number, stage in enumerate(kernel.stages):
        own = points | row if stage.level is Level.INNER else points
        if kernel.inner and not own:
            continue
        for position, s in enumerate(stage.body):
            if not isinstance(s, Load) or s.mask is not None or (number, position) in paired:
                continue
            symbols = s.index.free_symbols
            key = (s.buffer, s.index)
            if s.buffer in changed or key in earlier or not bound.isdisjoint(symbols):
                continue
            if counts[s.name] > 1:  # another stage has a value of this name
                continue
            earlier.add(key)
            if shared or own.issubset(symbols) or (summed and summed.isdisjoint(symbols)):
                yield s.name
