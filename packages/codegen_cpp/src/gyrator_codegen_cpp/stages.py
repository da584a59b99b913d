"""The stages of a kernel as loops: all of a stage's own loops, and what they carry along.

What reduces down the columns does so for a strip of neighbouring points, row by row: the rows
stream through while the strip's accumulators stay in the nearest cache, so that memory is read in
long consecutive runs. Everything that outlives a stage is then an array over the strip.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import gcd

from attrs import frozen

from gyrator_codegen import axis_of
from gyrator_codegen.reductions import carried
from gyrator_codegen.stage_loops import (
    Sorted,
    StageLoops,
    kept,
    parted,
    results,
    sorted_stage,
    stage_loops,
)
from gyrator_codegen_cpp.accesses import clear, hoist, requests
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.collectives import Accumulators, Scanner, State, TwoPass
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.loops import (
    Span,
    each,
    nested_loops,
    shifted,
    stretch,
    turns,
    vector_loop,
    whole,
)
from gyrator_codegen_cpp.scope import Array, Lanes, Scope, Value
from gyrator_ir.body.nodes import Axis, Load, Reduce, ScanStep, Store
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import KernelStatement, Level
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Method
from gyrator_ir.types import DType

Body = Sequence[KernelStatement]
Carrier = Accumulators | TwoPass | Scanner


@frozen
class Strip:
    """Neighbouring points that go through stages together."""

    symbol: Sym
    span: Span
    points: int
    """The most that there are."""

    def declare(self, scope: Scope, name: str, dtype: DType) -> None:
        """Write the declaration of the array of a value."""
        array = Array(f"{name}_strip", dtype, self.symbol, self.span.low)
        scope.frame.arrays[name] = scope.array(array, self.points)

    @contextmanager
    def each(self, scope: Scope) -> Iterator[Scope]:
        """Write a loop over the strip's arrays, which are as long as whole vectors, around what the
        `with` body writes."""
        name, width = self.symbol.name, scope.frame.width
        low, high = self.span.low, self.span.high
        with scope.block(f"for (si64 {name} = {low}; {name} < {high}; {name} += {width}) {{"):
            yield scope.nested(lanes=Lanes(self.symbol) if width > 1 else None)


@frozen
class _Stage:
    """A stage's loops, and what they carry along."""

    body: Body
    loops: StageLoops
    carried: dict[str, Carrier]
    chain: str
    """Counts the elements of a chain."""
    count: str
    """Counts the elements for those who ask."""
    strip: Strip | None
    """The points that are reduced together."""

    @property
    def axis(self) -> Axis:
        """That of the innermost loop."""
        return self.loops.axes[-1]

    @property
    def states(self) -> list[State]:
        """The variables that are carried."""
        return [s for one in self.carried.values() for s in one.states]


# Points ---------------------------------------------------------------------------------------


def points(scope: Scope, body: Body, span: Span, keep: Iterable[str] = ()) -> None:
    """Write statements of points, a vector at a time; some values are kept in arrays."""
    loops, cleared = scope.frame.loops, scope.frame.tiled.cleared
    ahead, rest = parted(body, scope.frame.ahead)
    run(scope, ahead)
    zeros = [s for s in rest if isinstance(s, Store) and s.buffer in cleared]
    for s in zeros:
        clear(scope, s, loops.symbol, span)
    rest = [s for s in rest if s not in zeros]

    def vector(at: Scope, copy: int) -> None:
        run(at, rest)
        for name in keep:
            at.frame.arrays[name].store(at, at.operand(name, varying=True))

    if rest:
        vector_loop(hoist(scope, rest), loops.symbol, span, 1, vector)


def columns(scope: Scope, span: Span) -> None:
    """Write the stages of a kernel that reduces down columns, over a strip of its points."""
    loops, stages = scope.frame.loops, scope.frame.kernel.stages
    strip = Strip(loops.symbol, span, loops.stretch)
    for number, stage in enumerate(stages):
        if stage.level is Level.INNER:
            inner_stage(scope, number, stage.body, strip)
            continue
        wanted = kept(scope.frame.kernel, number, scope.frame.storage)
        for name, dtype in wanted.items():
            strip.declare(scope, name, dtype)
        points(scope, stage.body, span, wanted)


