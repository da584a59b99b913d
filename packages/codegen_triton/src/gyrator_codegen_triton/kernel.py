"""One kernel as one `@triton.jit` function."""

from collections.abc import Sequence

from gyrator_codegen import Names, Writer
from gyrator_codegen_triton.body import barrier, statement
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.configs import candidates
from gyrator_codegen_triton.fold import Loop, reduce_block
from gyrator_codegen_triton.index import Flat, TritonPrinter, fits_32_bits, kernel_facts
from gyrator_codegen_triton.shape import (
    contiguous_inside,
    inner_extent,
    level,
    points,
    rblock,
    stepped,
)
from gyrator_codegen_triton.source import blocks_over, source_of, write_origins
from gyrator_codegen_triton.support import RESERVED
from gyrator_codegen_triton.tiles import tiled
from gyrator_codegen_triton.walk import Running, scan_block, sort_block
from gyrator_ir.expr import Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Level, Stage
from gyrator_ir.loop.body import Bind, Load, Reduce, ScanStep, SortStep
from gyrator_ir.loop.rewrite import expressions, reads, writes
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Heuristics

_AHEAD = 3  # steps of a loop whose loads are under way at once
_MOST_AHEAD = 4  # buffers that a loop reads ahead: each takes shared memory


def emit_kernel(
    kernel: Kernel,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    heuristics: Heuristics,
    symbol: str,
    group: KernelGroup | None = None,
) -> tuple[KernelSource, str]:
    """Return one kernel as a text that runs on its own, and the function alone.

    With a `group`, whose members all are this kernel, each has its share of the programs.
    """
    tile = tiled(kernel, facts)
    kernel = kernel if tile is None else tile
    flats = Flat("i", kernel.axes), Flat("r", kernel.inner)
    total, extent = points(kernel), inner_extent(kernel)
    known = kernel_facts(kernel, facts)
    wide = not fits_32_bits(kernel, known, (total, extent))
    known = known.with_ranges({flats[0].symbol: total, flats[1].symbol: extent})
    persistent = tile is None and rblock(kernel, heuristics) is not None
    names = Names(RESERVED | {symbol})
    code = Code(kernel, known, Writer("    "), names, wide, persistent, tile is not None, flats)
    code.along = persistent and contiguous_inside(kernel)
    if level(kernel, heuristics) and tile is None:
        code.still = frozenset(a.symbol for a in kernel.axes[:-1])
    launched = kernel if group is None else group
    parameters = [names.stable(b.name) for b in launched.parameters]
    sizes = [names.stable(s.name) for s in kernel.sizes]
    blocks = ["XBLOCK: tl.constexpr"] + (["RBLOCK: tl.constexpr"] if kernel.inner else [])
    w = code.writer
    w.line("@triton.jit")
    with w.block(f"def {symbol}({', '.join(parameters + sizes + blocks)}):", end=""):
        write_origins(w, kernel.origins, origins)
        if wide:
            w.lines(*(f"{s} = tl.cast({s}, tl.int64)" for s in sizes))
        if group is not None:
            _member(code, group, total, extent)
        _spaces(code, total, extent, group is not None)
        for stage in kernel.stages:
            _stage(code, stage)
    programs = blocks_over(total, "XBLOCK") * (1 if group is None else len(group.members))
    if code.tiled:
        programs = programs * blocks_over(extent, "RBLOCK")
    found = candidates(kernel, known, heuristics, tile is not None)
    return source_of(launched, symbol, code, facts, found, programs)


def _member(code: Code, group: KernelGroup, total: Expr, extent: Expr) -> None:
    """Write which member a program works for, and that member's buffers."""
    w, show = code.writer, code.printer()
    programs = f"(({show(total)}) + XBLOCK - 1) // XBLOCK"
    if code.tiled:
        programs = f"({programs}) * ((({show(extent)}) + RBLOCK - 1) // RBLOCK)"
    w.lines(f"programs = {programs}", "member = tl.program_id(0) // programs")
    for b in code.kernel.parameters:
        name = code.names.stable(b.name)
        for place in range(len(group.members)):
            mine = code.names.stable(group.parameter(place, b.name))
            chosen = f"tl.where(member == {place}, {mine}, {name})" if place else mine
            w.line(f"{name} = {chosen}")


def _used(code: Code) -> set[Sym]:
    """Return the symbols that the text of the kernel's expressions mentions."""
    used: set[Sym] = set()
    for stage in code.kernel.stages:
        for s in stage.body:
            for e in expressions(s):
                used |= code.form(e).free_symbols
    return used


