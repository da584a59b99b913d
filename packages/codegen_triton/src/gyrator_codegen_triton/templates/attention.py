"""Flash attention as one `@triton.jit` function: Dao et al. 2022 and Dao 2023.

A program computes the results of `XBLOCK` queries of one head. It walks over the keys and values in
blocks, and keeps of each row the largest score so far, the sum of the exponentials of the scores
less that one, and the sum of the values weighted by them; the sums are scaled down whenever the
largest score grows. No score is ever stored.
"""

import math
from collections.abc import Sequence

from attrs import define, field

from gyrator_codegen import Names, Writer, extent_guess
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.index import TritonPrinter
from gyrator_codegen_triton.shape import power_of_two
from gyrator_codegen_triton.source import source_of, write_origins
from gyrator_codegen_triton.support import RESERVED
from gyrator_codegen_triton.templates.attention_configs import Problem, candidates
from gyrator_ir.expr import ONE, ZERO, Const, Expr, ShapeFacts, Sym, sum_of
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import Literal, TensorRef
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelSource
from gyrator_ir.target import Target
from gyrator_ir.types import DType

_MOST = (1 << 31) - (1 << 17)  # leaves room for a block beyond the last element
_LEAST_VECTOR = 16  # numbers of a vector that matrix units take
_LONGEST_BLOCK = 128
_NAMES = frozenset(
    "rows columns tiles program head batch first e f e_mask f_mask query key value mask scores top "
    "shift weights decay limit total acc whole last padded query_head key_head value_head "
    "mask_head out_head sums_head".split()
)


def emit_attention(
    kernel: TemplateKernel,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    target: Target,
    symbol: str,
) -> KernelSource:
    """Return the kernel as a text that runs on its own."""
    text = _Attention(kernel, facts, target, symbol)
    text.write(origins)
    found = candidates(_problem(kernel, facts), target.heuristics)
    source, _ = source_of(kernel, symbol, text, facts, found)
    return source


def _problem(kernel: TemplateKernel, facts: ShapeFacts) -> Problem:
    q, k, v = kernel.inputs[:3]

    def guess(size: Expr) -> int:
        known = facts.hint(size)
        return extent_guess(size) if known is None else known

    return Problem(
        heads=guess(q.shape[0]) * guess(q.shape[1]),
        rows=guess(q.shape[2]),
        columns=guess(k.shape[2]),
        query=_vector(q),
        value=_vector(v),
        width=q.dtype.size,
    )


def _vector(tensor: TensorRef) -> int:
    """Return the length of the blocks that hold a head's vectors."""
    length = tensor.shape[3]
    assert isinstance(length, Const)
    return max(power_of_two(length.value), _LEAST_VECTOR)


def _span(tensor: TensorRef) -> Expr:
    """Return the address of a tensor's last element."""
    pairs = zip(tensor.shape, tensor.strides, strict=True)
    return sum_of([tensor.offset, *((n - 1) * s for n, s in pairs)])


