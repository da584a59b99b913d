"""Kernels as C++ functions: one for a range of units, one that says how many there are, and one
that hands out the ranges to threads, for a kernel or for all of a group."""

from collections.abc import Sequence
from itertools import accumulate

from attrs import evolve

from gyrator_codegen import Writer, static, steps, write_origins
from gyrator_codegen.stage_loops import digits
from gyrator_codegen_cpp.accesses import hoist
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.dtypes import RESERVED, STORAGE
from gyrator_codegen_cpp.loops import Span, stretch, vector_loop
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.scope import Frame, Scope
from gyrator_codegen_cpp.stages import columns, inner_stage, points, transposed
from gyrator_ir.body.nodes import Bind, Let
from gyrator_ir.expr import product_of
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelCheck, KernelSource
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import DRAWN, TiledGroup, TiledKernel


def emit_kernel(
    tiled: TiledKernel, origins: Sequence[Origin], isa: Isa, *, inner: bool = False
) -> KernelSource:
    """Write one kernel; an `inner` one is run by a thread of another: `<symbol>_all` does all of
    it."""
    frame, symbol = _frame(tiled, origins, isa, 1)
    head, name, grain = f'extern "C" si64 {symbol}', "gy_whole", ""
    if inner:
        head = f"static si64 {symbol}_all"
    elif tiled.threads is not None and tiled.threads.loops:
        name, grain = "gy_alone", f", {tiled.threads.grain}"
    with frame.writer.block(f"{head}({_GIVEN}) {{"):
        given = f"{symbol}_part, {symbol}_share(sizes), buffers, sizes{grain}"
        frame.writer.line(f"return {name}({given});")
    return _source(frame, symbol)


def emit_group(group: TiledGroup, origins: Sequence[Origin], isa: Isa) -> KernelSource:
    """Write kernels that one launch runs: threads share out the work of all of them."""
    w, symbol, texts = Writer(), f"gy_k_{group.name}", []
    rows: list[str] = []
    checks: list[KernelCheck] = []
    sizes = sorted({s.name for k in group.kernels for s in k.kernel.sizes})
    with w.block(f'extern "C" si64 {symbol}({_GIVEN}) {{'):
        w.line("(void)sizes;")
        for place, (tiled, cost) in enumerate(zip(group.kernels, group.costs, strict=True)):
            source = _source(*_frame(tiled, origins, isa, cost))
            texts.append(source.text)
            given = ", ".join(f"sizes[{sizes.index(s.name)}]" for s in tiled.kernel.sizes) or "0"
            w.line(f"const si64 sizes{place}[] = {{{given}}};")
            one = f"{source.symbol}_part, {source.symbol}_share(sizes{place})"
            rows.append(f"{{{one}, sizes{place}, {len(checks)}}}")
            checks += [evolve(c, code=len(checks) + c.code) for c in source.checks]
        counts = [len(group.kernels[n].kernel.parameters) for n in group.members]
        starts = accumulate(counts, initial=0)
        members = [f"{{{n}, {at}}}" for n, at in zip(group.members, starts, strict=False)]
        w.line(f"const gy_kind kinds[] = {{{', '.join(rows)}}};")
        w.line(f"static const gy_member members[] = {{{', '.join(members)}}};")
        given = f"kinds, members, {len(members)}, buffers, {group.grain}"
        w.line(f"return gy_together({given});")
    return KernelSource(group.name, symbol, "\n".join([*texts, w.text]), checks=tuple(checks))


_GIVEN = "void *const *buffers, const si64 *sizes"


def _frame(tiled: TiledKernel, origins: Sequence[Origin], isa: Isa, cost: int) -> tuple[Frame, str]:
    """Write a kernel's `<symbol>_part`, and `<symbol>_share`, which gives its work, `cost` for each
    element."""
    kernel = tiled.kernel
    symbols = {a.symbol.name for a in kernel.axes + kernel.inner} | {s.name for s in kernel.sizes}
    symbols |= {s.symbol.name for g in kernel.stages for s in g.body if isinstance(s, Bind)}
    frame = Frame(tiled, isa, RESERVED | symbols)
    symbol = f"gy_k_{kernel.name}"
    write_origins(frame.writer, kernel.origins, origins, "//")
    _part(frame, symbol)
    _share(frame, symbol, cost)
    return frame, symbol


def _source(frame: Frame, symbol: str) -> KernelSource:
    w, checks = frame.writer, tuple(frame.checks.values())
    return KernelSource(frame.kernel.name, symbol, w.text, checks=checks, source_map=w.source_map)


