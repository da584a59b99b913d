"""Emission of kernels as C++ functions: one that computes a range of work units, one that returns
the number of units, and one that distributes ranges among threads, for a kernel or a group."""

import re
from collections.abc import Callable, Sequence
from itertools import accumulate

from attrs import evolve

from gyrator_codegen import Writer, static, write_origins
from gyrator_codegen_cpp.dtypes import STORAGE
from gyrator_codegen_cpp.loops import point, tiles
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.products import product
from gyrator_codegen_cpp.scope import Frame, Scope
from gyrator_ir.expr import product_of
from gyrator_ir.kernel.nodes import Kernel, TemplateKernel
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelCheck, KernelSource
from gyrator_ir.tile.nodes import TiledGroup, TiledKernel

_PARAMETERS = "void *const *buffers, const si64 *sizes"
_COMMENT = re.compile("^//.*\n", re.MULTILINE)

Functions = dict[str, tuple[str, str]]
"""Symbols and texts of functions, by their texts without comments and symbols."""


def emit_kernel(
    tiled: TiledKernel, origins: Sequence[Origin], isa: Isa, *, inner: bool = False
) -> KernelSource:
    """Emit a kernel. An `inner` kernel is called by a thread of another one: its function
    `<symbol>_all` does all of its work."""
    frame = _frame(tiled, origins, isa)
    symbol = frame.symbol
    head, name, grain = f'extern "C" si64 {symbol}', "gy_whole", ""
    if inner:
        head = f"static si64 {symbol}_all"
    elif tiled.threads is not None and tiled.threads.loops:
        name, grain = "gy_alone", f", {tiled.threads.grain}"
    with frame.writer.block(f"{head}({_PARAMETERS}) {{"):
        arguments = f"{symbol}_part, {symbol}_share(sizes), buffers, sizes{grain}"
        frame.writer.line(f"return {name}({arguments});")
    return _source(frame)


def emit_group(
    group: TiledGroup, origins: Sequence[Origin], isa: Isa, known: Functions
) -> tuple[KernelSource, str]:
    """Emit kernels that run in one launch, with the work of all of them divided among threads.
    Return their source, and what of its text are not functions in `known`, to which those of the
    members are added: groups, such as those of a model's layers, may share some."""
    w, symbol = Writer(), f"gy_k_{group.name}"
    texts: list[str] = []
    rows: list[str] = []
    checks: list[KernelCheck] = []
    sizes = sorted({s.name for k in group.kernels for s in k.kernel.sizes})
    with w.block(f'extern "C" si64 {symbol}({_PARAMETERS}) {{'):
        w.line("(void)sizes;")
        for place, (tiled, cost) in enumerate(zip(group.kernels, group.costs, strict=True)):
            source = _source(_frame(tiled, origins, isa, cost))
            body = _COMMENT.sub("", source.text).replace(source.symbol, "")
            name, text = known.setdefault(body, (source.symbol, source.text))
            texts.append(text)
            own = ", ".join(f"sizes[{sizes.index(s.name)}]" for s in tiled.kernel.sizes)
            w.line(f"const si64 sizes{place}[] = {{{own or 0}}};")
            functions = f"{name}_part, {name}_share(sizes{place})"
            rows.append(f"{{{functions}, sizes{place}, {len(checks)}}}")
            checks += [evolve(c, code=len(checks) + c.code) for c in source.checks]
        counts = (len(group.kernels[n].kernel.parameters) for n in group.members)
        starts = accumulate(counts, initial=0)
        members = [f"{{{n}, {at}}}" for n, at in zip(group.members, starts, strict=False)]
        w.line(f"const gy_kind kinds[] = {{{', '.join(rows)}}};")
        w.line(f"static const gy_member members[] = {{{', '.join(members)}}};")
        arguments = f"kinds, members, {len(members)}, buffers, {group.grain}"
        w.line(f"return gy_together({arguments});")
    text = "\n".join([*dict.fromkeys(texts), w.text])
    return KernelSource(group.name, symbol, text, checks=tuple(checks)), w.text


def functions_for(text: str, known: Functions) -> str:
    """Return the functions of members that the text of groups refers to."""
    return "".join(f"{own}\n" for name, own in known.values() if f"{name}_part," in text)


def _frame(tiled: TiledKernel, origins: Sequence[Origin], isa: Isa, cost: int = 1) -> Frame:
    """Emit a kernel's functions `<symbol>_part`, and `<symbol>_share` with `cost` per element."""
    frame = Frame(tiled, isa)
    write_origins(frame.writer, tiled.kernel.origins, origins, "//")
    _part(frame)
    _share(frame, cost)
    return frame


