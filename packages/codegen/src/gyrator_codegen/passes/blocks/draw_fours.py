"""`draw-fours`: generate random numbers of four consecutive counters at once.

One evaluation of Philox returns four words, so a thread that computes four adjacent elements needs
only one.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import Flat, blocks_of
from gyrator_ir.body.nodes import IndexValue, Let, Load
from gyrator_ir.define import frozen
from gyrator_ir.expr import ZERO, Expr, ShapeFacts, Sym
from gyrator_ir.tile.nodes import DRAWN, TiledKernel

_FOUR = 4


@frozen
class DrawFours(KernelPass):
    """Record the random numbers whose counters are consecutive along the last dimension of a block
    and start at a multiple of four. This pass runs after `flatten-indices`."""

    name: ClassVar[str] = "draw-fours"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        body = tiled.kernel.statements
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
    """Return the symbol of the linear index along the last dimension of a block."""
    blocks = blocks_of(tiled)
    return Flat("r", blocks.second).symbol if blocks.second else Flat("i", blocks.first).symbol


def _blocks_of_fours(tiled: TiledKernel) -> bool:
    length = "RBLOCK" if blocks_of(tiled).second else "XBLOCK"
    values = next((c.values for c in tiled.choices if c.name == length), ())
    return bool(values) and all(v % _FOUR == 0 for v in values)


def _follow(counter: Expr, position: Sym, facts: ShapeFacts) -> bool:
    rest = counter - position
    return position not in rest.free_symbols and facts.simplify(rest % _FOUR) is ZERO