def transposed(scope: Scope, span: Span) -> None:
    """Write the work on one tile of two axes: the stretch `span` along the vectors.

    The tile is read by vectors along the axis that is consecutive in memory, and turned in
    registers into a small array, from where the body reads its vectors.
    """
    frame, loops = scope.frame, scope.frame.loops
    symbol = frame.tiled.transposed[0].along
    rows = settled(next(x.step for x in loops.grid if x.axes[0] is symbol))
    tile = f"{symbol.name}_tile"
    across = stretch(scope, axis_of(frame.kernel, symbol), tile, f"({tile} + 1)", rows)
    low, high = across.low, across.high
    body = [s for stage in frame.kernel.stages for s in stage.body]
    names = {t.load for t in frame.tiled.transposed}
    loads = [s for s in body if isinstance(s, Load) and s.name in names]
    frame.given |= names
    for s in loads:
        array = Array(f"{s.name}_tile", frame.storage[s.buffer], symbol, low, "GY_LANES*")
        frame.arrays[s.name] = scope.array(array, rows * frame.width)

    def vector(at: Scope, copy: int) -> None:
        for s in loads:
            first = at.index(s.index, **{symbol.name: low})
            given = f"{frame.pointers[s.buffer]} + {first}, {at.index(at.access(s.index).stride)}"
            to = f"{frame.arrays[s.name].name}, {high} - {low}, {at.live or 'GY_LANES'}"
            at.line(f"gy_turn({given}, {to});")
        with each(at, symbol, low, high):
            run(at.nested(), body)

    vector_loop(scope, loops.symbol, span, 1, vector)


# Inner elements -------------------------------------------------------------------------------


def inner_stage(scope: Scope, number: int, body: Body, strip: Strip | None = None) -> None:
    """Write stage `number` of the kernel, which runs over the inner axes."""
    if not scope.frame.kernel.inner:
        run(scope, body)
        return
    frame = scope.frame
    ahead, rest = parted(body, frame.ahead)
    run(scope, ahead)
    if (found := sorted_stage(rest)) is not None:
        _sort(scope, found)
        return
    loops = stage_loops(frame.tiled, frame.loops, number)
    stage = _Stage(rest, loops, {}, frame.names.take("chain"), frame.names.take("row"), strip)
    for s in rest:
        if isinstance(s, Reduce | ScanStep):
            stage.carried[s.names[0]] = _carrier(scope, stage, s)
    ends = [x for s in rest if isinstance(s, Reduce) for x in results(s, frame.storage)]
    if strip is not None:
        for name, dtype in [*((s.name, s.carried.dtype) for s in stage.states), *ends]:
            strip.declare(scope, name, dtype)
    _at_rest(scope, stage, [], lambda one, at: one.declare(at), [s.name for s in stage.states])
    if loops.counts:
        scope.line(f"si64 {stage.count} = 0;")
    if loops.chain:
        scope.line(f"si64 {stage.chain} = 0;")
    with nested_loops(scope, loops.axes[:-1], loops.backwards) as at:
        _innermost(at, stage) if strip is None else _rows(at, stage)
    _at_rest(scope, stage, stage.states, lambda one, at: one.finish(at), [name for name, _ in ends])


def _carrier(scope: Scope, stage: _Stage, s: Reduce | ScanStep) -> Carrier:
    if isinstance(s, ScanStep):
        return Scanner(scope, s, scope.form, carried(s))
    frame, how, strip = scope.frame, scope.frame.reductions[s.names[0]], stage.strip is not None
    across, keeps = stage.loops.vector, carried(s, how, 1 if strip else settled(how.unroll))
    nonempty = None if frame.tiled.nonempty else f"{scope.index(extent_of(stage.loops.axes))} > 0"
    if how.method is Method.TWO_PASS:
        loads = (x for x in stage.body if isinstance(x, Load) and x.name == s.args[0])
        source = next(loads) if how.reload else None
        return TwoPass(scope, s, "s", keeps, nonempty, how, stage.axis.symbol, source)
    lanes = across or scope.lanes is not None or (strip and frame.width > 1)
    return Accumulators(scope, s, "v" if lanes else "s", keeps, nonempty, across, stage.count)


def _at_rest(
    scope: Scope, stage: _Stage, states: Sequence[State],
    write: Callable[[Carrier, Scope], None], keep: Iterable[str],
) -> None:  # fmt: skip
    """Write what happens between turns of the loops: to variables, or to each vector of a strip,
    whose variables are fetched from arrays, and kept there."""
    if stage.strip is None:
        for one in stage.carried.values():
            write(one, scope)
    elif stage.carried:
        with stage.strip.each(scope) as at, _held(at, states, keep):
            for one in stage.carried.values():
                write(one, at)


@contextmanager
def _held(at: Scope, states: Sequence[State], kept: Iterable[str]) -> Iterator[None]:
    """Write what fetches arrays' values ahead of the `with` body, and keeps some behind it."""
    for s in states:
        at.line(f"{s.type} {s.name} = {at.frame.arrays[s.name].load(at)};")
    yield
    for name in kept:
        held = name in at.env
        at.frame.arrays[name].store(at, at.operand(name, varying=True) if held else name)


