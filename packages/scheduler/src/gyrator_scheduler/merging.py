"""Merging of adjacent axes that every address traverses as one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from gyrator_ir.body.nodes import Axis
from gyrator_ir.body.rewrite import expressions, rewritten
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, linear, subs
from gyrator_ir.kernel.nodes import KernelStatement

S = TypeVar("S", bound=KernelStatement)


def addresses(body: Iterable[KernelStatement]) -> dict[Expr, Expr]:
    """Return every expression of a body that may mention axes, each mapped to itself."""
    return {e: e for s in body for e in expressions(s)}


def with_expressions(body: Iterable[S], change: Callable[[Expr], Expr]) -> tuple[S, ...]:
    """Return a body with `change` applied to every expression that may mention axes."""
    return tuple([rewritten(s, change=change) for s in body])


def drop_ones(axes: Sequence[Axis], new: dict[Expr, Expr]) -> tuple[Axis, ...]:
    """Remove axes of extent 1 from a list and, in place, from the values of `new`."""
    ones = {a.symbol: ZERO for a in axes if a.extent is ONE}
    if not ones:
        return tuple(axes)
    for e, value in new.items():
        new[e] = subs(value, ones)
    return tuple(a for a in axes if a.symbol not in ones)


def merge(axes: Sequence[Axis], new: dict[Expr, Expr]) -> tuple[Axis, ...]:
    """Merge neighbouring axes if every expression depends on them only through their row-major
    position. The expressions are the values of `new`, which are rewritten in place.

    A merged axis keeps the symbol of its innermost part.
    """
    if len(axes) < 2:
        return tuple(axes)
    merged, values = _merge(tuple(axes), tuple(new.values()))
    new.update(zip(new, values, strict=True))
    return merged


@lru_cache(1 << 12)
def _merge(
    axes: tuple[Axis, ...], values: tuple[Expr, ...]
) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """Implement `merge` for distinct values. Cached: a pure function of its arguments."""
    new = {e: e for e in values}
    remaining = list(axes)
    position = len(remaining) - 2
    while position >= 0:
        outer, inner = remaining[position], remaining[position + 1]
        changed = _merged(outer, inner, new)
        if changed is not None:
            new.update(changed)
            remaining[position : position + 2] = [Axis(inner.symbol, outer.extent * inner.extent)]
        position -= 1
    return tuple(remaining), tuple([new[e] for e in values])


def _merged(outer: Axis, inner: Axis, new: Mapping[Expr, Expr]) -> dict[Expr, Expr] | None:
    a, b = outer.symbol, inner.symbol
    changed: dict[Expr, Expr] = {}
    zero = {a: ZERO}
    step: dict[Sym, Expr] | None = None
    for key, e in new.items():
        free = e.free_symbols
        if a not in free:
            if b in free:
                return None
            continue
        split = linear(e, (a, b))
        if split is not None:
            if split[0][a] is not split[0][b] * inner.extent:
                return None
            changed[key] = subs(e, zero)
            continue
        step = step or {b: b - inner.extent * a}
        after = subs(e, step)
        if a in after.free_symbols:
            return None
        changed[key] = after
    return changed
