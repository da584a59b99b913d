"""How an address changes from lane to lane of a vector, the cost of such an access, and the axes
along which a kernel's accesses are contiguous.

A vector covers `lanes` consecutive values of one loop symbol, starting at a multiple of `lanes`. In
such a vector, `(k*v + rest) // c` is constant and `(k*v + rest) % c` has slope k, if `k*lanes`
divides both `c` and `rest`.
"""

from math import gcd
from types import MappingProxyType

from gyrator_ir.body.nodes import Axis, Load, Store
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Add, Const, Expr, FloorDiv, Max, Min, Mod, Mul, Sym
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.nodes import Access

PRICES = MappingProxyType(
    {
        Access.UNIFORM: 1,
        Access.UNIT: 2,
        Access.STRIDED: 20,
        Access.GATHERED: 24,
        Access.RUNS: 8,
        Access.LANES: 24,
    }
)
"""Approximate cost of one vector of an access, by its kind."""

_VECTORS = 4
"""A remainder must wrap around at most once in this many vectors, so that most vectors are one
contiguous run."""


@frozen
class LaneAccess:
    """The kind of an access and, for `STRIDED`, the stride in elements."""

    kind: Access
    stride: Expr = ZERO


def lane_access(index: Expr, symbol: Sym, lanes: int, varying: frozenset[Sym]) -> LaneAccess:
    """Classify the address `index` in a vector over `symbol`.

    Args:
        index: an address.
        symbol: the loop variable of the vector.
        lanes: elements of the vector.
        varying: symbols bound to values that differ between lanes.
    """
    free = index.free_symbols
    if symbol not in free and free.isdisjoint(varying):
        return LaneAccess(Access.UNIFORM)
    if not free.isdisjoint(varying):
        return LaneAccess(Access.LANES)
    stride = lane_slope(index, symbol, lanes)
    if stride is None:
        growth = _growth(index, symbol, lanes)
        return LaneAccess(Access.RUNS if growth is not None and growth[1] == 1 else Access.LANES)
    if stride is ZERO:
        return LaneAccess(Access.UNIFORM)
    if stride is ONE:
        return LaneAccess(Access.UNIT)
    return LaneAccess(Access.STRIDED, stride)


def lane_slope(index: Expr, symbol: Sym, lanes: int) -> Expr | None:
    """Return the stride of `index` from lane to lane, or None if it is not constant."""
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


def _growth(index: Expr, symbol: Sym, lanes: int) -> tuple[int, int] | None:
    """Return bounds of the growth of `index` from one lane to the next, or None if unknown.

    This supports sums, remainders by large divisors, and minima and maxima of linear expressions,
    as rolled and padded tensors have them.
    """
    if symbol not in index.free_symbols:
        return 0, 0
    if index is symbol:
        return 1, 1
    match index:
        case Add():
            low = high = 0
            for monomial, coefficient in index.terms:
                growth = _growth(monomial, symbol, lanes)
                if growth is None:
                    return None
                ends = [coefficient * g for g in growth]
                low, high = low + min(ends), high + max(ends)
            return low, high
        case Mod(a=a, b=Const(value=divisor)):
            growth = _growth(a, symbol, lanes)
            short = divisor < _VECTORS * lanes
            if short or growth is None or growth[0] < 0 or growth[1] >= divisor:
                return None
            return growth[0] - divisor, growth[1]
        case Min() | Max():
            bounds = [g for a in index.args if (g := _growth(a, symbol, lanes)) is not None]
            if len(bounds) < len(index.args):
                return None
            return min(g[0] for g in bounds), max(g[1] for g in bounds)
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
    """Return the stride of the numerator if the quotient is the same for all lanes, else None."""
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
    """Return an integer that divides `value` by its syntactic form; 0 for zero."""
    if isinstance(value, Const):
        return value.value
    if isinstance(value, Add):
        return gcd(value.const, *(c for _, c in value.terms))
    return 1


def split_terms(index: Expr, inner: frozenset[Sym]) -> tuple[Expr, Expr]:
    """Return (fixed, moving) with `fixed + moving == index`, where the terms of `moving` contain
    symbols of `inner`.

    The fixed part can be hoisted out of the loops over `inner`.
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


VECTOR = 16
"""Elements of a vector for which accesses are classified; also the bytes of a vector access."""
_INNER = 4
"""Relative weight of an access that is repeated for each inner element."""


def consecutive(index: Expr, axis: Axis) -> bool:
    """Return whether an address grows by one from element to element of an axis."""
    return lane_access(index, axis.symbol, VECTOR, frozenset()).kind is Access.UNIT


def consecutive_inside(kernel: Kernel) -> bool:
    """Return whether memory is contiguous along the last inner axis rather than along the last axis
    of points: for most accesses that depend on points and on inner axes, or, if there are as many
    of either kind, for at least half of all accesses. Each point accesses the others again."""
    if not kernel.inner:
        return False
    points = {a.symbol for a in kernel.axes}
    inner = {a.symbol for a in kernel.inner}
    score = both = 0
    for s in kernel.statements:
        if isinstance(s, Load | Store):
            symbols = s.index.free_symbols
            contiguous = int(consecutive(s.index, kernel.inner[-1]))
            if kernel.axes:
                contiguous -= consecutive(s.index, kernel.axes[-1])
            score += contiguous * (1 if symbols.isdisjoint(inner) else _INNER)
            if not symbols.isdisjoint(points) and not symbols.isdisjoint(inner):
                both += contiguous
    return both > 0 if both else score >= 0
