"""Stages that run at every inner element: reductions, scans, and the pointwise work beside them."""

from collections.abc import Iterable

from attrs import evolve, frozen

from gyrator_codegen import extent_guess
from gyrator_codegen_cpp.ahead import NOTHING, Ahead
from gyrator_codegen_cpp.blockfold import BLOCK, BlockFold
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.code import Code
from gyrator_codegen_cpp.fold import CHAIN, Fold
from gyrator_codegen_cpp.loops import Span, nest, static, vector_loop, whole
from gyrator_codegen_cpp.scan import Scanner
from gyrator_codegen_cpp.sharing import direct
from gyrator_codegen_cpp.sort import sort_stage
from gyrator_ir.expr import ONE, ZERO, Expr, Sym
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.loop.body import (
    Axis,
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanStep,
    SortStep,
    Store,
)
from gyrator_ir.loop.ops import OPS
from gyrator_ir.loop.rewrite import defined

_BLOCKED = (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX)


def linear_position(axes: tuple[Axis, ...]) -> Expr:
    """Return the row-major position over the axes."""
    position: Expr = ZERO
    for axis in axes:
        position = position * axis.extent + axis.symbol
    return position


def invariant(
    code: Code, body: Iterable[KernelStatement], symbols: Iterable[Sym], loads: bool
) -> tuple[list[KernelStatement], list[KernelStatement]]:
    """Split a body into what is the same for all values of `symbols`, and the rest.

    Args:
        loads: the loops surely run, so that loads and checks may be done ahead of them.
    """
    moving = set(symbols)
    here: set[str] = set()
    fixed: list[KernelStatement] = []
    rest: list[KernelStatement] = []
    for s in body:
        match s:
            case Const():
                still = True
            case Let():
                still = here.isdisjoint(s.args)
            case IndexValue(expr=e):
                still = moving.isdisjoint(e.free_symbols)
            case Load(buffer=buffer, index=index, mask=None):
                still = (
                    loads
                    and buffer not in code.frame.written
                    and moving.isdisjoint(index.free_symbols)
                )
            case Bind(value=value, mask=None, size=e):
                still = loads and value not in here and moving.isdisjoint(e.free_symbols)
            case _:
                still = False
        if still:
            fixed.append(s)
            continue
        here.update(defined(s))
        if isinstance(s, Bind):
            moving.add(s.symbol)
        rest.append(s)
    return fixed, rest


def work(body: Iterable[KernelStatement]) -> int:
    """Return the rough price of a body, an addition being 1."""
    return sum(OPS[s.op].cost if isinstance(s, Let) else 1 for s in body)


def inner_stage(code: Code, body: tuple[KernelStatement, ...], ahead: Ahead = NOTHING) -> None:
    """Write a stage that runs over the kernel's inner axes, and asks for memory `ahead`."""
    axes = code.frame.kernel.inner
    if not axes:
        run(code, body)
        return
    vector = code.frame.axis is not None and code.frame.axis.inner
    if vector:
        assert code.frame.axis is not None
        symbol = code.frame.axis.symbol
        axes = tuple(a for a in axes if a.symbol is not symbol) + tuple(
            a for a in axes if a.symbol is symbol
        )
    nonempty = all((static(a.extent) or 0) > 0 for a in axes)
    fixed, rest = invariant(code, body, [a.symbol for a in axes], loads=nonempty)
    run(code, fixed)
    if any(isinstance(s, SortStep) for s in rest):
        sort_stage(code, axes, rest, linear_position(code.frame.kernel.inner))
        return
    scans = [s for s in rest if isinstance(s, ScanStep)]
    if scans:
        _scan_stage(code, axes, rest, scans)
        return
    _fold_stage(code, axes, rest, vector, nonempty, ahead)


