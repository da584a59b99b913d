"""Emission of a tiled kernel as one Metal function."""

from collections.abc import Sequence

from gyrator_codegen import Names, write_origins
from gyrator_codegen.analysis import ordered
from gyrator_codegen_metal.body import statement
from gyrator_codegen_metal.code import Code
from gyrator_codegen_metal.collective import end, rows, scan, sort, start, take
from gyrator_codegen_metal.dtypes import TYPES
from gyrator_codegen_metal.support import RESERVED, preamble
from gyrator_codegen_metal.threads import Threads, threads_of
from gyrator_ir.body.nodes import Axis, Reduce, ScanStep, SortStep
from gyrator_ir.body.rewrite import reads
from gyrator_ir.expr import Const, Sym, subs
from gyrator_ir.kernel.nodes import Level, Stage
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Configuration, KernelArgument, KernelSource
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Tiled, TiledKernel

THREADS, LANES = "THREADS", "LANES"
"""Entries of a kernel's only configuration: threads per threadgroup, and threads that share a
point's elements."""


def emit_kernel(
    tiled: Tiled, origins: Sequence[Origin], symbols: Names
) -> tuple[KernelSource, str]:
    """Return a kernel as self-contained source, and the function's text alone.

    Raises:
        UnsupportedError: GY-METAL-001, for tiling decisions that Metal kernels cannot express.
    """
    threads = threads_of(tiled)
    assert isinstance(tiled, TiledKernel), tiled  # else `threads_of` raises
    kernel, symbol = tiled.kernel, symbols.take(tiled.kernel.name)
    names = Names(RESERVED | {symbol})
    code = Code(tiled, threads.lanes, names)
    w, index = code.writer, code.index
    constness = {b.name: "" if b.name in kernel.writes else "const " for b in kernel.parameters}
    arguments = [
        KernelArgument(names.stable(b.name), f"device {constness[b.name]}{TYPES[b.dtype]}*")
        for b in kernel.parameters
    ]
    arguments += [KernelArgument(names.stable(s.name), "constant long&") for s in kernel.sizes]
    size_words = {a.name: names.take(f"{a.name}_given") for a in arguments if a.type.endswith("&")}
    parameters = [f"{a.type} {size_words.get(a.name, a.name)}" for a in arguments]
    parameters += ["device atomic_int* failed"] if code.checks else []
    bindings = [f"{p} [[buffer({k})]]" for k, p in enumerate(parameters)]
    bindings.append("uint group_index [[threadgroup_position_in_grid]]")
    bindings.append("uint thread_index [[thread_position_in_threadgroup]]")
    write_origins(w, kernel.origins, origins, "//")
    with w.block(f"kernel void {symbol}(\n    " + ",\n    ".join(bindings) + ") {"):
        for name, word in size_words.items():
            w.line(f"const {index} {name} = {index}({word});")
        _point(code, threads)
        if code.checks:
            w.line("bool sound = true;")
        for t in kernel.locals:
            assert isinstance(t.extent, Const), t  # checked by `refusal`
            length = max(-(-t.extent.value // threads.lanes), 1)
            w.line(f"{TYPES[t.dtype]} {names.stable(t.name)}[{length}];")
        for stage in kernel.stages:
            _stage(code, stage, threads)
    body, head = w.text, preamble(w.text)
    skipped = head.count("\n")
    source = KernelSource(
        kernel=kernel.name,
        symbol=symbol,
        text=head + body,
        checks=tuple(code.checks.values()),
        source_map=tuple((line + skipped, row) for line, row in w.source_map),
        candidates=(Configuration(((THREADS, threads.count), (LANES, threads.lanes))),),
        arguments=tuple(arguments),
        grid=(subs(threads.groups, {s: Sym(names.stable(s.name)) for s in kernel.sizes}),),
    )
    return source, body


def _point(code: Code, threads: Threads) -> None:
    """Emit a thread's point, and its index among the point's threads."""
    w, index, lanes = code.writer, code.index, threads.lanes
    x = f"{index}(group_index)"
    if threads.points > 1:
        thread = "thread_index" if lanes == 1 else f"(thread_index / {lanes})"
        x = f"{x} * {threads.points} + {index}{thread if lanes > 1 else '(thread_index)'}"
    w.line(f"const {index} x = {x};")
    w.line(f"if (x >= {code.at(extent_of(code.kernel.axes))}) return;")
    if lanes > 1:
        w.line(f"const {index} lane = thread_index % {lanes};")
    _digits(code, "x", code.kernel.axes)


def _digits(code: Code, flat: str, axes: Sequence[Axis]) -> None:
    """Emit axes as digits of their flat position."""
    rest = flat
    for k, a in enumerate(reversed(axes)):
        name, extent = code.names.stable(a.symbol.name), f"({code.at(a.extent)})"
        last = k == len(axes) - 1
        text = rest if last else f"{rest} % {extent}"
        code.writer.line(f"const {code.index} {name} = {text};")
        if not last:
            rest = f"({rest} / {extent})"


def _stage(code: Code, stage: Stage, threads: Threads) -> None:
    if not code.dirty.isdisjoint(reads(stage.body)):
        code.barrier()
    if stage.level is Level.INNER:
        _loop(code, stage, threads)
        return
    for s in stage.body:
        assert not isinstance(s, Reduce | ScanStep | SortStep), s  # those are of inner stages
        statement(code, s)


def _loop(code: Code, stage: Stage, threads: Threads) -> None:
    """Emit an inner stage, in which the threads of a point process interleaved elements."""
    w, index, lanes = code.writer, code.index, threads.lanes
    backwards = any(isinstance(s, ScanStep) and s.reverse for s in stage.body)
    states = {s.names[0]: start(code, s) for s in stage.body if isinstance(s, Reduce | ScanStep)}
    sorted_rows = {s.names[0]: rows(code, s) for s in stage.body if isinstance(s, SortStep)}
    outside = dict(code.values)
    code.inner, code.live = True, ordered(stage) and lanes > 1
    first = "0" if code.live or lanes == 1 else "lane"
    with w.block("{"):
        w.line(f"const {index} extent = {code.at(extent_of(code.kernel.inner))};")
        with w.block(f"for ({index} start = {first}; start < extent; start += {lanes}) {{"):
            at = "start + lane" if code.live else "start"
            w.line(f"const {index} r = {f'extent - 1 - ({at})' if backwards else at};")
            if code.live:
                w.line(f"const bool live = {'r >= 0' if backwards else 'r < extent'};")
            _digits(code, "r", code.kernel.inner)
            for s in stage.body:
                match s:
                    case Reduce():
                        take(code, s, states[s.names[0]])
                    case ScanStep():
                        scan(code, s, states[s.names[0]])
                    case SortStep():
                        sort(code, s, *sorted_rows[s.names[0]])
                    case _:
                        statement(code, s)
    code.values, code.inner, code.live = outside, False, False
    for s in stage.body:
        if isinstance(s, Reduce):
            end(code, s, states[s.names[0]], threads)
