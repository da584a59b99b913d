"""What torch's `ShapeEnv` knows of the symbols of a graph, as `ShapeFacts`."""

from typing import Any

import sympy

from gyrator_ir.expr import ShapeFacts, Sym
from gyrator_lowering.torch_bridge.symbols import Symbols, hints_of

_UNBOUNDED = 1 << 62


def facts_of(symbols: Symbols) -> ShapeFacts:
    """Return ranges and hints of every symbol that the graph's sizes mention; adds no guard."""
    facts = ShapeFacts()
    environment = symbols.environment
    if environment is None:
        return facts
    for symbol in sorted(symbols.seen(), key=lambda s: s.name):
        if not symbol.is_integer:  # a float that a size is rounded from
            continue
        ours = symbols.expression(symbol)
        if not isinstance(ours, Sym):
            continue
        if symbol in symbols.computed:
            facts = _of_computed(facts, ours, symbols.computed[symbol], environment)
            continue
        bounds = environment.var_to_range.get(symbol)
        if bounds is not None:
            facts = facts.with_range(ours, _finite(bounds.lower), _finite(bounds.upper))
        hint = hints_of(environment).get(symbol)
        if hint is not None and getattr(hint, "is_Integer", isinstance(hint, int)):
            facts = facts.with_hint(ours, int(hint))
    return facts


def _of_computed(facts: ShapeFacts, symbol: Sym, value: Any, environment: Any) -> ShapeFacts:
    bounds = environment.bound_sympy(value)
    facts = facts.with_range(symbol, _finite(bounds.lower), _finite(bounds.upper))
    hint = value.xreplace(hints_of(environment))
    return facts.with_hint(symbol, int(hint)) if hint.is_number else facts


def _finite(bound: Any) -> int | None:
    """Return a bound that is an ordinary integer, else None."""
    if not isinstance(bound, (int, sympy.Integer)):
        return None
    number = int(bound)
    return number if abs(number) < _UNBOUNDED else None
