"""Emission of flexible attention as C++: flash attention (Dao et al. 2022) over the blocks that a
block mask lists.

A thread processes a block of rows of one head at a time, in a loop over blocks of keys and values,
which are converted to `f32`. The formulas are applied to a block of scores by a separate kernel
over that block, which is tiled and emitted like any other kernel.
"""

import math
from collections.abc import Sequence

from attrs import evolve, field

from gyrator_codegen import Writer, static, tile
from gyrator_codegen.passes import vector_pipeline
from gyrator_codegen.passes.bind_choices import BindChoices
from gyrator_codegen_cpp.dtypes import STORAGE, literal
from gyrator_codegen_cpp.images import IMAGE_KINDS, image_kernel_unsupported
from gyrator_codegen_cpp.kernel import emit_kernel, parameters
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.refusals import TILING, refusals
from gyrator_ir.body.nodes import Axis, Const, IndexValue, Let, Load, Statement, Store
from gyrator_ir.body.rewrite import reads, renamed
from gyrator_ir.define import define, frozen
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import ONE, CPrinter, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Stage, TemplateKernel
from gyrator_ir.loop.formulas import (
    BATCH,
    COLUMN,
    HEAD,
    ROW,
    is_true,
    sizes_in,
    with_distinct_names,
)
from gyrator_ir.loop.nodes import Buffer, Formula, TemplateKind, TensorRef
from gyrator_ir.loop.templates import literal as literal_attribute
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelCheck, KernelSource
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel, TiledTemplate
from gyrator_ir.types import DType

TEMPLATE = "GY-CPP-024"
"""A template with dtypes or sizes that its kernel does not support."""

_LEAST_ROWS = 16
"""Divides the blocks of the block mask, so that blocks of scores can."""
_LONGEST_VECTOR = 512
_FLOATS = (DType.F32, DType.F16, DType.BF16)
_SIZES = {name: Sym(f"s_{name}") for name in ("batch", "head", "row", "column", "rows", "width")}
"""Sizes that a kernel of formulas receives: the position and extents of its block of scores."""


def template_refusal(kernel: TemplateKernel, target: Target) -> Diagnostic | None:
    """Return why the template cannot be emitted, or None."""
    message = (
        image_kernel_unsupported(kernel, Isa.of(target.arch))
        if kernel.kind in IMAGE_KINDS
        else _unsupported(kernel)
    )
    if not message:
        stages = tuple(Stage(Level.OUTER, f.body) for f in kernel.formulas)
        stub = Kernel(kernel.name, kernel.device, (), (), stages, parameters=kernel.parameters)
        return next(refusals(stub, target), None)
    help = "run the operation as its ATen op"
    return Diagnostic(TEMPLATE, message, where=f"kernel {kernel.name}", help=help)


def tiled_template_refusal(tiled: TiledTemplate, target: Target) -> Diagnostic | None:
    """Return why the template cannot be emitted as tiled, or None."""
    kernel = tiled.kernel
    refusal = template_refusal(kernel, target)
    if refusal is not None or tiled.candidates or kernel.kind in IMAGE_KINDS:
        return refusal
    help = "tile it with `gyrator_codegen.passes.vector_pipeline`"
    message = "blocks of scores have no size"
    return Diagnostic(TILING, message, where=f"kernel {kernel.name}", help=help)


def _unsupported(kernel: TemplateKernel) -> str:
    if kernel.kind is not TemplateKind.FLEX_ATTENTION:
        return f"C++ kernels have no template of {kernel.kind.value}"
    q, _, v = kernel.inputs[:3]
    if q.dtype not in _FLOATS:
        return f"attention of {q.dtype.value} has no kernel"
    lengths = [static(t.shape[3]) for t in (q, v)]
    if not all(n and n <= _LONGEST_VECTOR for n in lengths):
        return f"vectors of lengths {q.shape[3]}, {v.shape[3]} are not 1 to {_LONGEST_VECTOR} long"
    block = literal_attribute(kernel.attributes, "row_block", int)
    if block % _LEAST_ROWS:
        return f"the block length {block} is not a multiple of {_LEAST_ROWS}"
    stored = {p.name: p.dtype for p in kernel.parameters}
    for t in (*kernel.inputs, *kernel.outputs):
        if t.dtype is not stored[t.buffer]:
            return f"attention reinterprets {stored[t.buffer].value} as another dtype"
    return ""


