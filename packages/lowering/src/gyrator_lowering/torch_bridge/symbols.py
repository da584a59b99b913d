"""torch's symbolic integers as expressions of the IR, and what torch knows about them."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import sympy
import torch
from attrs import define, field

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Const, Expr, Sym
from gyrator_ir.expr.sympy_bridge import from_sympy

ROUNDINGS: Mapping[str, str] = MappingProxyType(
    {"CeilToInt": "ceil", "FloorToInt": "floor", "TruncToInt": "trunc", "RoundToInt": "round"}
)
"""torch's functions from floats to integers, and the rows of the op table that compute them."""
_FIRST = 1_000_000
"""The number of our first symbol; torch counts from 0."""


def hints_of(environment: Any) -> Any:
    """Return the example value of each symbol of a `ShapeEnv`; torch renamed the table in 2.11."""
    found = getattr(environment, "backed_var_to_val", None)
    return environment.var_to_val if found is None else found


@define
class Symbols:
    """Translates sizes of one graph. Each sympy expression is translated once."""

    _memo: dict[sympy.Basic, Expr] = field(factory=dict)
    environment: Any = None
    """The `ShapeEnv` of the first symbolic size seen, or None."""
    defined: set[sympy.Symbol] = field(factory=set)
    """Symbols that stand for an expression over others."""
    known: set[Sym] = field(factory=set)
    """Unbacked symbols that the program's inputs or operations have bound."""
    computed: dict[sympy.Symbol, Any] = field(factory=dict)
    """Symbols of ours, and the rounded floats that they stand for."""
    pending: dict[Sym, Any] = field(factory=dict)
    """Those of them that no operation computes yet."""

    def size(self, value: Any) -> Expr:
        """Return an `int` or `torch.SymInt` as an expression; adds no guard."""
        if value.__class__ is int:
            return Const(value)
        if isinstance(value, torch.SymInt):
            node = value.node
            if self.environment is None:
                self.environment = node.shape_env
            return self.expression(node.expr)
        if isinstance(value, Expr):
            return value
        return Const(int(value))  # a bool, or an integer of NumPy

    def expression(self, given: Any) -> Expr:
        """Return a sympy expression over torch's size symbols as an expression of the IR."""
        found = self._memo.get(given)
        if found is None:
            found = self._memo[given] = self._translated(given)
        return found

    def _translated(self, given: Any) -> Expr:
        if given.is_Integer:
            return Const(int(given))
        if self._is_one(given):
            return Const(1)
        try:
            return from_sympy(given)
        except UnsupportedError:
            rounded = self._rounded(given)
            if not rounded:
                raise
        return from_sympy(given.xreplace(rounded))

    def translate_within(self, rounded: Any) -> None:
        """Translate the rounded floats that a rounded float is made of."""
        for part in sympy.preorder_traversal(rounded.args[0]):  # type: ignore[no-untyped-call]
            if type(part).__name__ in ROUNDINGS:
                self.expression(part)

    def _rounded(self, given: Any) -> dict[Any, sympy.Symbol]:
        """Return symbols of ours for the rounded floats in an expression, to be computed once."""
        found: dict[Any, sympy.Symbol] = {}
        known = {value: symbol for symbol, value in self.computed.items()}
        for part in sympy.preorder_traversal(given):  # type: ignore[no-untyped-call]
            if type(part).__name__ not in ROUNDINGS or part in found:
                continue
            if part not in known:
                name = f"u{_FIRST + len(self.computed)}"
                symbol = sympy.Symbol(name, integer=True)  # type: ignore[no-untyped-call]
                self.computed[symbol] = part
                ours = self._memo[symbol] = from_sympy(symbol)
                assert isinstance(ours, Sym)
                self.known.add(ours)
                self.pending[ours] = part
                known[part] = symbol
            found[part] = known[part]
        return found

    def _is_one(self, given: Any) -> bool:
        """Whether torch guards that an expression is 1, on which it broadcasts: `s0//2`, say."""
        if given.is_Symbol or self.environment is None:
            return False
        hints = hints_of(self.environment)
        if any(symbol not in hints for symbol in given.free_symbols):
            return False
        if given.xreplace(hints) != 1:
            return False
        equal: Any = sympy.Eq(given, 1)  # type: ignore[no-untyped-call]
        known = self.environment._maybe_evaluate_static(equal)
        return known is not None and bool(known)

    def define(self, symbol: sympy.Symbol, value: Expr) -> None:
        """Let a symbol stand for an expression from now on."""
        self._memo[symbol] = value
        self.defined.add(symbol)

    def seen(self) -> set[Any]:
        """Return the symbols of all expressions translated so far."""
        found: set[Any] = set()
        for given in self._memo:
            found |= given.free_symbols
        return found

    def sizes(self, values: Iterable[Any]) -> tuple[Expr, ...]:
        """Return sizes or strides as expressions."""
        return tuple([Const(v) if v.__class__ is int else self.size(v) for v in values])
