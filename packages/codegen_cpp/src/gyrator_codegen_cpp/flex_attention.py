"""Flexible attention as C++: flash attention (Dao et al. 2022) over the blocks that a block mask
lists.

A thread takes a block of rows of one head at a time. Keys and values are walked over in blocks,
held as numbers in `f32`; what formulas make of a block of scores is a kernel of its own, over that
block, which is tiled and written as every kernel is.
"""

from collections.abc import Sequence

from attrs import define, evolve, field, frozen

from gyrator_codegen import Writer, static, tile
from gyrator_codegen.passes import vector_pipeline
from gyrator_codegen.passes.bind_choices import BindChoices
from gyrator_codegen_cpp.dtypes import STORAGE, literal
from gyrator_codegen_cpp.kernel import emit_kernel
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.refusals import refusal
from gyrator_ir.body.nodes import Axis, Const, Let, Load, Statement, Store
from gyrator_ir.body.rewrite import reads, renamed
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.expr import ONE, CPrinter, Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Stage, TemplateKernel
from gyrator_ir.loop.formulas import BATCH, COLUMN, HEAD, ROW, apart, sizes_in
from gyrator_ir.loop.nodes import Buffer, Formula, Literal, TemplateKind, TensorRef
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelCheck, KernelSource
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

TEMPLATE = "GY-CPP-024"
"""A template of types or sizes that its kernel does not hold."""

_ROWS = 64
_COLUMNS = 64
"""Places of a block of scores along each side."""
_LONGEST_VECTOR = 512
_FLOATS = (DType.F32, DType.F16, DType.BF16)
_SIZES = {name: Sym(f"s_{name}") for name in ("batch", "head", "row", "column", "rows", "width")}
"""What a kernel of formulas is told of its block of scores."""


def template_refusal(kernel: TemplateKernel, target: Target) -> Diagnostic | None:
    """Return why the template can't be written, or None."""
    said = _unheld(kernel)
    if not said:
        stages = tuple(Stage(Level.OUTER, f.body) for f in kernel.formulas)
        stub = Kernel(kernel.name, kernel.device, (), (), stages, parameters=kernel.parameters)
        return refusal(stub, target)
    help = "leave the operation to its ATen op"
    return Diagnostic(TEMPLATE, said, where=f"kernel {kernel.name}", help=help)


def _unheld(kernel: TemplateKernel) -> str:
    if kernel.kind is not TemplateKind.FLEX_ATTENTION:
        return f"C++ kernels have no template of {kernel.kind.value}"
    q, _, v = kernel.inputs[:3]
    if q.dtype not in _FLOATS:
        return f"attention of {q.dtype.value} has no kernel"
    lengths = [static(t.shape[3]) for t in (q, v)]
    if not all(n and n <= _LONGEST_VECTOR for n in lengths):
        return f"vectors of {q.shape[3]} and {v.shape[3]} numbers are not 1 to {_LONGEST_VECTOR}"
    stored = {p.name: p.dtype for p in kernel.parameters}
    for t in (*kernel.inputs, *kernel.outputs):
        if t.dtype is not stored[t.buffer]:
            return f"attention reads {stored[t.buffer].value} as other bits"
    return ""


def emit_flex(
    kernel: TemplateKernel,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    target: Target,
    isa: Isa,
) -> KernelSource:
    """Write one kernel of flexible attention."""
    return _Flex(kernel, facts, origins, target, isa).written()


@frozen
class _Judge:
    """What becomes of a block of scores: a kernel, and the order of what it is given."""

    symbol: str
    sizes: tuple[Sym, ...]
    captured: tuple[str, ...]
    first: int
    """Its codes of failures are counted from here."""


