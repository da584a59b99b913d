"""Emission of a kernel as a function of C's calling convention: its points, stages and loops."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gyrator_codegen import Writer, write_origins
from gyrator_codegen.analysis import static
from gyrator_codegen.stage_loops import later_values
from gyrator_codegen_llvm.body import statement
from gyrator_codegen_llvm.code import Code
from gyrator_codegen_llvm.dtypes import STORAGE
from gyrator_codegen_llvm.folds import TWO_PASSES, Fold
from gyrator_ir.body.nodes import Axis, Bind, Reduce, ScanStep, SortStep, Store, StoreMode
from gyrator_ir.body.rewrite import defined, used
from gyrator_ir.kernel.nodes import KernelStatement, Level
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

Body = Sequence[KernelStatement]
Strip = tuple[Axis, str, str] | None
"""The axis of a strip of points, the index of its first point, and the number of points."""

_HEAD = "define i64 @{}(ptr readonly %buffers, ptr readonly %sizes) nounwind {{"


def emit_kernel(
    tiled: TiledKernel, origins: Sequence[Origin], arch: str, loop_numbers: Iterator[int]
) -> KernelSource:
    """Return a kernel as the text of its function.

    Args:
        tiled: the kernel; the step of its last grid loop is the length of its strips.
        origins: the program's origins.
        arch: the instruction set.
        loop_numbers: yields the numbers of metadata.
    """
    kernel, symbol = tiled.kernel, f"gy_k_{tiled.kernel.name}"
    step = tiled.loops[len(kernel.axes) - 1].step if kernel.axes else 1
    assert isinstance(step, int), tiled.loops
    code = Code(loop_numbers, tiled, step, arch != "plain")
    w = code.writer
    for k, b in enumerate(kernel.parameters):
        place = code.op(f"getelementptr ptr, ptr %buffers, i64 {k}", f"{b.name}_place")
        code.pointers[b.name] = code.op(f"load ptr, ptr {place}", b.name)
    for k, s in enumerate(kernel.sizes):
        place = code.op(f"getelementptr i64, ptr %sizes, i64 {k}", f"{s.name}_place")
        code.symbols[s] = code.op(f"load i64, ptr {place}", s.name)
    for t in kernel.locals:
        pointer = code.pointers[t.name] = f"%{code.names.take(t.name)}"
        length = max(static(t.extent) or 0, 1)
        code.stack.append(f"{pointer} = alloca [{length} x {STORAGE[t.dtype]}], align 64")
    _points(code)
    w.line("ret i64 0")
    for number, label in code.failures.items():
        code.start(label)
        w.line(f"ret i64 {number}")
    return _source(code, symbol, origins)


def _source(code: Code, symbol: str, origins: Sequence[Origin]) -> KernelSource:
    w, kernel = Writer(), code.kernel
    write_origins(w, kernel.origins, origins, ";")
    w.line(_HEAD.format(symbol))
    w.lines("entry:", *(f"  {text}" for text in code.stack))
    w.lines(*(x if x.endswith(":") else f"  {x}" for x in code.writer.text.splitlines()))
    w.lines("}", *code.metadata)
    checks = tuple(code.checks.values())
    return KernelSource(kernel.name, symbol, w.text, checks=checks, source_map=w.source_map)


def _points(code: Code) -> None:
    """Emit the loops over points, or over strips of them."""
    axes, simple = code.kernel.axes, not code.kernel.inner
    with ExitStack() as stack:
        strip: Strip = None
        for k, a in enumerate(axes):
            last, high = k == len(axes) - 1, code.index(a.extent)
            if last and code.strip > 1:
                strip = stack.enter_context(_strips(code, a, high))
                continue
            parallel = last and simple and _independent(code.kernel.statements)
            at = stack.enter_context(code.loop(a.symbol.name, high, parallel=parallel))
            code.bind(a.symbol, at)
        for number, stage in enumerate(code.kernel.stages):
            _keep(code, number)
            if stage.level is Level.INNER and not simple:
                _inner(code, stage.body, strip)
                continue
            with _lanes(code, strip, stage.body):
                for s in stage.body:
                    _statement(code, s)


def _statement(code: Code, s: KernelStatement) -> None:
    assert not isinstance(s, Reduce | ScanStep | SortStep), s  # not of the statements at hand
    statement(code, s)


def _independent(body: Body) -> bool:
    """Return whether a loop's iterations do not depend on one another through memory."""
    return not any(isinstance(s, Store) and s.mode is not StoreMode.SET for s in body)


