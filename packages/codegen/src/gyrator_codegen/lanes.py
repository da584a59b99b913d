"""How an address changes from lane to lane of a vector, and how costly that access is.

A vector holds `lanes` consecutive values of one loop symbol, the first of them a multiple of
`lanes`. Quotients and remainders are harmless where they cannot change within such a vector:
`(k*v + rest) // c` is constant, and `(k*v + rest) % c` has slope k, if `k*lanes` divides both `c`
and `rest`.
"""

from math import gcd
from types import MappingProxyType

from attrs import frozen

from gyrator_ir.expr import ONE, ZERO, Add, Const, Expr, FloorDiv, Mod, Mul, Sym
from gyrator_ir.tile.nodes import Access

PRICES = MappingProxyType(
    {
        Access.UNIFORM: 1,
        Access.UNIT: 2,
        Access.STRIDED: 20,
        Access.GATHERED: 24,
        Access.LANES: 24,
    }
)
"""Roughly what one vector of an access costs, where a vector load costs 1."""


@frozen
class LaneAccess:
    """The class of an access and, for `STRIDED`, the distance in elements."""

    kind: Access
    stride: Expr = ZERO


def lane_access(index: Expr, symbol: Sym, lanes: int, varying: frozenset[Sym]) -> LaneAccess:
    """Classify address `index` in a vector over `symbol`.

    Args:
        varying: symbols bound to loaded values, one a lane.
    """
    free = index.free_symbols
    if symbol not in free and free.isdisjoint(varying):
        return LaneAccess(Access.UNIFORM)
    if not free.isdisjoint(varying):
        return LaneAccess(Access.LANES)
    stride = lane_slope(index, symbol, lanes)
    if stride is None:
        return LaneAccess(Access.LANES)
    if stride is ZERO:
        return LaneAccess(Access.UNIFORM)
    if stride is ONE:
        return LaneAccess(Access.UNIT)
    return LaneAccess(Access.STRIDED, stride)


def lane_slope(index: Expr, symbol: Sym, lanes: int) -> Expr | None:
    """Return how much `index` grows from lane to lane, or None where that is not constant."""
    if symbol not in index.free_symbols:
        return ZERO
    if index is symbol:
        return ONE
    match index:
        case Add():
            total: Expr = ZERO
            for monomial, coefficient in index.terms:
                slope = lane_slope(monomial, symbol, lanes)
                if slope is None:
                    return None
                if slope is not ZERO:
                    total = total + slope * coefficient
            return total
        case Mul():
            return _product_slope(index, symbol, lanes)
        case FloorDiv():
            return ZERO if _constant_quotient(index, symbol, lanes) is not None else None
        case Mod():
            return _constant_quotient(index, symbol, lanes)
    return None


def _product_slope(product: Mul, symbol: Sym, lanes: int) -> Expr | None:
    slope: Expr | None = None
    others: Expr = ONE
    for atom, power in product.factors:
        if symbol not in atom.free_symbols:
            others = others * atom**power
            continue
        step = lane_slope(atom, symbol, lanes)
        if step is ZERO:
            others = others * atom**power
        elif step is None or slope is not None or power != 1:
            return None
        else:
            slope = step
    if slope is None:
        return ZERO
    return slope * others


def _constant_quotient(node: FloorDiv | Mod, symbol: Sym, lanes: int) -> Expr | None:
    """Return the slope of the numerator if the quotient is the same for all lanes, else None."""
    if not isinstance(node.b, Const):
        return None
    slope = lane_slope(node.a, symbol, lanes)
    if not isinstance(slope, Const) or slope.value <= 0:
        return slope if slope is ZERO else None
    rest = node.a - slope * symbol
    span = slope.value * lanes
    if symbol in rest.free_symbols or node.b.value % span or _content(rest) % span:
        return None
    return slope


def _content(value: Expr) -> int:
    """Return an integer that visibly divides `value`; 0 for zero."""
    if isinstance(value, Const):
        return value.value
    if isinstance(value, Add):
        return gcd(value.const, *(c for _, c in value.terms))
    return 1


def split_terms(index: Expr, inner: frozenset[Sym]) -> tuple[Expr, Expr]:
    """Return (fixed, moving) with `fixed + moving == index`: moving terms contain `inner` symbols.

    The fixed part can be computed once, outside the loops over `inner`.
    """
    if index.free_symbols.isdisjoint(inner):
        return index, ZERO
    if not isinstance(index, Add):
        return ZERO, index
    moving: Expr = ZERO
    for monomial, coefficient in index.terms:
        if not monomial.free_symbols.isdisjoint(inner):
            moving = moving + monomial * coefficient
    return index - moving, moving
