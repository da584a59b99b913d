"""`reuse-loads`: what a program has read or stored is in its registers, and is not read again.

A softmax whose rows are held whole goes over a row three times, and reads it once.
"""

from collections.abc import Collection
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import blocks_of
from gyrator_ir.body.nodes import Bind, Load, Store, StoreMode
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.tile.nodes import Reuse, TiledKernel

_Place = tuple[int, int]


@frozen
class ReuseLoads(KernelPass):
    """Record loads from where an earlier one has read under the same mask, or a plain store has
    written, with no other store between. It goes after `flatten-indices` and `pair-points`.

    What a loop reads or stores is gone with its step; it may itself reuse what is read ahead of it,
    unless it stores there.
    """

    name: ClassVar[str] = "reuse-loads"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if tiled.contraction is not None:
            return tiled
        blocks = blocks_of(tiled)
        written = {f.index: f.written for f in tiled.forms}
        paired = {(p.stage, place) for p in tiled.pairs for place in (p.first, p.second)}
        local = {t.name for t in kernel.locals}
        made: dict[str | Sym, _Place] = {}
        """Where values and symbols have got what they stand for."""
        held: dict[tuple[object, ...], _Place] = {}
        reuses: list[Reuse] = []
        for number, stage in enumerate(kernel.stages):
            stepwise = blocks.tiles or (
                stage.level is Level.INNER and bool(kernel.inner) and not blocks.whole
            )
            if stepwise:
                _drop(held, {s.buffer for s in stage.body if isinstance(s, Store)})
            for k, s in enumerate(stage.body):
                place = (number, k)
                made |= dict.fromkeys(defined(s), place)
                if isinstance(s, Bind):
                    made[s.symbol] = place
                elif isinstance(s, Store):
                    _drop(held, {s.buffer})
                    index = written.get(s.index, s.index)
                    kept = s.mode is StoreMode.SET and s.mask is None and not stepwise
                    # Of two points that store to one place, the other one may have been the last.
                    own = index.free_symbols.isdisjoint(made) and place not in paired
                    if kept and own and s.buffer not in local:
                        held[s.buffer, index, frozenset(), None] = place
                elif isinstance(s, Load) and s.buffer not in local and place not in paired:
                    index = written.get(s.index, s.index)
                    bound = frozenset((x, made[x]) for x in index.free_symbols if x in made)
                    key = (s.buffer, index, bound, None if s.mask is None else made[s.mask])
                    if key in held:
                        made[s.name] = held[key]
                        reuses.append(Reuse(*place, *held[key]))
                    elif not stepwise:
                        held[key] = place
        return evolve(tiled, reuses=tuple(reuses)) if reuses else tiled


def _drop(held: dict[tuple[object, ...], _Place], buffers: Collection[str]) -> None:
    for key in [key for key in held if key[0] in buffers]:
        del held[key]
