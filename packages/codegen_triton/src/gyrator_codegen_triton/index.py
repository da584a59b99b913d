"""Index expressions as Triton source."""

from collections.abc import Callable, Iterable

from gyrator_ir.body.nodes import Axis
from gyrator_ir.expr import (
    ONE,
    ZERO,
    And,
    Const,
    Expr,
    FloorDiv,
    Fragment,
    Max,
    Min,
    Mod,
    Node,
    Or,
    Prec,
    Printer,
    ShapeFacts,
    Sym,
    Where,
    iter_nodes,
    subs,
)


class TritonPrinter(Printer):
    """Writes blocks of integers. `//` and `%` round towards 0 there, so that they stand only where
    numerators are proved not to be negative."""

    word_true = "True"
    word_false = "False"

    def __init__(
        self, nonnegative: Callable[[FloorDiv | Mod], bool], names: Callable[[Sym], str]
    ) -> None:
        super().__init__(names)
        self._nonnegative = nonnegative

    def fragment(self, node: Node) -> Fragment:
        """Return the text of a node; conjunctions are of bits, which bind tightly in Python."""
        if isinstance(node, And | Or):
            word = " & " if isinstance(node, And) else " | "
            return Fragment(word.join(self.at(a, Prec.ATOM) for a in node.args), Prec.RELATION)
        return super().fragment(node)

    def power(self, atom: Node, power: int) -> Fragment:
        """Return a repeated product."""
        return Fragment("*".join([self.at(atom, Prec.ATOM)] * power), Prec.PRODUCT)

    def floordiv(self, node: FloorDiv) -> Fragment:
        """Return `a // b`, or a call where the numerator may be negative."""
        if self._nonnegative(node):
            return super().floordiv(node)
        return Fragment(f"gy_floor_div({self(node.a)}, {self(node.b)})", Prec.ATOM)

    def mod(self, node: Mod) -> Fragment:
        """Return `a % b`, or a call where the numerator may be negative."""
        if self._nonnegative(node):
            return super().mod(node)
        return Fragment(f"gy_floor_mod({self(node.a)}, {self(node.b)})", Prec.ATOM)

    def extremum(self, node: Min | Max) -> Fragment:
        """Return nested calls of two arguments."""
        name = "tl.minimum" if isinstance(node, Min) else "tl.maximum"
        text = self(node.args[-1])
        for arg in reversed(node.args[:-1]):
            text = f"{name}({self(arg)}, {text})"
        return Fragment(text, Prec.ATOM)

    def select(self, node: Where) -> Fragment:
        """Return a selection; both sides are computed."""
        text = f"tl.where({self(node.cond)}, {self(node.a)}, {self(node.b)})"
        return Fragment(text, Prec.ATOM)


class Flat:
    """One flattened group of axes: `x`, and each axis's symbol as digits of it.

    Args:
        name: `i` or `r`, the letter of its kind of symbols.
        axes: the outermost first.
        others: symbols that the flat one must differ from, beside those of the axes.
    """

    def __init__(self, name: str, axes: tuple[Axis, ...], others: Iterable[Sym] = ()) -> None:
        taken = {a.symbol.name for a in axes} | {s.name for s in others}
        number = next(n for n in range(len(taken) + 1) if f"{name}_{n}" not in taken)
        self.symbol = Sym(f"{name}_{number}")
        self.digits: dict[Sym, Expr] = {}
        rest: Expr = self.symbol
        for k, a in enumerate(reversed(axes)):
            last = k == len(axes) - 1
            extent = ONE if a.extent is ZERO else a.extent  # without points, no digit matters
            self.digits[a.symbol] = rest if last else rest % extent
            if not last:
                rest = rest // extent


def flattened(e: Expr, flats: Iterable[Flat], facts: ShapeFacts) -> Expr:
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
    return sum(isinstance(n, FloorDiv | Mod) and not isinstance(n, Const) for n in iter_nodes(e))
