"""Emission of the stages of a kernel as loops, with their loop-carried state.

Column reductions process a strip of neighbouring points row by row: rows are streamed while the
strip's accumulators stay in the first-level cache, so that memory is read in long consecutive runs.
Values that outlive a stage are then arrays over the strip.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from math import gcd

from gyrator_codegen import static
from gyrator_codegen.reductions import Carried
from gyrator_codegen.sections import section_body
from gyrator_codegen.stage_loops import (
    SortedStage,
    StageLoops,
    later_values,
    sorted_stage,
    stage_loops,
    transposed_tile,
)
from gyrator_codegen.unrolling import parts_of
from gyrator_codegen_cpp.body import clear, hoist, requests, run
from gyrator_codegen_cpp.collectives import Accumulators, Scanner, TwoPass, type_of
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.scope import Array, Scope, Span, Value
from gyrator_ir.body.nodes import Axis, Reduce, ScanStep, Store
from gyrator_ir.body.rewrite import defined
from gyrator_ir.define import frozen
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import KernelStatement, Level
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Method
from gyrator_ir.types import DType

Body = Sequence[KernelStatement]
Carrier = Accumulators | TwoPass | Scanner
Emit = Callable[[Scope, int], None]
"""Emits one vector (or element) of a loop in a scope, for accumulator number `copy`."""


@frozen
class _Stage:
    """A stage's loops, and their loop-carried state."""

    loops: StageLoops
    carried: dict[str, Carrier]
    strip: Span | None
    """The range of the points that are reduced together."""

    @property
    def counted(self) -> list[str]:
        """The statement that counts an element, if a reduction needs it."""
        return [f"{self.loops.count}++;"] if self.loops.counts else []

    @property
    def states(self) -> list[Carried]:
        """The loop-carried variables."""
        return [s for carrier in self.carried.values() for s in carrier.states]


def _full_range(scope: Scope, axis: Axis) -> Span:
    """Return the whole range of an axis."""
    exact = static(axis.extent)
    return Span("0", scope.index(axis.extent), exact, exact or 1)


def axis_range(scope: Scope, axis: Axis, first: str, last: str, step: int) -> Span:
    """Return the range of steps `first` to `last` of an axis; of several steps, emit the bounds."""
    name, extent = axis.symbol.name, static(axis.extent)
    if first == "0" and extent is not None and extent <= step:
        return _full_range(scope, axis)
    low, high = f"{name}_low", f"{name}_high"
    end = f"{last} * {step}"
    if extent is None or extent % step:
        end = f"gy_least({end}, {scope.index(axis.extent)})"
    scope.line(f"const si64 {low} = {first} * {step};", f"const si64 {high} = {end};")
    return Span(low, high, None, 1 if extent is None else gcd(extent, step))


def each(
    scope: Scope, name: str, low: str, high: str, step: str = "++"
) -> AbstractContextManager[None]:
    """Emit a loop from `low` to `high`, with increment `step`; backwards with `--`."""
    if step == "--":
        return scope.block(f"for (si64 {name} = {high} - 1; {name} >= {low}; {name}--) {{")
    return scope.block(f"for (si64 {name} = {low}; {name} < {high}; {name}{step}) {{")


@contextmanager
def _nested_loops(scope: Scope, axes: Iterable[Axis], step: str = "++") -> Iterator[Scope]:
    """Emit nested loops, one per axis, around the output of the `with` body."""
    with ExitStack() as stack:
        for a in axes:
            extent = scope.index(a.extent)
            stack.enter_context(each(scope, a.symbol.name, "0", extent, step))
            scope = scope.nested()
        yield scope


def _unrolled(
    scope: Scope, symbol: Sym, span: Span, width: int, copies: int,
    emit: Callable[[Scope, range, str | None], None],
) -> None:  # fmt: skip
    """Emit loops over `span` in steps of `width`, unrolled by `copies`, and the remainder. `emit`
    takes the offsets of an iteration's steps and, of a partial vector, the number of elements."""
    name, high = symbol.name, span.high
    with scope.block("{"):
        scope.line(f"si64 {name} = {span.low};")
        for part in parts_of(span.exact, span.multiple, width, copies):
            step, left = part.steps * width, f"{high} - {name}"
            test = f"{name} + {step} <= {high}" if part.whole else f"{name} < {high}"
            head = f"if ({test})" if part.once else f"for (; {test}; {name} += {step})"
            with scope.block(f"{head} {{"):
                if part.live:
                    live = left if part.once else f"gy_least(GY_LANES, {left})"
                    scope.line(f"const si64 live = {live};")
                emit(scope.nested(), range(0, step, width), "live" if part.live else None)


