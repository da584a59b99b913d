"""The gradients of flash attention as one `@triton.jit` function: Dao 2023.

The first programs compute the gradients of `RBLOCK` keys and values each, walking over the queries
of all heads that look at them; the others those of `XBLOCK` queries, walking over the keys. Both
compute the weights again, from the scores and the logarithms of their sums, so that no weight is
ever stored and no sum is shared between programs.
"""

import math
from collections.abc import Sequence

from attrs import define

from gyrator_codegen_triton.templates.attention_text import additive, scores
from gyrator_codegen_triton.templates.gradients_text import GradientsText
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

    @property
    def last_first(self) -> bool:
        """Whether the last rows are begun first."""
        return self.causal

    def heads_of_rows(self, head: str) -> None:
        """Write where what goes with the rows of a head begins."""
        super().heads_of_rows(head)
        if self.mask is not None:
            self.begin("mask", self.mask, head)

    def weigh(self, along: str) -> None:
        """Write the weights of scores."""
        if additive(self, self.mask):
            self.writer.line(f"weights = tl.exp2((scores - sums{along}) * {_LOG2E!r})")
        else:
            scaled = f"scores * {self.scale * _LOG2E!r}"
            self.writer.line(f"weights = tl.exp2({scaled} - sums{along} * {_LOG2E!r})")

    # Keys and values ------------------------------------------------------------------------

    def walk_rows(self, head: str, e: Sequence[str], f: Sequence[str]) -> None:
        """Write the walk over the rows of a head that see the block."""
        w = self.writer
        self.heads_of_rows(head)
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
