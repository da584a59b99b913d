"""`draw-fours`: random numbers of four consecutive counters are drawn at once.

The rounds of Philox give four words. A thread that computes four neighbours needs them once.
"""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import Flat, blocks_of
from gyrator_ir.body.nodes import IndexValue, Let, Load
from gyrator_ir.expr import ZERO, Expr, ShapeFacts, Sym
from gyrator_ir.tile.nodes import DRAWN, TiledKernel

_FOUR = 4


@frozen
class DrawFours(KernelPass):
    """Record the random numbers whose counters follow one another along the last dimension of a
    block, and begin with a multiple of four there. It goes after `flatten-indices`."""

    name: ClassVar[str] = "draw-fours"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        body = [s for stage in tiled.kernel.stages for s in stage.body]
        drawn = [s for s in body if isinstance(s, Let) and s.op in DRAWN]
        if not drawn or tiled.contraction is not None or not _blocks_of_fours(tiled):
            return tiled
        forms = {f.index: f.written for f in tiled.forms}
        counters = {s.name: forms.get(s.expr, s.expr) for s in body if isinstance(s, IndexValue)}
        axes = {a.symbol for a in (*tiled.kernel.axes, *tiled.kernel.inner)}
        seeds = {
            s.name for s in body if isinstance(s, Load) and axes.isdisjoint(s.index.free_symbols)
        }
        position = _position(tiled)
        fours = tuple(
            s.name
            for s in drawn
            if s.args[0] in seeds
            and s.args[1] in counters
            and _follow(counters[s.args[1]], position, facts)
        )
        return evolve(tiled, fours=fours) if fours else tiled


def _position(tiled: TiledKernel) -> Sym:
    """Return the place along the last dimension of a block."""
    blocks = blocks_of(tiled)
    return Flat("r", blocks.second).symbol if blocks.second else Flat("i", blocks.first).symbol


def _blocks_of_fours(tiled: TiledKernel) -> bool:
    length = "RBLOCK" if blocks_of(tiled).second else "XBLOCK"
    values = next((c.values for c in tiled.choices if c.name == length), ())
    return bool(values) and all(v % _FOUR == 0 for v in values)


def _follow(counter: Expr, position: Sym, facts: ShapeFacts) -> bool:
    rest = counter - position
    return position not in rest.free_symbols and facts.simplify(rest % _FOUR) is ZERO
