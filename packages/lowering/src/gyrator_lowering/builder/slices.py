"""Slices whose bounds values decide: torch gives their size and offset new symbols."""

from typing import Any

import torch
from attrs import evolve

from gyrator_ir.expr import ONE, ZERO, Const, Expr, Sym, SymKind, le, lt, maximum, minimum
from gyrator_ir.loop.nodes import AssertCond, Extern, Literal
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.torch_bridge.facts import facts_of

_BIG = 1 << 62
SLICES = frozenset({"aten.slice.Tensor", "aten.select.int"})
"""Views that a run-time integer can place."""


def bind_symbols(b: LoopBuilder, op: str, args: list[Any], base: torch.Tensor, fake: Any) -> None:
    """Define the unbacked symbols that the view `fake` of the tensor `args[0]` introduces.

    A size is read back from the view; an offset becomes what eager computes it by.
    """
    x: TensorValue = args[0]
    d = (args[1] if len(args) > 1 else 0) % x.ndim
    n = x.shape[d]
    if op == "aten.select.int":
        start = wrapped(b, args[2], n)
        for inside in (le(ZERO, start), lt(start, n)):
            message = "select(): index out of range"
            b.operations.append(AssertCond(b.op_name(), inside, message, b.origin))
    else:
        start, size = _bounds(b, args, n)
        _bind_size(b, x, d, start, size, fake.shape[d])
    offset = fake.storage_offset()
    if isinstance(offset, torch.SymInt) and _is_new(b, b.symbols.size(offset)):
        theirs = b.symbols.size(base.storage_offset())
        b.symbols.define(offset.node.expr, theirs + start * x.strides[d])


def _bounds(b: LoopBuilder, args: list[Any], n: Expr) -> tuple[Expr, Expr]:
    """Return where a slice starts, and its size."""
    given = [*args[2:], None, None, None]
    first, last, step = given[0], given[1], b.symbols.size(1 if given[2] is None else given[2])
    start = maximum(ZERO, minimum(n, wrapped(b, 0 if first is None else first, n)))
    end = n if last is None else maximum(start, minimum(n, wrapped(b, last, n)))
    size = end - start
    return start, size if step is ONE else (size + step - 1) // step


def wrapped(b: LoopBuilder, given: Any, n: Expr) -> Expr:
    """Return a place counted from the start; the sign of a symbol shows in a floor division."""
    place = b.symbols.size(given)
    if isinstance(place, Const):
        return n if place.value >= _BIG else place if place.value >= 0 else place + n
    if facts_of(b.symbols).known_nonnegative(place):
        return place
    return place - n * (place // _BIG)


def _bind_size(
    b: LoopBuilder, x: TensorValue, d: int, start: Expr, size: Expr, wanted: Any
) -> None:
    symbol = b.symbols.size(wanted)
    if not isinstance(symbol, Sym) or not _is_new(b, symbol):
        return
    b.known.add(symbol)
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


def _is_new(b: LoopBuilder, symbol: Expr) -> bool:
    return isinstance(symbol, Sym) and symbol.kind is SymKind.UNBACKED and symbol not in b.known
