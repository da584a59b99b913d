"""The gradients of flexible attention as one `@triton.jit` function, as those of attention are.

Programs of keys walk over the blocks of queries that look at theirs, those of queries over the
blocks of keys that they look at, as the block mask lists them.
"""

from collections.abc import Sequence

from attrs import define

from gyrator_codegen_triton.code import Code
from gyrator_codegen_triton.templates.attention_text import vector_of
from gyrator_codegen_triton.templates.flex_text import FlexText, Walk
from gyrator_codegen_triton.templates.gradients_text import GradientsText
from gyrator_ir.expr import ONE
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

    def _walks(self, *, turned: bool) -> list[Walk]:
        kind = TemplateKind.FLEX_ATTENTION_GRADIENTS
        last = first_captured(kind, self.kernel.attributes)
        half = 6 + (last - 6) // 2
        return self.walks(self.kernel.inputs[half:last] if turned else self.kernel.inputs[6:half])

    def heads_of_rows(self) -> None:
        """Write where what goes with the rows of a head begins."""
        self.writer.line("i1 = head")
        for name, t in (("query", self.q), ("grad", self.grad)):
            self.begin(name, t, "head")
        for name, t in zip(("sums", "mean"), self.kernel.inputs[4:6], strict=True):
            self.begin(name, t, "head")

    # Keys and values ------------------------------------------------------------------------

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
        w.lines("column = r[:, None]", "column_mask = r_mask[:, None]", "i3 = column", "i0 = batch")
        e, f = ([f"{m}[None, :]" for m in masks] for masks in self.vectors())
        self.begin("key", self.k, "group")
        self.begin("value", self.v, "group")
        w.line(f"key = {self.block('key', self.k, 'r', 'e', ['column_mask', *e])}")
        w.line(f"value = {self.block('value', self.v, 'r', 'f', ['column_mask', *f])}")
        w.line(f"key_sum = tl.zeros([RBLOCK, {vector_of(self.q)}], tl.float32)")
        w.line(f"value_sum = tl.zeros([RBLOCK, {vector_of(self.v)}], tl.float32)")
        several = self.heads_a_group
        if several is ONE:
            w.line("head = group")
            self.walk_rows(e, f)
        else:
            each = self.factor(several)
            with w.block(f"for member in range(0, {each}):", end=""):
                w.line(f"head = group * {each} + member")
                self.walk_rows(e, f)
        self.begin("key_out", self.kernel.outputs[1], "group")
        self.begin("value_out", self.kernel.outputs[2], "group")
        self.store("key_out", 1, f"key_sum * {self.scale!r}", "r", "e", ["column_mask", *e])
        self.store("value_out", 2, "value_sum", "r", "f", ["column_mask", *f])

    def walk_rows(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Write the walks over the rows of a head."""
        self.heads_of_rows()
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

    def of_queries(self) -> None:
        """Write the gradients of a block of queries."""
        w = self.writer
        count = self.factor(self.q.shape[1])
        w.line(f"tiles = ({self.rows} + XBLOCK - 1) // XBLOCK")
        w.line(f"head = program // tiles % {count}")
        w.line(f"batch = program // (tiles * {count})")
        w.line("first = (tiles - 1 - program % tiles) * XBLOCK")
        w.line("x = first + tl.arange(0, XBLOCK)")
        w.line(f"x_mask = x < {self.rows}")
        w.lines("row = x[:, None]", "row_mask = x_mask[:, None]", "i2 = row", "i0 = batch")
        e, f = ([f"{m}[None, :]" for m in masks] for masks in self.vectors())
        self.begin("key", self.k, self.group("head"))
        self.begin("value", self.v, self.group("head"))
        self.heads_of_rows()
        self.rows_of(e, f)
        w.line(f"query_sum = tl.zeros([XBLOCK, {vector_of(self.q)}], tl.float32)")
        code = self.code(turned=False)
        self.still(code, _FORMULAS, COLUMN)
        walks, length = self._walks(turned=False), self.number("column_block")
        block = f"first // {self.number('row_block')}"
        self.begin_walks(walks, "head", block)
        for walk in walks:
            with self.walk(walk, block, length, "RBLOCK", self.columns):
                self.step_of_queries(code, walk, e, f)
        self.begin("query_out", self.kernel.outputs[0], "head")
        self.store("query_out", 0, f"query_sum * {self.scale!r}", "x", "e", ["row_mask", *e])

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