def _scan_stage(
    code: Code, axes: tuple[Axis, ...], body: list[KernelStatement], scans: list[ScanStep]
) -> None:
    position = linear_position(axes)
    states = {s.names[0]: Scanner(code, s, position) for s in scans}
    folds = {
        s.names[0]: Fold(
            code, s, 1, vector=code.lanes is not None, across=False, cascade=False,
            position=position, nonempty=nonempty_test(code, axes),
        )
        for s in body
        if isinstance(s, Reduce)
    }  # fmt: skip
    for state in states.values():
        state.declare(code)
    for fold in folds.values():
        fold.declare(code)

    def collective(at: Code, s: KernelStatement) -> None:
        if isinstance(s, Reduce):
            folds[s.names[0]].update(at, 0)
        else:
            assert isinstance(s, ScanStep)
            states[s.names[0]].step(at)

    def once(at: Code) -> None:
        run(at, body)

    inside = code.hoist(body, [a.symbol for a in axes]).nested(collective=collective)
    nest(inside, axes, once, backwards=scans[0].reverse)
    for fold in folds.values():
        fold.finish(code)


def nonempty_test(code: Code, axes: tuple[Axis, ...]) -> str | None:
    """Return the text of whether the axes have any element, None if they surely have."""
    size: Expr = ONE
    for a in axes:
        size = size * a.extent
    known = static(size)
    if known is not None and known > 0:
        return None
    return f"{code.index(size)} > 0"


def _copies(body: list[KernelStatement], extent: int | None, width: int) -> int:
    """Return how many vectors a turn of a reducing loop takes, a power of two: more hide the
    latency of cheap bodies, fewer keep the text small."""
    folded = [s.dtype.size for s in body if isinstance(s, Reduce)]
    if not folded:
        return 1
    price = work(body)
    copies = 4 if price <= 12 else 2 if price <= 40 else 1
    if max(folded) > 4:
        copies = min(copies, 2)  # a vector of these is two registers, so two chains
    while extent is not None and copies > 1 and extent < copies * width:
        copies //= 2
    return copies


@frozen
class _Folds:
    """The reductions of a stage, and how its loops are cut."""

    simple: dict[str, Fold]
    blocked: dict[str, BlockFold]
    copies: int
    block: int | None
    """Elements of the innermost loop between flushes; None for no cut."""
    ahead: Ahead
    """What is fetched for later."""
    chain: tuple[str, int] | None
    """A counter, and the turns of the innermost loop as a whole between flushes, where it is
    short."""


def _fold_stage(
    code: Code, axes: tuple[Axis, ...], body: list[KernelStatement], vector: bool, nonempty: bool,
    ahead: Ahead,
) -> None:  # fmt: skip
    last = axes[-1]
    width = code.frame.width if vector else 1
    copies = _copies(body, static(last.extent), width) if width > 1 else 1
    folds = evolve(_declare(code, axes, body, vector and width > 1, copies), ahead=ahead)

    def collective(at: Code, s: KernelStatement) -> None:
        assert isinstance(s, Reduce)
        name = s.names[0]
        if name in folds.simple:
            folds.simple[name].update(at, at.copy)
        else:
            folds.blocked[name].update(at, at.copy, at.low)

    def innermost(at: Code) -> None:
        inside = at.hoist(body, [last.symbol]).nested(collective=collective)
        _innermost(inside, last, body, folds, vector)

    if folds.chain is not None:
        code.line(f"si64 {folds.chain[0]} = 0;")
    nest(code, axes[:-1], innermost)
    for s in body:
        if isinstance(s, Reduce):
            name = s.names[0]
            (folds.simple.get(name) or folds.blocked[name]).finish(code)


