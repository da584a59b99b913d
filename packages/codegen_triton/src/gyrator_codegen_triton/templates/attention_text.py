"""Shared parts of attention kernels and their gradients: names, tensors, addresses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from attrs import field

from gyrator_codegen import Names, Writer, write_origins
from gyrator_codegen.passes.blocks.attention_shapes import vector_of
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.index import TritonPrinter
from gyrator_codegen_triton.source import RESERVED, write_wait
from gyrator_ir.define import define
from gyrator_ir.expr import ONE, ZERO, Const, Expr, ShapeFacts
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.loop.templates import literal
from gyrator_ir.provenance import Origin
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import Wait
from gyrator_ir.types import DType

_LONGEST_BLOCK = 128
_NAMES = frozenset(
    "rows columns tiles program head group member batch first e f e_mask f_mask query key value "
    "grad mask sums mean scores top shift weights slopes decay limit total acc whole last padded "
    "query_sum key_sum value_sum begin aside query_head key_head value_head grad_head mask_head "
    "out_head sums_head mean_head key_out_head value_out_head query_out_head row column row_mask "
    "column_mask products start place some_count some_place whole_count whole_place "
    "some_count_head some_place_head whole_count_head whole_place_head tops tops_head place "
    "factors slopes part near KBLOCK some_pieces whole_pieces".split()
)


@define(eq=False)
class AttentionText:
    """The state while a kernel is emitted."""

    kernel: TemplateKernel
    facts: ShapeFacts
    target: Target
    symbol: str
    wide: bool
    """Whether addresses have 64 bits."""
    wait: Wait | None
    """The wait for the previous launch."""
    writer: Writer = field(factory=lambda: Writer("    "))
    names: Names = field(init=False)
    q: TensorRef = field(init=False)
    """The queries."""
    k: TensorRef = field(init=False)
    """The keys."""
    v: TensorRef = field(init=False)
    """The values."""
    rows: str = ""
    columns: str = ""

    def __attrs_post_init__(self) -> None:
        self.q, self.k, self.v = self.kernel.inputs[:3]
        self.names = Names(RESERVED | _NAMES | {self.symbol})
        for p in self.kernel.parameters:
            self.names.stable(p.name)

    def write(self, origins: Sequence[Origin]) -> None:
        """Emit the kernel, preceded by the source lines of its origins."""
        raise NotImplementedError

    @property
    def scale(self) -> float:
        """Scale factor of the products."""
        return literal(self.kernel.attributes, "scale", float)

    @property
    def causal(self) -> bool:
        """Whether rows attend to no later columns."""
        return literal(self.kernel.attributes, "causal", bool)

    # Text -----------------------------------------------------------------------------------

    def show(self, e: Expr) -> str:
        """Return the text of an expression over sizes."""
        names: Names = self.names
        plain = self.facts.nonnegative_division
        return TritonPrinter(plain, lambda size: names.stable(size.name))(e)

    def factor(self, e: Expr) -> str:
        """Return an expression over sizes as an operand of a product."""
        text = self.show(e)
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def let(self, name: str, e: Expr) -> str:
        """Return a constant as text; for any other expression, emit its value and return its
        name."""
        if isinstance(e, Const):
            return str(e.value)
        self.writer.line(f"{name} = {self.show(e)}")
        return name

    def address(self, base: str, *terms: tuple[str, Expr]) -> str:
        """Return `base + index * stride + ...` without terms that are 0."""
        parts = [base]
        for index, stride in terms:
            if stride is ONE:
                parts.append(index)
            elif stride is not ZERO:
                parts.append(f"{index} * {self.factor(stride)}")
        return " + ".join(parts)

    @contextmanager
    def function(self, symbol: str, *more: str) -> Iterator[None]:
        """Emit the head of a device function, with parameters `more` before the blocks."""
        sizes = [self.names.stable(s.name) for s in self.kernel.sizes]
        arguments = [self.names.stable(p.name) for p in self.kernel.parameters] + sizes
        blocks = ["XBLOCK: tl.constexpr", "RBLOCK: tl.constexpr"]
        self.writer.line("@triton.jit")
        with self.writer.block(f"def {symbol}({', '.join([*arguments, *more, *blocks])}):", end=""):
            yield

    @property
    def programs(self) -> Expr:
        """Number of programs, over the sizes and the blocks of a candidate."""
        raise NotImplementedError

    def lengths(self) -> None:
        """Emit sizes in the type of addresses, and the numbers of rows and columns."""
        if self.wide:
            names = [self.names.stable(s.name) for s in self.kernel.sizes]
            self.writer.lines(*(f"{s} = tl.cast({s}, tl.int64)" for s in names))
        self.rows = self.let("rows", self.q.shape[2])
        self.columns = self.let("columns", self.k.shape[2])

    def group(self, head: str) -> str:
        """Return the head of keys that a head of queries attends to."""
        heads, groups = self.q.shape[1], self.k.shape[1]
        if groups is ONE:
            return "0"
        return head if groups == heads else f"{head} // {self.factor(heads // groups)}"

    def vectors(self) -> tuple[list[str], list[str]]:
        """Emit the positions in vectors. Return the masks of `e`, for queries and keys, and of `f`,
        for values, if they are padded."""
        masks: list[list[str]] = []
        for letter, t in (("e", self.q), ("f", self.v)):
            self.writer.line(f"{letter} = tl.arange(0, {vector_of(t)})")
            padded = t.shape[3] != Const(vector_of(t))
            if padded:
                self.writer.line(f"{letter}_mask = {letter} < {self.show(t.shape[3])}")
            masks.append([f"{letter}_mask"] * padded)
        return masks[0], masks[1]

    def column_loops(self, step: Callable[[bool], None]) -> None:
        """Emit the loop over blocks of columns that need no masks, and the loop over the others.
        `step` emits their bodies, given whether blocks need masks."""
        w = self.writer
        if not self.causal and self.divides(self.k.shape[2]):
            with w.block(f"for start in range(0, {self.columns}, RBLOCK):", end=""):
                step(False)
            return
        last = inside = self.columns
        if self.causal:
            w.line(f"last = tl.minimum({self.columns}, first + XBLOCK)")
            last, inside = "last", f"tl.minimum({self.columns}, first + 1)"
        w.line(f"whole = {inside} // RBLOCK * RBLOCK")
        with w.block("for start in range(0, whole, RBLOCK):", end=""):
            step(False)
        with w.block(f"for start in range(whole, {last}, RBLOCK):", end=""):
            step(True)

    def block(
        self, name: str, t: TensorRef, row: str, letter: str, masks: Sequence[str] = ()
    ) -> str:
        """Return the load of a block of a head's vectors."""
        return load(vectors_at(self, name, t, row, letter), masks)

    def store(
        self, name: str, index: int, value: str, row: str, letter: str, masks: Sequence[str]
    ) -> None:
        """Emit the store of a block of gradients."""
        out = self.kernel.outputs[index]
        at = vectors_at(self, name, out, row, letter)
        text = f"({value}).to({TYPES[out.dtype]})"
        self.writer.line(f"tl.store({at}, {text}, mask={' & '.join(masks)})")

    def pointer(self, name: str, t: TensorRef, head: str) -> None:
        """Emit the pointer to the program's head of a tensor."""
        place = f"({head})" if "//" in head else head
        base = self.names.stable(t.buffer)
        if t.offset is not ZERO:
            base += f" + {self.factor(t.offset)}"
        by_head = ZERO if place == "0" else t.strides[1]
        at = self.address(base, ("batch", t.strides[0]), (place, by_head))
        self.writer.line(f"{name}_head = {at}")

    def divides(self, count: Expr) -> bool:
        """Return whether blocks of any length divide `count`."""
        return isinstance(count, Const) and count.value % _LONGEST_BLOCK == 0

    @property
    def heads_a_group(self) -> Expr:
        """Number of heads of queries that attend to one head of keys."""
        heads, groups = self.q.shape[1], self.k.shape[1]
        return ONE if heads == groups else heads // groups

    @property
    def exact(self) -> str:
        """Precision arguments of products: products of `f32` use one or three TF32 products, or
        IEEE arithmetic."""
        if self.q.dtype is not DType.F32:
            return ""
        several = "tf32x3" if self.target.arch.startswith("sm_") else "ieee"
        return f', input_precision="{"tf32" if self.target.capabilities.tf32 else several}"'


