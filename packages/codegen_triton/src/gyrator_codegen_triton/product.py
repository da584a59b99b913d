"""A product of matrices as one `@triton.jit` function, on the matrix units of the device.

Each program computes a block of rows by columns. It walks the folded axes in blocks, which `tl.dot`
multiplies and adds to an accumulator, and then runs the kernel's outer stages on the block.
Programs are numbered so that those that run at the same time share rows and columns in the cache.
"""

from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from gyrator_codegen import Names, Writer
from gyrator_codegen_triton.body import barrier, statement
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.contract import Contraction, Operand, Product, extent
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.index import Flat, fits_32_bits, kernel_facts
from gyrator_codegen_triton.product_configs import product_candidates
from gyrator_codegen_triton.source import blocks_over, source_of, write_origins
from gyrator_codegen_triton.support import RESERVED
from gyrator_ir.expr import Const, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Stage
from gyrator_ir.loop.body import Axis, Reduce, ScanStep, SortStep
from gyrator_ir.loop.rewrite import AnyStatement, expressions, reads, renamed
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Target
from gyrator_ir.types import DType

_WORDS = frozenset(
    "m n k kt m_mask n_mask k_mask kt_mask m_tiles n_tiles program group first tile high batch "
    "step blocks position KBLOCK".split()
)
_GROUP = 8  # blocks of rows that share columns in the cache


@frozen(eq=False)
class _Places:
    """The flattened groups of axes."""

    rows: Flat
    columns: Flat
    batches: Flat
    outside: Flat
    folded: Flat
    turned: Flat
    """The folded axes again, as the first dimension of the right factor's blocks."""
    again: dict[Sym, Expr]
    """What the folded axes' symbols are called there."""


@frozen(eq=False)
class _Parts:
    """Where the factors and the result are written."""

    left: Code
    right: Code
    result: Code

    @property
    def all(self) -> tuple[Code, Code, Code]:
        """All three."""
        return self.left, self.right, self.result


def emit_product(
    c: Contraction, facts: ShapeFacts, origins: Sequence[Origin], target: Target, symbol: str
) -> tuple[KernelSource, str]:
    """Return the kernel as a text that runs on its own, and the function alone."""
    kernel, places = c.kernel, _places(c)
    totals = {
        places.rows.symbol: extent(c.rows),
        places.columns.symbol: extent(c.columns),
        places.batches.symbol: extent(c.batches),
        places.outside.symbol: extent(c.outside),
        places.folded.symbol: extent(c.folded),
        places.turned.symbol: extent(c.folded),
    }
    known = kernel_facts(kernel, facts)
    wide = not fits_32_bits(kernel, known, (*totals.values(), extent(kernel.axes)))
    turned = {s: a.extent for s, a in zip(places.turned.digits, reversed(c.folded), strict=True)}
    known = known.with_ranges(totals | turned)
    writer, names = Writer("    "), Names(RESERVED | _WORDS | {symbol})

    def code(axes: tuple[Axis, ...], inner: tuple[Axis, ...], *look: tuple[str, str, Flat]) -> Code:
        (x, xblock, xflat), (r, rblock, rflat) = look
        made = Code(
            evolve(kernel, axes=axes, inner=inner), known, writer, names, wide, False, True,
            (xflat, rflat), letters=(x, r), blocks=(xblock, rblock), inner=True,
        )  # fmt: skip
        made.bound[places.batches.symbol] = Value("batch", DType.I32, False, False)
        made.bound[places.outside.symbol] = Value("position", DType.I32, False, False)
        return made

    row, column = ("m", "XBLOCK", places.rows), ("n", "RBLOCK", places.columns)
    parts = _Parts(
        code(c.rows, c.folded, row, ("k", "KBLOCK", places.folded)),
        code(c.folded, c.columns, ("kt", "KBLOCK", places.turned), column),
        code(c.rows, c.columns, row, column),
    )
    parameters = [names.stable(b.name) for b in kernel.parameters]
    parameters += [names.stable(s.name) for s in kernel.sizes]
    parameters += [f"{b}: tl.constexpr" for b in ("XBLOCK", "RBLOCK", "KBLOCK")]
    writer.line("@triton.jit")
    with writer.block(f"def {symbol}({', '.join(parameters)}):", end=""):
        write_origins(writer, kernel.origins, origins)
        if wide:
            sizes = [names.stable(s.name) for s in kernel.sizes]
            writer.lines(*(f"{s} = tl.cast({s}, tl.int64)" for s in sizes))
        _space(c, places, parts)
        _walk(c, places, parts, target)
        for stage in c.stages:
            _stage(parts.result, stage)
    tiles = blocks_over(extent(c.rows), "XBLOCK") * blocks_over(extent(c.columns), "RBLOCK")
    programs = extent(c.batches) * tiles
    found = product_candidates(c, facts, target)
    return source_of(kernel, symbol, parts.result, facts, found, programs)


