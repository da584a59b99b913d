"""`early-loads`: what a block reads is asked for before anything is computed.

A program waits for memory once if all that it reads is on the way. Compilers leave a load behind
what stands before it and folds, stores or divides.
"""

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import blocks_of
from gyrator_ir.body.nodes import Bind, Load, Store
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import ONE, Expr, ShapeFacts
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.tile.loops import in_one_step
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class EarlyLoads(KernelPass):
    """Record the loads of points, or of rows held whole, that wait for nothing.

    What points or rows share stays where it is: it takes as many registers, and is near. It goes
    after `pair-points`.
    """

    name: ClassVar[str] = "early-loads"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        whole = not tiled.kernel.inner or in_one_step(tiled)
        if tiled.contraction is not None or blocks_of(tiled).tiles or not whole:
            return tiled
        early = tuple(_free(tiled))
        return evolve(tiled, early=early) if early else tiled


def _free(tiled: TiledKernel) -> Iterator[str]:
    kernel = tiled.kernel
    body = [s for stage in kernel.stages for s in stage.body]
    changed = {s.buffer for s in body if isinstance(s, Store)} | {t.name for t in kernel.locals}
    found = {s.symbol for s in body if isinstance(s, Bind)}
    paired = {(p.stage, place) for p in tiled.pairs for place in (p.first, p.second)}
    own = {a.symbol for a in (*kernel.axes, *kernel.inner) if a.extent is not ONE}
    rows = bool(kernel.inner)
    counts = Counter(n for s in body for n in defined(s))
    seen: set[tuple[str, Expr]] = set()
    for number, stage in enumerate(kernel.stages):
        if rows and stage.level is not Level.INNER:
            continue
        for place, s in enumerate(stage.body):
            if not isinstance(s, Load) or s.mask is not None or (number, place) in paired:
                continue
            symbols = s.index.free_symbols
            key = (s.buffer, s.index)
            if s.buffer in changed or key in seen or not found.isdisjoint(symbols):
                continue
            if counts[s.name] > 1:  # another stage has a value of this name
                continue
            seen.add(key)
            if own.issubset(symbols):
                yield s.name