def vectors_at(text: AttentionText, name: str, t: TensorRef, row: str, letter: str) -> str:
    """Return the addresses of a block of a head's vectors, one per row."""
    down, across = (f"{row}[:, None]", t.strides[2]), (f"{letter}[None, :]", t.strides[3])
    return text.address(f"{name}_head", down, across)


def positions(
    text: AttentionText, letter: str, block: str, count: str, *, masked: bool = True
) -> None:
    """Emit the positions of a block from `start` on, and which are below `count`."""
    wide = ".to(tl.int64)" if text.wide else ""
    text.writer.line(f"{letter} = start + tl.arange(0, {block}){wide}")
    if masked:
        text.writer.line(f"{letter}_mask = {letter} < {count}")


def load(at: str, masks: Sequence[str], other: str = "0.0") -> str:
    """Return a load with value `other` if a mask is false."""
    if not masks:
        return f"tl.load({at})"
    return f"tl.load({at}, mask={' & '.join(masks)}, other={other})"


def load_keys(text: AttentionText, columns: Sequence[str], e: Sequence[str]) -> None:
    """Emit the load of a transposed block of keys, with the masks of its columns and of `e`."""
    s = text.k.strides
    at = text.address("key_head", ("r[None, :]", s[2]), ("e[:, None]", s[3]))
    text.writer.line(f"key = {load(at, [*columns, *(f'{m}[:, None]' for m in e)])}")


