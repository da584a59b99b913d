"""torch's symbolic integers as expressions of the IR, and what torch knows about them."""

from collections.abc import Iterable
from typing import Any

import sympy
import torch
from attrs import define, field

from gyrator_ir.expr import Const, Expr
from gyrator_ir.expr.sympy_bridge import from_sympy


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
        return Const(1) if self._is_one(given) else from_sympy(given)

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