@define(eq=False)
class _Attention:
    """What is known while one kernel is written."""

    kernel: TemplateKernel
    facts: ShapeFacts
    target: Target
    symbol: str
    writer: Writer = field(factory=lambda: Writer("    "))
    names: Names = field(init=False)
    wide: bool = field(init=False)
    """Addresses have 64 bits."""
    rows: str = ""
    columns: str = ""

    def __attrs_post_init__(self) -> None:
        self.names = Names(RESERVED | _NAMES | {self.symbol})
        for p in self.kernel.parameters:
            self.names.stable(p.name)
        tensors = (*self.kernel.inputs, *self.kernel.outputs)
        sizes = (*self.kernel.sizes, *(_span(t) for t in tensors))
        self.wide = not all(map(self._fits, sizes))

    def _fits(self, size: Expr) -> bool:
        low, high = self.facts.bounds(size)
        return low is not None and high is not None and low > -_MOST and high < _MOST

    @property
    def q(self) -> TensorRef:
        """The queries."""
        return self.kernel.inputs[0]

    @property
    def k(self) -> TensorRef:
        """The keys."""
        return self.kernel.inputs[1]

    @property
    def v(self) -> TensorRef:
        """The values."""
        return self.kernel.inputs[2]

    @property
    def mask(self) -> TensorRef | None:
        """What is added to the scores, or says which of them count."""
        return self.kernel.inputs[3] if len(self.kernel.inputs) > 3 else None

    @property
    def sums(self) -> TensorRef | None:
        """Where the logarithms of the sums go."""
        return self.kernel.outputs[1] if len(self.kernel.outputs) > 1 else None

    @property
    def scale(self) -> float:
        """What products are multiplied by."""
        found = dict(self.kernel.attributes)["scale"]
        assert isinstance(found, Literal) and isinstance(found.value, float)
        return found.value

    @property
    def causal(self) -> bool:
        """Whether rows look at no later columns."""
        found = dict(self.kernel.attributes)["causal"]
        assert isinstance(found, Literal)
        return found.value is True

    @property
    def additive(self) -> bool:
        """Whether scores get their final value before the largest is looked for."""
        return self.scale <= 0 or (self.mask is not None and self.mask.dtype is not DType.BOOL)

    # Text -----------------------------------------------------------------------------------

    def show(self, e: Expr) -> str:
        """Return an expression over sizes."""
        names: Names = self.names

        def name(symbol: Sym) -> str:
            return names.stable(symbol.name)

        return TritonPrinter(self.facts.nonnegative_division, name)(e)

    def factor(self, e: Expr) -> str:
        """Return an expression over sizes as an operand of a product."""
        text = self.show(e)
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def let(self, name: str, e: Expr) -> str:
        """Return a constant as it is, and any other expression as a name for it."""
        if isinstance(e, Const):
            return str(e.value)
        self.writer.line(f"{name} = {self.show(e)}")
        return name

    def address(self, base: str, *terms: tuple[str, Expr]) -> str:
        """Return `base + index * stride + ...` without what is always 0."""
        parts = [base]
        for index, stride in terms:
            if stride is ONE:
                parts.append(index)
            elif stride is not ZERO:
                parts.append(f"{index} * {self.factor(stride)}")
        return " + ".join(parts)

    def write(self, origins: Sequence[Origin]) -> None:
        """Write the function, and that of the host that gives the number of programs."""
        w = self.writer
        sizes = [self.names.stable(s.name) for s in self.kernel.sizes]
        given = [self.names.stable(p.name) for p in self.kernel.parameters] + sizes
        blocks = ["XBLOCK: tl.constexpr", "RBLOCK: tl.constexpr"]
        w.line("@triton.jit")
        with w.block(f"def {self.symbol}({', '.join([*given, *blocks])}):", end=""):
            write_origins(w, self.kernel.origins, origins)
            if self.wide:
                w.lines(*(f"{s} = tl.cast({s}, tl.int64)" for s in sizes))
            self.places()
            self.start()
            self.loops()
            self.finish()
        w.lines("", "")
        batch, heads = self.q.shape[:2]
        with w.block(f"def {self.symbol}_grid({', '.join([*sizes, 'XBLOCK'])}):", end=""):
            w.line(f"tiles = ({self.show(self.padded)} + XBLOCK - 1) // XBLOCK")
            w.line(f"return (tiles * {self.factor(batch * heads)},)")

    @property
    def padded(self) -> Expr:
        """How many rows are written of one head."""
        return self.q.shape[2] if self.sums is None else self.sums.shape[2]

    def places(self) -> None:
        """Write which rows of which head the program computes, and where its tensors begin."""
        w = self.writer
        heads, groups = self.q.shape[1], self.k.shape[1]
        self.rows = self.let("rows", self.q.shape[2])
        self.columns = self.let("columns", self.k.shape[2])
        padded = self.rows if self.padded == self.q.shape[2] else self.let("padded", self.padded)
        w.line(f"tiles = ({padded} + XBLOCK - 1) // XBLOCK")
        w.line("program = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        count = self.factor(heads)
        w.line(f"head = program // tiles % {count}")
        w.line(f"batch = program // (tiles * {count})")
        tile = "program % tiles"
        if self.causal:
            w.line("# The last rows look at most columns, and are begun first.")
            tile = f"(tiles - 1 - {tile})"
        w.line(f"first = {tile} * XBLOCK")
        shared = "head"
        if groups is ONE:
            shared = "0"
        elif groups != heads:
            shared = f"head // {self.factor(heads // groups)}"
        tensors = [("query", self.q, "head"), ("key", self.k, shared), ("value", self.v, shared)]
        if self.mask is not None:
            tensors.append(("mask", self.mask, "head"))
        tensors.append(("out", self.kernel.outputs[0], "head"))
        if self.sums is not None:
            tensors.append(("sums", self.sums, "head"))
        for name, t, head in tensors:
            self.begin(name, t, head)

    def begin(self, name: str, t: TensorRef, head: str) -> None:
        """Write where the program's head of a tensor begins."""
        place = f"({head})" if "//" in head else head
        base = self.names.stable(t.buffer)
        if t.offset is not ZERO:
            base += f" + {self.factor(t.offset)}"
        by_head = ZERO if place == "0" else t.strides[1]
        at = self.address(base, ("batch", t.strides[0]), (place, by_head))
        self.writer.line(f"{name}_head = {at}")

    def start(self) -> None:
        """Write the queries, and the sums as they are before the first key."""
        w = self.writer
        e, f = _vector(self.q), _vector(self.v)
        w.line("x = first + tl.arange(0, XBLOCK)")
        w.line(f"x_mask = x < {self.rows}")
        w.line(f"e = tl.arange(0, {e})")
        w.line(f"f = tl.arange(0, {f})")
        masks = ["x_mask[:, None]"]
        if self.q.shape[3] != Const(e):
            w.line(f"e_mask = e < {self.show(self.q.shape[3])}")
            masks.append("e_mask[None, :]")
        if self.v.shape[3] != Const(f):
            w.line(f"f_mask = f < {self.show(self.v.shape[3])}")
        s = self.q.strides
        at = self.address("query_head", ("x[:, None]", s[2]), ("e[None, :]", s[3]))
        w.line(f"query = tl.load({at}, mask={' & '.join(masks)}, other=0.0)")
        w.line('limit = tl.full([XBLOCK], float("-inf"), tl.float32)')
        w.line("total = tl.zeros([XBLOCK], tl.float32)")
        w.line(f"acc = tl.zeros([XBLOCK, {f}], tl.float32)")

    def loops(self) -> None:
        """Write the walk over blocks that need no masks, and over the rest."""
        w, columns = self.writer, self.k.shape[2]
        if not self.causal and self._whole(columns):
            with w.block(f"for start in range(0, {self.columns}, RBLOCK):", end=""):
                self.step(edge=False)
            return
        last = inside = self.columns
        if self.causal:
            w.line(f"last = tl.minimum({self.columns}, first + XBLOCK)")
            last, inside = "last", f"tl.minimum({self.columns}, first + 1)"
        w.line(f"whole = {inside} // RBLOCK * RBLOCK")
        with w.block("for start in range(0, whole, RBLOCK):", end=""):
            self.step(edge=False)
        with w.block(f"for start in range(whole, {last}, RBLOCK):", end=""):
            self.step(edge=True)

    def _whole(self, columns: Expr) -> bool:
        return isinstance(columns, Const) and columns.value % _LONGEST_BLOCK == 0

    def step(self, edge: bool) -> None:
        """Write what is done with a block of keys and values; at the `edge` some do not count."""
        w = self.writer
        wide = ".to(tl.int64)" if self.wide else ""
        w.line(f"r = start + tl.arange(0, RBLOCK){wide}")
        padded_e = self.q.shape[3] != Const(_vector(self.q))
        padded_f = self.v.shape[3] != Const(_vector(self.v))
        if edge:
            w.line(f"r_mask = r < {self.columns}")
        s = self.k.strides
        at = self.address("key_head", ("r[None, :]", s[2]), ("e[:, None]", s[3]))
        masks = ["r_mask[None, :]"] * edge + ["e_mask[:, None]"] * padded_e
        w.line(f"key = {_load(at, masks)}")
        exact = f', input_precision="{self.precision}"' if self.q.dtype is DType.F32 else ""
        w.line(f"scores = tl.dot(query, key{exact})")
        self.scores(edge)
        self.weigh()
        s = self.v.strides
        at = self.address("value_head", ("r[:, None]", s[2]), ("f[None, :]", s[3]))
        masks = ["r_mask[:, None]"] * edge + ["f_mask[None, :]"] * padded_f
        w.line(f"value = {_load(at, masks)}")
        w.line(f"acc = tl.dot(weights.to(value.dtype), value, acc * decay[:, None]{exact})")
        w.line("limit = top")

    @property
    def precision(self) -> str:
        """How products of `f32` are made: one or three of the matrix unit's, or by themselves."""
        if self.target.capabilities.tf32:
            return "tf32"
        return "tf32x3" if self.target.arch.startswith("sm_") else "ieee"

    def scores(self, edge: bool) -> None:
        """Write what becomes of the products before the largest is looked for."""
        w = self.writer
        if self.additive:
            w.line(f"scores = scores * {self.scale!r}")
        counted = ["r_mask[None, :]"] * edge
        if self.causal and edge:
            counted.append("(x[:, None] >= r[None, :])")
        if self.mask is not None:
            s = self.mask.strides
            terms = (("x[:, None]", s[2]), ("r[None, :]", s[3]))
            at = self.address("mask_head", *terms)
            if s[2] is ZERO and s[3] is ZERO:
                at = "mask_head + r[None, :] * 0"
            masks = ["x_mask[:, None]"] * (s[2] is not ZERO) + ["r_mask[None, :]"] * edge
            boolean = self.mask.dtype is DType.BOOL
            w.line(f"mask = {_load(at, masks, '0' if boolean else '0.0')}")
            if boolean:
                counted.append("mask")
            else:
                w.line("scores = scores + mask.to(tl.float32)")
        if counted:
            w.line(f'scores = tl.where({" & ".join(counted)}, scores, float("-inf"))')

    def weigh(self) -> None:
        """Write the exponentials, less the largest score, and the sums of them."""
        w = self.writer
        log2e = math.log2(math.e)
        if self.additive:
            w.line("top = tl.maximum(limit, tl.max(scores, 1))")
        else:
            scaled = repr(self.scale * log2e)
            w.line(f"top = tl.maximum(limit, tl.max(scores, 1) * {scaled})")
        shift = "top"
        if self.mask is not None:
            shift = "shift"
            w.line("# A row that has looked nowhere so far has no largest score.")
            w.line('shift = tl.where(top == float("-inf"), 0.0, top)')
        if self.additive:
            w.line(f"weights = tl.exp2((scores - {shift}[:, None]) * {log2e!r})")
            w.line(f"decay = tl.exp2((limit - {shift}) * {log2e!r})")
        else:
            w.line(f"weights = tl.exp2(scores * {scaled} - {shift}[:, None])")
            w.line(f"decay = tl.exp2(limit - {shift})")
        w.line("total = total * decay + tl.sum(weights, 1)")

    def finish(self) -> None:
        """Write the stores of the results."""
        w = self.writer
        out = self.kernel.outputs[0]
        w.line("acc = acc / tl.where(total == 0, 1.0, total)[:, None]")
        masks = ["x_mask[:, None]"]
        if self.v.shape[3] != Const(_vector(self.v)):
            masks.append("f_mask[None, :]")
        s = out.strides
        at = self.address("out_head", ("x[:, None]", s[2]), ("f[None, :]", s[3]))
        w.line(f"tl.store({at}, acc.to({TYPES[out.dtype]}), mask={' & '.join(masks)})")
        if self.sums is None:
            return
        if self.additive:
            w.line("sums = limit + tl.log(total)")
        else:
            w.line(f"sums = (limit + tl.log2(total)) * {math.log(2)!r}")
        mask = "x_mask"
        if self.padded != self.q.shape[2]:
            w.line('sums = tl.where(x_mask, sums, float("inf"))')
            padded = self.padded
            mask = f"x < {padded.value if isinstance(padded, Const) else 'padded'}"
        at = self.address("sums_head", ("x", self.sums.strides[2]))
        w.line(f"tl.store({at}, sums, mask={mask})")


def _load(at: str, masks: Sequence[str], other: str = "0.0") -> str:
    if not masks:
        return f"tl.load({at})"
    return f"tl.load({at}, mask={' & '.join(masks)}, other={other})"
