"""Index expressions as Triton source."""

from collections.abc import Callable

from gyrator_ir.expr import (
    And,
    FloorDiv,
    Fragment,
    Max,
    Min,
    Mod,
    Node,
    Or,
    Prec,
    Printer,
    Sym,
    Where,
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
