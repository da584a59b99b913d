"""`flatten-indices`: indices over the position in axes that are walked as one.

A program computes the position of a block's points, and each axis as a digit of it: a quotient and
a remainder. An index that is the same over the position needs none.
"""

from collections.abc import Iterable
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import Flat, blocks_of, places_of, product_axes
from gyrator_ir.body.nodes import Axis
from gyrator_ir.body.rewrite import AnyStatement, expressions, renamed
from gyrator_ir.expr import Expr, FloorDiv, Mod, ShapeFacts, Sym, iter_nodes, subs
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.tile.loops import extent_of, kernel_facts
from gyrator_ir.tile.nodes import Contraction, Form, TiledKernel

Place = tuple[tuple[Flat, Flat], tuple[AnyStatement, ...]]
"""The positions along both dimensions of a block, and what is computed of it."""


@frozen
class FlattenIndices(KernelPass):
    """Write indices over positions where that needs no more divisions, and say of the divisions
    that are left, those of digits among them, which are plain."""

    name: ClassVar[str] = "flatten-indices"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        flats, places, more = _places(tiled)
        extents: dict[Sym, Expr] = {f.symbol: extent_of(axes) for f, axes in flats}
        known = kernel_facts(tiled.kernel, facts, extents | more)
        forms: dict[Expr, Expr] = {}
        for pair, body in places:
            for e in (e for s in body for e in expressions(s)):
                forms.setdefault(e, _flattened(e, pair, known))
        written = [
            *forms.values(),
            *extents.values(),
            *(e for f, _ in flats for e in f.digits.values()),
        ]
        divisions = {
            n: None for e in written for n in iter_nodes(e) if isinstance(n, FloorDiv | Mod)
        }
        return evolve(
            tiled,
            forms=tuple(Form(e, new) for e, new in forms.items() if new is not e),
            plain=tuple(d for d in divisions if known.nonnegative_division(d)),
        )


def _places(
    tiled: TiledKernel,
) -> tuple[list[tuple[Flat, tuple[Axis, ...]]], list[Place], dict[Sym, Expr]]:
    """Return the flattened groups of axes, where each is used, and the extents of further
    symbols."""
    if tiled.contraction is not None:
        return _product_places(tiled, tiled.contraction)
    blocks = blocks_of(tiled)
    pair = Flat("i", blocks.first), Flat("r", blocks.second)
    body = tuple(s for stage in tiled.kernel.stages for s in stage.body)
    flats = list(zip(pair, (blocks.first, blocks.second), strict=True))
    return flats, [(pair, body)], {}


def _product_places(
    tiled: TiledKernel, c: Contraction
) -> tuple[list[tuple[Flat, tuple[Axis, ...]]], list[Place], dict[Sym, Expr]]:
    axes = product_axes(tiled, c)
    at = places_of(axes)
    flats = [
        (at.rows, axes.rows),
        (at.columns, axes.columns),
        (at.batches, axes.batches),
        (at.around, axes.around),
        (at.depth, axes.depth),
        (at.turned, axes.depth),
    ]
    stages = tiled.kernel.stages
    inside = next(stage.body for stage in stages if stage.level is Level.INNER)
    places: list[Place] = []
    for p in c.products:
        left, right = needed_for(inside, p.left), needed_for(inside, p.right)
        places.append(((at.rows, at.depth), tuple(left)))
        again = tuple(renamed(s, {}, at.again) for s in right)
        places.append(((at.turned, at.columns), again))
    outside = (s for stage in stages if stage.level is not Level.INNER for s in stage.body)
    places.append(((at.rows, at.columns), tuple(outside)))
    more = {s: a.extent for s, a in zip(at.turned.digits, reversed(axes.depth), strict=True)}
    return flats, places, more


def _flattened(e: Expr, flats: Iterable[Flat], facts: ShapeFacts) -> Expr:
    """Return `e` over the flat symbols where that needs no division, else over the axes."""
    best = e
    for flat in flats:
        if best.free_symbols.isdisjoint(flat.digits):
            continue
        new = facts.simplify(subs(best, flat.digits))
        divisions = _divisions(new)
        if not divisions or divisions <= _divisions(best):
            best = new
    return best


def _divisions(e: Expr) -> int:
    return sum(isinstance(n, FloorDiv | Mod) for n in iter_nodes(e))
