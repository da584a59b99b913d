"""Which point of a producer wrote the element that a reader reads."""

from collections.abc import Sequence

from gyrator_ir.expr import ONE, ZERO, Const, Expr, Sym, ge, linear, lt
from gyrator_ir.expr.division import extract_multiples
from gyrator_ir.loop.body import Axis
from gyrator_scheduler.fusion.axes import guess
from gyrator_scheduler.ranges import Ranges


def solve(
    stored: Expr,
    axes: tuple[Axis, ...],
    loaded: Expr,
    around: tuple[Axis, ...],
    ranges: Ranges,
) -> dict[Sym, Expr] | None:
    """Return each axis of the producer as an expression over the reader's, or None.

    The producer stores at `stored` for points of `axes`; the reader loads at `loaded` for points of
    `around`. The address is taken apart by strides, largest first; that every part lies within its
    axis is proved, which makes the answer the right one, stores being to distinct places.
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
    for a in sorted(axes, key=lambda a: -guess(strides[a.symbol])):
        stride = strides[a.symbol]
        if a.extent is ONE or stride is ZERO:
            result[a.symbol] = ZERO
            continue
        part, rest = (rest, ZERO) if stride is ONE else extract_multiples(rest, stride)
        result[a.symbol] = part
    if rest is not ZERO:
        return None
    facts = ranges.under(around)
    for a in axes:
        value = result[a.symbol]
        if value is ZERO or _walks(value, a, around):
            continue
        if isinstance(value, Const) and isinstance(a.extent, Const):
            if 0 <= value.value < a.extent.value:
                continue
            return None
        if not (facts.known(ge(value, 0)) and facts.known(lt(value, a.extent))):
            return None
    return result


def _same_axes(axes: Sequence[Axis], around: Sequence[Axis]) -> bool:
    extents = {a.symbol: a.extent for a in around}
    return all(extents.get(a.symbol) is a.extent for a in axes)


def _walks(value: Expr, axis: Axis, around: Sequence[Axis]) -> bool:
    """Whether a value is an axis of the same extent."""
    return any(a.symbol is value and a.extent is axis.extent for a in around)
