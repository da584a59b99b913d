"""The stages of a kernel as loops: all of a stage's own loops, and what they carry along.

What reduces down the columns does so for a strip of neighbouring points, row by row: the rows
stream through while the strip's accumulators stay in the nearest cache, so that memory is read in
long consecutive runs. Everything that outlives a stage is then an array over the strip.
"""

from collections.abc import Callable, Iterable, Sequence
from math import gcd

from attrs import frozen

from gyrator_codegen import axis_of, linear_position
from gyrator_codegen_cpp.accesses import clear, hoist, requests
from gyrator_codegen_cpp.body import run, split
from gyrator_codegen_cpp.collectives import Accumulators, Collective, Scanner, State, TwoPass
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
from gyrator_ir.body.nodes import Axis, Load, Reduce, ScanStep, SortStep, Store
from gyrator_ir.body.rewrite import live, used
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import KernelStatement, Level
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Method, Prefetch
from gyrator_ir.types import DType

Body = Sequence[KernelStatement]


@frozen
class Strip:
    """Neighbouring points that go through stages together."""

    symbol: Sym
    span: Span
    points: int
    """The most that there are."""

    def declare(self, scope: Scope, name: str, dtype: DType) -> None:
        """Write the declaration of the array of a value."""
        array = Array(scope.frame.names.take(f"{name}_strip"), dtype, self.symbol, self.span.low)
        array.declare(scope, self.points)
        scope.frame.arrays[name] = array

    def each(self, scope: Scope, emit: Callable[[Scope], None]) -> None:
        """Write a loop over the strip's arrays, which are as long as whole vectors."""
        name, width = self.symbol.name, scope.frame.width
        low, high = self.span.low, self.span.high
        with scope.block(f"for (si64 {name} = {low}; {name} < {high}; {name} += {width}) {{"):
            emit(scope.nested(lanes=Lanes(self.symbol) if width > 1 else None))


@frozen
class _Stage:
    """A stage's loops, and what they carry along."""

    body: Body
    axes: tuple[Axis, ...]
    """In the order of their loops."""
    vector: bool
    """The innermost loop is that of the vectors."""
    backwards: bool
    carried: dict[str, Collective]
    copies: int
    """Steps that are written side by side."""
    block: int | None
    """Elements of the innermost loop that are taken at a time; None for no cut."""
    chain: tuple[str, int] | None
    """A counter, and the elements between two flushes, where chains end between two runs."""
    count: str
    """Counts the elements for those who ask."""
    prefetches: tuple[Prefetch, ...]
    strip: Strip | None
    """The points that are reduced together."""

    def states(self, test: Callable[[State, Collective], bool]) -> list[State]:
        """Return some of the variables that are carried."""
        return [s for one in self.carried.values() for s in one.states if test(s, one)]


# Points ---------------------------------------------------------------------------------------


def points(scope: Scope, body: Body, span: Span, kept: Iterable[str] = ()) -> None:
    """Write statements of points, a vector at a time; some values are kept in arrays."""
    loops, cleared = scope.frame.nest, scope.frame.tiled.cleared
    assert loops is not None
    ahead, rest = split(scope, body)
    run(scope, ahead)
    for s in rest:
        if isinstance(s, Store) and s.buffer in cleared:
            clear(scope, s, loops.symbol, span)
    rest = [s for s in rest if not isinstance(s, Store) or s.buffer not in cleared]

    def vector(at: Scope, copy: int) -> None:
        run(at, rest)
        for name in kept:
            at.frame.arrays[name].store(at, at.operand(name, varying=True))

    if rest:
        vector_loop(hoist(scope, rest), loops.symbol, span, 1, vector)


def columns(scope: Scope, span: Span) -> None:
    """Write the stages of a kernel that reduces down columns, over a strip of its points."""
    loops, stages = scope.frame.nest, scope.frame.kernel.stages
    assert loops is not None
    strip = Strip(loops.symbol, span, loops.stretch)
    for number, stage in enumerate(stages):
        later = {name for after in stages[number + 1 :] for s in after.body for name in used(s)}
        if stage.level is Level.INNER:
            inner_stage(scope, number, stage.body, strip)
            continue
        types = [x for s in split(scope, stage.body)[1] for x in scope.frame.types(s)]
        kept = {name: dtype for name, dtype in types if name in later}
        for name, dtype in kept.items():
            strip.declare(scope, name, dtype)
        points(scope, stage.body, span, kept)


