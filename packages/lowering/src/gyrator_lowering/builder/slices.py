"""Slices with data-dependent bounds: torch gives their sizes and offsets new symbols."""

from typing import Any

import torch
from attrs import evolve

from gyrator_ir.expr import ONE, ZERO, Const, Expr, Sym, SymKind, le, lt, maximum, minimum
from gyrator_ir.loop.nodes import AssertCond, Extern, Literal
from gyrator_ir.modes import Failure
from gyrator_lowering.builder.assumed import assumed, require
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.torch_bridge.facts import facts_of

_BIG = 1 << 62
SLICES = frozenset({"aten.slice.Tensor", "aten.select.int"})
"""Views whose position may be a symbolic integer."""


def bind_symbols(b: LoopBuilder, op: str, args: list[Any], base: torch.Tensor, fake: Any) -> None:
    """Define the unbacked symbols that the view `fake` of the tensor `args[0]` introduces.

    A size is read back from the view; an offset is replaced by the expression that eager computes.
    """
    x: TensorValue = args[0]
    d = (args[1] if len(args) > 1 else 0) % x.ndim
    n = x.shape[d]
    if op == "aten.select.int":
        start = selected_index(b, args[2], n)
    else:
        start, size = _bounds(b, args, n)
        _bind_size(b, x, d, start, size, fake.shape[d])
    offset = fake.storage_offset()
    if isinstance(offset, torch.SymInt) and _is_new(b, b.symbols.size(offset)):
        base_offset = b.symbols.size(base.storage_offset())
        b.symbols.define(offset.node.expr, base_offset + start * x.strides[d])


def selected_index(b: LoopBuilder, index: Any, n: Expr) -> Expr:
    """Return the index of a `select`, counted from the start.

    The program asserts that it is in range. That of unbacked symbols is not taken from the facts,
    which the graph may assert only later.
    """
    start = wrapped_index(b, index, n)
    is_read = any(s.kind is SymKind.UNBACKED for s in start.free_symbols | n.free_symbols)
    for inside in (le(ZERO, start), lt(start, n)):
        if is_read or not facts_of(b.symbols).known(inside):
            message = "select(): index out of range"
            b.operations.append(
                AssertCond(b.op_name(), inside, message, b.origin, error=Failure.INDEX)
            )
    return start


def _bounds(b: LoopBuilder, args: list[Any], n: Expr) -> tuple[Expr, Expr]:
    """Return the start and the size of a slice."""
    bounds = [*args[2:], None, None, None]
    first, last, step = bounds[0], bounds[1], b.symbols.size(1 if bounds[2] is None else bounds[2])
    start = maximum(ZERO, minimum(n, wrapped_index(b, 0 if first is None else first, n)))
    end = n if last is None else maximum(start, minimum(n, wrapped_index(b, last, n)))
    size = end - start
    return start, size if step is ONE else (size + step - 1) // step


def wrapped_index(b: LoopBuilder, index: Any, n: Expr) -> Expr:
    """Return an index counted from the start. A floor division gives the sign of a symbolic
    index."""
    expression = b.symbols.size(index)
    if isinstance(expression, Const):
        return (
            n
            if expression.value >= _BIG
            else expression
            if expression.value >= 0
            else expression + n
        )
    if facts_of(b.symbols).known_nonnegative(expression):
        return expression
    return expression - n * (expression // _BIG)


def _bind_size(
    b: LoopBuilder, x: TensorValue, d: int, start: Expr, size: Expr, eager_size: Any
) -> None:
    value = assumed(b, eager_size)
    symbol = b.symbols.size(eager_size) if value is None else b.symbols.fresh()
    if not isinstance(symbol, Sym) or not _is_new(b, symbol):
        return
    b.bound_symbols.add(symbol)
    view = evolve(
        x, shape=(*x.shape[:d], size, *x.shape[d + 1 :]), offset=x.offset + start * x.strides[d]
    )
    b.operations.append(
        Extern(
            b.op_name(),
            "aten.sym_size.int",
            (view.ref, Literal(d)),
            (),
            (symbol,),
            reason="the size of a slice whose bounds values decide",
            origins=b.origin,
        )
    )
    if value is not None:
        require(b, symbol, value)


def _is_new(b: LoopBuilder, symbol: Expr) -> bool:
    return (
        isinstance(symbol, Sym)
        and symbol.kind is SymKind.UNBACKED
        and symbol not in b.bound_symbols
    )
