"""The gradients of flash attention as one `@triton.jit` function: Dao 2023.

The first programs compute the gradients of `RBLOCK` keys and values each, walking over the queries
of all heads that look at them; the others those of `XBLOCK` queries, walking over the keys. Both
compute the weights again, from the scores and the logarithms of their sums, so that no weight is
ever stored and no sum is shared between programs.
"""

import math
from collections.abc import Sequence

from attrs import define

from gyrator_codegen_triton.templates.attention_text import additive, scores, vector_of
from gyrator_codegen_triton.templates.gradients_text import GradientsText
from gyrator_ir.expr import ONE
from gyrator_ir.loop.nodes import TensorRef

_LOG2E = math.log2(math.e)


@define(eq=False)
class GradientsKernel(GradientsText):
    """What is known while one kernel is written."""

    @property
    def mask(self) -> TensorRef | None:
        """What is added to the scores, or says which of them count."""
        return self.kernel.inputs[6] if len(self.kernel.inputs) > 6 else None

    @property
    def empty_rows(self) -> bool:
        """Whether rows may look nowhere."""
        return self.mask is not None

    def heads_of_rows(self, head: str) -> None:
        """Write where what goes with the rows of a head begins."""
        tensors = [("query", self.q), ("grad", self.grad), ("sums", self.kernel.inputs[4])]
        tensors.append(("mean", self.kernel.inputs[5]))
        if self.mask is not None:
            tensors.append(("mask", self.mask))
        for name, t in tensors:
            self.begin(name, t, head)

    def weigh(self, along: str) -> None:
        """Write the weights of scores."""
        if additive(self, self.mask):
            self.writer.line(f"weights = tl.exp2((scores - sums{along}) * {_LOG2E!r})")
        else:
            scaled = f"scores * {self.scale * _LOG2E!r}"
            self.writer.line(f"weights = tl.exp2({scaled} - sums{along} * {_LOG2E!r})")

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
        e, f = ([f"{m}[None, :]" for m in masks] for masks in self.vectors())
        self.begin("key", self.k, "group")
        self.begin("value", self.v, "group")
        columns = ["r_mask[:, None]"]
        w.line(f"key = {self.block('key', self.k, 'r', 'e', [*columns, *e])}")
        w.line(f"value = {self.block('value', self.v, 'r', 'f', [*columns, *f])}")
        w.line(f"key_sum = tl.zeros([RBLOCK, {vector_of(self.k)}], tl.float32)")
        w.line(f"value_sum = tl.zeros([RBLOCK, {vector_of(self.v)}], tl.float32)")
        if self.heads_a_group is ONE:
            self.heads_of_rows("group")
            self.walk_rows(e, f)
        else:
            ratio = self.factor(self.heads_a_group)
            with w.block(f"for member in range(0, {ratio}):", end=""):
                w.line(f"head = group * {ratio} + member")
                self.heads_of_rows("head")
                self.walk_rows(e, f)
        self.begin("key_out", self.kernel.outputs[1], "group")
        self.begin("value_out", self.kernel.outputs[2], "group")
        self.store("key_out", 1, f"key_sum * {self.scale!r}", "r", "e", [*columns, *e])
        self.store("value_out", 2, "value_sum", "r", "f", [*columns, *f])

    def walk_rows(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Write the walk over the rows of a head that see the block."""
        w = self.writer
        if not self.causal:
            with w.block(f"for start in range(0, {self.rows}, XBLOCK):", end=""):
                self.step_of_keys(e, f, edge=False)
            return
        w.line("begin = first // XBLOCK * XBLOCK")
        w.line("whole = (first + RBLOCK + XBLOCK - 1) // XBLOCK * XBLOCK")
        with w.block(f"for start in range(begin, tl.minimum(whole, {self.rows}), XBLOCK):", end=""):
            self.step_of_keys(e, f, edge=True)
        with w.block(f"for start in range(whole, {self.rows}, XBLOCK):", end=""):
            self.step_of_keys(e, f, edge=False)

    def step_of_keys(self, e: Sequence[str], f: Sequence[str], *, edge: bool) -> None:
        """Write what a block of rows adds; blocks of scores are turned."""
        w, exact = self.writer, self.exact
        wide = ".to(tl.int64)" if self.wide else ""
        w.line(f"x = start + tl.arange(0, XBLOCK){wide}")
        w.line(f"x_mask = x < {self.rows}")
        self.rows_of(e, f)
        w.line(f"scores = tl.dot(key, tl.trans(query){exact})")
        scores(self, self.mask, bounded=False, edge=edge, turned=True)
        self.weigh("[None, :]")
        w.line(f"value_sum = tl.dot(weights.to(grad.dtype), grad, value_sum{exact})")
        w.line(f"slopes = weights * (tl.dot(value, tl.trans(grad){exact}) - mean[None, :])")
        w.line(f"key_sum = tl.dot(slopes.to(query.dtype), query, key_sum{exact})")

    # Queries --------------------------------------------------------------------------------

    def of_queries(self) -> None:
        """Write the gradients of a block of queries."""
        w = self.writer
        count = self.factor(self.q.shape[1])
        w.line(f"tiles = ({self.rows} + XBLOCK - 1) // XBLOCK")
        w.line(f"head = program // tiles % {count}")
        w.line(f"batch = program // (tiles * {count})")
        tile = "(tiles - 1 - program % tiles)" if self.causal else "program % tiles"
        w.line(f"first = {tile} * XBLOCK")
        w.line("x = first + tl.arange(0, XBLOCK)")
        w.line(f"x_mask = x < {self.rows}")
        e, f = ([f"{m}[None, :]" for m in masks] for masks in self.vectors())
        self.begin("key", self.k, self.group("head"))
        self.begin("value", self.v, self.group("head"))
        self.heads_of_rows("head")
        self.rows_of(e, f)
        w.line(f"query_sum = tl.zeros([XBLOCK, {vector_of(self.q)}], tl.float32)")
        self.walk_columns(e, f)
        self.begin("query_out", self.kernel.outputs[0], "head")
        masks = ["x_mask[:, None]", *e]
        self.store("query_out", 0, f"query_sum * {self.scale!r}", "x", "e", masks)

    def walk_columns(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Write the walk over the columns that the rows see."""
        w, columns = self.writer, self.k.shape[2]
        if not self.causal and self.divides(columns):
            with w.block(f"for start in range(0, {self.columns}, RBLOCK):", end=""):
                self.step_of_queries(e, f, edge=False)
            return
        last = inside = self.columns
        if self.causal:
            w.line(f"last = tl.minimum({self.columns}, first + XBLOCK)")
            last, inside = "last", f"tl.minimum({self.columns}, first + 1)"
        w.line(f"whole = {inside} // RBLOCK * RBLOCK")
        with w.block("for start in range(0, whole, RBLOCK):", end=""):
            self.step_of_queries(e, f, edge=False)
        with w.block(f"for start in range(whole, {last}, RBLOCK):", end=""):
            self.step_of_queries(e, f, edge=True)

    def step_of_queries(self, e: Sequence[str], f: Sequence[str], *, edge: bool) -> None:
        """Write what a block of columns adds."""
        w, exact = self.writer, self.exact
        wide = ".to(tl.int64)" if self.wide else ""
        w.line(f"r = start + tl.arange(0, RBLOCK){wide}")
        if edge:
            w.line(f"r_mask = r < {self.columns}")
        columns = ["r_mask[:, None]"] * edge
        w.line(f"key = {self.block('key', self.k, 'r', 'e', [*columns, *e])}")
        w.line(f"value = {self.block('value', self.v, 'r', 'f', [*columns, *f])}")
        w.line(f"scores = tl.dot(query, tl.trans(key){exact})")
        scores(self, self.mask, bounded=edge, edge=edge)
        self.weigh("[:, None]")
        w.line(f"slopes = weights * (tl.dot(grad, tl.trans(value){exact}) - mean[:, None])")
        w.line(f"query_sum = tl.dot(slopes.to(key.dtype), key, query_sum{exact})")