def transposed(scope: Scope, span: Span) -> None:
    """Write the work on one tile of two axes: the stretch `span` along the vectors.

    The tile is read by vectors along the axis that is consecutive in memory, and turned in
    registers into a small array, from where the body reads its vectors.
    """
    frame, loops = scope.frame, scope.frame.nest
    assert loops is not None
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
        array = frame.names.take(f"{s.name}_tile")
        frame.arrays[s.name] = Array(array, frame.storage[s.buffer], symbol, low, "GY_LANES*")
        frame.arrays[s.name].declare(scope, rows * frame.width)

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
    ahead, rest = split(scope, body)
    run(scope, ahead)
    if any(isinstance(s, SortStep) for s in rest):
        _sort(scope, rest)
        return
    stage = _declared(scope, number, rest, strip)

    def start(at: Scope) -> None:
        for one in stage.carried.values():
            one.declare(at)

    def finish(at: Scope) -> None:
        for one in stage.carried.values():
            one.finish(at)

    if strip is not None:
        for s in stage.states(lambda s, one: True):
            strip.declare(scope, s.name, s.dtype)
    _at_rest(scope, stage, [], start, [s.name for s in stage.states(lambda s, one: True)])
    if any(one.counts for one in stage.carried.values()):
        scope.line(f"si64 {stage.count} = 0;")
    if stage.chain is not None:
        scope.line(f"si64 {stage.chain[0]} = 0;")

    def innermost(at: Scope) -> None:
        if strip is not None:
            _rows(at, stage, strip)
        else:
            _innermost(hoist(at, stage.body), stage)

    nested_loops(scope, stage.axes[:-1], innermost, stage.backwards)
    results = [x for s in stage.body if isinstance(s, Reduce) for x in scope.frame.types(s)]
    if strip is not None:
        for name, dtype in results:
            strip.declare(scope, name, dtype)
    _at_rest(scope, stage, stage.states(lambda s, one: True), finish, [n for n, _ in results])


def _declared(scope: Scope, number: int, body: Body, strip: Strip | None) -> _Stage:
    """Return a stage's loops."""
    frame = scope.frame
    loops, inner = frame.nest, frame.kernel.inner
    assert loops is not None
    scans = [s for s in body if isinstance(s, ScanStep)]
    axes = inner
    if not scans:
        symbols = [x.axes[0] for x in frame.tiled.loops]
        axes = tuple(axis_of(frame.kernel, x) for x in symbols if x in {a.symbol for a in inner})
    vector = not scans and not loops.across and loops.lanes == frame.width
    recorded = [frame.reductions[s.names[0]] for s in body if isinstance(s, Reduce)]
    copies = max((settled(r.unroll) for r in recorded), default=1)
    block = max((settled(r.block) for r in recorded), default=0) or None
    turns = max((r.chain for r in recorded), default=0)
    if strip is None:
        turns *= copies * (frame.width if vector else 1)
    take = frame.names.take
    stage = _Stage(
        body, axes, vector, bool(scans) and scans[0].reverse, {}, copies, block,
        (take("chain"), turns) if turns and block is None else None, take("row"),
        tuple(p for p in frame.tiled.prefetches if p.stage == number), strip,
    )  # fmt: skip
    for s in body:
        if isinstance(s, Reduce | ScanStep):
            stage.carried[s.names[0]] = _collective(scope, stage, s)
    return stage


def _collective(scope: Scope, stage: _Stage, s: Reduce | ScanStep) -> Collective:
    if isinstance(s, ScanStep):
        return Scanner(scope, s)
    frame, how = scope.frame, scope.frame.reductions[s.names[0]]
    nonempty = None if frame.tiled.nonempty else f"{scope.index(extent_of(stage.axes))} > 0"
    if how.method is Method.TWO_PASS:
        loads = (x for x in stage.body if isinstance(x, Load) and x.name == s.args[0])
        source = next(loads) if how.reload else None
        return TwoPass(scope, s, how, stage.axes[-1].symbol, nonempty, source)
    wide = frame.width > 1
    across = stage.vector and wide
    lanes = across or scope.lanes is not None or (stage.strip is not None and wide)
    copies = 1 if stage.strip is not None else settled(how.unroll)
    return Accumulators(
        scope, s, how, "v" if lanes else "s", copies, across=across, nonempty=nonempty,
        count=stage.count,
    )  # fmt: skip


def _at_rest(
    scope: Scope, stage: _Stage, states: Sequence[State], emit: Callable[[Scope], None],
    kept: Iterable[str],
) -> None:  # fmt: skip
    """Write what happens between turns of the loops: to variables, or to each vector of a strip,
    whose variables are fetched from arrays, and kept there."""
    if stage.strip is None:
        emit(scope)
        return

    def vector(at: Scope) -> None:
        _held(at, states, kept, lambda: emit(at))

    if stage.carried:
        stage.strip.each(scope, vector)


def _held(
    at: Scope, states: Sequence[State], kept: Iterable[str], emit: Callable[[], None]
) -> None:
    """Write what happens while arrays' values are variables."""
    for s in states:
        at.line(f"{s.type} {s.name} = {at.frame.arrays[s.name].load(at)};")
    emit()
    for name in kept:
        held = name in at.env
        at.frame.arrays[name].store(at, at.operand(name, varying=True) if held else name)


