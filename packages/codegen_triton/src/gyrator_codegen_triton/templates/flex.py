"""Flexible attention as one `@triton.jit` function: flash attention (Dao et al. 2022, Dao 2023)
over the blocks of keys that a block mask lists (Dong et al. 2024).

A program computes the results of `XBLOCK` queries of one head, as in `attention`, and walks twice:
over blocks of which the mask's formula says where rows look, then over blocks that count whole.
"""

from collections.abc import Sequence

from attrs import define

from gyrator_codegen import write_origins
from gyrator_codegen_triton.code import Code
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.source import blocks_over
from gyrator_codegen_triton.templates.attention_text import load, vector_of
from gyrator_codegen_triton.templates.flex_text import FlexText, Walk
from gyrator_ir.expr import Expr
from gyrator_ir.loop.formulas import COLUMN
from gyrator_ir.loop.nodes import TemplateKind, TensorRef
from gyrator_ir.loop.templates import first_captured
from gyrator_ir.provenance import Origin

_FORMULAS = ("score", "mask")


@define(eq=False)
class FlexKernel(FlexText):
    """What is known while one kernel is written."""

    def write(self, origins: Sequence[Origin]) -> None:
        """Write the function."""
        w = self.writer
        first = first_captured(TemplateKind.FLEX_ATTENTION, self.kernel.attributes)
        walks = self.walks(self.kernel.inputs[3:first])
        with self.function(self.symbol):
            write_origins(w, self.kernel.origins, origins)
            self.lengths()
            self.places()
            e, f = self.vectors()
            self.start(e)
            code = self.code(turned=False)
            self.still(code, _FORMULAS, COLUMN)
            self.begin_walks(walks, "head", f"first // {self.number('row_block')}")
            for walk in walks:
                block = f"first // {self.number('row_block')}"
                length = self.number("column_block")
                with self.walk(walk, block, length, "RBLOCK", self.columns):
                    self.step(code, walk, e, f)
            self.finish(f)

    @property
    def programs(self) -> Expr:
        """A program for each block of rows of a head."""
        batch, heads, rows = self.q.shape[:3]
        return blocks_over(rows, "XBLOCK") * (batch * heads)

    def places(self) -> None:
        """Write which rows of which head the program computes, and where its tensors begin."""
        w, count = self.writer, self.factor(self.q.shape[1])
        w.line(f"tiles = ({self.rows} + XBLOCK - 1) // XBLOCK")
        w.line("program = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        w.line(f"head = program // tiles % {count}")
        w.line(f"batch = program // (tiles * {count})")
        w.line("# The last rows often look at most columns, and are begun first.")
        w.line("first = (tiles - 1 - program % tiles) * XBLOCK")
        w.lines("i0 = batch", "i1 = head")
        self.begin("query", self.q, "head")
        self.begin("key", self.k, self.group("head"))
        self.begin("value", self.v, self.group("head"))

    def start(self, e: Sequence[str]) -> None:
        """Write the queries, and the sums as they are before the first key."""
        w = self.writer
        w.line("x = first + tl.arange(0, XBLOCK)")
        w.line(f"x_mask = x < {self.rows}")
        w.lines("row = x[:, None]", "row_mask = x_mask[:, None]", "i2 = row")
        masks = ["row_mask", *(f"{m}[None, :]" for m in e)]
        w.line(f"query = {self.block('query', self.q, 'x', 'e', masks)}")
        w.line('limit = tl.full([XBLOCK], float("-inf"), tl.float32)')
        w.line("total = tl.zeros([XBLOCK], tl.float32)")
        w.line(f"acc = tl.zeros([XBLOCK, {vector_of(self.v)}], tl.float32)")

    def step(self, code: Code, walk: Walk, e: Sequence[str], f: Sequence[str]) -> None:
        """Write what is done with a block of keys and values."""
        w = self.writer
        wide = ".to(tl.int64)" if self.wide else ""
        w.line(f"r = start + tl.arange(0, RBLOCK){wide}")
        w.line(f"r_mask = r < {self.columns}")
        w.lines("column = r[None, :]", "column_mask = r_mask[None, :]", "i3 = column")
        bounded = not self.divides(self.k.shape[2])
        s = self.k.strides
        at = self.address("key_head", ("r[None, :]", s[2]), ("e[:, None]", s[3]))
        masks = ["column_mask"] * bounded + [f"{m}[:, None]" for m in e]
        w.line(f"key = {load(at, masks)}")
        w.line(f"products = tl.dot(query, key{self.exact})")
        seen = self.judge(code, walk, COLUMN, ["column_mask"] * bounded)
        factor = self.factor_of_scores
        w.line(f"top = tl.maximum(limit, tl.max(scores, 1) * {factor!r})")
        shift = "top"
        if seen or not self.plain:
            shift = "shift"
            w.line("# A row that has looked nowhere so far has no largest score.")
            w.line('shift = tl.where(top == float("-inf"), 0.0, top)')
        w.line(f"weights = tl.exp2(scores * {factor!r} - {shift}[:, None])")
        w.line(f"decay = tl.exp2(limit - {shift})")
        w.line("total = total * decay + tl.sum(weights, 1)")
        masks = ["r_mask[:, None]"] * bounded + [f"{m}[None, :]" for m in f]
        w.line(f"value = {self.block('value', self.v, 'r', 'f', masks)}")
        w.line(f"acc = tl.dot(weights.to(value.dtype), value, acc * decay[:, None]{self.exact})")
        w.line("limit = top")

    def finish(self, f: Sequence[str]) -> None:
        """Write the stores of the results."""
        w = self.writer
        out, *rows = self.kernel.outputs
        w.line("acc = acc / tl.where(total == 0, 1.0, total)[:, None]")
        self.begin("out", out, "head")
        s = out.strides
        at = self.address("out_head", ("x[:, None]", s[2]), ("f[None, :]", s[3]))
        masks = " & ".join(["row_mask", *(f"{m}[None, :]" for m in f)])
        w.line(f"tl.store({at}, acc.to({TYPES[out.dtype]}), mask={masks})")
        for name, value, t in zip(
            ("sums", "tops"), ("limit + tl.log2(total)", "limit"), rows, strict=False
        ):
            self._store_rows(name, value, t)

    def _store_rows(self, name: str, value: str, t: TensorRef) -> None:
        self.begin(name, t, "head")
        at = self.address(f"{name}_head", ("x", t.strides[2]))
        self.writer.line(f"tl.store({at}, {value}, mask=x_mask)")
