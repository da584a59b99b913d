"""Simplification of addresses under the ranges of their axes."""

from gyrator_ir.body.nodes import Axis
from gyrator_ir.expr import Expr, FloorDiv, Max, Min, Mod, ShapeFacts, Where, iter_nodes


def divides(e: Expr) -> bool:
    """Return whether an expression contains a node that ranges could simplify."""
    return any(isinstance(n, (FloorDiv, Mod, Min, Max, Where)) for n in iter_nodes(e))


class Ranges:
    """Simplifies expressions under a program's facts and the ranges of axes, with a cache."""

    def __init__(self, facts: ShapeFacts) -> None:
        self.facts = facts
        self._known: dict[tuple[Axis, ...], ShapeFacts] = {}
        self._plain: set[Expr] = set()

    def under(self, axes: tuple[Axis, ...]) -> ShapeFacts:
        """Return the program's facts, extended with the range [0, extent) of each axis."""
        extended = self._known.get(axes)
        if extended is None:
            extended = self.facts.with_ranges({a.symbol: a.extent for a in axes})
            self._known[axes] = extended
        return extended

    def simplify(self, e: Expr, axes: tuple[Axis, ...]) -> Expr:
        """Return `e`, simplified under the range [0, extent) of each axis."""
        if e in self._plain:
            return e
        if not divides(e):
            self._plain.add(e)
            return e
        return self.under(axes).simplify(e)