def _places(c: Contraction) -> _Places:
    again: dict[Sym, Expr] = {a.symbol: Sym(f"r_k{n}") for n, a in enumerate(c.folded)}
    rows = Flat("i", c.rows)
    columns = Flat("i", c.columns, (rows.symbol,))
    batches = Flat("i", c.batches, (rows.symbol, columns.symbol))
    outside = Flat("r", c.outside)
    folded = Flat("r", c.folded, (outside.symbol,))
    renewed = tuple(Axis(Sym(f"r_k{n}"), a.extent) for n, a in enumerate(c.folded))
    turned = Flat("r", renewed, (outside.symbol, folded.symbol))
    return _Places(rows, columns, batches, outside, folded, turned, again)


def _body(places: _Places, operand: Operand, right: bool) -> tuple[AnyStatement, ...]:
    if not right:
        return operand.body
    return tuple(renamed(s, {}, places.again) for s in operand.body)


def _space(c: Contraction, places: _Places, parts: _Parts) -> None:
    """Write the block of rows and columns, and the axes that are the same in all of the loop."""
    code = parts.result
    w, show = code.writer, code.printer()
    rows, columns = show(extent(c.rows)), show(extent(c.columns))
    w.line(f"m_tiles = ({rows} + XBLOCK - 1) // XBLOCK")
    w.line(f"n_tiles = ({columns} + RBLOCK - 1) // RBLOCK")
    w.line("program = tl.program_id(0)" + (".to(tl.int64)" if code.wide else ""))
    if c.batches:
        w.line("batch = program // (m_tiles * n_tiles)")
        w.line("program = program % (m_tiles * n_tiles)")
    w.line(f"group = {_GROUP} * n_tiles")
    w.line(f"first = program // group * {_GROUP}")
    w.line(f"high = tl.minimum(m_tiles - first, {_GROUP})")
    w.line("tile = program % group")
    w.line("m = (first + tile % high) * XBLOCK + tl.arange(0, XBLOCK)[:, None]")
    w.line("n = tile // high * RBLOCK + tl.arange(0, RBLOCK)[None, :]")
    _mask(code, "m", "XBLOCK", "[XBLOCK, 1]", extent(c.rows))
    _mask(code, "n", "RBLOCK", "[1, RBLOCK]", extent(c.columns))
    used = _used(parts.result, (s for stage in c.stages for s in stage.body))
    for p in c.products:
        used |= _used(parts.left, _body(places, p.left, False))
        used |= _used(parts.right, _body(places, p.right, True))
    for flat in (places.batches, places.rows, places.columns):
        _digits(code, flat, used)


def _mask(code: Code, letter: str, block: str, shape: str, length: Expr) -> None:
    """Write which positions of a block lie inside; all, where the blocks fill the length."""
    inside = f"{letter} < {code.printer()(length)}"
    if isinstance(length, Const):
        full = f"tl.full({shape}, True, tl.int1)"
        inside = f"{full} if {length.value} % {block} == 0 else {inside}"
    code.writer.line(f"{letter}_mask = {inside}")


