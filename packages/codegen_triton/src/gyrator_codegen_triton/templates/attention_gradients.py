"""The gradients of flash attention as one `@triton.jit` function (Dao 2023).

The first programs compute the gradients of `RBLOCK` keys and values each, in a loop over the
queries of all heads that attend to them; the others those of `XBLOCK` queries, in a loop over the
keys; both in blocks of `KBLOCK`. Both recompute the weights from the scores and the logarithms of
their sums, so that no weight is stored and no sum is shared between programs.
"""

import math
from collections.abc import Sequence

from gyrator_codegen_triton.templates.attention_text import additive, positions, scores
from gyrator_codegen_triton.templates.gradients_text import GradientsText
from gyrator_ir.define import define
from gyrator_ir.loop.nodes import TensorRef

_LOG2E = math.log2(math.e)


@define(eq=False)
class GradientsKernel(GradientsText):
    """The state while a kernel is emitted."""

    @property
    def mask(self) -> TensorRef | None:
        """The bias that is added to the scores, or the boolean mask; None without one."""
        return self.kernel.inputs[6] if len(self.kernel.inputs) > 6 else None

    @property
    def empty_rows(self) -> bool:
        """Whether rows may be fully masked."""
        return self.mask is not None

    @property
    def last_rows_first(self) -> bool:
        """Whether the last rows are processed first."""
        return self.causal

    def row_pointers(self, head: str) -> None:
        """Emit pointers to the tensors of the rows of a head."""
        super().row_pointers(head)
        if self.mask is not None:
            self.pointer("mask", self.mask, head)

    def weights(self, along: str) -> None:
        """Emit the weights, from the scores."""
        if additive(self, self.mask):
            self.writer.line(f"weights = tl.exp2((scores - sums{along}) * {_LOG2E!r})")
        else:
            scaled = f"scores * {self.scale * _LOG2E!r}"
            self.writer.line(f"weights = tl.exp2({scaled} - sums{along} * {_LOG2E!r})")

    # Keys and values ------------------------------------------------------------------------

    def loop_over_rows(self, head: str, e: Sequence[str], f: Sequence[str]) -> None:
        """Emit the loop over the rows of a head that attend to the block."""
        w = self.writer
        self.row_pointers(head)
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
        """Emit the contribution of a block of rows, with transposed blocks of scores."""
        w, exact = self.writer, self.exact
        positions(self, "x", "XBLOCK", self.rows)
        self.load_rows(e, f)
        w.line(f"scores = tl.dot(key, tl.trans(query){exact})")
        scores(self, self.mask, bounded=False, edge=edge, transposed=True)
        self.weights("[None, :]")
        w.line(f"value_sum = tl.dot(weights.to(grad.dtype), grad, value_sum{exact})")
        w.line(f"slopes = weights * (tl.dot(value, tl.trans(grad){exact}) - mean[None, :])")
        w.line(f"key_sum = tl.dot(slopes.to(query.dtype), query, key_sum{exact})")

    # Queries --------------------------------------------------------------------------------

    def loop_over_columns(self, e: Sequence[str], f: Sequence[str]) -> None:
        """Emit the loop over the columns that the rows attend to."""
        self.column_loops(lambda edge: self.step_of_queries(e, f, edge=edge))

    def step_of_queries(self, e: Sequence[str], f: Sequence[str], *, edge: bool) -> None:
        """Emit the contribution of a block of columns."""
        w, exact = self.writer, self.exact
        positions(self, "r", "RBLOCK", self.columns, masked=edge)
        columns = ["r_mask[:, None]"] * edge
        w.line(f"key = {self.block('key', self.k, 'r', 'e', [*columns, *e])}")
        w.line(f"value = {self.block('value', self.v, 'r', 'f', [*columns, *f])}")
        w.line(f"scores = tl.dot(query, tl.trans(key){exact})")
        scores(self, self.mask, bounded=edge, edge=edge)
        self.weights("[:, None]")
        w.line(f"slopes = weights * (tl.dot(grad, tl.trans(value){exact}) - mean[:, None])")
        w.line(f"query_sum = tl.dot(slopes.to(key.dtype), key, query_sum{exact})")