def _part(frame: Frame, symbol: str) -> None:
    """Write the function that does units `begin` to `end`."""
    kernel, w = frame.kernel, frame.writer
    head = (
        f"static __attribute__((noinline)) si64 {symbol}_part(void *const *buffers, "
        "const si64 *sizes, si64 begin, si64 end, sbool shared) {"
    )
    with w.block(head):
        w.line("(void)buffers, (void)sizes, (void)shared;")
        for number, buffer in enumerate(kernel.parameters):
            name = frame.pointers[buffer.name] = frame.names.take(buffer.name)
            element = STORAGE[buffer.dtype]
            w.line(f"{element} *const {name} = ({element} *)buffers[{number}];")
        _sizes(frame)
        w.line("if (begin >= end) return 0;")
        scope = Scope(frame, None)
        _locals(frame, scope)
        loops = frame.nest
        if loops is not None and loops.across and not loops.columns and len(loops.grid) == 1:
            _stretch(scope, "begin", "end")
        else:
            _units(scope)
        w.line("return 0;")


def _sizes(frame: Frame) -> None:
    for number, size in enumerate(frame.kernel.sizes):
        frame.writer.line(f"const si64 {size.name} = sizes[{number}];")


def _locals(frame: Frame, scope: Scope) -> None:
    """Declare the row scratch of a point, and what holds random words that are drawn ahead."""
    lanes = frame.width if frame.nest is not None and frame.nest.across else 1
    for local in frame.kernel.locals:
        name = frame.pointers[local.name] = frame.names.take(local.name)
        element = STORAGE[local.dtype]
        if lanes > 1:
            frame.local_rows.add(local.name)
        if local.name in frame.tiled.stack:
            extent = static(local.extent) or 1
            scope.line(f"alignas(64) {element} {name}[{extent * lanes}];")
            continue
        scope.scratch(name, element, f"{lanes} * ({scope.index(local.extent)})")
    for s in (s for stage in frame.kernel.stages for s in stage.body):
        if isinstance(s, Let) and s.op in DRAWN and s.name not in frame.drawn:
            name = frame.drawn[s.name] = frame.names.take(f"{s.name}_drawn")
            scope.line(f"gy_drawn {name};")


def _units(scope: Scope) -> None:
    """Write the loop over units of work, with the axes' symbols counted along."""
    frame = scope.frame
    found = [] if frame.nest is None else digits(frame.kernel, frame.nest)
    names, inner = [name for name, _ in found], [(n, scope.index(e)) for n, e in found[1:]]
    first = names[0] if found else "p"
    if not inner:
        with scope.block(f"for (si64 {first} = begin; {first} < end; {first}++) {{"):
            _unit(scope.nested(), names)
        return
    scope.line("si64 p = begin;")
    for name, extent in reversed(inner):
        scope.line(f"si64 {name} = p % ({extent});")
        scope.line(f"p /= {extent if extent.isalnum() else f'({extent})'};")
    scope.line(f"si64 {first} = p;")
    with scope.block("for (p = begin; p < end; p++) {"):
        _unit(scope.nested(), names)
        step = f"{first}++;"
        for name, extent in inner:
            step = f"if (++{name} == {extent}) {{ {name} = 0; {step} }}"
        scope.line(step)


def _unit(scope: Scope, names: Sequence[str]) -> None:
    loops = scope.frame.nest
    if loops is None or not loops.across:
        _stages(scope)
        return
    tile = f"{loops.symbol.name}_tile"
    _stretch(scope, *((tile, f"({tile} + 1)") if tile in names else ("0", "1")))


def _stretch(scope: Scope, first: str, last: str) -> None:
    """Write the work on tiles `first` to `last` of the vectors' axis."""
    frame, loops = scope.frame, scope.frame.loops
    along, step = loops.axis, loops.stretch
    extent = static(along.extent)
    if first == "0" and extent is not None and extent <= step:
        span = Span("0", str(extent), extent, extent or 1)
    else:
        span = stretch(scope, along, first, last, step)
    if loops.columns:
        columns(scope, span)
    elif frame.tiled.transposed:
        transposed(scope, span)
    else:
        outer = [g.body for g in frame.kernel.stages if g.level is Level.OUTER]
        body = [s for statements in outer for s in statements]
        if len(outer) == len(frame.kernel.stages):
            points(scope, body, span)
            return
        vector_loop(hoist(scope, body), along.symbol, span, 1, lambda at, copy: _stages(at))


def _stages(scope: Scope) -> None:
    for number, stage in enumerate(scope.frame.kernel.stages):
        if stage.level is Level.OUTER:
            run(scope, stage.body)
        else:
            inner_stage(scope, number, stage.body)


def _share(frame: Frame, symbol: str, cost: int) -> None:
    """Write the function that says how many pieces there are to share out, and how much work."""
    scope, kernel = Scope(frame, None), frame.kernel
    counts = [steps(kernel, loop) for loop in (() if frame.nest is None else frame.nest.grid)]
    shared = 0 if frame.tiled.threads is None else frame.tiled.threads.loops
    pieces, units = product_of(counts[:shared]), product_of(counts[shared:])
    size = extent_of(kernel.axes + kernel.inner)
    with scope.block(f"static gy_share {symbol}_share(const si64 *sizes) {{"):
        scope.line("(void)sizes;")
        _sizes(frame)
        parts = ", ".join(scope.index(e) for e in (pieces, units, size * cost))
        scope.line(f"return {{{parts}}};")