def _source(frame: Frame) -> KernelSource:
    name, w, checks = frame.kernel.name, frame.writer, tuple(frame.checks.values())
    return KernelSource(name, frame.symbol, w.text, checks=checks, source_map=w.source_map)


def _part(frame: Frame) -> None:
    """Emit the function that computes units `begin` to `end`."""
    w = frame.writer
    head = (
        f"static __attribute__((noinline)) si64 {frame.symbol}_part(void *const *buffers, "
        "const si64 *sizes, si64 begin, si64 end, sbool shared) {"
    )
    with w.block(head):
        w.line("(void)buffers, (void)sizes, (void)shared;")
        frame.pointers |= parameters(w, frame.kernel, frame.names.take)
        w.line("if (begin >= end) return 0;")
        scope = Scope(frame, None)
        _locals(scope)
        if frame.single_range:
            tiles(scope, "begin", "end")
        else:
            _units(scope)
        w.line("return 0;")


def parameters(
    w: Writer, kernel: Kernel | TemplateKernel, take: Callable[[str], str]
) -> dict[str, str]:
    """Emit variables for a function's buffers and sizes; return the pointers' names by `take`."""
    names = {buffer.name: take(buffer.name) for buffer in kernel.parameters}
    for number, buffer in enumerate(kernel.parameters):
        element = STORAGE[buffer.dtype]
        w.line(f"{element} *const {names[buffer.name]} = ({element} *)buffers[{number}];")
    w.lines(*_sizes(kernel))
    return names


def _sizes(kernel: Kernel | TemplateKernel) -> list[str]:
    return [f"const si64 {s.name} = sizes[{k}];" for k, s in enumerate(kernel.sizes)]


def _locals(scope: Scope) -> None:
    """Emit the declarations of a point's scratch rows, and of buffered random words."""
    frame = scope.frame
    for local in frame.kernel.locals:
        name = frame.pointers[local.name] = frame.names.take(local.name)
        element, lanes = STORAGE[local.dtype], frame.width if local.name in frame.rows else 1
        if local.name in frame.tiled.stack:
            scope.line(f"alignas(64) {element} {name}[{(static(local.extent) or 1) * lanes}];")
        else:
            scope.scratch(name, element, f"{lanes} * ({scope.index(local.extent)})")
    scope.line(*(f"gy_drawn {words};" for words in frame.drawn.values()))


def _units(scope: Scope) -> None:
    """Emit the loop over work units, which maintains the axes' symbols incrementally."""
    digits, tile = scope.frame.digits, scope.frame.tile
    begin, end, low, high = "begin", "end", "0", "1"
    if scope.frame.tiles_outside:
        rows = scope.index(product_of(digits.values()))
        low, high = f"{tile}_low", f"{tile}_high"
        scope.line(f"const si64 {low} = begin / ({rows}), {high} = end / ({rows});")
        begin, end = "0", rows
    elif tile in digits:
        low, high = f"{tile}", f"({tile} + 1)"
    first, *names = digits or ("p",)
    inner = [(name, scope.index(digits[name])) for name in names]
    head, step = f"for (si64 {first} = {begin}; {first} < {end}; {first}++) {{", f"{first}++;"
    if inner:
        scope.line(f"si64 p = {begin};")
        for name, extent in reversed(inner):
            scope.line(f"si64 {name} = p % ({extent});")
            scope.line(f"p /= {extent if extent.isalnum() else f'({extent})'};")
        scope.line(f"si64 {first} = p;")
        head = f"for (p = {begin}; p < {end}; p++) {{"
    with scope.block(head):
        inside = scope.nested()
        if scope.frame.tiled.contraction:
            product(inside)
        elif tile is None:
            point(inside)
        else:
            tiles(inside, low, high)
        for name, extent in inner:
            step = f"if (++{name} == {extent}) {{ {name} = 0; {step} }}"
        scope.line(*[step] if inner else [])


def _share(frame: Frame, cost: int) -> None:
    """Emit the function that returns the number of units to distribute, and the amount of work."""
    scope, (pieces, units, elements) = Scope(frame, None), frame.work
    with scope.block(f"static gy_share {frame.symbol}_share(const si64 *sizes) {{"):
        parts = ", ".join(map(scope.index, (pieces, units, elements * cost)))
        scope.line("(void)sizes;", *_sizes(frame.kernel), f"return {{{parts}}};")
