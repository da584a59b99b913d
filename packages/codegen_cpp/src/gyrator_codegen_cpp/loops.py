"""Loops over vectors, with their remainders, and nests of plain loops."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from math import gcd

from attrs import frozen

from gyrator_codegen import static
from gyrator_codegen.turns import Rest, turns_of
from gyrator_codegen_cpp.scope import Lanes, Scope
from gyrator_ir.body.nodes import Axis
from gyrator_ir.expr import Sym

Emit = Callable[[Scope, int], None]
"""Writes one vector (or element) of a loop at a place, into accumulator number `copy`."""

Turn = Callable[[Scope, range, str | None], None]
"""Writes the steps of a turn, at offsets from the first; of a last part, so many elements."""


@frozen
class Span:
    """The stretch [low, high) of a loop; `low` is a multiple of the lanes."""

    low: str
    high: str
    exact: int | None = None
    """`high - low`, where that is known."""
    multiple: int = 1
    """A number that divides `high - low`."""


def whole(scope: Scope, axis: Axis) -> Span:
    """Return the whole range of an axis."""
    exact = static(axis.extent)
    return Span("0", scope.index(axis.extent), exact, exact or 1)


def stretch(scope: Scope, axis: Axis, first: str, last: str, step: int) -> Span:
    """Write where steps `first` to `last` of an axis begin and end; return that range."""
    name, extent = axis.symbol.name, static(axis.extent)
    low, high = f"{name}_low", f"{name}_high"
    scope.line(f"const si64 {low} = {first} * {step};")
    scope.line(f"const si64 {high} = gy_least({last} * {step}, {scope.index(axis.extent)});")
    return Span(low, high, None, 1 if extent is None else gcd(extent, step))


def each(
    scope: Scope, symbol: Sym, low: str, high: str, backwards: bool = False
) -> AbstractContextManager[None]:
    """Write a loop over the elements from `low` to `high`, one by one."""
    name = symbol.name
    if backwards:
        return scope.block(f"for (si64 {name} = {high} - 1; {name} >= {low}; {name}--) {{")
    return scope.block(f"for (si64 {name} = {low}; {name} < {high}; {name}++) {{")


@contextmanager
def nested_loops(scope: Scope, axes: Iterable[Axis], backwards: bool = False) -> Iterator[Scope]:
    """Write nested loops, one an axis, around what the `with` body writes."""
    with ExitStack() as stack:
        for a in axes:
            extent = scope.index(a.extent)
            stack.enter_context(each(scope, a.symbol, "0", extent, backwards))
            scope = scope.nested()
        yield scope


def turns(scope: Scope, symbol: Sym, span: Span, width: int, copies: int, emit: Turn) -> None:
    """Write a loop over `span` of `symbol` in steps of `width`, `copies` of them a turn; the rest
    goes step by step, and then, if there is a last part of a step, as that."""
    name, high, step = symbol.name, span.high, copies * width
    found = turns_of(span.exact, span.multiple, width, copies)
    left, many = f"{name} < {high}", found.rest is Rest.MIXED
    with scope.block("{"):
        scope.line(f"si64 {name} = {span.low};")
        if found.whole:
            test = left if found.rest is Rest.NOTHING else f"{name} + {step} <= {high}"
            with scope.block(f"for (; {test}; {name} += {step}) {{"):
                emit(scope.nested(), range(0, step, width), None)
        if found.rest is Rest.STEPS or many:
            head = f"for (; {left}; {name} += {width})"
        elif found.rest is Rest.PART:
            head = f"if ({left})"
        else:
            return
        with scope.block(f"{head} {{"):
            if found.rest is not Rest.STEPS:
                rest = f"{high} - {name}"
                scope.line(f"const si64 live = {f'gy_least(GY_LANES, {rest})' if many else rest};")
            emit(scope.nested(), range(1), None if found.rest is Rest.STEPS else "live")


def shifted(scope: Scope, symbol: Sym, offset: int) -> dict[Sym, str]:
    """Return the texts of symbols `offset` steps of `symbol` on."""
    return scope.symbols | ({symbol: f"({symbol.name} + {offset})"} if offset else {})


def vector_loop(scope: Scope, symbol: Sym, span: Span, copies: int, emit: Emit) -> None:
    """Write a loop over `span` of `symbol` in vectors, `copies` of them a turn."""
    if scope.frame.width == 1:
        with each(scope, symbol, span.low, span.high):
            emit(scope.nested(lanes=None), 0)
        return

    def turn(at: Scope, offsets: range, live: str | None) -> None:
        for copy, offset in enumerate(offsets):
            inside = at.nested(lanes=Lanes(symbol, live), symbols=shifted(at, symbol, offset))
            with at.block("{") if len(offsets) > 1 else nullcontext():
                emit(inside, copy)

    turns(scope, symbol, span, scope.frame.width, copies, turn)
