"""Bounds of axes under the mask of a load.

A concatenation loads each of its pieces under a mask: `i0 < 32` for the first, `i0 >= 32` for the
next. The address is valid where the mask is true.
"""

from collections.abc import Iterable, Iterator, Mapping

from gyrator_ir.body.nodes import Axis, Const, IndexValue, Let
from gyrator_ir.body.rewrite import AnyStatement, defined
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, stride_of, subs
from gyrator_ir.expr import Const as Number
from gyrator_ir.types import DType
from gyrator_scheduler.passes.inlining.solve import solve
from gyrator_scheduler.ranges import Ranges

Bounds = Mapping[Sym, tuple[Expr | None, Expr | None]]
"""The range [first, end) of each symbol that a mask bounds; None for a bound of the axis itself."""


class MaskBounds:
    """Derives bounds from the masks of one body."""

    def __init__(self, body: Iterable[AnyStatement]) -> None:
        self._definitions = {name: s for s in body for name in defined(s)}

    def of(self, mask: str | None) -> Bounds:
        """Return the bounds that a mask imposes on single symbols; empty without a mask."""
        bounds: dict[Sym, tuple[Expr | None, Expr | None]] = {}
        for symbol, first, end in self._bounds(mask):
            low, high = bounds.get(symbol, (None, None))
            bounds[symbol] = (first if low is None else low, end if high is None else high)
        return bounds

    def _bounds(self, mask: str | None) -> Iterator[tuple[Sym, Expr | None, Expr | None]]:
        s = self._definitions.get(mask or "")
        if not isinstance(s, Let):
            return
        if s.op in ("bit_and", "logical_and"):
            for operand in s.args:
                yield from self._bounds(operand)
            return
        if s.op not in ("lt", "le", "gt", "ge"):
            return
        index, bound = map(self._index, s.args)
        if index is None or bound is None or len(index.free_symbols) != 1:
            return
        (symbol,) = index.free_symbols
        stride = stride_of(index, symbol)
        bound -= subs(index, {symbol: ZERO})
        if stride is ONE:
            limit = bound if s.op in ("lt", "ge") else bound + 1
            yield (symbol, None, limit) if s.op in ("lt", "le") else (symbol, limit, None)
        elif stride == Number(-1):
            limit = -bound if s.op in ("le", "gt") else 1 - bound
            yield (symbol, limit, None) if s.op in ("lt", "le") else (symbol, None, limit)

    def _index(self, name: str) -> Expr | None:
        """Return a value as an expression, if it is an index expression or an integer constant."""
        match self._definitions.get(name):
            case IndexValue(_, e, DType.I64):
                return e
            case Const(_, int() as value, DType.I64):
                return Number(value)
        return None


def solve_within(
    stored: Expr,
    axes: tuple[Axis, ...],
    loaded: Expr,
    around: tuple[Axis, ...],
    part: Bounds,
    ranges: Ranges,
) -> dict[Sym, Expr] | None:
    """Return the result of `solve`, or if it fails for all points of the reader, its result for the
    points within the bounds `part`."""
    solution = solve(stored, axes, loaded, around, ranges)
    if solution is not None or not part:
        return solution
    substitution: dict[Sym, Expr] = {}
    offsets: dict[Sym, Expr] = {}
    inside: list[Axis] = []
    for a in around:
        low, high = part.get(a.symbol, (None, None))
        if low is None and high is None:
            inside.append(a)
            continue
        first = ZERO if low is None else low
        end = a.extent if high is None else high
        position = Sym(f"{a.symbol.name}_part")
        inside.append(Axis(position, end - first))
        if _falls(loaded, a.symbol):  # counted from the end, it has a stride that `solve` can use
            substitution[a.symbol] = end - 1 - position
            offsets[position] = end - 1 - a.symbol
        else:
            substitution[a.symbol] = position + first
            offsets[position] = a.symbol - first
    solution = solve(stored, axes, subs(loaded, substitution), tuple(inside), ranges)
    return solution and {symbol: subs(e, offsets) for symbol, e in solution.items()}


def _falls(index: Expr, symbol: Sym) -> bool:
    """Return whether an index has a constant negative stride."""
    stride = stride_of(index, symbol)
    return isinstance(stride, Number) and stride.value < 0