def _link(scope: Scope, stage: _Stage, elements: str) -> None:
    """Write the count of a chain's elements, and its end."""
    if stage.chain is not None:
        counter, turns = stage.chain
        with scope.block(f"if (({counter} += {elements}) >= {turns}) {{"):
            scope.line(f"{counter} = 0;")
            _flush(scope, stage)


def _flush(scope: Scope, stage: _Stage) -> None:
    def flush(at: Scope) -> None:
        for one in stage.carried.values():
            one.flush(at)

    states = stage.states(lambda s, one: one.cascade)
    _at_rest(scope, stage, states, flush, [s.name for s in states])


def _rows(scope: Scope, stage: _Stage, strip: Strip) -> None:
    """Write the walk of a strip down the rows, some of them at a time."""
    axis = stage.axes[-1]
    states = stage.states(lambda s, one: not s.total)

    def row(at: Scope, offsets: range, live: str | None) -> None:
        places = [
            hoist(at.nested(symbols=shifted(at, axis.symbol, k)), stage.body) for k in offsets
        ]
        _count(at, stage)

        def vector(here: Scope, copy: int) -> None:
            def steps() -> None:
                for place in places:
                    inside = place.nested(lanes=here.lanes, symbols=here.symbols | place.symbols)
                    with here.block("{"):
                        _step(inside, stage, 0)

            _held(here, states, [s.name for s in states], steps)

        vector_loop(at, strip.symbol, strip.span, 1, vector)
        _link(at, stage, str(len(offsets)))

    turns(scope, axis.symbol, whole(scope, axis), 1, stage.copies, row)


def _count(scope: Scope, stage: _Stage) -> None:
    if any(one.counts for one in stage.carried.values()):
        scope.line(f"{stage.count}++;")


def _step(scope: Scope, stage: _Stage, copy: int) -> None:
    """Write a stage's statements, whose collectives feed accumulators number `copy`."""

    def collective(here: Scope, s: KernelStatement) -> None:
        assert isinstance(s, Reduce | ScanStep)
        stage.carried[s.names[0]].update(here, copy)

    scope.collective = collective
    run(scope, stage.body)


def _innermost(scope: Scope, stage: _Stage) -> None:
    span, name, block = whole(scope, stage.axes[-1]), stage.axes[-1].symbol.name, stage.block
    if block is None or (span.exact is not None and span.exact <= block):
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
    symbol = stage.axes[-1].symbol
    late = [p for p in stage.prefetches if p.second]
    first = [p for p in stage.prefetches if not p.second]

    def step(at: Scope, copy: int) -> None:
        if at.live is None:
            at.line(*requests(at, first))
        _count(at, stage)
        _step(at, stage, copy)

    if not stage.vector:
        with each(scope, symbol, span.low, span.high, stage.backwards):
            step(scope.nested(), 0)
        return
    blocks = [one for one in stage.carried.values() if isinstance(one, TwoPass)]
    if not blocks:
        vector_loop(scope, symbol, span, stage.copies, step)
        return
    with scope.block("{"):
        for one in blocks:
            one.begin_block(scope, span)
        vector_loop(scope, symbol, span, stage.copies, step)
        for number, one in enumerate(blocks):
            one.end_block(scope, span, () if number else late)


def _sort(scope: Scope, body: Body) -> None:
    """Write a stage around one `SortStep`, element by element.

    What stands before the sort is computed once for the values to sort, and again, as far as it is
    needed, beside the sorted values.
    """
    axes = scope.frame.kernel.inner
    at = next(k for k, s in enumerate(body) if isinstance(s, SortStep))
    step, before, after = body[at], list(body[:at]), list(body[at + 1 :])
    assert isinstance(step, SortStep)
    position = linear_position(axes)
    values, places = (scope.frame.names.take(f"{step.names[0]}_{x}") for x in ("values", "places"))
    with scope.block("{"):
        scope.line(f"const si64 count = {scope.index(extent_of(axes))};")
        for name, element in ((values, f"s{lane_type(step.dtype)}"), (places, "si64")):
            scope.scratch(name, element, "2 * count")

        def gather(inside: Scope) -> None:
            run(inside, before)
            where = inside.index(position)
            inside.line(f"{values}[{where}] = {inside.value(step.args[0]).text};")
            inside.line(f"{places}[{where}] = {where};")

        nested_loops(hoist(scope, before), axes, gather)
        given = f"{values}, {places}, {values} + count, {places} + count, count"
        scope.line(f"gy_sort({given}, {'true' if step.descending else 'false'});")
        again = live(before, [name for s in after for name in used(s)])

        def spread(inside: Scope) -> None:
            where = inside.index(position)
            types = (step.dtype, DType.I64)
            for name, array, dtype in zip(step.names, (values, places), types, strict=True):
                inside.env[name] = Value(f"{array}[{where}]", dtype, varying=False)
            run(inside, [s for s in again if not isinstance(s, Store)])
            run(inside, after)

        nested_loops(hoist(scope, after), axes, spread)
