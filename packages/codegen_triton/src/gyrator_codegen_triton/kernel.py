"""Emission of a tiled kernel as one `@triton.jit` function."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from gyrator_codegen import Names, Writer
from gyrator_codegen.positions import Flat, blocks_of
from gyrator_codegen_triton.body import (
    barrier,
    load_pair,
    start_total,
    statement,
    statements,
    store_pair,
    store_total,
)
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.reduction import LoopReduction, reduce_block
from gyrator_codegen_triton.scan_sort import LoopScan, scan_block, sort_block
from gyrator_codegen_triton.source import (
    RESERVED,
    blocks_over,
    function,
    source_of,
    with_options,
    write_wait,
)
from gyrator_ir.body.nodes import Load, Reduce, ScanStep, SortStep, Store
from gyrator_ir.expr import Const, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import KernelStatement, Level, Stage
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Target
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType


def emit_kernel(
    tiled: TiledKernel, facts: ShapeFacts, origins: Sequence[Origin], target: Target, symbol: str
) -> tuple[KernelSource, str]:
    """Return the kernel as self-contained source, and the function's text alone."""
    code = code_of(tiled, target, symbol, Writer("    "))
    with function(tiled.kernel, symbol, code, lengths_of(code), origins):
        emit_body(code, "tl.program_id(0)")
    ranked = with_options(tiled, tiled.kernel.statements)
    return source_of(tiled.kernel, symbol, code, facts, ranked, blocks_in(code))


def code_of(tiled: TiledKernel, target: Target, symbol: str, writer: Writer) -> Code:
    """Return the state at the start of the emission of a kernel as the function `symbol`."""
    blocks = blocks_of(tiled)
    flats = Flat("i", blocks.first), Flat("r", blocks.second)
    names, wide = Names(RESERVED | {symbol}), tiled.index is DType.I64
    return Code(tiled, blocks, flats, writer, names, wide, target.capabilities.converted)


def lengths_of(code: Code) -> tuple[str, ...]:
    """Return the names of a kernel's block lengths."""
    return code.lengths if code.blocks.second else code.lengths[:1]


def blocks_in(code: Code) -> Expr:
    """Return the number of a kernel's blocks, each the work of a program, over its block
    lengths."""
    kernel, blocks = code.kernel, code.blocks
    if kernel.totals:
        return extent_of(kernel.axes[: -len(kernel.summed)])
    count = blocks_over(extent_of(blocks.first), code.lengths[0])
    return count * blocks_over(extent_of(blocks.second), code.lengths[1]) if blocks.tiles else count


def emit_body(code: Code, block: str) -> None:
    """Emit the work on the block with this number."""
    total, extent = extent_of(code.blocks.first), extent_of(code.blocks.second)
    ahead = {p.stage: p.ahead for p in code.tiled.pipelined}
    block = f"tl.cast({block}, tl.int64)" if code.wide else block
    wait = code.tiled.wait
    if code.kernel.totals:
        write_wait(code.writer, wait)
    with _summed_rows(code, extent, block) if code.kernel.totals else nullcontext():
        if not code.kernel.totals:
            _index_spaces(code, total, extent, block)
            if wait is not None:
                _early_loads(code, lambda s: s.name in wait.after)
                write_wait(code.writer, wait)
        _early_loads(code, lambda s: s.name not in code.values)
        for n, stage in enumerate(code.kernel.stages):
            _stage(code, stage, n, ahead.get(n, 1))


@contextmanager
def _summed_rows(code: Code, extent: Expr, block: str) -> Iterator[None]:
    """Emit a loop over the points that totals sum over, whose body the `with` body emits."""
    w, show, kernel = code.writer, code.printer(), code.kernel
    ahead = max((settled(p.ahead) for p in code.tiled.pipelined), default=1)
    rows, used = extent_of(kernel.summed), code.used(kernel.statements)
    w.line(f"first = {block} * ({show(rows)}) + tl.arange(0, 1)[:, None]")
    code.digits(code.flats[0], used & code.blocks.still)
    w.line(f"extent = {show(extent)}")
    _elements(code, "", used)
    _early_loads(code, lambda s: not code.along(s.index)[0])
    for s in kernel.totals:
        start_total(code, s)
    with w.block(f"for start in tl.range(0, {show(rows)}, XBLOCK, num_stages={ahead}):", end=""):
        w.line("row = start + tl.arange(0, XBLOCK)[:, None]")
        w.lines("x = first + row", f"x_mask = {_within('row', show(rows), rows, 'XBLOCK')}")
        code.digits(code.flats[0], used - code.blocks.still)
        yield
    code.inner = True
    for s in kernel.totals:
        store_total(code, s)


