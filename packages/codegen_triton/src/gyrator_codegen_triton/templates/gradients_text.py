"""What the gradients of attention have in common, with formulas or without."""

from collections.abc import Sequence

from attrs import define

from gyrator_codegen import write_origins
from gyrator_codegen_triton.source import blocks_over
from gyrator_codegen_triton.templates.attention_text import AttentionText, vector_of
from gyrator_ir.expr import ONE, Expr
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.provenance import Origin


@define(eq=False)
class GradientsText(AttentionText):
    """Two functions, of keys and of queries, and one that divides programs among them."""

    @property
    def empty_rows(self) -> bool:
        """Whether rows may look nowhere."""
        raise NotImplementedError

    def heads_of_rows(self, head: str) -> None:
        """Write where what goes with the rows of a head begins."""
        tensors = (self.q, self.grad, *self.kernel.inputs[4:6])
        for name, t in zip(("query", "grad", "sums", "mean"), tensors, strict=True):
            self.begin(name, t, head)

    def walk_rows(self, head: str, e: Sequence[str], f: Sequence[str]) -> None:
        """Write the walk over the rows of a head that see a block of columns."""
        raise NotImplementedError

    def walk_columns(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Write the walk over the columns that a block of rows sees."""
        raise NotImplementedError

    def place_columns(self) -> str:
        """Write what formulas call a block of columns `r`; return its mask."""
        return "r_mask[:, None]"

    def place_rows(self) -> str:
        """Write what formulas call a block of rows `x`; return its mask."""
        return "x_mask[:, None]"

    @property
    def last_first(self) -> bool:
        """Whether the last rows are begun first, since they look at most columns."""
        raise NotImplementedError

    def of_keys(self) -> None:
        """Write the gradients of a block of keys and values."""
        w = self.writer
        count = self.factor(self.k.shape[1])
        w.line(f"tiles = ({self.columns} + RBLOCK - 1) // RBLOCK")
        w.line(f"group = program // tiles % {count}")
        w.line(f"batch = program // (tiles * {count})")
        w.line("first = program % tiles * RBLOCK")
        w.line("r = first + tl.arange(0, RBLOCK)")
        w.line(f"r_mask = r < {self.columns}")
        mask = self.place_columns()
        e, f = ([f"{m}[None, :]" for m in masks] for masks in self.vectors())
        self.begin("key", self.k, "group")
        self.begin("value", self.v, "group")
        w.line(f"key = {self.block('key', self.k, 'r', 'e', [mask, *e])}")
        w.line(f"value = {self.block('value', self.v, 'r', 'f', [mask, *f])}")
        w.line(f"key_sum = tl.zeros([RBLOCK, {vector_of(self.k)}], tl.float32)")
        w.line(f"value_sum = tl.zeros([RBLOCK, {vector_of(self.v)}], tl.float32)")
        if self.heads_a_group is ONE:
            self.walk_rows("group", e, f)
        else:
            ratio = self.factor(self.heads_a_group)
            with w.block(f"for member in range(0, {ratio}):", end=""):
                w.line(f"head = group * {ratio} + member")
                self.walk_rows("head", e, f)
        self.begin("key_out", self.kernel.outputs[1], "group")
        self.begin("value_out", self.kernel.outputs[2], "group")
        self.store("key_out", 1, f"key_sum * {self.scale!r}", "r", "e", [mask, *e])
        self.store("value_out", 2, "value_sum", "r", "f", [mask, *f])

    def of_queries(self) -> None:
        """Write the gradients of a block of queries."""
        w = self.writer
        count = self.factor(self.q.shape[1])
        w.line(f"tiles = ({self.rows} + XBLOCK - 1) // XBLOCK")
        w.line(f"head = program // tiles % {count}")
        w.line(f"batch = program // (tiles * {count})")
        tile = "(tiles - 1 - program % tiles)" if self.last_first else "program % tiles"
        w.line(f"first = {tile} * XBLOCK")
        w.line("x = first + tl.arange(0, XBLOCK)")
        w.line(f"x_mask = x < {self.rows}")
        mask = self.place_rows()
        e, f = ([f"{m}[None, :]" for m in masks] for masks in self.vectors())
        self.begin("key", self.k, self.group("head"))
        self.begin("value", self.v, self.group("head"))
        self.heads_of_rows("head")
        self.rows_of(e, f)
        w.line(f"query_sum = tl.zeros([XBLOCK, {vector_of(self.q)}], tl.float32)")
        self.walk_columns(e, f)
        self.begin("query_out", self.kernel.outputs[0], "head")
        self.store("query_out", 0, f"query_sum * {self.scale!r}", "x", "e", [mask, *e])

    @property
    def grad(self) -> TensorRef:
        """The gradient of the result."""
        return self.kernel.inputs[3]

    def write(self, origins: Sequence[Origin]) -> None:
        """Write the functions, and the one that divides programs among them."""
        w = self.writer
        with self.function(f"{self.symbol}_keys", "program"):
            self.lengths()
            self.of_keys()
        w.lines("", "")
        with self.function(f"{self.symbol}_queries", "program"):
            self.lengths()
            self.of_queries()
        w.lines("", "")
        given = [self.names.stable(p.name) for p in self.kernel.parameters]
        given += [self.names.stable(s.name) for s in self.kernel.sizes]
        batch, groups = self.k.shape[:2]
        with self.function(self.symbol):
            write_origins(w, self.kernel.origins, origins)
            self.lengths()
            w.line("program = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
            tiles = f"(({self.columns} + RBLOCK - 1) // RBLOCK)"
            w.line(f"aside = {tiles} * {self.factor(batch * groups)}")
            with w.block("if program < aside:", end=""):
                called = [*given, "program", "XBLOCK", "RBLOCK"]
                w.line(f"{self.symbol}_keys({', '.join(called)})")
            with w.block("else:", end=""):
                called = [*given, "program - aside", "XBLOCK", "RBLOCK"]
                w.line(f"{self.symbol}_queries({', '.join(called)})")

    @property
    def programs(self) -> Expr:
        """A program for each block of columns of a head of keys, and of rows of one of queries."""
        batch, heads, rows = self.q.shape[:3]
        groups, columns = self.k.shape[1:3]
        aside = blocks_over(columns, "RBLOCK") * (batch * groups)
        return aside + blocks_over(rows, "XBLOCK") * (batch * heads)

    def rows_of(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Write the loads of what goes with rows x; rows beyond the last have no weights."""
        w = self.writer
        rows = ["x_mask[:, None]"]
        w.line(f"query = {self.block('query', self.q, 'x', 'e', [*rows, *e])}")
        w.line(f"grad = {self.block('grad', self.grad, 'x', 'f', [*rows, *f])}")
        at = self.address("sums_head", ("x", self.kernel.inputs[4].strides[2]))
        w.line(f'sums = tl.load({at}, mask=x_mask, other=float("inf"))')
        if self.empty_rows:
            w.line("# A row that looks nowhere has no weights either.")
            w.line('sums = tl.where(sums == float("-inf"), float("inf"), sums)')
        at = self.address("mean_head", ("x", self.kernel.inputs[5].strides[2]))
        w.line(f"mean = tl.load({at}, mask=x_mask, other=0.0)")