def additive(text: AttentionText, mask: TensorRef | None) -> bool:
    """Return whether scores are scaled before their maximum is computed."""
    return text.scale <= 0 or (mask is not None and mask.dtype is not DType.BOOL)


def scores(
    text: AttentionText,
    mask: TensorRef | None,
    *,
    bounded: bool,
    edge: bool,
    transposed: bool = False,
) -> None:
    """Emit the scores from the products of queries and keys, before exponentials are computed.

    Args:
        text: the kernel's state.
        mask: the bias that is added to them, or the boolean mask.
        bounded: mask columns beyond the last one.
        edge: apply the causal mask within the block.
        transposed: the block is transposed: columns are its rows.
    """
    w = text.writer
    x, r = ("x[None, :]", "r[:, None]") if transposed else ("x[:, None]", "r[None, :]")
    across = x.replace("x", "x_mask"), r.replace("r", "r_mask")
    if additive(text, mask):
        w.line(f"scores = scores * {text.scale!r}")
    conditions = [across[1]] * bounded
    if text.causal and edge:
        conditions.append(f"({x} >= {r})")
    if mask is not None:
        s = mask.strides
        at = text.address("mask_head", (x, s[2]), (r, s[3]))
        if s[2] is ZERO and s[3] is ZERO:
            at = f"mask_head + {r} * 0"
        masks = [across[0]] * (s[2] is not ZERO) + [across[1]] * (bounded or transposed)
        boolean = mask.dtype is DType.BOOL
        w.line(f"mask = {load(at, masks, '0' if boolean else '0.0')}")
        if boolean:
            conditions.append("mask")
        else:
            w.line("scores = scores + mask.to(tl.float32)")
    if conditions:
        w.line(f'scores = tl.where({" & ".join(conditions)}, scores, float("-inf"))')


def begin(text: AttentionText, origins: Sequence[Origin]) -> None:
    """Emit the source lines of the origins, and the wait for the previous launch."""
    write_origins(text.writer, text.kernel.origins, origins)
    write_wait(text.writer, text.wait)
