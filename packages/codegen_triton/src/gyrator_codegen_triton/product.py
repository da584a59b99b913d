"""A product of matrices as one `@triton.jit` function, on the matrix units of the device.

Each program computes a block of rows by columns. It walks depth, the axes that are summed over, in
blocks, which `tl.dot` multiplies and adds to an accumulator, and then runs the kernel's outer
stages on the block. Programs are numbered so that those that run at the same time share rows and
columns in the cache.
"""

from collections.abc import Sequence

from attrs import frozen

from gyrator_codegen import Names, Writer
from gyrator_codegen.positions import Blocks, Flat, Places, ProductAxes, places_of, product_axes
from gyrator_codegen_triton.body import atom, barrier, statement, statements
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.source import blocks_over, function, options, source_of
from gyrator_codegen_triton.support import RESERVED
from gyrator_ir.body.nodes import Axis, Bind, Load, Reduce, ScanStep, SortStep, Store
from gyrator_ir.body.rewrite import AnyStatement, renamed
from gyrator_ir.expr import Const, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, Level
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Target
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Contraction, Product, TiledKernel
from gyrator_ir.types import DType

_WORDS = frozenset(
    "m n k kt m_mask n_mask k_mask kt_mask m_tiles n_tiles program group first tile high batch "
    "step blocks position KBLOCK".split()
)


@frozen(eq=False)
class _Factor:
    """One side of a product: where its statements are written, and which give its value."""

    code: Code
    body: tuple[AnyStatement, ...]
    value: str
    dtype: DType
    letter: str
    """Of positions along depth."""
    loaded: bool
    """The value is read from memory as it is, so that what lies outside is 0."""


@frozen(eq=False)
class _Text:
    """What is known while one product is written."""

    kernel: Kernel
    contraction: Contraction
    axes: ProductAxes
    places: Places
    result: Code
    """Where the sums are, and what is done with them."""
    factors: tuple[tuple[_Factor, _Factor], ...]
    """Both sides of each product."""


def _factor(
    kernel: Kernel, p: Product, value: str, code: Code, again: dict[Sym, Expr], letter: str
) -> _Factor:
    body = next(stage.body for stage in kernel.stages if stage.level is Level.INNER)
    needed = needed_for(body, value)
    loaded = isinstance(needed[-1], Load)
    if again:
        needed = tuple(renamed(s, {}, again) for s in needed)
    return _Factor(code, needed, value, p.dtype, letter, loaded)


def emit_product(
    tiled: TiledKernel,
    contraction: Contraction,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    target: Target,
    symbol: str,
) -> tuple[KernelSource, str]:
    """Return the kernel as a text that runs on its own, and the function alone."""
    kernel, axes = tiled.kernel, product_axes(tiled, contraction)
    places = places_of(axes)
    wide = tiled.index is DType.I64
    writer, names = Writer("    "), Names(RESERVED | _WORDS | {symbol})

    def code(
        first: tuple[Axis, ...], second: tuple[Axis, ...], *look: tuple[str, str, Flat]
    ) -> Code:
        (x, xblock, xflat), (r, rblock, rflat) = look
        made = Code(
            tiled, writer, names, wide, Blocks(first, second, tiles=True), (xflat, rflat),
            target.capabilities.converted, letters=(x, r), lengths=(xblock, rblock), inner=True,
        )  # fmt: skip
        made.bound[places.batches.symbol] = Value("batch", DType.I32, False, False)
        made.bound[places.around.symbol] = Value("position", DType.I32, False, False)
        return made

    row, column = ("m", "XBLOCK", places.rows), ("n", "RBLOCK", places.columns)
    left = code(axes.rows, axes.depth, row, ("k", "KBLOCK", places.depth))
    right = code(axes.depth, axes.columns, ("kt", "KBLOCK", places.turned), column)
    result = code(axes.rows, axes.columns, row, column)
    factors = tuple(
        (
            _factor(kernel, p, p.left, left, {}, "k"),
            _factor(kernel, p, p.right, right, places.again, "kt"),
        )
        for p in contraction.products
    )
    text = _Text(kernel, contraction, axes, places, result, factors)
    with function(kernel, symbol, result, "XBLOCK RBLOCK KBLOCK", origins):
        _space(text)
        _walk(text, target)
        for number, stage in enumerate(kernel.stages):
            if stage.level is not Level.INNER:
                barrier(result, number)
                statements(result, number, lambda place, s: statement(result, s))
    tiles = blocks_over(extent_of(axes.rows), "XBLOCK")
    tiles = tiles * blocks_over(extent_of(axes.columns), "RBLOCK")
    programs = extent_of(axes.batches) * tiles
    return source_of(kernel, symbol, text.result, facts, options(tiled), programs)


