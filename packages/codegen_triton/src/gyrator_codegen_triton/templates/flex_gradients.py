"""The gradients of flexible attention as one `@triton.jit` function, as those of attention are.

Programs of keys walk over the blocks of queries that look at theirs, those of queries over the
blocks of keys that they look at, as the block mask lists them.
"""

from collections.abc import Sequence

from attrs import define

from gyrator_codegen_triton.code import Code
from gyrator_codegen_triton.templates.flex_text import FlexText, Walk
from gyrator_codegen_triton.templates.gradients_text import GradientsText
from gyrator_ir.loop.formulas import COLUMN, ROW
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.loop.templates import first_captured

_FORMULAS = ("score", "mask", "slope")


@define(eq=False)
class FlexGradientsKernel(GradientsText, FlexText):
    """What is known while one kernel is written."""

    @property
    def empty_rows(self) -> bool:
        """Whether rows may look nowhere."""
        return True

    @property
    def last_first(self) -> bool:
        """Whether the last rows are begun first."""
        return True

    def _walks(self, *, turned: bool) -> list[Walk]:
        kind = TemplateKind.FLEX_ATTENTION_GRADIENTS
        last = first_captured(kind, self.kernel.attributes)
        half = 6 + (last - 6) // 2
        return self.walks(self.kernel.inputs[half:last] if turned else self.kernel.inputs[6:half])

    def heads_of_rows(self, head: str) -> None:
        """Write where what goes with the rows of a head begins."""
        self.writer.line(f"i1 = {head}")
        super().heads_of_rows(head)

    # Keys and values ------------------------------------------------------------------------

    def place_columns(self) -> str:
        """Write what formulas call a block of columns `r`; return its mask."""
        lines = ("column = r[:, None]", "column_mask = r_mask[:, None]", "i3 = column")
        self.writer.lines(*lines, "i0 = batch")
        return "column_mask"

    def walk_rows(self, head: str, e: Sequence[str], f: Sequence[str]) -> None:
        """Write the walks over the rows of a head."""
        if head != "head":
            self.writer.line(f"head = {head}")
        self.heads_of_rows("head")
        code = self.code(turned=True)
        self.still(code, _FORMULAS, ROW)
        walks, length = self._walks(turned=True), self.number("row_block")
        block = f"first // {self.number('column_block')}"
        self.begin_walks(walks, "head", block)
        for walk in walks:
            with self.walk(walk, block, length, "XBLOCK", self.rows):
                self.step_of_keys(code, walk, e, f)

    def step_of_keys(self, code: Code, walk: Walk, e: Sequence[str], f: Sequence[str]) -> None:
        """Write what a block of rows adds; blocks of scores are turned."""
        w, exact = self.writer, self.exact
        wide = ".to(tl.int64)" if self.wide else ""
        w.line(f"x = start + tl.arange(0, XBLOCK){wide}")
        w.line(f"x_mask = x < {self.rows}")
        w.lines("row = x[None, :]", "row_mask = x_mask[None, :]", "i2 = row")
        self.rows_of(e, f)
        w.line(f"products = tl.dot(key, tl.trans(query){exact})")
        bounds = [] if self.divides(self.k.shape[2]) else ["column_mask"]
        seen = self.judge(code, walk, ROW, bounds)
        self.weigh("[None, :]")
        w.line(f"value_sum = tl.dot(weights.to(grad.dtype), grad, value_sum{exact})")
        w.line(f"factors = tl.dot(value, tl.trans(grad){exact})")
        self.incline(code, ROW, "[None, :]", ["row_mask", *seen])
        w.line(f"key_sum = tl.dot(slopes.to(query.dtype), query, key_sum{exact})")

    # Queries --------------------------------------------------------------------------------

    def place_rows(self) -> str:
        """Write what formulas call a block of rows `x`; return its mask."""
        lines = ("row = x[:, None]", "row_mask = x_mask[:, None]", "i2 = row", "i0 = batch")
        self.writer.lines(*lines)
        return "row_mask"

    def walk_columns(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Write the walks over the columns that the rows look at."""
        code = self.code(turned=False)
        self.still(code, _FORMULAS, COLUMN)
        walks, length = self._walks(turned=False), self.number("column_block")
        block = f"first // {self.number('row_block')}"
        self.begin_walks(walks, "head", block)
        for walk in walks:
            with self.walk(walk, block, length, "RBLOCK", self.columns):
                self.step_of_queries(code, walk, e, f)

    def step_of_queries(self, code: Code, walk: Walk, e: Sequence[str], f: Sequence[str]) -> None:
        """Write what a block of columns adds."""
        w, exact = self.writer, self.exact
        wide = ".to(tl.int64)" if self.wide else ""
        w.line(f"r = start + tl.arange(0, RBLOCK){wide}")
        w.line(f"r_mask = r < {self.columns}")
        w.lines("column = r[None, :]", "column_mask = r_mask[None, :]", "i3 = column")
        bounded = not self.divides(self.k.shape[2])
        masks = ["r_mask[:, None]"] * bounded
        w.line(f"key = {self.block('key', self.k, 'r', 'e', [*masks, *e])}")
        w.line(f"value = {self.block('value', self.v, 'r', 'f', [*masks, *f])}")
        w.line(f"products = tl.dot(query, tl.trans(key){exact})")
        seen = self.judge(code, walk, COLUMN, ["column_mask"] * bounded)
        self.weigh("[:, None]")
        w.line(f"factors = tl.dot(grad, tl.trans(value){exact})")
        self.incline(code, COLUMN, "[:, None]", ["row_mask", *seen])
        w.line(f"query_sum = tl.dot(slopes.to(key.dtype), key, query_sum{exact})")
