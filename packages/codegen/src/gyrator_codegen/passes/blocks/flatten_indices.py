"""`flatten-indices`: express indices by the linear index over flattened axes.

A program computes the linear index of its points, and from it the index of each axis by a division
and a remainder. An index that can be expressed by the linear index needs neither.
"""

from collections.abc import Iterable
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import Flat, blocks_of, product_axes, product_indices
from gyrator_ir.body.nodes import Axis
from gyrator_ir.body.rewrite import AnyStatement, expressions, renamed
from gyrator_ir.define import frozen
from gyrator_ir.expr import Expr, FloorDiv, Mod, ShapeFacts, Sym, iter_nodes, subs
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.tile.loops import extent_of, kernel_facts
from gyrator_ir.tile.nodes import Contraction, Form, TiledKernel

BlockBody = tuple[tuple[Flat, Flat], tuple[AnyStatement, ...]]
"""The flattened axes along both dimensions of a block, and the statements computed on it."""


@frozen
class FlattenIndices(KernelPass):
    """Rewrite indices by linear indices if that does not add divisions, and record which of the
    remaining divisions, including those of the axes' indices, are plain."""

    name: ClassVar[str] = "flatten-indices"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        flats, bodies, more = _block_bodies(tiled)
        extents: dict[Sym, Expr] = {f.symbol: extent_of(axes) for f, axes in flats}
        inside = kernel_facts(tiled.kernel, facts, extents | more)
        # Totals are stored after the loop over the points, where these have no linear index.
        totals = {s.index for s in tiled.kernel.totals}
        forms: dict[Expr, Expr] = {}
        for pair, body in bodies:
            for e in (e for s in body for e in expressions(s)):
                forms.setdefault(e, _flattened(e, pair[1:] if e in totals else pair, inside))
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
            plain=tuple(d for d in divisions if inside.nonnegative_division(d)),
        )


def _block_bodies(
    tiled: TiledKernel,
) -> tuple[list[tuple[Flat, tuple[Axis, ...]]], list[BlockBody], dict[Sym, Expr]]:
    """Return the flattened groups of axes, the statements that use them, and the extents of further
    symbols."""
    if tiled.contraction is not None:
        return _product_bodies(tiled, tiled.contraction)
    blocks = blocks_of(tiled)
    pair = Flat("i", blocks.first), Flat("r", blocks.second)
    body = tiled.kernel.statements
    flats = list(zip(pair, (blocks.first, blocks.second), strict=True))
    return flats, [(pair, body)], {}


def _product_bodies(
    tiled: TiledKernel, c: Contraction
) -> tuple[list[tuple[Flat, tuple[Axis, ...]]], list[BlockBody], dict[Sym, Expr]]:
    axes = product_axes(tiled, c)
    at = product_indices(axes)
    flats = [
        (at.rows, axes.rows),
        (at.columns, axes.columns),
        (at.batches, axes.batches),
        (at.serial, axes.serial),
        (at.depth, axes.depth),
        (at.right_depth, axes.depth),
    ]
    stages = tiled.kernel.stages
    inside = next(stage.body for stage in stages if stage.level is Level.INNER)
    bodies: list[BlockBody] = []
    for p in c.products:
        left, right = needed_for(inside, p.left), needed_for(inside, p.right)
        bodies.append(((at.rows, at.depth), tuple(left)))
        again = tuple(renamed(s, {}, at.right_symbols) for s in right)
        bodies.append(((at.right_depth, at.columns), again))
    outside = (s for stage in stages if stage.level is not Level.INNER for s in stage.body)
    bodies.append(((at.rows, at.columns), tuple(outside)))
    more = {s: a.extent for s, a in zip(at.right_depth.digits, reversed(axes.depth), strict=True)}
    return flats, bodies, more


def _flattened(e: Expr, flats: Iterable[Flat], facts: ShapeFacts) -> Expr:
    """Return `e` in terms of flat symbols if that does not add divisions, else of the axes."""
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
