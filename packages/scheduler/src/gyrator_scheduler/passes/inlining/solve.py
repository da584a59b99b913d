"""Inversion of store addresses: which iteration of a producer wrote a loaded element."""

from collections.abc import Sequence

from gyrator_ir.body.nodes import Axis
from gyrator_ir.expr import ONE, ZERO, Const, Expr, ShapeFacts, Sym, floordiv, ge, linear, lt, mod
from gyrator_ir.expr.division import extract_multiples
from gyrator_scheduler.fusion.axes import guess
from gyrator_scheduler.ranges import Ranges


def solve(
    stored: Expr, axes: tuple[Axis, ...], loaded: Expr, around: tuple[Axis, ...], ranges: Ranges
) -> dict[Sym, Expr] | None:
    """Return each axis of the producer as an expression over the reader's axes, or None.

    The producer stores at `stored` for `axes`; the reader loads at `loaded` for its axes `around`.
    The loaded address is decomposed by the strides of the store, largest first. The result is
    correct if every component provably lies within its axis, because stores go to distinct
    addresses. If a component may exceed its axis, as in a view that merges axes, the excess is
    carried to the next larger axis.
    """
    if loaded is stored and _same_axes(axes, around):
        return {a.symbol: a.symbol for a in axes}
    split = linear(stored, [a.symbol for a in axes])
    if split is None:
        return None
    strides, base = split
    if any(strides[a.symbol] is ZERO and a.extent is not ONE for a in axes):
        return None
    rest = loaded - base
    result: dict[Sym, Expr] = {}
    ordered = sorted(axes, key=lambda a: -guess(strides[a.symbol]))
    for a in ordered:
        stride = strides[a.symbol]
        if a.extent is ONE or stride is ZERO:
            result[a.symbol] = ZERO
            continue
        part, rest = (rest, ZERO) if stride is ONE else extract_multiples(rest, stride)
        result[a.symbol] = part
    if rest is not ZERO:
        return None
    facts = ranges.under(around)
    long_axes = [a for a in ordered if a.extent is not ONE and strides[a.symbol] is not ZERO]
    for larger, a in zip(reversed(long_axes[:-1]), reversed(long_axes[1:]), strict=True):
        value = result[a.symbol]
        if _is_index_of(value, a, around, facts):
            continue
        if strides[larger.symbol] is not strides[a.symbol] * a.extent:
            return None
        if not facts.known(ge(value, 0)):
            return None
        result[a.symbol] = mod(value, a.extent)
        result[larger.symbol] = result[larger.symbol] + floordiv(value, a.extent)
    if all(_is_index_of(result[a.symbol], a, around, facts) for a in axes):
        return result
    return None


def _is_index_of(value: Expr, axis: Axis, around: Sequence[Axis], facts: ShapeFacts) -> bool:
    """Return whether a value provably lies in the range of an axis."""
    if value is ZERO or _is_equal_axis(value, axis, around):
        return True
    if isinstance(value, Const) and isinstance(axis.extent, Const):
        return 0 <= value.value < axis.extent.value
    return facts.known(ge(value, 0)) and facts.known(lt(value, axis.extent))


def _same_axes(axes: Sequence[Axis], around: Sequence[Axis]) -> bool:
    extents = {a.symbol: a.extent for a in around}
    return all(extents.get(a.symbol) is a.extent for a in axes)


def _is_equal_axis(value: Expr, axis: Axis, around: Sequence[Axis]) -> bool:
    """Return whether a value is an axis of the same extent."""
    return any(a.symbol is value and a.extent is axis.extent for a in around)
