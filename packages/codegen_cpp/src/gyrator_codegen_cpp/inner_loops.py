"""Stages that run at every inner element: reductions, scans, and the pointwise work beside them."""

from collections.abc import Iterable, Sequence

from attrs import frozen

from gyrator_codegen import Access, axis_of, invariant, linear_position, static
from gyrator_codegen_cpp.addresses import address, hoist
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.loops import Span, nested_loops, vector_loop, whole
from gyrator_codegen_cpp.reduction import Accumulators
from gyrator_codegen_cpp.scan import Scanner
from gyrator_codegen_cpp.scope import Scope
from gyrator_codegen_cpp.sort import sort_stage
from gyrator_codegen_cpp.two_pass_reduction import TwoPass
from gyrator_ir.body.nodes import Axis, Load, Reduce, ScanStep, SortStep
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Method, Prefetch


def split(
    scope: Scope, body: Iterable[KernelStatement], symbols: Iterable[Sym], loads: bool
) -> tuple[list[KernelStatement], list[KernelStatement]]:
    """Split a body into what is the same for all values of `symbols`, and the rest."""
    return invariant(body, symbols, scope.frame.written, loads)


def inner_stage(scope: Scope, number: int, body: tuple[KernelStatement, ...]) -> None:
    """Write stage `number` of the kernel, which runs over the inner axes."""
    frame = scope.frame
    kernel = frame.kernel
    inside = {a.symbol for a in kernel.inner}
    axes = tuple(
        axis_of(kernel, loop.axes[0]) for loop in frame.tiled.loops if loop.axes[0] in inside
    )
    if not axes:
        run(scope, body)
        return
    fixed, rest = split(scope, body, [a.symbol for a in axes], loads=frame.tiled.nonempty)
    run(scope, fixed)
    if any(isinstance(s, SortStep) for s in rest):
        sort_stage(scope, kernel.inner, rest, linear_position(kernel.inner))
        return
    scans = [s for s in rest if isinstance(s, ScanStep)]
    if scans:
        _scan_stage(scope, kernel.inner, rest, scans)
        return
    prefetches = tuple(p for p in frame.tiled.prefetches if p.stage == number)
    _reducing_stage(scope, axes, rest, prefetches)


def _scan_stage(
    scope: Scope, axes: tuple[Axis, ...], body: list[KernelStatement], scans: list[ScanStep]
) -> None:
    position = linear_position(axes)
    states = {s.names[0]: Scanner(scope, s, position) for s in scans}
    reductions = {
        s.names[0]: Accumulators(
            scope, s, 1, vector=scope.lanes is not None, across=False, cascade=False,
            wide=scope.frame.reductions[s.names[0]].wide,
            position=position, nonempty=nonempty_test(scope, axes),
        )
        for s in body
        if isinstance(s, Reduce)
    }  # fmt: skip
    for state in states.values():
        state.declare(scope)
    for one in reductions.values():
        one.declare(scope)

    def collective(at: Scope, s: KernelStatement) -> None:
        if isinstance(s, Reduce):
            reductions[s.names[0]].update(at, 0)
        else:
            assert isinstance(s, ScanStep)
            states[s.names[0]].step(at)

    def once(at: Scope) -> None:
        run(at, body)

    inside = hoist(scope, body, [a.symbol for a in axes]).nested(collective=collective)
    nested_loops(inside, axes, once, backwards=scans[0].reverse)
    for one in reductions.values():
        one.finish(scope)


def nonempty_test(scope: Scope, axes: tuple[Axis, ...]) -> str | None:
    """Return the text of whether the axes have any element, None if they surely have."""
    if scope.frame.tiled.nonempty:
        return None
    return f"{scope.index(extent_of(axes))} > 0"


@frozen
class _Stage:
    """A stage's innermost loop, and what it reduces."""

    axis: Axis
    vector: bool
    """The loop is that of the vectors."""
    simple: dict[str, Accumulators]
    two_pass: dict[str, TwoPass]
    copies: int
    """Steps that are written side by side."""
    block: int | None
    """Elements of the loop that are taken at a time; None for no cut."""
    chain: tuple[str, int] | None
    """A counter, and the elements between two flushes, where chains end between two runs."""
    prefetches: tuple[Prefetch, ...]


def _reducing_stage(
    scope: Scope, axes: tuple[Axis, ...], body: list[KernelStatement],
    prefetches: tuple[Prefetch, ...],
) -> None:  # fmt: skip
    stage = _declare(scope, axes, body, prefetches)

    def collective(at: Scope, s: KernelStatement) -> None:
        assert isinstance(s, Reduce)
        name = s.names[0]
        if name in stage.simple:
            stage.simple[name].update(at, at.copy)
        else:
            stage.two_pass[name].update(at, at.copy, at.low)

    def innermost(at: Scope) -> None:
        inside = hoist(at, body, [stage.axis.symbol]).nested(collective=collective)
        _innermost(inside, body, stage)

    if stage.chain is not None:
        scope.line(f"si64 {stage.chain[0]} = 0;")
    nested_loops(scope, axes[:-1], innermost)
    for s in body:
        if isinstance(s, Reduce):
            name = s.names[0]
            (stage.simple.get(name) or stage.two_pass[name]).finish(scope)


