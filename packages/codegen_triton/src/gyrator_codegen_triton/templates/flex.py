"""Flexible attention as one `@triton.jit` function: flash attention (Dao et al. 2022, Dao 2023)
over the blocks of keys that a block mask lists (Dong et al. 2024).

A program computes the results of `XBLOCK` queries of one head, as in `attention`, in two loops:
over partial blocks, to which the mask's formula is applied, then over full blocks.
"""

from collections.abc import Sequence

from gyrator_codegen.passes.blocks.attention_shapes import vector_of
from gyrator_codegen_triton.code import Code
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.source import blocks_over
from gyrator_codegen_triton.templates.attention_text import begin, load, load_keys, positions
from gyrator_codegen_triton.templates.flex_text import BlockLoop, FlexText
from gyrator_ir.define import define
from gyrator_ir.expr import Expr
from gyrator_ir.loop.formulas import COLUMN
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.loop.templates import first_captured
from gyrator_ir.provenance import Origin

_FORMULAS = ("score", "mask")


@define(eq=False)
class FlexKernel(FlexText):
    """The state while a kernel is emitted."""

    def write(self, origins: Sequence[Origin]) -> None:
        """Emit the function."""
        first = first_captured(self.kernel.kind, self.kernel.attributes)
        loops = self.block_loops(self.kernel.inputs[3:first])
        with self.function(self.symbol):
            begin(self, origins)
            self.lengths()
            self.locate()
            e, f = self.vectors()
            self.start(e)
            code = self.code(transposed=False)
            self.invariant(code, _FORMULAS, COLUMN)
            block, length = self.block_of_rows, self.number("column_block")
            self.begin_loops(loops, "head", block, length, self.columns)
            for loop in loops:
                with self.block_loop(loop, block, length, "RBLOCK", self.columns):
                    self.step(code, loop, e, f)
            self.finish(f)

    @property
    def block_of_rows(self) -> str:
        """Index of the mask's block of rows that contains the program's rows."""
        return f"first // {self.number('row_block')}"

    @property
    def programs(self) -> Expr:
        """One program per block of rows of a head."""
        batch, heads, rows = self.q.shape[:3]
        return blocks_over(rows, "XBLOCK") * (batch * heads)

    def locate(self) -> None:
        """Emit the program's head and rows, and pointers to its tensors."""
        w, count = self.writer, self.factor(self.q.shape[1])
        w.line(f"tiles = ({self.rows} + XBLOCK - 1) // XBLOCK")
        w.line("program = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        self.heads(count)
        w.line("# The last rows often attend to most columns, so they start first.")
        w.line("first = (tiles - 1 - program % tiles) * XBLOCK")
        w.lines("i0 = batch", "i1 = head")
        self.pointer("query", self.q, "head")
        self.pointer("key", self.k, self.group("head"))
        self.pointer("value", self.v, self.group("head"))

    def heads(self, count: str) -> None:
        """Emit the program's batch and head, of `count` heads."""
        self.writer.line(f"head = program // tiles % {count}")
        self.writer.line(f"batch = program // (tiles * {count})")

    def start(self, e: Sequence[str]) -> None:
        """Emit the load of the queries, and the initialisation of the accumulators."""
        w = self.writer
        w.line("x = first + tl.arange(0, XBLOCK)")
        w.line(f"x_mask = x < {self.rows}")
        w.line("row_mask = x_mask[:, None]")
        self.rows_of_blocks()
        masks = ["row_mask", *(f"{m}[None, :]" for m in e)]
        at = self.address("query_head", *self.along_rows(self.q), ("e[None, :]", self.q.strides[3]))
        w.line(f"query = {load(at, masks)}")
        w.line('limit = tl.full([XBLOCK], float("-inf"), tl.float32)')
        w.line("total = tl.zeros([XBLOCK], tl.float32)")
        w.line(f"acc = tl.zeros([XBLOCK, {vector_of(self.v)}], tl.float32)")

    def rows_of_blocks(self) -> None:
        """Emit the names of the rows in formulas."""
        self.writer.lines("row = x[:, None]", "i2 = row")

    def along_rows(self, t: TensorRef, across: str = "[:, None]") -> list[tuple[str, Expr]]:
        """Return the address terms of the rows of a block, for a tensor with or without vectors:
        the indices and strides."""
        return [(f"x{across}", t.strides[-2 if across else -1])]

    def step(self, code: Code, loop: BlockLoop, e: Sequence[str], f: Sequence[str]) -> None:
        """Emit the step for a block of keys and values."""
        w = self.writer
        positions(self, "r", "RBLOCK", self.columns)
        w.lines("column = r[None, :]", "column_mask = r_mask[None, :]", "i3 = column")
        bounded = not self.divides(self.k.shape[2])
        load_keys(self, ["column_mask"] * bounded, e)
        w.line(f"products = tl.dot(query, key{self.exact})")
        conditions = self.scores(code, loop, COLUMN, ["column_mask"] * bounded)
        factor = self.factor_of_scores
        w.line(f"top = tl.maximum(limit, tl.max(scores, 1) * {factor!r})")
        shift = "top"
        if conditions or not self.plain:
            shift = "shift"
            w.line("# A row that has attended to no column yet has no largest score.")
            w.line('shift = tl.where(top == float("-inf"), 0.0, top)')
        w.line(f"weights = tl.exp2(scores * {factor!r} - {shift}[:, None])")
        w.line(f"decay = tl.exp2(limit - {shift})")
        w.line("total = total * decay + tl.sum(weights, 1)")
        masks = ["r_mask[:, None]"] * bounded + [f"{m}[None, :]" for m in f]
        w.line(f"value = {self.block('value', self.v, 'r', 'f', masks)}")
        w.line(f"acc = tl.dot(weights.to(value.dtype), value, acc * decay[:, None]{self.exact})")
        w.line("limit = top")

    def finish(self, f: Sequence[str]) -> None:
        """Emit the stores of the results."""
        w = self.writer
        out, *rows = self.kernel.outputs
        w.line("acc = acc / tl.where(total == 0, 1.0, total)[:, None]")
        self.pointer("out", out, "head")
        at = self.address("out_head", *self.along_rows(out), ("f[None, :]", out.strides[-1]))
        masks = " & ".join(["row_mask", *(f"{m}[None, :]" for m in f)])
        w.line(f"tl.store({at}, acc.to({TYPES[out.dtype]}), mask={masks})")
        for name, value, t in zip(
            ("sums", "tops"), ("limit + tl.log2(total)", "limit"), rows, strict=False
        ):
            self._store_rows(name, value, t)

    def _store_rows(self, name: str, value: str, t: TensorRef) -> None:
        self.pointer(name, t, "head")
        at = self.address(f"{name}_head", *self.along_rows(t, ""))
        self.writer.line(f"tl.store({at}, {value}, mask=x_mask)")
