"""Simplification of addresses by what is known of the axes they are made of."""

from gyrator_ir.body.nodes import Axis
from gyrator_ir.expr import Expr, FloorDiv, Max, Min, Mod, ShapeFacts, Where, iter_nodes


def divides(e: Expr) -> bool:
    """Whether an expression holds anything that ranges could simplify."""
    return any(isinstance(n, (FloorDiv, Mod, Min, Max, Where)) for n in iter_nodes(e))


class Ranges:
    """Simplifies under a program's facts and the ranges of axes, remembering both."""

    def __init__(self, facts: ShapeFacts) -> None:
        self.facts = facts
        self._known: dict[tuple[Axis, ...], ShapeFacts] = {}
        self._plain: set[Expr] = set()

    def under(self, axes: tuple[Axis, ...]) -> ShapeFacts:
        """Return the facts, extended by every axis lying in [0, extent)."""
        known = self._known.get(axes)
        if known is None:
            known = self.facts.with_ranges({a.symbol: a.extent for a in axes})
            self._known[axes] = known
        return known

    def simplify(self, e: Expr, axes: tuple[Axis, ...]) -> Expr:
        """Return `e`, made simpler by knowing that each axis lies in [0, extent)."""
        if e in self._plain:
            return e
        if not divides(e):
            self._plain.add(e)
            return e
        return self.under(axes).simplify(e)
