"""Index expressions as text for Python array libraries."""

from typing import ClassVar

from gyrator_ir.expr import And, Fragment, Max, Min, Node, Or, Prec, PythonPrinter, Where


class ArrayPrinter(PythonPrinter):
    """Prints Python over integer arrays, calling library functions where Python has no operator."""

    minimum: ClassVar[str]
    maximum: ClassVar[str]
    where: ClassVar[str]

    def fragment(self, node: Node) -> Fragment:
        """Return the text of a node. Conjunctions use bitwise operators, which bind tightly."""
        if isinstance(node, And | Or):
            word = " & " if isinstance(node, And) else " | "
            return Fragment(word.join(self.at(a, Prec.ATOM) for a in node.args), Prec.RELATION)
        return super().fragment(node)

    def power(self, atom: Node, power: int) -> Fragment:
        """Return a repeated product."""
        return Fragment("*".join([self.at(atom, Prec.ATOM)] * power), Prec.PRODUCT)

    def extremum(self, node: Min | Max) -> Fragment:
        """Return nested calls with two arguments each."""
        name = self.minimum if isinstance(node, Min) else self.maximum
        text = self(node.args[-1])
        for arg in reversed(node.args[:-1]):
            text = f"{name}({self(arg)}, {text})"
        return Fragment(text, Prec.ATOM)

    def select(self, node: Where) -> Fragment:
        """Return a selection, which evaluates both sides."""
        return Fragment(
            f"{self.where}({self(node.cond)}, {self(node.a)}, {self(node.b)})", Prec.ATOM
        )