def _used(code: Code, body: Iterable[AnyStatement]) -> set[Sym]:
    return {x for s in body for e in expressions(s) for x in code.form(e).free_symbols}


def _digits(code: Code, flat: Flat, used: set[Sym]) -> None:
    for symbol in reversed(flat.digits):
        if symbol in used:
            text = code.printer()(flat.digits[symbol])
            code.writer.line(f"{code.names.stable(symbol.name)} = {text}")


def _walk(c: Contraction, places: _Places, parts: _Parts, target: Target) -> None:
    """Write the loop over the folded axes."""
    w, code, show = parts.result.writer, parts.result, parts.result.printer()
    sums: list[str] = []
    for p in c.products:
        acc = code.names.take(f"{p.result}_acc")
        sums.append(acc)
        w.line(f"{acc} = tl.zeros([XBLOCK, RBLOCK], {TYPES[p.dtype]})")
        code.values[p.result] = Value(acc, p.dtype, True, True)
    length, around = show(extent(c.folded)), show(extent(c.outside))
    if c.outside:
        w.line(f"blocks = ({length} + KBLOCK - 1) // KBLOCK")
        head = f"for step in range(0, {_factor(around)} * blocks):"
    else:
        head = f"for start in range(0, {length}, KBLOCK):"
    with w.block(head, end=""):
        if c.outside:
            wide = "tl.cast(step, tl.int64)" if code.wide else "step"
            w.line(f"start = step // {_factor(around)} * KBLOCK")
            w.line(f"position = {wide} % {_factor(around)}")
        first = "tl.cast(start, tl.int64)" if code.wide else "start"
        w.line(f"k = {first} + tl.arange(0, KBLOCK)[None, :]")
        w.line(f"kt = {first} + tl.arange(0, KBLOCK)[:, None]")
        _mask(code, "k", "KBLOCK", "[1, KBLOCK]", extent(c.folded))
        _mask(code, "kt", "KBLOCK", "[KBLOCK, 1]", extent(c.folded))
        left = [_body(places, p.left, False) for p in c.products]
        right = [_body(places, p.right, True) for p in c.products]
        used = _used(parts.left, (s for body in left for s in body))
        used_right = _used(parts.right, (s for body in right for s in body))
        _digits(code, places.outside, used | used_right)
        _digits(parts.left, places.folded, used)
        _digits(parts.right, places.turned, used_right)
        for p, acc, mine, theirs in zip(c.products, sums, left, right, strict=True):
            a = _operand(parts.left, p.left, mine, "k")
            b = _operand(parts.right, p.right, theirs, "kt")
            w.line(f"{acc} = tl.dot({a}, {b}, {acc}{_precision(p, target)})")


def _precision(p: Product, target: Target) -> str:
    if p.left.dtype is DType.F32:
        return f', input_precision="{"tf32" if target.capabilities.tf32 else "ieee"}"'
    return "" if p.dtype is DType.F32 else f", out_dtype={TYPES[p.dtype]}"


def _factor(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _operand(code: Code, operand: Operand, body: Iterable[AnyStatement], letter: str) -> str:
    """Write a factor's statements; return its block, which is 0 beyond the end of the fold."""
    for s in body:
        assert not isinstance(s, Reduce | ScanStep | SortStep)
        if not code.values.keys() >= set(_names(s)):
            statement(code, s)
    value = code.values[operand.value]
    text = value.text
    if not (value.x and value.r):
        text = code.full(text)
    folded = value.r if letter == "k" else value.x
    if operand.loaded and folded:
        return text
    return f"tl.where({letter}_mask, {text}, 0).to({TYPES[operand.dtype]})"


def _names(s: AnyStatement) -> tuple[str, ...]:
    name = getattr(s, "name", None)
    return ("",) if name is None else (name,)


def _stage(code: Code, stage: Stage) -> None:
    if not code.dirty.isdisjoint(reads(stage.body)):
        barrier(code)
    for s in stage.body:
        assert not isinstance(s, Reduce | ScanStep | SortStep)
        statement(code, s)
