"""Flash attention as one `@triton.jit` function (Dao et al. 2022, Dao 2023).

A program computes the results of `XBLOCK` queries of one head. It iterates over blocks of keys and
values, and maintains for each row the largest score so far, the sum of the exponentials of scores
relative to it, and the sum of the values weighted by these exponentials. The sums are rescaled
whenever the largest score grows. Scores are never stored.
"""

import math
from collections.abc import Sequence

from gyrator_codegen.passes.blocks.attention_shapes import vector_of
from gyrator_codegen_triton.dtypes import TYPES
from gyrator_codegen_triton.source import blocks_over
from gyrator_codegen_triton.templates.attention_text import (
    AttentionText,
    additive,
    begin,
    load_keys,
    positions,
    scores,
)
from gyrator_ir.define import define
from gyrator_ir.expr import Const, Expr
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.provenance import Origin


@define(eq=False)
class AttentionKernel(AttentionText):
    """The state while a kernel is emitted."""

    @property
    def mask(self) -> TensorRef | None:
        """The bias that is added to the scores, or the boolean mask; None without one."""
        return self.kernel.inputs[3] if len(self.kernel.inputs) > 3 else None

    @property
    def sums(self) -> TensorRef | None:
        """The output for the logarithms of the sums, or None."""
        return self.kernel.outputs[1] if len(self.kernel.outputs) > 1 else None

    def write(self, origins: Sequence[Origin]) -> None:
        """Emit the function."""
        w = self.writer
        with self.function(self.symbol):
            begin(self, origins)
            self.lengths()
            self.locate()
            w.line("x = first + tl.arange(0, XBLOCK)")
            w.line(f"x_mask = x < {self.rows}")
            e, f = self.vectors()
            self.start(e)
            self.column_loops(lambda edge: self.step(e, f, edge))
            self.finish(f)

    @property
    def programs(self) -> Expr:
        """One program per block of rows of a head."""
        batch, heads = self.q.shape[:2]
        return blocks_over(self.padded, "XBLOCK") * (batch * heads)

    @property
    def padded(self) -> Expr:
        """Number of rows of a head to write, including padding."""
        return self.q.shape[2] if self.sums is None else self.sums.shape[2]

    def locate(self) -> None:
        """Emit the program's head and rows, and pointers to its tensors."""
        w = self.writer
        heads = self.q.shape[1]
        padded = self.rows if self.padded == self.q.shape[2] else self.let("padded", self.padded)
        w.line(f"tiles = ({padded} + XBLOCK - 1) // XBLOCK")
        w.line("program = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        count = self.factor(heads)
        w.line(f"head = program // tiles % {count}")
        w.line(f"batch = program // (tiles * {count})")
        tile = "program % tiles"
        if self.causal:
            w.line("# The last rows attend to most columns, so they start first.")
            tile = f"(tiles - 1 - {tile})"
        w.line(f"first = {tile} * XBLOCK")
        shared = self.group("head")
        tensors = [("query", self.q, "head"), ("key", self.k, shared), ("value", self.v, shared)]
        if self.mask is not None:
            tensors.append(("mask", self.mask, "head"))
        tensors.append(("out", self.kernel.outputs[0], "head"))
        if self.sums is not None:
            tensors.append(("sums", self.sums, "head"))
        for name, t, head in tensors:
            self.pointer(name, t, head)

    def start(self, e: Sequence[str]) -> None:
        """Emit the load of the queries, and the initialisation of the accumulators."""
        w = self.writer
        masks = ["x_mask[:, None]", *(f"{m}[None, :]" for m in e)]
        w.line(f"query = {self.block('query', self.q, 'x', 'e', masks)}")
        w.line('limit = tl.full([XBLOCK], float("-inf"), tl.float32)')
        w.line("total = tl.zeros([XBLOCK], tl.float32)")
        w.line(f"acc = tl.zeros([XBLOCK, {vector_of(self.v)}], tl.float32)")

    def step(self, e: Sequence[str], f: Sequence[str], edge: bool) -> None:
        """Emit the step for a block of keys and values, which is masked at the `edge`."""
        w = self.writer
        positions(self, "r", "RBLOCK", self.columns, masked=edge)
        load_keys(self, ["r_mask[None, :]"] * edge, e)
        w.line(f"scores = tl.dot(query, key{self.exact})")
        scores(self, self.mask, bounded=edge, edge=edge)
        self.weights()
        masks = ["r_mask[:, None]"] * edge + [f"{m}[None, :]" for m in f]
        w.line(f"value = {self.block('value', self.v, 'r', 'f', masks)}")
        w.line(f"acc = tl.dot(weights.to(value.dtype), value, acc * decay[:, None]{self.exact})")
        w.line("limit = top")

    def weights(self) -> None:
        """Emit the exponentials relative to the largest score, and the update of their sums."""
        w = self.writer
        log2e = math.log2(math.e)
        if additive(self, self.mask):
            w.line("top = tl.maximum(limit, tl.max(scores, 1))")
        else:
            scaled = repr(self.scale * log2e)
            w.line(f"top = tl.maximum(limit, tl.max(scores, 1) * {scaled})")
        shift = "top"
        if self.mask is not None:
            shift = "shift"
            w.line("# A row that has attended to no column yet has no largest score.")
            w.line('shift = tl.where(top == float("-inf"), 0.0, top)')
        if additive(self, self.mask):
            w.line(f"weights = tl.exp2((scores - {shift}[:, None]) * {log2e!r})")
            w.line(f"decay = tl.exp2((limit - {shift}) * {log2e!r})")
        else:
            w.line(f"weights = tl.exp2(scores * {scaled} - {shift}[:, None])")
            w.line(f"decay = tl.exp2(limit - {shift})")
        w.line("total = total * decay + tl.sum(weights, 1)")

    def finish(self, f: Sequence[str]) -> None:
        """Emit the stores of the results."""
        w = self.writer
        out = self.kernel.outputs[0]
        w.line("acc = acc / tl.where(total == 0, 1.0, total)[:, None]")
        masks = ["x_mask[:, None]", *(f"{m}[None, :]" for m in f)]
        s = out.strides
        at = self.address("out_head", ("x[:, None]", s[2]), ("f[None, :]", s[3]))
        w.line(f"tl.store({at}, acc.to({TYPES[out.dtype]}), mask={' & '.join(masks)})")
        if self.sums is None:
            return
        if additive(self, self.mask):
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
