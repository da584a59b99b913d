"""What the gradients of attention have in common, with formulas or without."""

from collections.abc import Sequence

from attrs import define

from gyrator_codegen import write_origins
from gyrator_codegen_triton.source import blocks_over
from gyrator_codegen_triton.templates.attention_text import AttentionText
from gyrator_ir.expr import Expr
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.provenance import Origin


@define(eq=False)
class GradientsText(AttentionText):
    """Two functions, of keys and of queries, and one that divides programs among them."""

    @property
    def empty_rows(self) -> bool:
        """Whether rows may look nowhere."""
        raise NotImplementedError

    def of_keys(self) -> None:
        """Write the gradients of a block of keys and values."""
        raise NotImplementedError

    def of_queries(self) -> None:
        """Write the gradients of a block of queries."""
        raise NotImplementedError

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
