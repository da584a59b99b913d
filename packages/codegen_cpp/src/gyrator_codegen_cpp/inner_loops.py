"""Stages that run at every inner element: reductions, scans, and the pointwise work beside them."""

from math import gcd
from typing import Protocol

from attrs import frozen

from gyrator_codegen import axis_of, linear_position
from gyrator_codegen_cpp.addresses import hoist, requests
from gyrator_codegen_cpp.body import run, split
from gyrator_codegen_cpp.loops import Span, each, nested_loops, vector_loop, whole
from gyrator_codegen_cpp.reduction import Accumulators
from gyrator_codegen_cpp.scan import Scanner
from gyrator_codegen_cpp.scope import Scope
from gyrator_codegen_cpp.sort import sort_stage
from gyrator_codegen_cpp.two_pass_reduction import TwoPass
from gyrator_ir.body.nodes import Axis, Load, Reduce, ScanStep, SortStep
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Method, Prefetch


class Collective(Protocol):
    """What a loop carries from element to element."""

    def declare(self, scope: Scope) -> None:
        """Write what stands ahead of the loops."""

    def update(self, scope: Scope, copy: int) -> None:
        """Write what an element, or a vector, does; it feeds accumulator number `copy`."""

    def flush(self, scope: Scope) -> None:
        """Write the end of a chain."""

    def finish(self, scope: Scope) -> None:
        """Write what stands behind the loops."""


def inner_stage(scope: Scope, number: int, body: tuple[KernelStatement, ...]) -> None:
    """Write stage `number` of the kernel, which runs over the inner axes."""
    kernel = scope.frame.kernel
    if not kernel.inner:
        run(scope, body)
        return
    ahead, rest = split(scope, body)
    run(scope, ahead)
    if any(isinstance(s, SortStep) for s in rest):
        sort_stage(scope, kernel.inner, rest, linear_position(kernel.inner))
    else:
        _collect(scope, _declare(scope, number, rest))


def nonempty_test(scope: Scope, axes: tuple[Axis, ...]) -> str | None:
    """Return the text of whether the axes have any element, None if they surely have."""
    if scope.frame.tiled.nonempty:
        return None
    return f"{scope.index(extent_of(axes))} > 0"


@frozen
class _Stage:
    """A stage's loops, and what they carry along."""

    body: list[KernelStatement]
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
    prefetches: tuple[Prefetch, ...]


def _declare(scope: Scope, number: int, body: list[KernelStatement]) -> _Stage:
    frame = scope.frame
    loops, inner = frame.nest, frame.kernel.inner
    assert loops is not None
    scans = [s for s in body if isinstance(s, ScanStep)]
    axes = inner
    if not scans:
        symbols = [x.axes[0] for x in frame.tiled.loops]
        axes = tuple(axis_of(frame.kernel, x) for x in symbols if x in {a.symbol for a in inner})
    vector = not scans and not loops.across and loops.lanes == frame.width
    across = vector and frame.width > 1
    carried: dict[str, Collective] = {}
    for s in body:
        if isinstance(s, ScanStep):
            carried[s.names[0]] = Scanner(scope, s, linear_position(inner))
        elif isinstance(s, Reduce):
            how = frame.reductions[s.names[0]]
            nonempty = nonempty_test(scope, axes)
            if how.method is Method.TWO_PASS:
                loads = (x for x in body if isinstance(x, Load) and x.name == s.args[0])
                source = next(loads) if how.reload else None
                carried[s.names[0]] = TwoPass(scope, s, how, axes[-1].symbol, nonempty, source)
            else:
                carried[s.names[0]] = Accumulators(
                    scope, s, how, settled(how.unroll), vector=across or scope.lanes is not None,
                    across=across, nonempty=nonempty,
                )  # fmt: skip
    for one in carried.values():
        one.declare(scope)
    recorded = [frame.reductions[s.names[0]] for s in body if isinstance(s, Reduce)]
    copies = max((settled(r.unroll) for r in recorded), default=1)
    block = max((settled(r.block) for r in recorded), default=0) or None
    turns = max((r.chain for r in recorded), default=0) * copies * (frame.width if vector else 1)
    chain = (frame.names.take("chain"), turns) if turns and block is None else None
    prefetches = tuple(p for p in frame.tiled.prefetches if p.stage == number)
    backwards = bool(scans) and scans[0].reverse
    return _Stage(body, axes, vector, backwards, carried, copies, block, chain, prefetches)


def _collect(scope: Scope, stage: _Stage) -> None:
    """Write a stage's loops, and the results of what they carry along."""
    if stage.chain is not None:
        scope.line(f"si64 {stage.chain[0]} = 0;")

    def innermost(at: Scope) -> None:
        _innermost(hoist(at, stage.body, [stage.axes[-1].symbol]), stage)

    nested_loops(scope, stage.axes[:-1], innermost, stage.backwards)
    for one in stage.carried.values():
        one.finish(scope)


def _innermost(scope: Scope, stage: _Stage) -> None:
    span, name, block = whole(scope, stage.axes[-1]), stage.axes[-1].symbol.name, stage.block
    if block is None or (span.exact is not None and span.exact <= block):
        _span(scope, span, stage)
        if stage.chain is not None:
            counter, turns = stage.chain
            scope.line(f"{counter} += {span.high};")
            with scope.block(f"if ({counter} >= {turns}) {{"):
                scope.line(f"{counter} = 0;")
                _flush(scope, stage)
        return
    low, high = f"{name}_low", f"{name}_high"
    with scope.block(f"for (si64 {low} = 0; {low} < {span.high}; {low} += {block}) {{"):
        scope.line(f"const si64 {high} = gy_least({low} + {block}, {span.high});")
        multiple = 1 if span.exact is None else gcd(span.exact, block)
        _span(scope, Span(low, high, None, multiple), stage)
        _flush(scope, stage)


def _flush(scope: Scope, stage: _Stage) -> None:
    for one in stage.carried.values():
        one.flush(scope)


def _span(scope: Scope, span: Span, stage: _Stage) -> None:
    """Write the work on a stretch of the innermost loop."""
    symbol = stage.axes[-1].symbol
    late = [p for p in stage.prefetches if p.second]
    first = [p for p in stage.prefetches if not p.second]

    def step(at: Scope, copy: int) -> None:
        def collective(here: Scope, s: KernelStatement) -> None:
            assert isinstance(s, Reduce | ScanStep)
            stage.carried[s.names[0]].update(here, copy)

        at.collective = collective
        if at.live is None:
            at.writer.lines(*requests(at, first))
        run(at, stage.body)

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
