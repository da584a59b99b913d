"""The gradients of flexible attention as one `@triton.jit` function, analogous to attention.

Programs of keys iterate over the blocks of queries that attend to them, and programs of queries
over the blocks of keys that they attend to, as listed by the block mask.
"""

from collections.abc import Sequence

from gyrator_codegen_triton.code import Code
from gyrator_codegen_triton.templates.attention_text import positions
from gyrator_codegen_triton.templates.flex_text import BlockLoop, FlexText
from gyrator_codegen_triton.templates.gradients_text import GradientsText
from gyrator_ir.define import define
from gyrator_ir.loop.formulas import COLUMN, ROW
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.loop.templates import first_captured

_FORMULAS = ("score", "mask", "slope")


@define(eq=False)
class FlexGradientsKernel(GradientsText, FlexText):
    """The state while a kernel is emitted."""

    @property
    def empty_rows(self) -> bool:
        """Whether rows may be fully masked."""
        return True

    @property
    def last_rows_first(self) -> bool:
        """Whether the last rows are processed first."""
        return True

    def _block_loops(self, *, transposed: bool) -> list[BlockLoop]:
        kind = TemplateKind.FLEX_ATTENTION_GRADIENTS
        last = first_captured(kind, self.kernel.attributes)
        half = 6 + (last - 6) // 2
        return self.block_loops(
            self.kernel.inputs[half:last] if transposed else self.kernel.inputs[6:half]
        )

    def row_pointers(self, head: str) -> None:
        """Emit pointers to the tensors of the rows of a head."""
        self.writer.line(f"i1 = {head}")
        super().row_pointers(head)

    # Keys and values ------------------------------------------------------------------------

    def name_columns(self) -> str:
        """Emit the names of a block of columns `r` in formulas; return its mask."""
        lines = ("column = r[:, None]", "column_mask = r_mask[:, None]", "i3 = column")
        self.writer.lines(*lines, "i0 = batch")
        return "column_mask"

    def loop_over_rows(self, head: str, e: Sequence[str], f: Sequence[str]) -> None:
        """Emit the loops over the rows of a head."""
        if head != "head":
            self.writer.line(f"head = {head}")
        self.row_pointers("head")
        code = self.code(transposed=True)
        self.invariant(code, _FORMULAS, ROW)
        loops, length = self._block_loops(transposed=True), self.number("row_block")
        block = f"first // {self.number('column_block')}"
        self.begin_loops(loops, "head", block, length, self.rows)
        for loop in loops:
            with self.block_loop(loop, block, length, "XBLOCK", self.rows):
                self.step_of_keys(code, loop, e, f)

    def step_of_keys(self, code: Code, loop: BlockLoop, e: Sequence[str], f: Sequence[str]) -> None:
        """Emit the contribution of a block of rows, with transposed blocks of scores."""
        w, exact = self.writer, self.exact
        positions(self, "x", "XBLOCK", self.rows)
        w.lines("row = x[None, :]", "row_mask = x_mask[None, :]", "i2 = row")
        self.load_rows(e, f)
        w.line(f"products = tl.dot(key, tl.trans(query){exact})")
        bounds = [] if self.divides(self.k.shape[2]) else ["column_mask"]
        conditions = self.scores(code, loop, ROW, bounds)
        self.weights("[None, :]")
        w.line(f"value_sum = tl.dot(weights.to(grad.dtype), grad, value_sum{exact})")
        w.line(f"factors = tl.dot(value, tl.trans(grad){exact})")
        self.product_gradients(code, ROW, "[None, :]", ["row_mask", *conditions])
        w.line(f"key_sum = tl.dot(slopes.to(query.dtype), query, key_sum{exact})")

    # Queries --------------------------------------------------------------------------------

    def name_rows(self) -> str:
        """Emit the names of a block of rows `x` in formulas; return its mask."""
        lines = ("row = x[:, None]", "row_mask = x_mask[:, None]", "i2 = row", "i0 = batch")
        self.writer.lines(*lines)
        return "row_mask"

    def loop_over_columns(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Emit the loops over the columns that the rows attend to."""
        code = self.code(transposed=False)
        self.invariant(code, _FORMULAS, COLUMN)
        loops, length = self._block_loops(transposed=False), self.number("column_block")
        block = f"first // {self.number('row_block')}"
        self.begin_loops(loops, "head", block, length, self.columns)
        for loop in loops:
            with self.block_loop(loop, block, length, "RBLOCK", self.columns):
                self.step_of_queries(code, loop, e, f)

    def step_of_queries(
        self, code: Code, loop: BlockLoop, e: Sequence[str], f: Sequence[str]
    ) -> None:
        """Emit the contribution of a block of columns."""
        w, exact = self.writer, self.exact
        positions(self, "r", "RBLOCK", self.columns)
        w.lines("column = r[None, :]", "column_mask = r_mask[None, :]", "i3 = column")
        bounded = not self.divides(self.k.shape[2])
        masks = ["r_mask[:, None]"] * bounded
        w.line(f"key = {self.block('key', self.k, 'r', 'e', [*masks, *e])}")
        w.line(f"value = {self.block('value', self.v, 'r', 'f', [*masks, *f])}")
        w.line(f"products = tl.dot(query, tl.trans(key){exact})")
        conditions = self.scores(code, loop, COLUMN, ["column_mask"] * bounded)
        self.weights("[:, None]")
        w.line(f"factors = tl.dot(grad, tl.trans(value){exact})")
        self.product_gradients(code, COLUMN, "[:, None]", ["row_mask", *conditions])
        w.line(f"query_sum = tl.dot(slopes.to(key.dtype), key, query_sum{exact})")