def _spaces(code: Code, total: Expr, extent: Expr, grouped: bool) -> None:
    """Write the blocks of points and inner elements, and the axes as digits of them."""
    w, kernel = code.writer, code.kernel
    show = code.printer()
    column, row = ("[:, None]", "[None, :]") if kernel.inner else ("", "")
    program = "(tl.program_id(0) % programs)" if grouped else "tl.program_id(0)"
    program += ".to(tl.int64)" if code.wide else ""
    if code.tiled:
        w.lines(f"extent = {show(extent)}", "tiles = (extent + RBLOCK - 1) // RBLOCK")
        w.line(f"program = {program}")
        program = "program // tiles"
    w.line(f"x = {program} * XBLOCK + tl.arange(0, XBLOCK){column}")
    w.line(f"x_mask = x < {show(total)}")
    used = _used(code)
    if not code.still.isdisjoint(used):
        w.line(f"first = {program} * XBLOCK + tl.arange(0, 1){column}")
    _digits(code, code.flats[0], used)
    if not kernel.inner:
        return
    if code.tiled:
        w.line(f"r = program % tiles * RBLOCK + tl.arange(0, RBLOCK){row}")
        w.line("r_mask = r < extent")
        _digits(code, code.flats[1], used)
        return
    w.line(f"extent = {show(extent)}")
    if code.persistent:
        wide = ".to(tl.int64)" if code.wide else ""
        w.line(f"r = tl.arange(0, RBLOCK){row}{wide}")
        w.line("r_mask = r < extent")
        _digits(code, code.flats[1], used)


def _digits(code: Code, flat: Flat, used: set[Sym]) -> None:
    show = code.printer()

    def first(symbol: Sym) -> str:
        return "first" if symbol is flat.symbol else code.names.stable(symbol.name)

    show_still = TritonPrinter(code.facts.nonnegative_division, first)
    for symbol in reversed(flat.digits):
        if symbol in used:
            text = (show_still if symbol in code.still else show)(flat.digits[symbol])
            code.writer.line(f"{code.names.stable(symbol.name)} = {text}")


def _stage(code: Code, stage: Stage) -> None:
    if not code.dirty.isdisjoint(reads(stage.body)):
        barrier(code)
    code.inner = stage.level is Level.INNER and bool(code.kernel.inner)
    if not code.inner or code.persistent or code.tiled:
        outside = dict(code.values)
        _block(code, stage)
        _forget(code, stage, outside)
    else:
        _loop(code, stage)
    code.inner = False


def _forget(code: Code, stage: Stage, outside: dict[str, Value]) -> None:
    """Drop the names of an inner stage's own values, which a later stage may take."""
    if not code.inner:
        return
    kept = {n for s in stage.body if isinstance(s, Reduce) for n in s.names}
    for name in [n for n in code.values if n not in outside and n not in kept]:
        del code.values[name]


def _block(code: Code, stage: Stage) -> None:
    for s in stage.body:
        match s:
            case Reduce():
                reduce_block(code, s)
            case ScanStep():
                scan_block(code, s)
            case SortStep():
                sort_block(code, s)
            case _:
                statement(code, s)


def _loop(code: Code, stage: Stage) -> None:
    """Write an inner stage as a loop over blocks of the inner elements."""
    w = code.writer
    loops = _collectives(code, stage)
    for loop in loops.values():
        loop.start(code)
    outside = dict(code.values)
    loaded = dict(code.loaded)
    backwards = any(isinstance(s, ScanStep) and s.reverse for s in stage.body)
    ahead = f", num_stages={_AHEAD}" if _pipelined(code, stage) else ""
    steps = f"tl.range(0, extent, RBLOCK{ahead})" if ahead else "range(0, extent, RBLOCK)"
    with w.block(f"for start in {steps}:", end=""):
        wide = ".to(tl.int64)" if code.wide else ""
        start = "(extent - 1) // RBLOCK * RBLOCK - start" if backwards else "start"
        w.line(f"r = {start} + tl.arange(0, RBLOCK)[None, :]{wide}")
        w.line("r_mask = r < extent")
        used = {x for s in stage.body for e in expressions(s) for x in code.form(e).free_symbols}
        _digits(code, code.flats[1], used)
        for s in stage.body:
            if isinstance(s, Reduce | ScanStep):
                loops[s.names[0]].step(code)
            elif not isinstance(s, SortStep):
                statement(code, s)
    code.values = outside
    code.loaded = loaded
    for loop in loops.values():
        if isinstance(loop, Loop):
            loop.end(code)


def _collectives(code: Code, stage: Stage) -> dict[str, Loop | Running]:
    """Return what a loop keeps from step to step, by the first name of each collective."""
    loops: dict[str, Loop | Running] = {}
    for s in stage.body:
        if isinstance(s, Reduce):
            loops[s.names[0]] = Loop(code, s)
        elif isinstance(s, ScanStep):
            loops[s.names[0]] = Running(code, s)
    return loops


def _pipelined(code: Code, stage: Stage) -> bool:
    """Whether a loop loads some steps ahead, through shared memory: where it folds across
    what is consecutive, a thread has too few of them in flight otherwise."""
    body = stage.body
    read = {s.buffer for s in body if isinstance(s, Load)}
    if contiguous_inside(code.kernel) or any(isinstance(s, Bind) for s in body):
        return False
    if stepped(code.kernel):  # what it reads is at hand: neighbours have read it
        return False
    return len(read) <= _MOST_AHEAD and read.isdisjoint(writes(body))
