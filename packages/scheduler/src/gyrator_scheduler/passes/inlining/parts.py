"""The part of an operation's points that a masked load is for.

What is joined from pieces loads each of them for the points that lie in it: `i0 < 32` for the
first, `i0 >= 32` for the next. Where the mask holds, the address lies in the piece.
"""

from collections.abc import Iterable, Iterator, Mapping

from gyrator_ir.body.nodes import Axis, Const, IndexValue, Let
from gyrator_ir.body.rewrite import AnyStatement, defined
from gyrator_ir.expr import Const as Number
from gyrator_ir.expr import Expr, Sym, subs
from gyrator_ir.types import DType
from gyrator_scheduler.passes.inlining.solve import solve
from gyrator_scheduler.ranges import Ranges

Part = Mapping[Sym, tuple[Expr | None, Expr | None]]
"""Where each symbol that a mask bounds begins, and where it ends; None where that is the axis's."""


class Parts:
    """Reads the masks of one body."""

    def __init__(self, body: Iterable[AnyStatement]) -> None:
        self._made = {name: s for s in body for name in defined(s)}

    def of(self, mask: str | None) -> Part:
        """Return what a mask says of single symbols; nothing where there is none."""
        found: dict[Sym, tuple[Expr | None, Expr | None]] = {}
        for symbol, first, end in self._bounds(mask):
            low, high = found.get(symbol, (None, None))
            found[symbol] = (first if low is None else low, end if high is None else high)
        return found

    def _bounds(self, mask: str | None) -> Iterator[tuple[Sym, Expr | None, Expr | None]]:
        s = self._made.get(mask or "")
        if not isinstance(s, Let):
            return
        if s.op in ("bit_and", "logical_and"):
            for one in s.args:
                yield from self._bounds(one)
            return
        if s.op not in ("lt", "le", "gt", "ge"):
            return
        symbol, bound = map(self._index, s.args)
        if not isinstance(symbol, Sym) or bound is None:
            return
        beyond = bound if s.op in ("lt", "ge") else bound + 1
        yield (symbol, None, beyond) if s.op in ("lt", "le") else (symbol, beyond, None)

    def _index(self, name: str) -> Expr | None:
        """Return a value that is an index expression or an integer."""
        match self._made.get(name):
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
    part: Part,
    ranges: Ranges,
) -> dict[Sym, Expr] | None:
    """Return what `solve` does, for a reader's points in `part` if all of them do not do."""
    found = solve(stored, axes, loaded, around, ranges)
    if found is not None or not part:
        return found
    counted: dict[Sym, Expr] = {}
    places: dict[Sym, Expr] = {}
    inside: list[Axis] = []
    for a in around:
        low, high = part.get(a.symbol, (None, None))
        if low is None and high is None:
            inside.append(a)
            continue
        first: Expr = Number(0) if low is None else low
        place = Sym(f"{a.symbol.name}_part")
        inside.append(Axis(place, (a.extent if high is None else high) - first))
        counted[a.symbol] = place + first
        places[place] = a.symbol - first
    found = solve(stored, axes, subs(loaded, counted), tuple(inside), ranges)
    return found and {symbol: subs(e, places) for symbol, e in found.items()}