@define(eq=False)
class _Flex:
    """What is known while one kernel is written."""

    kernel: TemplateKernel
    facts: ShapeFacts
    origins: Sequence[Origin]
    target: Target
    isa: Isa
    writer: Writer = field(factory=Writer)
    checks: list[KernelCheck] = field(factory=list)

    def written(self) -> KernelSource:
        """Write the kernels of formulas, and the walk around them."""
        k, w = self.kernel, self.writer
        score, mask = apart(k.formulas)
        parts: list[str] = []
        pairs = 2 if self._number("full") else 1
        open_ = _is_true(mask)
        judges = [self._judge("some", score, None if open_ else mask, parts)]
        if pairs > 1:
            judges.append(judges[0] if open_ else self._judge("whole", score, None, parts))
        symbol = f"gy_k_{k.name}"
        with w.block(f'extern "C" si64 {symbol}(void *const *buffers, const si64 *sizes) {{'):
            self._body(judges)
        text = "\n".join([*parts, w.text])
        return KernelSource(k.name, symbol, text, checks=tuple(self.checks))

    # Formulas -------------------------------------------------------------------------------

    def _judge(
        self, name: str, score: Formula, mask: Formula | None, parts: list[str]
    ) -> _Judge | None:
        """Write the kernel of a block's scores, if anything is left to do."""
        if mask is None and score.result in score.given and self._scale > 0:
            return None
        k = self.kernel
        body = _statements(score, mask, self._scale)
        captured = tuple(n for n in reads(body) if n != "scores")
        known = {p.name: p for p in k.parameters}
        scores = Buffer("scores", DType.F32, k.device, (_SIZES["rows"] * _COLUMNS,), (ONE,))
        used = set(sizes_in((Formula("all", (), body, score.result),)))
        sizes = {*used, _SIZES["rows"], _SIZES["width"]}
        made = Kernel(
            f"{k.name}_{name}",
            k.device,
            (Axis(Sym("i0"), _SIZES["rows"]), Axis(Sym("i1"), _SIZES["width"])),
            (),
            (Stage(Level.OUTER, body),),
            parameters=(scores, *(known[n] for n in captured)),
            sizes=tuple(sorted(sizes, key=lambda s: s.name)),
        )
        facts = self.facts
        for s in _SIZES.values():
            facts = facts.with_range(s, 0, 1 << 40)
        program = tile((made,), facts, vector_pipeline(self.target, self.isa.lanes))
        (tiled,) = BindChoices().run(program).kernels
        assert isinstance(tiled, TiledKernel)
        source = emit_kernel(tiled, (), self.isa, inner=True)
        parts.append(source.text)
        first = len(self.checks)
        self.checks += [evolve(c, code=first + c.code) for c in source.checks]
        return _Judge(source.symbol, made.sizes, captured, first)

    # The walk -------------------------------------------------------------------------------

    def _body(self, judges: Sequence[_Judge | None]) -> None:
        w, k = self.writer, self.kernel
        w.line("(void)sizes;")
        for number, p in enumerate(k.parameters):
            kind = STORAGE[p.dtype]
            w.line(f"{kind} *const {p.name} = ({kind} *)buffers[{number}];")
        for number, s in enumerate(k.sizes):
            w.line(f"const si64 {s.name} = sizes[{number}];")
        q, keys = k.inputs[:2]
        rows, block = self._show(q.shape[2]), self._rows
        w.line(f"const si64 rows = {rows}, columns = {self._show(keys.shape[2])};")
        w.line(f"const si64 tiles = (rows + {block - 1}) / {block};")
        w.line(f"const si64 heads = {self._show(q.shape[1])};")
        w.line(f"const si64 all = tiles * heads * ({self._show(q.shape[0])});")
        w.line("si64 next = 0, failed = 0;")
        w.line("#pragma omp parallel if (all > 1)")
        with w.block("{"):
            self._scratch()
            with w.block("for (;;) {"):
                w.line("const si64 task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);")
                w.line("if (task >= all) break;")
                w.line("const si64 head = task / tiles % heads, batch = task / (tiles * heads);")
                w.line(f"const si64 first = (tiles - 1 - task % tiles) * {block};")
                w.line(f"const si64 count = gy_least({block}, rows - first);")
                self._tile(judges)
        w.line("return failed;")

    def _scratch(self) -> None:
        """Declare what a thread holds."""
        w, x = self.writer, self._rows
        lengths = {
            "query": x * self._padded(0), "keys": self._length(0) * _COLUMNS,
            "values": _COLUMNS * self._padded(2), "scores": x * _COLUMNS,
            "acc": x * self._padded(2), "limit": x, "total": x,
        }  # fmt: skip
        w.line(f"const gy_scratch memory({4 * sum(lengths.values())});")
        at = "(sf32 *)memory.aligned()"
        for name, length in lengths.items():
            w.line(f"sf32 *const {name} = {at};")
            at = f"{name} + {length}"

    def _tile(self, judges: Sequence[_Judge | None]) -> None:
        """Write what is done for a block of rows."""
        w, k = self.writer, self.kernel
        width = self._padded(2)
        w.line(
            "const si64 filled = (count + GY_PRODUCT_ROWS - 1) / GY_PRODUCT_ROWS * GY_PRODUCT_ROWS;"
        )
        w.line(f"{self._rows_of(0, 'head', 'first', 'count', 'query')};")
        depth = self._padded(0)
        w.line(f"__builtin_memset(query + count * {depth}, 0, (filled - count) * {4 * depth});")
        w.line(f"__builtin_memset(acc, 0, {4 * width} * filled);")
        w.line("for (si64 i = 0; i < count; i++) limit[i] = -__builtin_inff(), total[i] = 0;")
        for number, judge in enumerate(judges):
            counts, places = k.inputs[3 + 2 * number : 5 + 2 * number]
            block = f"first / {self._number('row_block')}"
            listed = self._element(counts, "batch", "head", block)
            with w.block(f"for (si64 n = 0, end = {listed}; n < end; n++) {{"):
                place = self._element(places, "batch", "head", block, "n")
                length = self._number("column_block")
                w.line(f"const si64 begin = (si64){place} * {length};")
                w.line(f"const si64 last = gy_least(begin + {length}, columns);")
                with w.block(f"for (si64 start = begin; start < last; start += {_COLUMNS}) {{"):
                    self._step(judge)
        self._finish()

    def _step(self, judge: _Judge | None) -> None:
        """Write what is done for a block of scores."""
        w, values = self.writer, self._padded(2)
        w.line(f"const si64 width = gy_least({_COLUMNS}, last - start);")
        w.line("const si64 whole = (width + GY_LANES - 1) / GY_LANES * GY_LANES;")
        group = self._group
        w.line(f"{self._rows_of(1, group, 'start', 'width', 'keys', turned=True)};")
        w.line(f"__builtin_memset(scores, 0, {4 * _COLUMNS} * filled);")
        w.line(
            f"gy_add_product(query, {self._padded(0)}, keys, {_COLUMNS}, scores, {_COLUMNS}, "
            f"filled, whole, {self._length(0)});"
        )
        scale = literal(self._scale, DType.F32)
        if judge is not None:
            scale = "1.0f"
            texts = {_SIZES[n]: t for n, t in _TEXTS.items()}
            sizes = ", ".join(texts.get(s, s.name) for s in judge.sizes)
            w.line(f"const si64 told[] = {{{sizes}}};")
            given = ", ".join(f"(void *){n}" for n in ("scores", *judge.captured))
            w.line(f"void *const given[] = {{{given}}};")
            w.line(f"const si64 code = {judge.symbol}_all(given, told);")
            if judge.first or self.checks:
                said = f"__atomic_store_n(&failed, {judge.first} + code, __ATOMIC_RELAXED)"
                w.line(f"if (code) {said};")
            else:
                w.line("(void)code;")
        w.line(
            f"gy_fold_scores(scores, {_COLUMNS}, count, width, {scale}, limit, total, acc, "
            f"{values});"
        )
        w.line(f"{self._rows_of(2, group, 'start', 'width', 'values')};")
        w.line(
            f"gy_add_product(scores, {_COLUMNS}, values, {values}, acc, {values}, filled, "
            f"{values}, width);"
        )

    def _finish(self) -> None:
        """Write the stores of the results."""
        w, (out, *rows) = self.writer, self.kernel.outputs
        with w.block("for (si64 i = 0; i < count; i++) {"):
            w.line("const sf32 sum = total[i] == 0 ? 1.0f : total[i];")
            with w.block(f"for (si64 k = 0; k < {self._length(2)}; k++) {{"):
                at = self._at(out, "batch", "head", "(first + i)", "k")
                w.line(f"gy_store({at}, acc[i * {self._padded(2)} + k] / sum);")
            values = (
                "limit[i] * 1.44269504f + gy_log2(total[i])",
                "limit[i] * 1.44269504f",
            )
            for t, value in zip(rows, values, strict=False):
                w.line(f"gy_store({self._at(t, 'batch', 'head', '(first + i)')}, {value});")

    # Text -----------------------------------------------------------------------------------

    def _rows_of(
        self, place: int, head: str, first: str, count: str, to: str, *, turned: bool = False
    ) -> str:
        """Return the call that takes vectors of an input to a thread's memory."""
        t = self.kernel.inputs[place]
        at = self._at(t, "batch", head, first)
        step, across = (self._show(s) for s in t.strides[2:])
        ld = _COLUMNS if turned else self._padded(place)
        name = "gy_columns_of" if turned else "gy_rows_of"
        given = f"(const {STORAGE[t.dtype]} *){at}"
        return f"{name}({given}, {step}, {across}, {count}, {self._length(place)}, {to}, {ld})"

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

    def _length(self, place: int) -> int:
        found = static(self.kernel.inputs[place].shape[3])
        assert found is not None
        return found

    def _padded(self, place: int) -> int:
        """Return the length of a vector in a thread's memory."""
        return -(-self._length(place) // self.isa.lanes) * self.isa.lanes

    @property
    def _rows(self) -> int:
        """Rows of a block, of which blocks of the mask hold a whole number."""
        block = self._number("row_block")
        return next(n for n in (_ROWS, 48, 32, 16, 8, 1) if not block % n)

    @property
    def _scale(self) -> float:
        found = dict(self.kernel.attributes)["scale"]
        assert isinstance(found, Literal) and isinstance(found.value, float)
        return found.value

    def _number(self, name: str) -> int:
        found = dict(self.kernel.attributes)[name]
        assert isinstance(found, Literal) and isinstance(found.value, int)
        return found.value


_TEXTS = {
    "batch": "batch", "head": "head", "row": "first", "column": "start", "rows": "count",
    "width": "width",
}  # fmt: skip


def _is_true(mask: Formula) -> bool:
    return any(
        isinstance(s, Const) and s.name == mask.result and s.value is True for s in mask.body
    )


def _statements(score: Formula, mask: Formula | None, scale: float) -> tuple[Statement, ...]:
    """Return the body of a kernel that puts a block's scores in the place of its products."""
    i, j = Sym("i0"), Sym("i1")
    here = i * _COLUMNS + j
    symbols = {
        BATCH: _SIZES["batch"],
        HEAD: _SIZES["head"],
        ROW: _SIZES["row"] + i,
        COLUMN: _SIZES["column"] + j,
    }
    (given,) = score.given
    body: list[Statement] = [
        Load("product", "scores", here),
        Const("factor", scale, DType.F32),
        Let(given, "mul", ("product", "factor"), DType.F32),
    ]
    result = score.result
    for f in (score, mask):
        body += [] if f is None else [renamed(s, {}, symbols) for s in f.body]
    if mask is not None:
        body.append(Const("nowhere", float("-inf"), DType.F32))
        body.append(Let("judged", "where", (mask.result, result, "nowhere"), DType.F32))
        result = "judged"
    return (*body, Store("scores", here, result))
