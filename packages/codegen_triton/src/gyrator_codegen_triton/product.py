"""Emission of a matrix product as one `@triton.jit` function that uses matrix units.

Each program computes a block of rows by columns. It iterates over the depth, the reduced axes, in
blocks, accumulates with `tl.dot`, and then runs the kernel's outer stages on the block. Programs
are numbered such that concurrent programs share rows and columns in the cache.
"""

from collections.abc import Sequence

from gyrator_codegen import Names, Writer
from gyrator_codegen.positions import (
    Blocks,
    Factor,
    Flat,
    ProductAxes,
    ProductIndices,
    factors_of,
    product_axes,
    product_indices,
)
from gyrator_codegen_triton.body import atom, barrier, statement, statements
from gyrator_codegen_triton.code import LENGTHS, Code, Value
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.source import (
    RESERVED,
    blocks_over,
    function,
    source_of,
    with_options,
    write_wait,
)
from gyrator_ir.body.nodes import Axis, Bind, Reduce, ScanStep, SortStep, Store
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, Expr, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Target
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Contraction, TiledKernel
from gyrator_ir.types import DType

_WORDS = frozenset(
    "m n k kt m_mask n_mask k_mask kt_mask m_tiles n_tiles program group first tile high batch "
    "step blocks position KBLOCK".split()
)


@frozen(eq=False)
class _Text:
    """The state while a product is emitted."""

    kernel: Kernel
    contraction: Contraction
    axes: ProductAxes
    positions: ProductIndices
    result: Code
    """Emission state of the accumulators and the epilogue."""
    left: Code
    right: Code
    factors: tuple[tuple[Factor, Factor], ...]
    """Both operands of each product."""


def emit_product(
    tiled: TiledKernel,
    contraction: Contraction,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    target: Target,
    symbol: str,
) -> tuple[KernelSource, str]:
    """Return the kernel as self-contained source, and the function's text alone."""
    kernel, axes = tiled.kernel, product_axes(tiled, contraction)
    positions = product_indices(axes)
    wide = tiled.index is DType.I64
    writer, names = Writer("    "), Names(RESERVED | _WORDS | {symbol})

    def code(
        first: tuple[Axis, ...], second: tuple[Axis, ...], *look: tuple[str, str, Flat]
    ) -> Code:
        (x, xblock, xflat), (r, rblock, rflat) = look
        result_code = Code(
            tiled, Blocks(first, second, tiles=True), (xflat, rflat), writer, names, wide,
            target.capabilities.converted, letters=(x, r), lengths=(xblock, rblock), inner=True,
        )  # fmt: skip
        result_code.bound[positions.batches.symbol] = Value("batch", DType.I32, False, False)
        result_code.bound[positions.serial.symbol] = Value("position", DType.I32, False, False)
        return result_code

    row, column = ("m", "XBLOCK", positions.rows), ("n", "RBLOCK", positions.columns)
    left = code(axes.rows, axes.depth, row, ("k", "KBLOCK", positions.depth))
    right = code(axes.depth, axes.columns, ("kt", "KBLOCK", positions.right_depth), column)
    result = code(axes.rows, axes.columns, row, column)
    factors = tuple(factors_of(kernel, p, positions.right_symbols) for p in contraction.products)
    text = _Text(kernel, contraction, axes, positions, result, left, right, factors)
    with function(kernel, symbol, result, (*LENGTHS, "KBLOCK"), origins):
        write_wait(writer, tiled.wait)
        _space(text)
        _walk(text)
        for number, stage in enumerate(kernel.stages):
            if stage.level is not Level.INNER:
                barrier(result, number)
                statements(result, number, lambda s: statement(result, s))
    tiles = blocks_over(extent_of(axes.rows), "XBLOCK")
    tiles = tiles * blocks_over(extent_of(axes.columns), "RBLOCK")
    programs = extent_of(axes.batches) * tiles
    ranked = with_options(tiled, kernel.statements)
    return source_of(kernel, symbol, text.result, facts, ranked, programs)


