"""Which axes of a kernel own the addresses that it folds into.

A store that folds (`StoreMode.ADD` ...) may meet another point's. Where the address tells the value
of an axis, points that differ in it never meet: threads that share out that axis need no atomic
operations, and every address receives its values in one order.
"""

from math import gcd

from gyrator_ir.expr import Add, Expr, ShapeFacts
from gyrator_ir.expr import Const as Number
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.body import Axis, Store, StoreMode


def folding_stores(kernel: Kernel) -> tuple[Store, ...]:
    """Return the stores that combine with what is there."""
    return tuple(
        s
        for stage in kernel.stages
        for s in stage.body
        if isinstance(s, Store) and s.mode is not StoreMode.SET
    )


def owners(kernel: Kernel, inside: ShapeFacts) -> tuple[Axis, ...]:
    """Return the axes whose value follows from the address of every folding store.

    Args:
        inside: facts that hold inside of the kernel's loops, ranges of their symbols included.
    """
    addresses = tuple(dict.fromkeys(s.index for s in folding_stores(kernel)))
    return tuple(a for a in kernel.axes if all(_owns(a, e, inside) for e in addresses))


def _owns(axis: Axis, address: Expr, inside: ShapeFacts) -> bool:
    """Say whether `address = high + factor * axis + low`, up to a constant, where `low` spans less
    than `factor` and all of `high` is a multiple of more than the rest spans."""
    terms = _terms(address)
    factor = abs(terms.pop(axis.symbol, 0))
    if factor == 0:
        return False
    low, unit = 0, 0
    for e, coefficient in terms.items():
        if axis.symbol in e.free_symbols or abs(coefficient) == factor:
            return False
        if abs(coefficient) > factor:
            unit = gcd(unit, coefficient)
            continue
        span = _span(e, inside)
        if span is None:
            return False
        low += abs(coefficient) * span
    if low >= factor or unit == 0:
        return low < factor
    span = _span(axis.symbol, inside)
    return span is not None and low + factor * span < unit


def _terms(e: Expr) -> dict[Expr, int]:
    if isinstance(e, Number):
        return {}
    return dict(e.terms) if isinstance(e, Add) else {e: 1}


def _span(e: Expr, inside: ShapeFacts) -> int | None:
    low, high = inside.bounds(e)
    return None if low is None or high is None else max(high - low, 0)