def _declare(
    code: Code, axes: tuple[Axis, ...], body: list[KernelStatement], vector: bool, copies: int
) -> _Folds:
    size = 1
    for a in axes:
        size *= extent_guess(a.extent) if static(a.extent) is not None else 1 << 20
    last = static(axes[-1].extent)
    run_length = CHAIN * copies * (code.frame.width if vector else 1)
    cascade = size > 2 * run_length
    position = linear_position(code.frame.kernel.inner)
    simple: dict[str, Fold] = {}
    blocked: dict[str, BlockFold] = {}
    block = BLOCK if last is None else min(BLOCK, last)
    stores = any(isinstance(s, Store) for s in body)
    for s in body:
        if not isinstance(s, Reduce):
            continue
        name, nonempty = s.names[0], nonempty_test(code, axes)
        if vector and s.kind in _BLOCKED:
            single = len(axes) == 1 and last is not None and last <= BLOCK
            blocked[name] = BlockFold(
                code, s, copies, symbol=axes[-1].symbol, nonempty=nonempty, block=block,
                single=single, source=None if stores else direct(body, s),
                keeps=single and bool(code.frame.shared.get(name)),
            )  # fmt: skip
            blocked[name].declare(code)
        else:
            lanes = vector or code.lanes is not None
            simple[name] = Fold(
                code, s, copies, vector=lanes, across=vector, cascade=cascade, position=position,
                nonempty=nonempty,
            )  # fmt: skip
            simple[name].declare(code)
    flushes = any(f.cascade for f in simple.values())
    cut: int | None = None
    if blocked:
        cut = BLOCK
    elif flushes and (last is None or last > 2 * run_length):
        cut = run_length
    chain = (code.frame.names.take("chain"), run_length) if flushes and cut is None else None
    return _Folds(simple, blocked, copies, cut, NOTHING, chain)


def _innermost(
    code: Code, axis: Axis, body: list[KernelStatement], folds: _Folds, vector: bool
) -> None:
    span = whole(code, axis)
    if folds.block is None or (span.exact is not None and span.exact <= folds.block):
        _span(code, axis, span, body, folds, vector)
        if folds.chain is not None:
            counter, turns = folds.chain
            code.line(f"{counter} += {span.high};")
            with code.block(f"if ({counter} >= {turns}) {{"):
                code.line(f"{counter} = 0;")
                for fold in folds.simple.values():
                    fold.flush(code)
        return
    name = axis.symbol.name
    low, high = f"{name}_low", f"{name}_high"
    block = folds.block
    with code.block(f"for (si64 {low} = 0; {low} < {span.high}; {low} += {block}) {{"):
        code.line(f"const si64 {high} = gy_least({low} + {block}, {span.high});")
        multiple = 1
        if span.exact is not None:
            multiple = span.exact & -span.exact
            multiple = min(multiple, block & -block)
        _span(code, axis, Span(low, high, None, multiple), body, folds, vector)
        for fold in folds.simple.values():
            fold.flush(code)


def _span(
    code: Code, axis: Axis, span: Span, body: list[KernelStatement], folds: _Folds, vector: bool
) -> None:
    """Write the work on a stretch of the innermost loop."""
    if not vector:
        name = axis.symbol.name
        with code.block(f"for (si64 {name} = {span.low}; {name} < {span.high}; {name}++) {{"):
            run(code.nested(), body)
        return

    def first(at: Code, copy: int) -> None:
        at.copy, at.low = copy, span.low
        folds.ahead.write_next_row(at)
        if not folds.blocked:
            folds.ahead.write_same_row(at)
        run(at, body)

    if not folds.blocked:
        vector_loop(code, axis.symbol, span, folds.copies, first)
        return
    with code.block("{"):
        for fold in folds.blocked.values():
            fold.begin_block(code)
        vector_loop(code, axis.symbol, span, folds.copies, first)
        for number, fold in enumerate(folds.blocked.values()):
            _second_pass(code, axis, span, fold, NOTHING if number else folds.ahead)


def _second_pass(code: Code, axis: Axis, span: Span, fold: BlockFold, ahead: Ahead) -> None:
    def second(at: Code, copy: int) -> None:
        ahead.write_same_row(at)
        fold.second(at, copy, span.low)

    with code.block("{"):
        fold.between(code, span.low, span.high)
        vector_loop(code, axis.symbol, span, fold.second_copies, second)
        fold.end_block(code, span.low, span.high)
