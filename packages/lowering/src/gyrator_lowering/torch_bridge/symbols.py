"""Translation of torch's symbolic integers to expressions of the IR."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import sympy
import torch
from attrs import field

from gyrator_ir.define import define
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Const, Expr, Sym, SymKind
from gyrator_ir.expr.sympy_bridge import from_sympy

ROUNDINGS: Mapping[str, str] = MappingProxyType(
    {"CeilToInt": "ceil", "FloorToInt": "floor", "TruncToInt": "trunc", "RoundToInt": "round"}
)
"""torch's functions from floats to integers, and the rows of the op table that compute them."""
_FIRST = 1_000_000
"""The number of the first symbol that we create; torch counts from 0."""


@define
class Symbols:
    """Translates the sizes of one graph. Each sympy expression is translated once."""

    _memo: dict[sympy.Basic, Expr] = field(factory=dict)
    environment: Any = None
    """The `ShapeEnv` of the first symbolic size, or None."""
    defined: set[sympy.Symbol] = field(factory=set)
    """Symbols that are replaced by an expression over others."""
    bound_symbols: set[Sym] = field(factory=set)
    """Unbacked symbols that inputs or operations of the program define."""
    computed: dict[sympy.Symbol, Any] = field(factory=dict)
    """Symbols that we created, and the rounded floats that they stand for."""
    pending: dict[Sym, Any] = field(factory=dict)
    """The subset of these that no operation computes yet."""
    _created: int = 0

    def size(self, value: Any) -> Expr:
        """Return an `int` or `torch.SymInt` as an IR expression; adds no guard."""
        if value.__class__ is int:
            return Const(value)
        if isinstance(value, torch.SymInt):
            node = value.node
            if self.environment is None:
                self.environment = node.shape_env
            return self.expression(node.expr)
        if isinstance(value, Expr):
            return value
        return Const(int(value))  # a bool, or a NumPy integer

    def expression(self, expression: Any) -> Expr:
        """Return a sympy expression over torch's size symbols as an IR expression."""
        result = self._memo.get(expression)
        if result is None:
            result = self._memo[expression] = self._translated(expression)
        return result

    def _translated(self, expression: Any) -> Expr:
        if expression.is_Integer:
            return Const(int(expression))
        if self._is_one(expression):
            return Const(1)
        try:
            return from_sympy(expression)
        except UnsupportedError:
            rounded = self._rounded(expression)
            if not rounded:
                raise
        return from_sympy(expression.xreplace(rounded))

    def fresh(self) -> Sym:
        """Return an unbacked symbol that the graph does not have."""
        self._created += 1
        return Sym(f"u{_FIRST + self._created - 1}", SymKind.UNBACKED)

    def translate_within(self, rounded: Any) -> None:
        """Translate the rounded floats nested in a rounded float."""
        for part in sympy.preorder_traversal(rounded.args[0]):  # type: ignore[no-untyped-call]
            if type(part).__name__ in ROUNDINGS:
                self.expression(part)

    def _rounded(self, expression: Any) -> dict[Any, sympy.Symbol]:
        """Return the symbols that stand for rounded floats in an expression; each is computed
        once."""
        substitutions: dict[Any, sympy.Symbol] = {}
        symbol_of = {value: symbol for symbol, value in self.computed.items()}
        for part in sympy.preorder_traversal(expression):  # type: ignore[no-untyped-call]
            if type(part).__name__ not in ROUNDINGS or part in substitutions:
                continue
            with suppress(UnsupportedError):
                from_sympy(part)  # an expression everywhere, hence no symbol here
                continue
            if part not in symbol_of:
                ir_symbol = self.fresh()
                symbol = sympy.Symbol(ir_symbol.name, integer=True)  # type: ignore[no-untyped-call]
                self.computed[symbol] = part
                self._memo[symbol] = ir_symbol
                self.bound_symbols.add(ir_symbol)
                self.pending[ir_symbol] = part
                symbol_of[part] = symbol
            substitutions[part] = symbol_of[part]
        return substitutions

    def _is_one(self, expression: Any) -> bool:
        """Return whether torch guards that an expression is 1, on which it broadcasts (`s0//2`,
        say)."""
        if expression.is_Symbol or self.environment is None:
            return False
        hints = self.environment.backed_var_to_val
        if any(symbol not in hints for symbol in expression.free_symbols):
            return False
        if expression.xreplace(hints) != 1:
            return False
        equal: Any = sympy.Eq(expression, 1)  # type: ignore[no-untyped-call]
        result = self.environment._maybe_evaluate_static(equal)
        return result is not None and bool(result)

    def define(self, symbol: sympy.Symbol, value: Expr) -> None:
        """Replace a symbol by an expression in all later translations."""
        self._memo[symbol] = value
        self.defined.add(symbol)

    def free_symbols(self) -> set[Any]:
        """Return the symbols of all expressions translated so far."""
        symbols: set[Any] = set()
        for expression in self._memo:
            symbols |= expression.free_symbols
        return symbols

    def sizes(self, values: Iterable[Any]) -> tuple[Expr, ...]:
        """Return sizes or strides as IR expressions."""
        return tuple([Const(v) if v.__class__ is int else self.size(v) for v in values])


def expression_of(size: Any) -> Any:
    """Return the SymPy expression of a symbolic integer, and any other size unchanged."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def hint_of(size: Any) -> int | None:
    """Return the hint of a symbolic integer, if it has one, and any other size unchanged."""
    hint: int | None = size.node.hint if isinstance(size, torch.SymInt) else size
    return hint