def emit_flex(
    tiled: TiledTemplate, facts: ShapeFacts, origins: Sequence[Origin], target: Target, isa: Isa
) -> KernelSource:
    """Emit a kernel of flexible attention."""
    choices = dict(tiled.candidates[0].values)
    block = choices["ROWS"], choices["COLUMNS"]
    return _Flex(tiled.kernel, *block, facts, origins, target, isa).emitted()


@frozen
class _ScoreKernel:
    """The kernel that applies formulas to a block of scores, and the order of its arguments."""

    symbol: str
    sizes: tuple[Sym, ...]
    captured: tuple[str, ...]
    first: int
    """Offset of its failure codes."""


@define(eq=False)
class _Flex:
    """The state while a kernel is emitted."""

    kernel: TemplateKernel
    rows: int
    columns: int
    """The numbers of rows and columns of a block of scores."""
    facts: ShapeFacts
    origins: Sequence[Origin]
    target: Target
    isa: Isa
    writer: Writer = field(factory=Writer)
    checks: list[KernelCheck] = field(factory=list)

    def emitted(self) -> KernelSource:
        """Emit the kernels of formulas, and the function that calls them."""
        k, w = self.kernel, self.writer
        score, mask = with_distinct_names(k.formulas)
        parts: list[str] = []
        open_ = is_true(mask)
        score_kernels = [self._score_kernel("some", score, None if open_ else mask, parts)]
        if self._number("lists") > 1:
            score_kernels.append(
                score_kernels[0] if open_ else self._score_kernel("whole", score, None, parts)
            )
        symbol = f"gy_k_{k.name}"
        with w.block(f'extern "C" si64 {symbol}(void *const *buffers, const si64 *sizes) {{'):
            self._body(score_kernels)
        text = "\n".join([*parts, w.text])
        return KernelSource(k.name, symbol, text, checks=tuple(self.checks))

    # Formulas -------------------------------------------------------------------------------

    def _score_kernel(
        self, name: str, score: Formula, mask: Formula | None, parts: list[str]
    ) -> _ScoreKernel | None:
        """Emit the kernel that applies formulas to a block of scores, if they have any effect."""
        if (mask is None or self._hides_later) and _changes_nothing(score, self._scale):
            return None
        k = self.kernel
        body = _statements(score, mask, self._scale, self.columns)
        captured = tuple(n for n in reads(body) if n != "scores")
        parameters_by_name = {p.name: p for p in k.parameters}
        scores = Buffer("scores", DType.F32, k.device, (_SIZES["rows"] * self.columns,), (ONE,))
        used = set(sizes_in((Formula("all", (), body, score.result),)))
        sizes = {*used, _SIZES["rows"], _SIZES["width"]}
        kernel = Kernel(
            f"{k.name}_{name}",
            k.device,
            (Axis(Sym("i0"), _SIZES["rows"]), Axis(Sym("i1"), _SIZES["width"])),
            (),
            (Stage(Level.OUTER, body),),
            parameters=(scores, *(parameters_by_name[n] for n in captured)),
            sizes=tuple(sorted(sizes, key=lambda s: s.name)),
        )
        facts = self.facts
        for s in _SIZES.values():
            facts = facts.with_range(s, 0, 1 << 40)
        program = tile((kernel,), facts, vector_pipeline(self.target, self.isa.lanes))
        (tiled,) = BindChoices().run(program).kernels
        assert isinstance(tiled, TiledKernel)
        source = emit_kernel(tiled, (), self.isa, inner=True)
        parts.append(source.text)
        first = len(self.checks)
        self.checks += [evolve(c, code=first + c.code) for c in source.checks]
        return _ScoreKernel(source.symbol, kernel.sizes, captured, first)

    @property
    def _hides_later(self) -> bool:
        """Return whether rows see the columns up to their own, and no list says which."""
        score, mask = self.kernel.formulas
        later = not self._number("lists") and _is_causal(mask)
        return later and _changes_nothing(score, self._scale)

    # Main function -------------------------------------------------------------------------------

    def _body(self, score_kernels: Sequence[_ScoreKernel | None]) -> None:
        w, k = self.writer, self.kernel
        w.line("(void)sizes;")
        parameters(w, k, str)
        q, keys = k.inputs[:2]
        rows, block = self._show(q.shape[2]), self.rows
        w.line(f"const si64 rows = {rows}, columns = {self._show(keys.shape[2])};")
        w.line(f"const si64 tiles = (rows + {block - 1}) / {block};")
        w.line(f"const si64 heads = {self._show(q.shape[1])};")
        w.line(f"const si64 all = tiles * heads * ({self._show(q.shape[0])});")
        w.line("si64 next = 0, failed = 0;")
        w.line("#pragma omp parallel if (all > 1)")
        with w.block("{"):
            self._scratch()
            if not self._number("lists"):
                w.line("si64 held = -1;")
            w.line("const si64 threads = omp_get_num_threads();")
            w.line("const si64 many = all < 4 * tiles * threads ? 1 : tiles;")
            w.line("const si64 share = threads > 1 ? many : all;")
            with w.block("for (si64 task = 0, end = 0;; task++) {"):
                with w.block("if (task == end) {"):
                    w.line("task = __atomic_fetch_add(&next, share, __ATOMIC_RELAXED);")
                    w.line("end = gy_least(task + share, all);")
                w.line("if (task >= all) break;")
                w.line("const si64 head = task / tiles % heads, batch = task / (tiles * heads);")
                w.line(f"const si64 first = (tiles - 1 - task % tiles) * {block};")
                w.line(f"const si64 count = gy_least({block}, rows - first);")
                self._tile(score_kernels)
        w.line("return failed;")

    def _scratch(self) -> None:
        """Emit the declarations of a thread's memory."""
        w, x, columns, panel = self.writer, self.rows, self.columns, 2 * self.isa.lanes
        w.line(
            f"const si64 tall = ({x - 1} + GY_PRODUCT_ROWS) / GY_PRODUCT_ROWS * GY_PRODUCT_ROWS;"
        )
        lengths = {
            "query": f"tall * {self._padded(0)}", "scores": f"tall * {columns}",
            "acc": f"tall * {self._padded(2)}", "limit": f"{x}", "total": f"{x}",
            "keys": f"{self._length(0) * _rounded(columns, panel)}",
            "values": f"{columns * _rounded(self._length(2), panel)}",
        }  # fmt: skip
        w.line(f"const gy_scratch memory(4 * ({' + '.join(lengths.values())}));")
        at = "(sf32 *)memory.aligned()"
        for name, length in lengths.items():
            w.line(f"sf32 *const {name} = {at};")
            at = f"{name} + {length}"

    def _tile(self, score_kernels: Sequence[_ScoreKernel | None]) -> None:
        """Emit the computation of a block of rows."""
        w, k = self.writer, self.kernel
        width = self._padded(2)
        w.line(
            "const si64 filled = (count + GY_PRODUCT_ROWS - 1) / GY_PRODUCT_ROWS * GY_PRODUCT_ROWS;"
        )
        depth = self._padded(0)
        # Rows are multiplied instead of scores, unless formulas need the latter in their own unit.
        once = not any(score_kernels)
        copied = f"{self._vectors(0, 'head', 'first', 'count')}, query, {depth}"
        w.line(f"gy_rows_of({copied}{f', {self._factor()}' if once else ''});")
        w.line(f"__builtin_memset(query + count * {depth}, 0, (filled - count) * {4 * depth});")
        w.line(f"__builtin_memset(acc, 0, {4 * width} * filled);")
        w.line("for (si64 i = 0; i < count; i++) limit[i] = -__builtin_inff(), total[i] = 0;")
        for number, score_kernel in enumerate(score_kernels):
            if not self._number("lists"):
                end = "gy_least(columns, first + count)" if self._hides_later else "columns"
                self._blocks("0", end, score_kernel, once)
                break
            counts, block_lists = k.inputs[3 + 2 * number : 5 + 2 * number]
            block = f"first / {self._number('row_block')}"
            listed = self._element(counts, "batch", "head", block)
            with w.block(f"for (si64 n = 0, end = {listed}; n < end; n++) {{"):
                block_index = self._element(block_lists, "batch", "head", block, "n")
                length = self._number("column_block")
                w.line(f"const si64 begin = (si64){block_index} * {length};")
                end = f"gy_least(begin + {length}, columns)"
                self._blocks("begin", end, score_kernel, once)
        self._finish()

    def _blocks(
        self, begin: str, end: str, score_kernel: _ScoreKernel | None, scaled: bool
    ) -> None:
        """Emit the loop over the blocks of scores of a range of columns."""
        self.writer.line(f"const si64 last = {end};")
        with self.writer.block(
            f"for (si64 start = {begin}; start < last; start += {self.columns}) {{"
        ):
            self._step(score_kernel, scaled)

    def _step(self, score_kernel: _ScoreKernel | None, scaled: bool) -> None:
        """Emit the computation of a block of scores; the rows may have been scaled."""
        w, values, columns = self.writer, self._padded(2), self.columns
        w.line(f"const si64 width = gy_least({columns}, last - start);")
        w.line("const si64 whole = (width + GY_LANES - 1) / GY_LANES * GY_LANES;")
        self._pack()
        depth = self._length(0)
        w.line(
            f"gy_product<false>(query, {self._padded(0)}, keys, {depth}, scores, {columns}, "
            f"filled, whole, {depth});"
        )
        if self._hides_later:
            w.line(f"gy_hide_later(scores, {columns}, count, width, first - start);")
        scale = "1.0f" if scaled else self._factor(score_kernel is None)
        if score_kernel is not None:
            texts = {_SIZES[n]: t for n, t in _TEXTS.items()}
            sizes = ", ".join(texts.get(s, s.name) for s in score_kernel.sizes)
            w.line(f"const si64 score_sizes[] = {{{sizes}}};")
            arguments = ", ".join(f"(void *){n}" for n in ("scores", *score_kernel.captured))
            w.line(f"void *const score_buffers[] = {{{arguments}}};")
            w.line(f"const si64 code = {score_kernel.symbol}_all(score_buffers, score_sizes);")
            if score_kernel.first or self.checks:
                report = f"__atomic_store_n(&failed, {score_kernel.first} + code, __ATOMIC_RELAXED)"
                w.line(f"if (code) {report};")
            else:
                w.line("(void)code;")
        limits = "true" if len(self.kernel.outputs) > 2 else "false"
        w.line(
            f"gy_fold_scores<{limits}>(scores, {columns}, count, width, {scale}, limit, total, "
            f"acc, {values});"
        )
        w.line(
            f"gy_product<true>(scores, {columns}, values, {columns}, acc, {values}, filled, "
            f"{values}, width);"
        )

    def _pack(self) -> None:
        """Emit the copies of a block's keys and values, which the blocks of rows of a head share if
        there is no other block."""
        w, columns = self.writer, self.columns
        w.line(f"const si64 copied = gy_least({columns}, columns - start);")
        both = [f"{self._vectors(n, self._group, 'start', 'copied')}" for n in (1, 2)]
        copies = (
            f"gy_turned_panels_of({both[0]}, keys);",
            f"gy_panels_of({both[1]}, values, {columns});",
        )
        if self._number("lists"):
            for line in copies:
                w.line(line)
            return
        w.line(f"const si64 wanted = batch * heads + {self._group};")
        with w.block(f"if (held != wanted || columns > {columns}) {{"):
            for line in (*copies, "held = wanted;"):
                w.line(line)

    def _finish(self) -> None:
        """Emit the stores of the results."""
        w, (out, *rows) = self.writer, self.kernel.outputs
        at = self._at(out, "batch", "head", "first")
        step, across = (self._show(s) for s in out.strides[2:])
        to = f"(({STORAGE[out.dtype]} *){at}), {step}, {across}"
        padded, length = self._padded(2), self._length(2)
        w.line(f"gy_put_means(acc, {padded}, total, count, {length}, {to});")
        if not rows:
            return
        with w.block("for (si64 i = 0; i < count; i++) {"):
            values = "limit[i] + gy_log2(total[i])", "limit[i]"
            for t, value in zip(rows, values, strict=False):
                w.line(f"gy_store({self._at(t, 'batch', 'head', '(first + i)')}, {value});")

    # Text -----------------------------------------------------------------------------------

    def _vectors(self, position: int, head: str, first: str, count: str) -> str:
        """Return the arguments of a copy of vectors of an input to a thread's memory."""
        t = self.kernel.inputs[position]
        at = self._at(t, "batch", head, first)
        step, across = (self._show(s) for s in t.strides[2:])
        pointer = f"(const {STORAGE[t.dtype]} *){at}"
        return f"{pointer}, {step}, {across}, {count}, {self._length(position)}"

    def _element(self, t: TensorRef, *index: str) -> str:
        return f"*({self._at(t, *index)})"

    def _at(self, t: TensorRef, *index: str) -> str:
        terms = [t.buffer, self._show(t.offset)]
        terms += [f"{i} * ({self._show(s)})" for i, s in zip(index, t.strides, strict=False)]
        return f"({' + '.join(terms)})"

    def _show(self, e: Expr) -> str:
        printer = CPrinter(
            self.facts.nonnegative_division, floor_div="gy_floor_div", floor_mod="gy_floor_mod"
        )
        text = printer(e)
        return text if text.isalnum() else f"({text})"

    @property
    def _group(self) -> str:
        heads, groups = (static(t.shape[1]) for t in self.kernel.inputs[:2])
        if heads is not None and groups:
            return "head" if heads == groups else f"(head / {heads // groups})"
        names = [self._show(t.shape[1]) for t in self.kernel.inputs[:2]]
        return f"(head / ({names[0]} / {names[1]}))"

    def _length(self, position: int) -> int:
        length = static(self.kernel.inputs[position].shape[3])
        assert length is not None
        return length

    def _padded(self, position: int) -> int:
        """Return the padded length of a vector in a thread's memory."""
        return _rounded(self._length(position), self.isa.lanes)

    def _factor(self, of_products: bool = True) -> str:
        """Return what converts products, or scores, to binary logarithms of weights."""
        return literal(math.log2(math.e) * (self._scale if of_products else 1.0), DType.F32)

    @property
    def _scale(self) -> float:
        return literal_attribute(self.kernel.attributes, "scale", float)

    def _number(self, name: str) -> int:
        return literal_attribute(self.kernel.attributes, name, int)