def _index_spaces(code: Code, total: Expr, extent: Expr, block: str) -> None:
    """Emit the blocks of points and inner elements, and the axes as digits of them."""
    w, blocks = code.writer, code.blocks
    show = code.printer()
    column = "[:, None]" if blocks.second else ""
    if blocks.tiles:
        w.lines(f"extent = {show(extent)}", "tiles = (extent + RBLOCK - 1) // RBLOCK")
        w.line(f"program = {block}")
        block = "program // tiles"
    w.line(f"x = {block} * XBLOCK + tl.arange(0, XBLOCK){column}")
    w.line(f"x_mask = {_within('x', show(total), total, 'XBLOCK')}")
    used = code.used(code.kernel.statements)
    if code.tiled.fours and not blocks.second:
        w.line(f"x_fours = {block} * XBLOCK + tl.arange(0, XBLOCK // 4) * 4")
    if code.tiled.pairs:
        w.line(f"pair = {block} * (2 * XBLOCK) + tl.arange(0, 2 * XBLOCK)")
        w.line(f"pair_mask = {_within('pair', show(2 * total), total, 'XBLOCK')}")
    if not blocks.still.isdisjoint(used):
        w.line(f"first = {block} * XBLOCK + tl.arange(0, 1){column}")
    code.digits(code.flats[0], used)
    if not blocks.second:
        return
    if blocks.tiles:
        _elements(code, "program % tiles * RBLOCK", used)
        return
    w.line(f"extent = {code.end(extent)}")
    if blocks.whole:
        _elements(code, "", used)


def _within(positions: str, end: str, extent: Expr, block: str) -> str:
    """Return the mask of the positions before the end.

    Where blocks divide the extent it is constant, so that compilers find that loads which do not
    depend on the last axis are the same for many positions.
    """
    mask = f"{positions} < {end}"
    if not isinstance(extent, Const) or extent.value < 1:
        return mask
    whole = f"tl.full({positions}.shape, True, tl.int1)"
    return f"{mask} if {extent.value} % {block} else {whole}"


def _early_loads(code: Code, chosen: Callable[[Load], bool]) -> None:
    for stage in code.kernel.stages:
        code.inner = stage.level is Level.INNER and bool(code.kernel.inner)
        for s in stage.body:
            if isinstance(s, Load) and s.name in code.tiled.early and chosen(s):
                statement(code, s)


def _elements(code: Code, start: str, used: set[Sym]) -> None:
    """Emit the positions of a block of the second axes from `start`, 0 if empty, their mask, and
    the axes in `used` as digits of them."""
    w = code.writer
    # The number of a program has the type of indices already.
    wide = ".to(tl.int64)" if code.wide and not code.blocks.tiles else ""
    w.line(f"r = {f'{start} + ' if start else ''}tl.arange(0, RBLOCK)[None, :]{wide}")
    if code.tiled.fours:
        w.line(f"r_fours = {start or '0'} + tl.arange(0, RBLOCK // 4)[None, :] * 4")
    w.line(f"r_mask = {_within('r', 'extent', extent_of(code.blocks.second), 'RBLOCK')}")
    code.digits(code.flats[1], used)


def _stage(code: Code, stage: Stage, number: int, ahead: int | str) -> None:
    barrier(code, number)
    inner = stage.level is Level.INNER and bool(code.kernel.inner)
    code.inner = inner or code.blocks.tiles
    if inner and not code.blocks.whole:
        _loop(code, stage, number, ahead)
    else:
        outside = dict(code.values)
        statements(code, number, lambda s: _in_block(code, s))
        _drop_values(code, stage, outside)
    code.inner = False


def _drop_values(code: Code, stage: Stage, outside: dict[str, Value]) -> None:
    """Drop the values local to an inner stage, whose names a later stage may reuse."""
    if not code.inner:
        return
    results = {n for s in stage.body if isinstance(s, Reduce) for n in s.names}
    for name in [n for n in code.values if n not in outside and n not in results]:
        del code.values[name]


def _in_block(code: Code, s: KernelStatement) -> None:
    match code.pairs.get(id(s)), s:
        case (Load() as one, Load() as other), _:
            if s is one:
                load_pair(code, one, other)
        case (Store() as one, Store() as other), _:
            if s is other:
                store_pair(code, one, other)
        case _, Reduce():
            reduce_block(code, s)
        case _, ScanStep():
            scan_block(code, s)
        case _, SortStep():
            sort_block(code, s)
        case _:
            statement(code, s)


def _loop(code: Code, stage: Stage, number: int, ahead: int | str) -> None:
    """Emit an inner stage as a loop over blocks of the inner elements."""
    w = code.writer
    backwards = any(isinstance(s, ScanStep) and s.reverse for s in stage.body)
    loops = {
        s.names[0]: (
            LoopReduction(code, s, backwards) if isinstance(s, Reduce) else LoopScan(code, s)
        )
        for s in stage.body
        if isinstance(s, Reduce | ScanStep)
    }
    for loop in loops.values():
        loop.start(code)
    outside = dict(code.values)

    def write(s: KernelStatement) -> None:
        if isinstance(s, Reduce | ScanStep):
            loops[s.names[0]].step(code)
        elif not isinstance(s, SortStep):
            statement(code, s)

    steps = "range(0, extent, RBLOCK)"
    if ahead != 1:
        steps = f"tl.range(0, extent, RBLOCK, num_stages={ahead})"
    with w.block(f"for start in {steps}:", end=""):
        start = "(extent - 1) // RBLOCK * RBLOCK - start" if backwards else "start"
        _elements(code, start, code.used(stage.body))
        statements(code, number, write)
    code.values = outside
    for loop in loops.values():
        if isinstance(loop, LoopReduction):
            loop.end(code)
