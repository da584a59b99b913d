"""Values that torch assumes for numbers and sizes which only a run determines.

For `torch._check(n == 3)`, torch replaces the symbol of `n` by 3, also in the assertion itself,
which so becomes true. A program therefore compares the number with that value where it is bound.
"""

from collections.abc import Iterable
from typing import Any

import torch

from gyrator_ir.expr import Const, Expr, Sym, SymKind, eq
from gyrator_ir.loop.nodes import AssertCond
from gyrator_lowering.builder.program import LoopBuilder


def assumed(b: LoopBuilder, number: Any) -> Expr | None:
    """Return the value that torch assumes for a number or size which the current node determines;
    None if there is none."""
    if not isinstance(number, (torch.SymInt, torch.SymBool)):
        return None
    bound = b.node.meta.get("unbacked_bindings") or {}
    # `expr` is `_expr` after the replacement of symbols.
    original, expression = number.node._expr, number.node.expr
    if original.free_symbols.isdisjoint(bound):
        return None
    if expression == original:
        return _repeated(b, number, bound)
    if isinstance(number, torch.SymBool):
        return None if expression.free_symbols else Const(int(bool(expression)))
    value = b.symbols.size(number)
    unknown = {s for s in value.free_symbols if s.kind is SymKind.UNBACKED} - b.bound_symbols
    return None if unknown else value


def _repeated(b: LoopBuilder, number: Any, bound: Iterable[Any]) -> Expr | None:
    """Return the symbol of a number if another one that the current node determines is assumed to
    equal it, and has bound the symbol."""
    environment, symbol = number.node.shape_env, number.node.expr
    if all(s == symbol or environment.replace(s) != symbol for s in bound):
        return None
    value = b.symbols.size(number)
    return value if value in b.bound_symbols else None


def assumed_size(b: LoopBuilder, sizes: Iterable[Any]) -> Expr | None:
    """Return the value that torch assumes for the first such size; None if there is none."""
    return next((v for v in (assumed(b, size) for size in sizes) if v is not None), None)


def require(b: LoopBuilder, symbol: Sym, value: Expr) -> None:
    """Raise RuntimeError at run time unless a symbol has the value that torch assumes."""
    message = f"a check requires that {b.node.name} is, or has a size of, {value}"
    b.operations.append(AssertCond(b.op_name(), eq(symbol, value), message, b.origin))