def _space(text: _Text) -> None:
    """Write the block of rows and columns, and the axes that are the same in all of the loop."""
    code, axes, places = text.result, text.axes, text.places
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
    for factor in (f for pair in text.factors for f in pair):
        used |= factor.code.used(factor.body)
    for flat in (places.batches, places.rows, places.columns):
        code.digits(flat, used)


def _mask(code: Code, letter: str, block: str, shape: str, length: Expr) -> None:
    """Write which positions of a block lie inside; all, where the blocks fill the length."""
    inside = f"{letter} < {code.printer()(length)}"
    if isinstance(length, Const):
        full = f"tl.full({shape}, True, tl.int1)"
        inside = f"{full} if {length.value} % {block} == 0 else {inside}"
    code.writer.line(f"{letter}_mask = {inside}")


def _walk(text: _Text, target: Target) -> None:
    """Write the loop over depth."""
    w, code, show = text.result.writer, text.result, text.result.printer()
    axes, places = text.axes, text.places
    products = text.contraction.products
    body = [s for stage in text.kernel.stages for s in stage.body]
    types = {s.names[0]: s.dtype for s in body if isinstance(s, Reduce)}
    sums: list[str] = []
    for p in products:
        acc = code.names.take(f"{p.result}_acc")
        sums.append(acc)
        w.line(f"{acc} = tl.zeros([XBLOCK, RBLOCK], {TYPES[types[p.result]]})")
        code.values[p.result] = Value(acc, types[p.result], True, True)
    length, around = show(extent_of(axes.depth)), show(extent_of(axes.around))
    if axes.around:
        w.line(f"blocks = ({length} + KBLOCK - 1) // KBLOCK")
        head = f"for step in range(0, {atom(around)} * blocks):"
    else:
        head = f"for start in range(0, {length}, KBLOCK):"
    with w.block(head, end=""):
        if axes.around:
            wide = "tl.cast(step, tl.int64)" if code.wide else "step"
            w.line(f"start = step // {atom(around)} * KBLOCK")
            w.line(f"position = {wide} % {atom(around)}")
        first = "tl.cast(start, tl.int64)" if code.wide else "start"
        w.line(f"k = {first} + tl.arange(0, KBLOCK)[None, :]")
        w.line(f"kt = {first} + tl.arange(0, KBLOCK)[:, None]")
        _mask(code, "k", "KBLOCK", "[1, KBLOCK]", extent_of(axes.depth))
        _mask(code, "kt", "KBLOCK", "[KBLOCK, 1]", extent_of(axes.depth))
        left, right = text.factors[0][0].code, text.factors[0][1].code
        used = {x for a, _ in text.factors for x in left.used(a.body)}
        used_right = {x for _, b in text.factors for x in right.used(b.body)}
        code.digits(places.around, used | used_right)
        left.digits(places.depth, used)
        right.digits(places.turned, used_right)
        for p, acc, (a, b) in zip(products, sums, text.factors, strict=True):
            precision = _precision(p, types[p.result], target)
            w.line(f"{acc} = tl.dot({_block(a)}, {_block(b)}, {acc}{precision})")


def _precision(p: Product, total: DType, target: Target) -> str:
    if p.dtype is DType.F32:
        return f', input_precision="{"tf32" if target.capabilities.tf32 else "ieee"}"'
    return "" if total is DType.F32 else f", out_dtype={TYPES[total]}"


def _block(factor: _Factor) -> str:
    """Write a factor's statements; return its block, which is 0 beyond the end of depth."""
    code = factor.code
    for s in factor.body:
        assert not isinstance(s, Reduce | ScanStep | SortStep)
        if isinstance(s, Bind | Store) or s.name not in code.values:
            statement(code, s)
    value = code.values[factor.value]
    text = value.text
    if not (value.x and value.r):
        text = code.full(text)
    deep = value.r if factor.letter == "k" else value.x
    if factor.loaded and deep:
        return text
    return f"tl.where({factor.letter}_mask, {text}, 0).to({TYPES[factor.dtype]})"