def _shifted(scope: Scope, symbol: Sym, offset: int) -> dict[Sym, str]:
    """Return the texts of symbols with `offset` added to `symbol`."""
    return scope.symbols | ({symbol: f"({symbol.name} + {offset})"} if offset else {})


def vector_loop(scope: Scope, symbol: Sym, span: Span, copies: int, emit: Emit) -> None:
    """Emit a vectorised loop over `span` of `symbol`, unrolled by `copies`."""
    if scope.frame.width == 1:
        with each(scope, symbol.name, span.low, span.high):
            emit(scope.nested(lanes=None), 0)
        return

    def iteration(at: Scope, offsets: range, live: str | None) -> None:
        for copy, offset in enumerate(offsets):
            inside = at.nested(lanes=symbol, live=live, symbols=_shifted(at, symbol, offset))
            with at.block("{") if len(offsets) > 1 else nullcontext():
                emit(inside, copy)

    _unrolled(scope, symbol, span, scope.frame.width, copies, iteration)


def _packed_loop(scope: Scope, symbol: Sym, span: Span, step: int, emit: Emit) -> None:
    """Emit a loop over `span` of `symbol` in steps of several vectors, and one of vectors for the
    remainder. The elements of a step are a loop of their own, which the compiler vectorises with
    as many lanes as their types allow."""

    def iteration(at: Scope, offsets: range, live: str | None) -> None:
        if len(offsets) == 1:
            emit(at.nested(lanes=symbol, live=live), 0)
            return
        at.line("GY_INDEPENDENT")
        with each(at, "lane", "0", str(step)):
            symbols = at.symbols | {symbol: f"({symbol.name} + lane)"}
            emit(at.nested(lanes=None, symbols=symbols), 0)

    _unrolled(scope, symbol, span, scope.frame.width, step // scope.frame.width, iteration)


def tiles(scope: Scope, first: str, last: str) -> None:
    """Emit the computation of tiles `first` to `last` of the vectorised axis."""
    frame, loops = scope.frame, scope.frame.loops
    span = axis_range(scope, loops.axis, first, last, loops.grid_step)
    if loops.columns:
        _columns(scope, span)
    elif frame.tiled.transposed:
        _transposed(scope, span)
    elif len(frame.points) == len(frame.statements):
        _points(scope, 0, frame.points, span)
    else:
        vector_loop(hoist(scope, frame.points), loops.symbol, span, 1, lambda at, copy: point(at))


def point(scope: Scope) -> None:
    """Emit the stages of a point, or of a vector of points."""
    for number, stage in enumerate(scope.frame.kernel.stages):
        if stage.level is Level.OUTER or not scope.frame.kernel.inner:
            run(scope, stage.body)
        else:
            _inner(scope, number, stage.body)


def _points(scope: Scope, number: int, body: Body, span: Span, keep: Iterable[str] = ()) -> None:
    """Emit statements of points, of stage `number` and any later ones, as vectorised loops. The
    values in `keep` are stored to arrays."""
    loops, cleared = scope.frame.loops, scope.frame.tiled.cleared
    ahead, rest = scope.frame.hoisted(body)
    run(scope, ahead)
    zeros = [s for s in rest if isinstance(s, Store) and s.buffer in cleared]
    for s in zeros:
        clear(scope, s, loops.symbol, span)
    rest = [s for s in rest if s not in zeros]

    def vector(at: Scope, copy: int) -> None:
        run(at, rest)
        for name in keep:
            at.frame.arrays[name].store(at, at.operand(name, varying=True))

    sections = scope.frame.tiled.sections
    if sections:
        _sections(scope, span)
    elif rest:
        around = hoist(scope, rest)
        copied = [v for f in scope.frame.tiled.fissions if f.stage == number for v in f.values]
        emits: list[Emit] = [partial(_body, _copies_of(v, rest)) for v in copied]
        for emit in emits or [vector]:
            if loops.lanes > scope.frame.width:
                _packed_loop(around, loops.symbol, span, loops.lanes, emit)
            else:
                vector_loop(around, loops.symbol, span, 1, emit)


def _copies_of(value: str, body: Body) -> Body:
    """Return the loads and stores of a value."""
    return [s for s in body if value in (s.value if isinstance(s, Store) else "", *defined(s))]


def _sections(scope: Scope, span: Span) -> None:
    """Emit the sections of a kernel's points as vectorised loops over their part of `span`."""
    frame, symbol = scope.frame, scope.frame.loops.symbol
    sections = frame.tiled.sections
    ends = [*(s.start for s in sections[1:]), None]
    bodies = [section_body(frame.kernel, section, scope.env) for section in sections]
    around = hoist(scope, chain.from_iterable(bodies))
    for section, end, body in zip(sections, ends, bodies, strict=True):
        constants, rest = frame.hoisted(body)
        with around.block("{"):
            inside = around.nested()
            run(inside, constants)
            part = _section_span(inside, span, section.start, end)
            if section.scalar:
                with each(inside, symbol.name, part.low, part.high):
                    run(inside.nested(lanes=None), rest)
            else:
                vector_loop(inside, symbol, part, 1, partial(_body, rest))


def _body(body: Body, scope: Scope, copy: int) -> None:
    run(scope, body)


def _section_span(scope: Scope, span: Span, start: int, end: int | None) -> Span:
    """Return the part of `span` from `start` to `end`; of an inexact span, emit the bounds."""
    if span.exact is not None:
        length = (span.exact if end is None else end) - start
        return Span(str(start), str(start + length), length, length)
    name = scope.frame.loops.symbol.name
    low, high = f"{name}_from", f"{name}_to" if end is not None else span.high
    scope.line(f"const si64 {low} = {span.low} > {start} ? {span.low} : {start};")
    if end is not None:
        scope.line(f"const si64 {high} = gy_least({span.high}, {end});")
    return Span(low, high)


def _columns(scope: Scope, span: Span) -> None:
    """Emit the stages of a column reduction over a strip of points."""
    for number, stage in enumerate(scope.frame.kernel.stages):
        if stage.level is Level.INNER:
            _inner(scope, number, stage.body, span)
            continue
        values = later_values(scope.frame.kernel, number, scope.frame.storage)
        _declare_arrays(scope, span, values)
        _points(scope, number, stage.body, span, values)


def _declare_arrays(scope: Scope, strip: Span, values: Mapping[str, DType]) -> None:
    """Declare the arrays of values over a strip of points."""
    loops = scope.frame.loops
    for name, dtype in values.items():
        array = Array(f"{name}_strip", dtype, loops.symbol, strip.low)
        scope.frame.arrays[name] = scope.array(array, loops.grid_step)


def _transposed(scope: Scope, span: Span) -> None:
    """Emit the computation of a 2D tile, over the range `span` of the vectorised axis.

    The tile is read in vectors along the axis that is consecutive in memory, and transposed in
    registers into a small array, from which the body loads its vectors.
    """
    frame, (axis, rows, loads) = scope.frame, transposed_tile(scope.frame)
    symbol, tile = axis.symbol, f"{axis.symbol.name}_tile"
    across = axis_range(scope, axis, tile, f"({tile} + 1)", rows)
    frame.kept |= {s.name for s in loads}
    for s in loads:
        array = Array(f"{s.name}_tile", frame.storage[s.buffer], symbol, across.low, "GY_LANES*")
        frame.arrays[s.name] = scope.array(array, rows * frame.width)

    def vector(at: Scope, copy: int) -> None:
        for s in loads:
            first = at.index(s.index, **{symbol.name: across.low})
            source = f"{frame.pointers[s.buffer]} + {first}, {at.index(at.access(s.index).stride)}"
            to = f"{frame.arrays[s.name].name}, {across.high} - {across.low}"
            at.line(f"gy_turn({source}, {to}, {at.live or 'GY_LANES'});")
        with each(at, symbol.name, across.low, across.high):
            run(at.nested(), frame.statements)

    vector_loop(scope, frame.loops.symbol, span, 1, vector)


def _inner(scope: Scope, number: int, body: Body, strip: Span | None = None) -> None:
    """Emit stage `number` of the kernel, an inner stage."""
    frame = scope.frame
    ahead, rest = frame.hoisted(body)
    run(scope, ahead)
    if (sort_stage := sorted_stage(rest)) is not None:
        _sort(scope, sort_stage)
        return
    loops = stage_loops(frame, number, rest)
    collectives = (s for s in rest if isinstance(s, Reduce | ScanStep))
    stage = _Stage(loops, {s.names[0]: _carrier(scope, loops, s) for s in collectives}, strip)
    if strip is not None:
        _declare_arrays(scope, strip, {s.name: s.dtype for s in stage.states} | loops.ends)
    names = [s.name for s in stage.states]
    _outside_loops(scope, stage, [], lambda carrier, at: carrier.declare(at), names)
    if loops.counts:
        scope.line(f"si64 {loops.count} = 0;")
    if loops.chain:
        scope.line(f"si64 {loops.chained} = 0;")
    with _nested_loops(scope, loops.axes[:-1], "--" if loops.backwards else "++") as at:
        _innermost(at, stage) if strip is None else _rows(at, stage, strip)
    _outside_loops(scope, stage, stage.states, lambda carrier, at: carrier.finish(at), loops.ends)


def _carrier(scope: Scope, loops: StageLoops, s: Reduce | ScanStep) -> Carrier:
    if isinstance(s, ScanStep):
        return Scanner(scope, s, loops)
    two_pass = scope.frame.reductions[s.names[0]].method is Method.TWO_PASS
    return (TwoPass if two_pass else Accumulators)(scope, s, loops)


def _outside_loops(
    scope: Scope, stage: _Stage, states: Sequence[Carried],
    write: Callable[[Carrier, Scope], None], keep: Iterable[str],
) -> None:  # fmt: skip
    """Emit code outside of the inner loops with `write`, once, or for each vector of a strip, whose
    variables are loaded from arrays, padded to whole vectors, and stored back."""
    if stage.strip is None:
        for carrier in stage.carried.values():
            write(carrier, scope)
    elif stage.carried:
        symbol, strip, width = scope.frame.loops.symbol, stage.strip, scope.frame.width
        with each(scope, symbol.name, strip.low, strip.high, f" += {width}"):
            at = scope.nested(lanes=symbol if width > 1 else None, live=None)
            with _loaded(at, states, keep):
                for carrier in stage.carried.values():
                    write(carrier, at)


@contextmanager
def _loaded(at: Scope, states: Sequence[Carried], stored: Iterable[str]) -> Iterator[None]:
    """Emit loads of variables from arrays before the `with` body, and stores of some after it."""
    for s in states:
        at.line(f"{type_of(s)} {s.name} = {at.frame.arrays[s.name].load(at)};")
    yield
    for name in stored:
        in_scope = name in at.env
        at.frame.arrays[name].store(at, at.operand(name, varying=True) if in_scope else name)


def _count_chain(scope: Scope, stage: _Stage, elements: str) -> None:
    """Emit the counting of a chain's elements, and its end."""
    loops = stage.loops
    if loops.chain:
        with scope.block(f"if (({loops.chained} += {elements}) >= {loops.chain}) {{"):
            scope.line(f"{loops.chained} = 0;")
            _flush(scope, stage)


def _flush(scope: Scope, stage: _Stage) -> None:
    states = [s for carrier in stage.carried.values() if carrier.cascade for s in carrier.states]
    names = [s.name for s in states]
    _outside_loops(scope, stage, states, lambda carrier, at: carrier.flush(at), names)


def _rows(scope: Scope, stage: _Stage, strip: Span) -> None:
    """Emit the loop of a strip over the rows, several at a time."""
    loops, symbol = stage.loops, stage.loops.axis.symbol
    states = [s for s in stage.states if not s.total]

    def row(at: Scope, offsets: range, live: str | None) -> None:
        inner = (at.nested(symbols=_shifted(at, symbol, k)) for k in offsets)
        scopes = [hoist(place, loops.body) for place in inner]
        at.line(*stage.counted)

        def vector(vector_scope: Scope, copy: int) -> None:
            with _loaded(vector_scope, states, [s.name for s in states]):
                lanes, live = vector_scope.lanes, vector_scope.live
                for place in scopes:
                    symbols = vector_scope.symbols | place.symbols
                    with vector_scope.block("{"):
                        _step(place.nested(lanes=lanes, live=live, symbols=symbols), stage, 0)

        vector_loop(at, scope.frame.loops.symbol, strip, 1, vector)
        _count_chain(at, stage, str(len(offsets)))

    _unrolled(scope, symbol, _full_range(scope, loops.axis), 1, loops.copies, row)


def _step(scope: Scope, stage: _Stage, copy: int) -> None:
    """Emit a stage's statements, with reductions into accumulator number `copy`."""
    scope.collective = lambda here, s: stage.carried[defined(s)[0]].update(here, copy)
    run(scope, stage.loops.body)


def _innermost(scope: Scope, stage: _Stage) -> None:
    """Emit the innermost loop, in blocks if it is split."""
    loops, inside = stage.loops, hoist(scope, stage.loops.body)
    span, name, block = _full_range(inside, loops.axis), loops.axis.symbol.name, loops.block
    if not block or (span.exact is not None and span.exact <= block):
        _span(inside, span, stage)
        _count_chain(inside, stage, span.high)
        return
    low, high = f"{name}_low", f"{name}_high"
    with each(inside, low, "0", span.high, f" += {block}"):
        inside.line(f"const si64 {high} = gy_least({low} + {block}, {span.high});")
        _span(inside, Span(low, high, None, gcd(span.exact or 1, block)), stage)
        _flush(inside, stage)


def _span(scope: Scope, span: Span, stage: _Stage) -> None:
    """Emit a range of the innermost loop."""
    symbol, loops = stage.loops.axis.symbol, stage.loops

    def step(at: Scope, copy: int) -> None:
        if at.live is None:
            at.line(*requests(at, loops.first))
        at.line(*stage.counted)
        _step(at, stage, copy)

    if not loops.vector:
        with each(scope, symbol.name, span.low, span.high, "--" if loops.backwards else "++"):
            step(scope.nested(), 0)
        return
    blocks = [carrier for carrier in stage.carried.values() if isinstance(carrier, TwoPass)]
    with scope.block("{") if blocks else nullcontext():
        for carrier in blocks:
            carrier.begin_block(scope, span)
        vector_loop(scope, symbol, span, loops.copies, step)
        for number, carrier in enumerate(blocks):
            carrier.end_block(scope, span, () if number else loops.second)


def _sort(scope: Scope, stage: SortedStage) -> None:
    """Emit a stage with a `SortStep`, element by element."""
    axes, step, take = scope.frame.kernel.inner, stage.step, scope.frame.names.take
    values, positions = take(f"{step.names[0]}_values"), take(f"{step.names[0]}_places")
    with scope.block("{"):
        scope.line(f"const si64 count = {scope.index(extent_of(axes))};")
        for name, element in ((values, f"s{lane_type(step.dtype)}"), (positions, "si64")):
            scope.scratch(name, element, "2 * count")

        with _nested_loops(hoist(scope, stage.before), axes) as at:
            run(at, stage.before)
            where = at.index(scope.frame.position)
            at.line(f"{values}[{where}] = {at.value(step.args[0]).text};")
        arguments = f"{values}, {positions}, {values} + count, {positions} + count, count"
        scope.line(f"gy_sort({arguments}, {'true' if step.descending else 'false'});")
        with _nested_loops(hoist(scope, stage.after), axes) as at:
            where = at.index(scope.frame.position)
            for name, array, dtype in zip(step.names, (values, positions), step.types, strict=True):
                at.env[name] = Value(f"{array}[{where}]", dtype, varying=False)
            run(at, stage.after)