_TEXTS = {
    "batch": "batch", "head": "head", "row": "first", "column": "start", "rows": "count",
    "width": "width",
}  # fmt: skip


def _rounded(length: int, to: int) -> int:
    return -(-length // to) * to


def _changes_nothing(score: Formula, scale: float) -> bool:
    """Return whether weights follow from products, the largest one from the largest."""
    return score.result in score.parameters and scale > 0


def _is_causal(mask: Formula) -> bool:
    indices = {s.name: s.expr for s in mask.body if isinstance(s, IndexValue)}
    (*_, last) = mask.body or (None,)
    if not isinstance(last, Let) or last.op != "ge" or last.name != mask.result:
        return False
    return [indices.get(n) for n in last.args] == [ROW, COLUMN]


def _statements(
    score: Formula, mask: Formula | None, scale: float, columns: int
) -> tuple[Statement, ...]:
    """Return the body of a kernel that replaces a block's products by its scores."""
    i, j = Sym("i0"), Sym("i1")
    index = i * columns + j
    symbols = {
        BATCH: _SIZES["batch"],
        HEAD: _SIZES["head"],
        ROW: _SIZES["row"] + i,
        COLUMN: _SIZES["column"] + j,
    }
    (value_name,) = score.parameters
    body: list[Statement] = [
        Load("product", "scores", index),
        Const("factor", scale, DType.F32),
        Let(value_name, "mul", ("product", "factor"), DType.F32),
    ]
    result = score.result
    for f in (score, mask):
        body += [] if f is None else [renamed(s, {}, symbols) for s in f.body]
    if mask is not None:
        body.append(Const("nowhere", float("-inf"), DType.F32))
        body.append(Let("judged", "where", (mask.result, result, "nowhere"), DType.F32))
        result = "judged"
    return (*body, Store("scores", index, result))