def _keep(code: Code, number: int) -> None:
    """Allocate rows for the values and symbols of a stage that later ones use."""
    if code.strip == 1:
        return
    body = code.kernel.stages[number].body
    rows = later_values(code.kernel, number, code.kernel.storage)
    rows |= {s.symbol.name: DType.I64 for s in body if isinstance(s, Bind)}
    code.stored = frozenset(rows)
    for name, dtype in rows.items():
        code.cells[name] = code.variable(f"{name}_strip", dtype)


@contextmanager
def _strips(code: Code, axis: Axis, extent: str) -> Iterator[Strip]:
    """Emit the loop over the strips of the last axis of points."""
    strip, name = code.strip, axis.symbol.name
    padded = code.op(f"add nsw i64 {extent}, {strip - 1}")
    count = code.op(f"sdiv i64 {padded}, {strip}", "strips")
    with code.loop(f"{name}_strip", count) as at:
        base = code.op(f"mul nsw i64 {at}, {strip}", f"{name}_base")
        left = code.op(f"sub nsw i64 {extent}, {base}")
        live = code.op(f"call i64 @llvm.smin.i64(i64 {left}, i64 {strip})", f"{name}_live")
        yield axis, base, live


@contextmanager
def _lanes(code: Code, strip: Strip, body: Body = ()) -> Iterator[None]:
    """Emit a loop over the points of a strip around the `with` body; nothing for single points."""
    if strip is None:
        yield
        return
    axis, base, live = strip
    with code.loop(f"{axis.symbol.name}_lane", live, parallel=_independent(body)) as at:
        code.lane = at
        code.bind(axis.symbol, code.op(f"add nsw i64 {base}, {at}", axis.symbol.name))
        yield


@contextmanager
def _elements(code: Code, body: Body, strip: Strip) -> Iterator[None]:
    """Emit the loops over the inner axes, and within them over the points of a strip."""
    backwards = any(isinstance(s, ScanStep) and s.reverse for s in body)
    axes = code.kernel.inner
    with ExitStack() as stack:
        for k, a in enumerate(axes):
            parallel = k == len(axes) - 1 and strip is None and _independent(body)
            high, name = code.index(a.extent), a.symbol.name
            loop = code.loop(name, high, backwards=backwards, parallel=parallel)
            code.bind(a.symbol, stack.enter_context(loop))
        stack.enter_context(_lanes(code, strip, body))
        yield


def _inner(code: Code, body: Body, strip: Strip) -> None:
    """Emit an inner stage: twice over the elements, if a reduction needs that."""
    folds = {s.names[0]: Fold(code, s) for s in body if isinstance(s, Reduce | ScanStep)}
    twice = [f for f in folds.values() if f.step.kind in TWO_PASSES]
    with _lanes(code, strip):
        for fold in folds.values():
            fold.clear()
    if twice:
        with _elements(code, body, strip):
            for s in before_folds(body):
                _statement(code, s)
            for fold in twice:
                fold.first_pass()
        with _lanes(code, strip):
            for fold in twice:
                fold.between()
    with _elements(code, body, strip):
        for s in body:
            if isinstance(s, Reduce | ScanStep):
                folds[s.names[0]].take()
            else:
                _statement(code, s)
    with _lanes(code, strip):
        for fold in folds.values():
            fold.end()


def before_folds(body: Body) -> list[KernelStatement]:
    """Return the statements that the first pass over the elements needs, in order."""
    needed: set[str] = set()
    chosen: list[KernelStatement] = []
    for s in reversed(body):
        if isinstance(s, Reduce) and s.kind in TWO_PASSES:
            needed.update(s.args)
        elif isinstance(s, Bind) or not needed.isdisjoint(defined(s)):
            needed.update(used(s))
            chosen.append(s)
    return chosen[::-1]
