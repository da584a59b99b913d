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
from gyrator_codegen_triton.source import RESERVED, blocks_over, function, source_of, with_options
from gyrator_ir.body.nodes import Load, Reduce, ScanStep, SortStep, Store
from gyrator_ir.expr import Const, Expr, ShapeFacts, Sym, minimum
from gyrator_ir.kernel.nodes import KernelGroup, KernelStatement, Level, Stage
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Target
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType


def emit_kernel(
    tiled: TiledKernel,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    target: Target,
    symbol: str,
    group: KernelGroup | None = None,
    most: int = 0,
    selected: int = 1,
) -> tuple[KernelSource, str]:
    """Return the kernel as self-contained source, and the function's text alone.

    With a `group`, whose members are all this kernel, the programs are divided among the members:
    at most `most` for each, which then process several blocks in turn, or with 0, one per block. A
    program selects its tensors among those of `selected` members at a time.
    """
    kernel, blocks = tiled.kernel, blocks_of(tiled)
    flats = Flat("i", blocks.first), Flat("r", blocks.second)
    total, extent = extent_of(blocks.first), extent_of(blocks.second)
    names, wide = Names(RESERVED | {symbol}), tiled.index is DType.I64
    converted = target.capabilities.converted
    code = Code(tiled, blocks, flats, Writer("    "), names, wide, converted)
    launched = kernel if group is None else group
    lengths = "XBLOCK RBLOCK" if blocks.second else "XBLOCK"
    count = blocks_over(total, "XBLOCK")
    if blocks.tiles:
        count = count * blocks_over(extent, "RBLOCK")
    if kernel.totals:
        count = extent_of(kernel.axes[: -len(kernel.summed)])
    ahead = {p.stage: p.ahead for p in tiled.pipelined}
    with (
        function(launched, symbol, code, lengths, origins),
        _programs(code, total, extent, group, most, selected) as block,
        _summed_rows(code, extent, block) if kernel.totals else nullcontext(),
    ):
        if not kernel.totals:
            _index_spaces(code, total, extent, block)
        _early_loads(code, lambda s: s.name not in code.values)
        for n, stage in enumerate(kernel.stages):
            _stage(code, stage, n, ahead.get(n, 1))
    if group is not None:
        count = (minimum(count, Const(most)) if most else count) * len(group.members)
    ranked = with_options(tiled, kernel.statements)
    return source_of(launched, symbol, code, facts, ranked, count)


@contextmanager
def _programs(
    code: Code, total: Expr, extent: Expr, group: KernelGroup | None, most: int, selected: int
) -> Iterator[str]:
    """Emit the computation of a program's member and blocks.

    The `with` body emits the work on the block whose number is yielded.
    """
    w, show = code.writer, code.printer()
    wide = "tl.cast({}, tl.int64)" if code.wide else "{}"
    if group is None:
        yield wide.format("tl.program_id(0)")
        return
    blocks = f"(({show(total)}) + XBLOCK - 1) // XBLOCK"
    if code.blocks.tiles:
        blocks = f"({blocks}) * ((({show(extent)}) + RBLOCK - 1) // RBLOCK)"
    w.line(f"blocks = {blocks}")
    w.line(f"programs = tl.minimum(blocks, {most})" if most else "programs = blocks")
    w.line("member = tl.program_id(0) // programs")
    _select_member(code, group, selected)
    first = "tl.program_id(0) % programs"
    if not most:
        yield wide.format(f"({first})")
        return
    with w.block(f"for block in range({first}, blocks, programs):", end=""):
        yield wide.format("block")


def _select_member(code: Code, group: KernelGroup, selected: int) -> None:
    """Emit the selection of a member's buffers, for groups of members by the bits of its index.

    Branches skip the instructions of other groups, because fetching code that runs once dominates.
    The branches are sequential: compilers would merge branches with a common end into one block and
    load all buffers before it.
    """
    w, count = code.writer, len(group.members)
    for bit in range(selected.bit_length() - 1):
        w.line(f"bit{bit} = (member >> {bit}) % 2 == 1")
    for start in range(0, count, selected):
        members = range(start, min(start + selected, count))
        if start == 0:
            _select_buffers(code, group, members)
            continue
        with w.block(f"if member // {selected} == {start // selected}:", end=""):
            _select_buffers(code, group, members)


def _select_buffers(code: Code, group: KernelGroup, members: range) -> None:
    for b in code.kernel.parameters:
        texts = [code.names.stable(group.parameter(place, b.name)) for place in members]
        bit = 0
        while len(texts) > 1:
            pairs = zip(texts[1::2], texts[::2], strict=False)
            odd = texts[-1:] if len(texts) % 2 else []
            texts = [f"tl.where(bit{bit}, {high}, {low})" for high, low in pairs] + odd
            bit += 1
        code.writer.line(f"{code.names.stable(b.name)} = {texts[0]}")


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