def _link(scope: Scope, stage: _Stage, elements: str) -> None:
    """Write the count of a chain's elements, and its end."""
    if stage.loops.chain:
        with scope.block(f"if (({stage.chain} += {elements}) >= {stage.loops.chain}) {{"):
            scope.line(f"{stage.chain} = 0;")
            _flush(scope, stage)


def _flush(scope: Scope, stage: _Stage) -> None:
    states = [s for one in stage.carried.values() if one.cascade for s in one.states]
    _at_rest(scope, stage, states, lambda one, at: one.flush(at), [s.name for s in states])


def _rows(scope: Scope, stage: _Stage) -> None:
    """Write the walk of a strip down the rows, some of them at a time."""
    strip, symbol = stage.strip, stage.axis.symbol
    assert strip is not None
    states = [s for s in stage.states if not s.carried.total]

    def row(at: Scope, offsets: range, live: str | None) -> None:
        places = [hoist(at.nested(symbols=shifted(at, symbol, k)), stage.body) for k in offsets]
        _count(at, stage)

        def vector(here: Scope, copy: int) -> None:
            with _held(here, states, [s.name for s in states]):
                for place in places:
                    inside = place.nested(lanes=here.lanes, symbols=here.symbols | place.symbols)
                    with here.block("{"):
                        _step(inside, stage, 0)

        vector_loop(at, strip.symbol, strip.span, 1, vector)
        _link(at, stage, str(len(offsets)))

    turns(scope, symbol, whole(scope, stage.axis), 1, stage.loops.copies, row)


def _count(scope: Scope, stage: _Stage) -> None:
    if stage.loops.counts:
        scope.line(f"{stage.count}++;")


def _step(scope: Scope, stage: _Stage, copy: int) -> None:
    """Write a stage's statements, whose collectives feed accumulators number `copy`."""
    scope.collective = lambda here, s: stage.carried[defined(s)[0]].update(here, copy)
    run(scope, stage.body)


def _innermost(scope: Scope, stage: _Stage) -> None:
    """Write the innermost loop, in blocks where it is cut."""
    scope = hoist(scope, stage.body)
    span, name, block = whole(scope, stage.axis), stage.axis.symbol.name, stage.loops.block
    if not block or (span.exact is not None and span.exact <= block):
        _span(scope, span, stage)
        _link(scope, stage, span.high)
        return
    low, high = f"{name}_low", f"{name}_high"
    with scope.block(f"for (si64 {low} = 0; {low} < {span.high}; {low} += {block}) {{"):
        scope.line(f"const si64 {high} = gy_least({low} + {block}, {span.high});")
        multiple = 1 if span.exact is None else gcd(span.exact, block)
        _span(scope, Span(low, high, None, multiple), stage)
        _flush(scope, stage)


def _span(scope: Scope, span: Span, stage: _Stage) -> None:
    """Write the work on a stretch of the innermost loop."""
    symbol, loops = stage.axis.symbol, stage.loops

    def step(at: Scope, copy: int) -> None:
        if at.live is None:
            at.line(*requests(at, loops.first))
        _count(at, stage)
        _step(at, stage, copy)

    if not loops.vector:
        with each(scope, symbol, span.low, span.high, loops.backwards):
            step(scope.nested(), 0)
        return
    blocks = [one for one in stage.carried.values() if isinstance(one, TwoPass)]
    if not blocks:
        vector_loop(scope, symbol, span, loops.copies, step)
        return
    with scope.block("{"):
        for one in blocks:
            one.begin_block(scope, span)
        vector_loop(scope, symbol, span, loops.copies, step)
        for number, one in enumerate(blocks):
            one.end_block(scope, span, () if number else loops.second)


def _sort(scope: Scope, stage: Sorted) -> None:
    """Write a stage around one `SortStep`, element by element."""
    axes, step = scope.frame.kernel.inner, stage.step
    values, places = (scope.frame.names.take(f"{step.names[0]}_{x}") for x in ("values", "places"))
    with scope.block("{"):
        scope.line(f"const si64 count = {scope.index(extent_of(axes))};")
        for name, element in ((values, f"s{lane_type(step.dtype)}"), (places, "si64")):
            scope.scratch(name, element, "2 * count")

        with nested_loops(hoist(scope, stage.before), axes) as at:
            run(at, stage.before)
            where = at.index(scope.frame.position)
            at.line(f"{values}[{where}] = {at.value(step.args[0]).text};")
            at.line(f"{places}[{where}] = {where};")
        given = f"{values}, {places}, {values} + count, {places} + count, count"
        scope.line(f"gy_sort({given}, {'true' if step.descending else 'false'});")
        with nested_loops(hoist(scope, stage.after), axes) as at:
            where = at.index(scope.frame.position)
            for name, array, dtype in zip(step.names, (values, places), step.types, strict=True):
                at.env[name] = Value(f"{array}[{where}]", dtype, varying=False)
            run(at, stage.after)
