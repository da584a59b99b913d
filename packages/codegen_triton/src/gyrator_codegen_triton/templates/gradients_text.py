"""Shared parts of the gradients of attention and of flexible attention."""

from collections.abc import Sequence

from gyrator_codegen.passes.blocks.attention_shapes import vector_of
from gyrator_codegen_triton.source import blocks_over
from gyrator_codegen_triton.templates.attention_text import AttentionText, begin
from gyrator_ir.define import define
from gyrator_ir.expr import ONE, Expr
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.provenance import Origin


@define(eq=False)
class GradientsText(AttentionText):
    """Two functions, for keys and for queries, and one that divides the programs among them.

    Programs of keys compute `RBLOCK` keys each, and programs of queries `XBLOCK` queries. Both
    iterate over the others in blocks of `KBLOCK`, which is passed to their function as `XBLOCK` or
    `RBLOCK`.
    """

    @property
    def empty_rows(self) -> bool:
        """Whether rows may be fully masked."""
        raise NotImplementedError

    def row_pointers(self, head: str) -> None:
        """Emit pointers to the tensors of the rows of a head."""
        tensors = (self.q, self.grad, *self.kernel.inputs[4:6])
        for name, t in zip(("query", "grad", "sums", "mean"), tensors, strict=True):
            self.pointer(name, t, head)

    def loop_over_rows(self, head: str, e: Sequence[str], f: Sequence[str]) -> None:
        """Emit the loop over the rows of a head that attend to a block of columns."""
        raise NotImplementedError

    def loop_over_columns(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Emit the loop over the columns that a block of rows attends to."""
        raise NotImplementedError

    def name_columns(self) -> str:
        """Emit the names of a block of columns `r` in formulas; return its mask."""
        return "r_mask[:, None]"

    def name_rows(self) -> str:
        """Emit the names of a block of rows `x` in formulas; return its mask."""
        return "x_mask[:, None]"

    @property
    def last_rows_first(self) -> bool:
        """Whether the last rows are processed first, because they attend to the most columns."""
        raise NotImplementedError

    def key_gradients(self) -> None:
        """Emit the gradients of a block of keys and values."""
        w = self.writer
        count = self.factor(self.k.shape[1])
        w.line(f"tiles = ({self.columns} + RBLOCK - 1) // RBLOCK")
        w.line(f"group = program // tiles % {count}")
        w.line(f"batch = program // (tiles * {count})")
        w.line("first = program % tiles * RBLOCK")
        w.line("r = first + tl.arange(0, RBLOCK)")
        w.line(f"r_mask = r < {self.columns}")
        mask = self.name_columns()
        e, f = ([f"{m}[None, :]" for m in masks] for masks in self.vectors())
        self.pointer("key", self.k, "group")
        self.pointer("value", self.v, "group")
        w.line(f"key = {self.block('key', self.k, 'r', 'e', [mask, *e])}")
        w.line(f"value = {self.block('value', self.v, 'r', 'f', [mask, *f])}")
        w.line(f"key_sum = tl.zeros([RBLOCK, {vector_of(self.k)}], tl.float32)")
        w.line(f"value_sum = tl.zeros([RBLOCK, {vector_of(self.v)}], tl.float32)")
        if self.heads_a_group is ONE:
            self.loop_over_rows("group", e, f)
        else:
            ratio = self.factor(self.heads_a_group)
            with w.block(f"for member in range(0, {ratio}):", end=""):
                w.line(f"head = group * {ratio} + member")
                self.loop_over_rows("head", e, f)
        self.pointer("key_out", self.kernel.outputs[1], "group")
        self.pointer("value_out", self.kernel.outputs[2], "group")
        self.store("key_out", 1, f"key_sum * {self.scale!r}", "r", "e", [mask, *e])
        self.store("value_out", 2, "value_sum", "r", "f", [mask, *f])

    def query_gradients(self) -> None:
        """Emit the gradients of a block of queries."""
        w = self.writer
        count = self.factor(self.q.shape[1])
        w.line(f"tiles = ({self.rows} + XBLOCK - 1) // XBLOCK")
        w.line(f"head = program // tiles % {count}")
        w.line(f"batch = program // (tiles * {count})")
        tile = "(tiles - 1 - program % tiles)" if self.last_rows_first else "program % tiles"
        w.line(f"first = {tile} * XBLOCK")
        w.line("x = first + tl.arange(0, XBLOCK)")
        w.line(f"x_mask = x < {self.rows}")
        mask = self.name_rows()
        e, f = ([f"{m}[None, :]" for m in masks] for masks in self.vectors())
        self.pointer("key", self.k, self.group("head"))
        self.pointer("value", self.v, self.group("head"))
        self.row_pointers("head")
        self.load_rows(e, f)
        w.line(f"query_sum = tl.zeros([XBLOCK, {vector_of(self.q)}], tl.float32)")
        self.loop_over_columns(e, f)
        self.pointer("query_out", self.kernel.outputs[0], "head")
        self.store("query_out", 0, f"query_sum * {self.scale!r}", "x", "e", [mask, *e])

    @property
    def grad(self) -> TensorRef:
        """Gradient of the result."""
        return self.kernel.inputs[3]

    def write(self, origins: Sequence[Origin]) -> None:
        """Emit the functions, and the one that divides the programs among them."""
        w = self.writer
        with self.function(f"{self.symbol}_keys", "program"):
            self.lengths()
            self.key_gradients()
        w.lines("", "")
        with self.function(f"{self.symbol}_queries", "program"):
            self.lengths()
            self.query_gradients()
        w.lines("", "")
        arguments = [self.names.stable(p.name) for p in self.kernel.parameters]
        arguments += [self.names.stable(s.name) for s in self.kernel.sizes]
        batch, groups = self.k.shape[:2]
        with self.function(self.symbol, "KBLOCK: tl.constexpr"):
            begin(self, origins)
            self.lengths()
            w.line("program = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
            tiles = f"(({self.columns} + RBLOCK - 1) // RBLOCK)"
            w.line(f"aside = {tiles} * {self.factor(batch * groups)}")
            with w.block("if program < aside:", end=""):
                passed = [*arguments, "program", "KBLOCK", "RBLOCK"]
                w.line(f"{self.symbol}_keys({', '.join(passed)})")
            with w.block("else:", end=""):
                passed = [*arguments, "program - aside", "XBLOCK", "KBLOCK"]
                w.line(f"{self.symbol}_queries({', '.join(passed)})")

    @property
    def programs(self) -> Expr:
        """One program per block of columns of a head of keys and per block of rows of a head of
        queries."""
        batch, heads, rows = self.q.shape[:3]
        groups, columns = self.k.shape[1:3]
        aside = blocks_over(columns, "RBLOCK") * (batch * groups)
        return aside + blocks_over(rows, "XBLOCK") * (batch * heads)

    def load_rows(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Emit the loads of the tensors of rows `x`. Rows beyond the last one get weights of 0."""
        w = self.writer
        rows = ["x_mask[:, None]"]
        w.line(f"query = {self.block('query', self.q, 'x', 'e', [*rows, *e])}")
        w.line(f"grad = {self.block('grad', self.grad, 'x', 'f', [*rows, *f])}")
        at = self.address("sums_head", ("x", self.kernel.inputs[4].strides[2]))
        w.line(f'sums = tl.load({at}, mask=x_mask, other=float("inf"))')
        if self.empty_rows:
            w.line("# A row that attends to no column has no weights.")
            w.line('sums = tl.where(sums == float("-inf"), float("inf"), sums)')
        at = self.address("mean_head", ("x", self.kernel.inputs[5].strides[2]))
        w.line(f"mean = tl.load({at}, mask=x_mask, other=0.0)")
