"""`reuse-loads`: what a program has read stays in its registers, and is not read again.

A softmax whose rows are held whole goes over a row three times, and reads it once.
"""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import blocks_of
from gyrator_ir.body.nodes import Bind, Load, Store
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.tile.nodes import Reuse, TiledKernel

_Place = tuple[int, int]


@frozen
class ReuseLoads(KernelPass):
    """Record loads from where an earlier one has read under the same mask, with no store between.
    It goes after `flatten-indices` and `pair-points`.

    What a loop reads is gone with its step; it may itself reuse what is read ahead of it.
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
            for k, s in enumerate(stage.body):
                place = (number, k)
                made |= dict.fromkeys(defined(s), place)
                if isinstance(s, Bind):
                    made[s.symbol] = place
                elif isinstance(s, Store):
                    for key in [key for key in held if key[0] == s.buffer]:
                        del held[key]
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