def _space(text: _Text) -> None:
    """Emit the block of rows and columns, and the loop-invariant axes."""
    code, axes, positions = text.result, text.axes, text.positions
    w, show, group = code.writer, code.printer(), text.contraction.group
    rows, columns = show(extent_of(axes.rows)), show(extent_of(axes.columns))
    w.line(f"m_tiles = ({rows} + XBLOCK - 1) // XBLOCK")
    w.line(f"n_tiles = ({columns} + RBLOCK - 1) // RBLOCK")
    w.line("program = tl.program_id(0)" + (".to(tl.int64)" if code.wide else ""))
    if axes.batches:
        w.line("batch = program // (m_tiles * n_tiles)")
        w.line("program = program % (m_tiles * n_tiles)")
    w.line(f"group = {group} * n_tiles")
    w.line(f"first = program // group * {group}")
    w.line(f"high = tl.minimum(m_tiles - first, {group})")
    w.line("tile = program % group")
    w.line("m = (first + tile % high) * XBLOCK + tl.arange(0, XBLOCK)[:, None]")
    w.line("n = tile // high * RBLOCK + tl.arange(0, RBLOCK)[None, :]")
    _mask(code, "m", "XBLOCK", "[XBLOCK, 1]", extent_of(axes.rows))
    _mask(code, "n", "RBLOCK", "[1, RBLOCK]", extent_of(axes.columns))
    outer = (stage for stage in text.kernel.stages if stage.level is not Level.INNER)
    used = code.used(s for stage in outer for s in stage.body)
    used |= code.used(s for pair in text.factors for f in pair for s in f.body)
    for flat in (positions.batches, positions.rows, positions.columns):
        code.digits(flat, used)


def _mask(code: Code, letter: str, block: str, shape: str, length: Expr) -> None:
    """Emit the mask of in-bounds positions of a block; all true if the blocks fill the length."""
    inside = f"{letter} < {code.printer()(length)}"
    if isinstance(length, Const):
        full = f"tl.full({shape}, True, tl.int1)"
        inside = f"{full} if {length.value} % {block} == 0 else {inside}"
    code.writer.line(f"{letter}_mask = {inside}")


def _walk(text: _Text) -> None:
    """Emit the loop over the depth."""
    w, code, show = text.result.writer, text.result, text.result.printer()
    axes, positions = text.axes, text.positions
    products = text.contraction.products
    body = text.kernel.statements
    types = {s.names[0]: s.dtype for s in body if isinstance(s, Reduce)}
    sums: list[str] = []
    for p in products:
        acc = code.names.take(f"{p.result}_acc")
        sums.append(acc)
        w.line(f"{acc} = tl.zeros([XBLOCK, RBLOCK], {TYPES[types[p.result]]})")
        code.values[p.result] = Value(acc, types[p.result], True, True)
    length, around = show(extent_of(axes.depth)), show(extent_of(axes.serial))
    if axes.serial:
        w.line(f"blocks = ({length} + KBLOCK - 1) // KBLOCK")
        head = f"for step in range(0, {atom(around)} * blocks):"
    else:
        head = f"for start in range(0, {code.end(extent_of(axes.depth))}, KBLOCK):"
    with w.block(head, end=""):
        if axes.serial:
            wide = "tl.cast(step, tl.int64)" if code.wide else "step"
            w.line(f"start = step // {atom(around)} * KBLOCK")
            w.line(f"position = {wide} % {atom(around)}")
        first = "tl.cast(start, tl.int64)" if code.wide else "start"
        w.line(f"k = {first} + tl.arange(0, KBLOCK)[None, :]")
        w.line(f"kt = {first} + tl.arange(0, KBLOCK)[:, None]")
        _mask(code, "k", "KBLOCK", "[1, KBLOCK]", extent_of(axes.depth))
        _mask(code, "kt", "KBLOCK", "[KBLOCK, 1]", extent_of(axes.depth))
        left, right = text.left, text.right
        used = left.used(s for a, _ in text.factors for s in a.body)
        used_right = right.used(s for _, b in text.factors for s in b.body)
        code.digits(positions.serial, used | used_right)
        left.digits(positions.depth, used)
        right.digits(positions.right_depth, used_right)
        for p, acc, (a, b) in zip(products, sums, text.factors, strict=True):
            if p.dtype is DType.F32:
                options = f', input_precision="{"tf32" if p.tf32 else "ieee"}"'
            else:
                total = types[p.result]
                options = "" if total is DType.F32 else f", out_dtype={TYPES[total]}"
            blocks = f"{_block(left, a, 1)}, {_block(right, b, 0)}"
            w.line(f"{acc} = tl.dot({blocks}, {acc}{options})")


def _block(code: Code, factor: Factor, depth: int) -> str:
    """Emit the statements of an operand; return its block, which is 0 beyond the depth, dimension
    `depth` of it."""
    for s in factor.body:
        assert not isinstance(s, Reduce | ScanStep | SortStep)
        if isinstance(s, Bind | Store) or s.name not in code.values:
            statement(code, s)
    value = code.values[factor.value]
    text = value.text
    if not (value.x and value.r):
        text = code.full(text)
    if factor.loaded and (value.x, value.r)[depth]:
        return text
    return f"tl.where({code.letters[depth]}_mask, {text}, 0).to({TYPES[factor.dtype]})"
