"""Infix printers of expressions. `Printer` prints the text form; emitters override its methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from gyrator_ir.expr.nodes import (
    Add,
    And,
    Bool,
    Const,
    Eq,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Node,
    Or,
    Sym,
    Where,
)

Names: TypeAlias = "Mapping[Sym, str] | Callable[[Sym], str] | None"


class Prec(IntEnum):
    """Operator precedence of a fragment; one that is lower than required is parenthesised."""

    OR = 1
    AND = 2
    RELATION = 3
    SUM = 4
    PRODUCT = 5
    UNARY = 6
    POWER = 7
    ATOM = 8


class Fragment(NamedTuple):
    """A piece of text and its operator precedence."""

    text: str
    prec: Prec


class Printer:
    """Prints the text form, which `parse_expr` and `parse_cond` parse to the same node.

    A subclass for another language overrides `symbol`, `integer`, `power`, `floordiv`, `mod`,
    `extremum`, `select` or the words. A printer caches fragments, so an instance serves one naming.

    Args:
        names: the names of symbols, as a function or a mapping; symbols that the mapping lacks keep
            their own names.
    """

    word_and = "and"
    word_or = "or"
    word_true = "true"
    word_false = "false"
    word_eq = "=="
    word_ne = "!="

    def __init__(self, names: Names = None) -> None:
        self._names = names
        self._memo: dict[Node, Fragment] = {}

    def __call__(self, node: Node) -> str:
        """Return the text of a whole expression or condition."""
        return self.fragment(node).text

    def at(self, node: Node, prec: Prec) -> str:
        """Return the text of `node`, in parentheses if its precedence is lower than `prec`."""
        text, own = self.fragment(node)
        return text if own >= prec else f"({text})"

    def fragment(self, node: Node) -> Fragment:
        """Return the text and precedence of `node`, cached."""
        fragment = self._memo.get(node)
        if fragment is None:
            fragment = self._memo[node] = self._visit(node)
        return fragment

    def symbol(self, sym: Sym) -> str:
        """Return the name of a symbol."""
        if self._names is None:
            return sym.name
        if isinstance(self._names, Mapping):
            return self._names.get(sym, sym.name)
        return self._names(sym)

    def integer(self, value: int) -> str:
        """Return a non-negative integer literal."""
        return str(value)

    def power(self, atom: Node, power: int) -> Fragment:
        """Return `atom` to a power of at least two."""
        return Fragment(f"{self.at(atom, Prec.ATOM)}**{power}", Prec.POWER)

    def floordiv(self, node: FloorDiv) -> Fragment:
        """Return a quotient rounded towards minus infinity."""
        return Fragment(
            f"{self.at(node.a, Prec.UNARY)} // {self.at(node.b, Prec.UNARY)}", Prec.PRODUCT
        )

    def mod(self, node: Mod) -> Fragment:
        """Return a remainder with the sign of the divisor."""
        return Fragment(
            f"{self.at(node.a, Prec.UNARY)} % {self.at(node.b, Prec.UNARY)}", Prec.PRODUCT
        )

    def extremum(self, node: Min | Max) -> Fragment:
        """Return a minimum or maximum of two or more arguments."""
        name = "min" if isinstance(node, Min) else "max"
        return Fragment(f"{name}({', '.join(map(self, node.args))})", Prec.ATOM)

    def select(self, node: Where) -> Fragment:
        """Return a selection that evaluates only the selected branch."""
        return Fragment(f"where({self(node.cond)}, {self(node.a)}, {self(node.b)})", Prec.ATOM)

    def _visit(self, node: Node) -> Fragment:
        if isinstance(node, Sym):
            return Fragment(self.symbol(node), Prec.ATOM)
        if isinstance(node, Const):
            if node.value < 0:
                return Fragment("-" + self.integer(-node.value), Prec.SUM)
            return Fragment(self.integer(node.value), Prec.ATOM)
        if isinstance(node, Add):
            return self._sum(node)
        if isinstance(node, Mul):
            if len(node.factors) == 1:
                return self.power(*node.factors[0])
            factors = [
                self.at(atom, Prec.UNARY) if power == 1 else self.power(atom, power).text
                for atom, power in node.factors
            ]
            return Fragment("*".join(factors), Prec.PRODUCT)
        if isinstance(node, FloorDiv):
            return self.floordiv(node)
        if isinstance(node, Mod):
            return self.mod(node)
        if isinstance(node, Min | Max):
            return self.extremum(node)
        if isinstance(node, Where):
            return self.select(node)
        return self._condition(node)

    def _condition(self, node: Node) -> Fragment:
        if isinstance(node, Bool):
            return Fragment(self.word_true if node.value else self.word_false, Prec.ATOM)
        if isinstance(node, Eq | Ne | Lt | Le):
            word = {Eq: self.word_eq, Ne: self.word_ne, Lt: "<", Le: "<="}[type(node)]
            return Fragment(
                f"{self.at(node.a, Prec.SUM)} {word} {self.at(node.b, Prec.SUM)}", Prec.RELATION
            )
        assert isinstance(node, And | Or)
        word, prec = (self.word_and, Prec.AND) if isinstance(node, And) else (self.word_or, Prec.OR)
        parts = [self.at(arg, Prec.RELATION) for arg in node.args]
        return Fragment(f" {word} ".join(parts), prec)

    def _sum(self, node: Add) -> Fragment:
        parts: list[str] = []
        for term, coefficient in node.terms:
            size = abs(coefficient)
            if size == 1:
                text = self.at(term, Prec.PRODUCT if coefficient > 0 else Prec.UNARY)
            else:
                inner = self.fragment(term)
                plain = inner.prec >= Prec.UNARY or isinstance(term, Mul)
                text = f"{self.integer(size)}*" + (inner.text if plain else f"({inner.text})")
            parts.append(("-" if coefficient < 0 else "+") + text)
        if node.const:
            parts.append(("-" if node.const < 0 else "+") + self.integer(abs(node.const)))
        first = parts[0][1:] if parts[0][0] == "+" else parts[0]
        rest = "".join(f" {part[0]} {part[1:]}" for part in parts[1:])
        return Fragment(first + rest, Prec.SUM if rest or first[0] == "-" else Prec.PRODUCT)


def to_text(node: Node) -> str:
    """Return the text form of an expression or condition, e.g. `128*i0 + (i1 // 4) % s0`."""
    return Printer()(node)


class PythonPrinter(Printer):
    """Prints Python, whose `//` and `%` have the same meaning as here."""

    word_true = "True"
    word_false = "False"

    def select(self, node: Where) -> Fragment:
        """Return a conditional expression in parentheses."""
        return Fragment(f"({self(node.a)} if {self(node.cond)} else {self(node.b)})", Prec.ATOM)


def to_python(node: Node, names: Names = None) -> str:
    """Return a Python expression over the names of the symbols, using built-in `min` and `max`."""
    return PythonPrinter(names)(node)


class CPrinter(Printer):
    """Prints C: `/` and `%` where they equal floor division and its remainder, else function calls.

    Args:
        nonnegative: a predicate for quotients and remainders whose numerator is >= 0 and divisor
            > 0 (`ShapeFacts.nonnegative_division`); by default false for all.
        names: as for `Printer`.
        floor_div: the C function or macro for the other quotients.
        floor_mod: the C function or macro for the other remainders.
        suffix: the suffix of integer literals, e.g. `LL`.
    """

    word_and = "&&"
    word_or = "||"
    word_true = "1"
    word_false = "0"

    def __init__(
        self,
        nonnegative: Callable[[FloorDiv | Mod], bool] | None = None,
        names: Names = None,
        floor_div: str = "floor_div",
        floor_mod: str = "floor_mod",
        suffix: str = "",
    ) -> None:
        super().__init__(names)
        self._nonnegative = nonnegative
        self._floor_div = floor_div
        self._floor_mod = floor_mod
        self._suffix = suffix

    def integer(self, value: int) -> str:
        """Return the literal with the chosen suffix."""
        return f"{value}{self._suffix}"

    def power(self, atom: Node, power: int) -> Fragment:
        """Return a repeated product."""
        return Fragment("*".join([self.at(atom, Prec.ATOM)] * power), Prec.PRODUCT)

    def floordiv(self, node: FloorDiv) -> Fragment:
        """Return `a / b` if that equals floor division, else a call."""
        return self._division(node, "/", self._floor_div)

    def mod(self, node: Mod) -> Fragment:
        """Return `a % b` if that equals the remainder of floor division, else a call."""
        return self._division(node, "%", self._floor_mod)

    def _division(self, node: FloorDiv | Mod, operator: str, function: str) -> Fragment:
        if self._nonnegative is not None and self._nonnegative(node):
            left, right = self.at(node.a, Prec.UNARY), self.at(node.b, Prec.UNARY)
            return Fragment(f"{left} {operator} {right}", Prec.PRODUCT)
        return Fragment(f"{function}({self(node.a)}, {self(node.b)})", Prec.ATOM)

    def extremum(self, node: Min | Max) -> Fragment:
        """Return nested conditional expressions, each argument evaluated up to twice."""
        word = "<" if isinstance(node, Min) else ">"
        text = self.at(node.args[-1], Prec.SUM)
        for arg in reversed(node.args[:-1]):
            first = self.at(arg, Prec.SUM)
            text = f"({first} {word} {text} ? {first} : {text})"
        return Fragment(text, Prec.ATOM)

    def select(self, node: Where) -> Fragment:
        """Return a conditional expression in parentheses."""
        return Fragment(
            f"({self.at(node.cond, Prec.OR)} ? {self.at(node.a, Prec.SUM)} : "
            f"{self.at(node.b, Prec.SUM)})",
            Prec.ATOM,
        )
