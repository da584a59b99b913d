"""The facts of torch's `ShapeEnv` about the symbols of a graph, as `ShapeFacts`."""

from typing import Any

import sympy

from gyrator_ir.expr import ShapeFacts, Sym
from gyrator_lowering.torch_bridge.symbols import Symbols

_UNBOUNDED = 1 << 62


def facts_of(symbols: Symbols) -> ShapeFacts:
    """Return the ranges and hints of every symbol in the graph's sizes; adds no guard."""
    facts = ShapeFacts()
    environment = symbols.environment
    if environment is None:
        return facts
    for symbol in sorted(symbols.free_symbols(), key=lambda s: s.name):
        if not symbol.is_integer:  # a float that a size is rounded from
            continue
        ir_symbol = symbols.expression(symbol)
        if not isinstance(ir_symbol, Sym):
            continue
        if symbol in symbols.computed:
            facts = _with_computed(facts, ir_symbol, symbols.computed[symbol], environment)
            continue
        bounds = environment.var_to_range.get(symbol)
        if bounds is not None:
            facts = facts.with_range(ir_symbol, _finite(bounds.lower), _finite(bounds.upper))
        hint = environment.backed_var_to_val.get(symbol)
        if hint is not None and getattr(hint, "is_Integer", isinstance(hint, int)):
            facts = facts.with_hint(ir_symbol, int(hint))
    return facts


def _with_computed(facts: ShapeFacts, symbol: Sym, value: Any, environment: Any) -> ShapeFacts:
    bounds = environment.bound_sympy(value)
    facts = facts.with_range(symbol, _finite(bounds.lower), _finite(bounds.upper))
    hint = value.xreplace(environment.backed_var_to_val)
    return facts.with_hint(symbol, int(hint)) if hint.is_number else facts


def _finite(bound: Any) -> int | None:
    """Return a bound that is an ordinary integer, else None."""
    if not isinstance(bound, (int, sympy.Integer)):
        return None
    number = int(bound)
    return number if abs(number) < _UNBOUNDED else None