def _declare(
    scope: Scope, axes: tuple[Axis, ...], body: list[KernelStatement],
    prefetches: tuple[Prefetch, ...],
) -> _Stage:  # fmt: skip
    frame = scope.frame
    loops = frame.nest
    vector = loops is not None and not loops.across and loops.lanes == frame.width
    last, width = static(axes[-1].extent), frame.width if vector else 1
    simple: dict[str, Accumulators] = {}
    two_pass: dict[str, TwoPass] = {}
    reduces = [s for s in body if isinstance(s, Reduce)]
    recorded = [frame.reductions[s.names[0]] for s in reduces]
    for s, how in zip(reduces, recorded, strict=True):
        name, nonempty = s.names[0], nonempty_test(scope, axes)
        if how.method is Method.TWO_PASS:
            loads = (x for x in body if isinstance(x, Load) and x.name == s.args[0])
            two_pass[name] = TwoPass(
                scope, s, how, symbol=axes[-1].symbol, nonempty=nonempty,
                single=len(axes) == 1 and last is not None and last <= settled(how.block),
                source=next(loads) if how.reload else None,
            )  # fmt: skip
            two_pass[name].declare(scope)
        else:
            lanes = (vector and width > 1) or scope.lanes is not None
            simple[name] = Accumulators(
                scope, s, settled(how.unroll), vector=lanes, across=vector and width > 1,
                cascade=bool(how.chain), wide=how.wide,
                position=linear_position(frame.kernel.inner), nonempty=nonempty,
            )  # fmt: skip
            simple[name].declare(scope)
    copies = max((settled(r.unroll) for r in recorded), default=1)
    block = max((settled(r.block) for r in recorded), default=0) or None
    turns = max((r.chain for r in recorded), default=0) * copies * width
    chain = (frame.names.take("chain"), turns) if turns and block is None else None
    return _Stage(axes[-1], vector, simple, two_pass, copies, block, chain, prefetches)


def _innermost(scope: Scope, body: list[KernelStatement], stage: _Stage) -> None:
    span, name, block = whole(scope, stage.axis), stage.axis.symbol.name, stage.block
    if block is None or (span.exact is not None and span.exact <= block):
        _span(scope, span, body, stage)
        if stage.chain is not None:
            counter, turns = stage.chain
            scope.line(f"{counter} += {span.high};")
            with scope.block(f"if ({counter} >= {turns}) {{"):
                scope.line(f"{counter} = 0;")
                for sums in stage.simple.values():
                    sums.flush(scope)
        return
    low, high = f"{name}_low", f"{name}_high"
    with scope.block(f"for (si64 {low} = 0; {low} < {span.high}; {low} += {block}) {{"):
        scope.line(f"const si64 {high} = gy_least({low} + {block}, {span.high});")
        multiple = 1
        if span.exact is not None:
            multiple = span.exact & -span.exact
            multiple = min(multiple, block & -block)
        _span(scope, Span(low, high, None, multiple), body, stage)
        for sums in stage.simple.values():
            sums.flush(scope)


def _span(scope: Scope, span: Span, body: list[KernelStatement], stage: _Stage) -> None:
    """Write the work on a stretch of the innermost loop."""
    symbol = stage.axis.symbol
    if not stage.vector:
        name = symbol.name
        with scope.block(f"for (si64 {name} = {span.low}; {name} < {span.high}; {name}++) {{"):
            run(scope.nested(), body)
        return
    late = [p for p in stage.prefetches if p.second]

    def first(at: Scope, copy: int) -> None:
        at.copy, at.low = copy, span.low
        _prefetch(at, [p for p in stage.prefetches if p not in late])
        run(at, body)

    if not stage.two_pass:
        vector_loop(scope, symbol, span, stage.copies, first)
        return
    with scope.block("{"):
        for reduction in stage.two_pass.values():
            reduction.begin_block(scope)
        vector_loop(scope, symbol, span, stage.copies, first)
        for number, reduction in enumerate(stage.two_pass.values()):
            _second_pass(scope, symbol, span, reduction, [] if number else late)


def _second_pass(
    scope: Scope, symbol: Sym, span: Span, reduction: TwoPass, prefetches: Sequence[Prefetch]
) -> None:
    def second(at: Scope, copy: int) -> None:
        _prefetch(at, prefetches)
        reduction.second(at, copy, span.low)

    with scope.block("{"):
        reduction.between(scope, span.low, span.high)
        vector_loop(scope, symbol, span, reduction.second_copies, second)
        reduction.end_block(scope, span.low, span.high)


def _prefetch(scope: Scope, prefetches: Sequence[Prefetch]) -> None:
    """Write the requests for one vector's memory."""
    if scope.live is not None:
        return
    for p in prefetches:
        pointer = address(scope, p.buffer, p.index, Access.UNIT)
        scope.line(f"__builtin_prefetch({pointer}{', 1' if p.write else ''});")
