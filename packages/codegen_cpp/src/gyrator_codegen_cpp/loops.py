"""Loops over vectors, with their remainders, and nests of plain loops."""

from collections.abc import Callable, Sequence

from attrs import frozen

from gyrator_codegen import static
from gyrator_codegen_cpp.scope import Lanes, Scope
from gyrator_ir.body.nodes import Axis
from gyrator_ir.expr import Sym

Emit = Callable[[Scope, int], None]
"""Writes one vector (or element) of a loop at a place, into accumulator number `copy`."""


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


def vector_loop(scope: Scope, symbol: Sym, span: Span, copies: int, emit: Emit) -> None:
    """Write a loop over `span` of `symbol` in vectors, `copies` of them a turn."""
    name, width, high = symbol.name, scope.frame.width, span.high
    if width == 1:
        with scope.block(f"for (si64 {name} = {span.low}; {name} < {high}; {name}++) {{"):
            emit(scope.nested(lanes=None), 0)
        return
    step = copies * width
    with scope.block("{"):
        scope.line(f"si64 {name} = {span.low};")
        if span.exact is None or span.exact >= step:
            even = span.multiple % step == 0
            test = f"{name} < {high}" if even else f"{name} + {step} <= {high}"
            with scope.block(f"for (; {test}; {name} += {step}) {{"):
                for copy in range(copies):
                    _one(scope, symbol, copy * width, None, copies > 1, emit, copy)
            if even:
                return
        if span.multiple % width == 0:
            with scope.block(f"for (; {name} < {high}; {name} += {width}) {{"):
                _one(scope, symbol, 0, None, nested=False, emit=emit, copy=0)
            return
        many = copies > 1 and (span.exact is None or span.exact % step > width)
        head = f"for (; {name} < {high}; {name} += {width})" if many else f"if ({name} < {high})"
        with scope.block(f"{head} {{"):
            rest = f"{high} - {name}"
            live = f"gy_least(GY_LANES, {rest})" if many else rest
            scope.line(f"const si64 live = {live};")
            _one(scope, symbol, 0, "live", nested=False, emit=emit, copy=0)


def _one(
    scope: Scope, symbol: Sym, offset: int, live: str | None, nested: bool, emit: Emit, copy: int
) -> None:
    symbols = dict(scope.symbols)
    if offset:
        symbols[symbol] = f"({symbol.name} + {offset})"
    inside = scope.nested(lanes=Lanes(symbol, live), symbols=symbols)
    if not nested:
        emit(inside, copy)
        return
    with scope.block("{"):
        emit(inside, copy)


def nested_loops(
    scope: Scope, axes: Sequence[Axis], emit: Callable[[Scope], None], backwards: bool = False
) -> None:
    """Write nested loops, one an axis, around what `emit` writes."""
    if not axes:
        emit(scope)
        return
    name = axes[0].symbol.name
    extent = scope.index(axes[0].extent)
    head = (
        f"for (si64 {name} = {extent} - 1; {name} >= 0; {name}--) {{"
        if backwards
        else f"for (si64 {name} = 0; {name} < {extent}; {name}++) {{"
    )
    with scope.block(head):
        nested_loops(scope.nested(), axes[1:], emit, backwards)
