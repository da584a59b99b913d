"""Flexible attention of few rows that attend to many columns, as one `@triton.jit` function.

A program computes the results of `XBLOCK` queries over one part of the columns, so that there are
enough programs for the device (flash decoding, Dao et al. 2023). Queries of all heads that attend
to the same keys can be rows of one block, so that keys and values are read once for all of them. A
later operation merges the parts.
"""

from attrs import evolve

from gyrator_codegen_triton.source import blocks_over
from gyrator_codegen_triton.templates.flex import FlexKernel
from gyrator_codegen_triton.templates.flex_text import BlockLoop
from gyrator_ir.body.nodes import Axis
from gyrator_ir.define import define
from gyrator_ir.expr import ONE, Expr
from gyrator_ir.loop.formulas import HEAD
from gyrator_ir.loop.nodes import TensorRef
from gyrator_ir.loop.templates import ENDLESS, piece_of


@define(eq=False)
class FlexPartsKernel(FlexKernel):
    """The state while a kernel is emitted."""

    @property
    def together(self) -> int:
        """Number of heads of queries whose rows share a block."""
        return self.number("together")

    @property
    def block_of_rows(self) -> str:
        """Index of the mask's block of rows that contains the program's rows."""
        return "0" if self.together > 1 else super().block_of_rows

    @property
    def programs(self) -> Expr:
        """One program per part of the columns and block of rows of the heads that share blocks."""
        batch, heads, rows = self.q.shape[:3]
        blocks = blocks_over(rows * self.together, "XBLOCK")
        return blocks * (batch * (heads // self.together) * self.number("parts"))

    @property
    def first_axes(self) -> tuple[Axis, ...]:
        """The axes of the rows of a block."""
        rows = super().first_axes
        return (Axis(HEAD, self.q.shape[1]), *rows) if self.together > 1 else rows

    def lengths(self) -> None:
        """Emit the numbers of rows and columns."""
        super().lengths()
        if self.together > 1:
            self.rows = self.show(self.q.shape[2] * self.together)

    def heads(self, count: str) -> None:
        """Emit the program's batch, part of the columns, and heads."""
        parts, together = self.number("parts"), self.together
        if together > 1:
            count = self.factor(self.q.shape[1] // together)
        first = f"program // tiles % {count}"
        self.writer.line(f"head = {first}" + (f" * {together}" if together > 1 else ""))
        self.writer.line(f"part = program // (tiles * {count}) % {parts}")
        self.writer.line(f"batch = program // (tiles * {count} * {parts})")

    def rows_of_blocks(self) -> None:
        """Emit the names of the rows in formulas, and of their heads if these share blocks."""
        if self.together == 1:
            super().rows_of_blocks()
            return
        count = self.q.shape[2]
        w, rows = self.writer, self.factor(count)
        w.line("near = x" if count is ONE else f"near = x // {rows}")
        w.line("i1 = head + near[:, None]")
        w.line(
            "row = tl.zeros_like(x)[:, None]" if count is ONE else f"row = (x % {rows})[:, None]"
        )
        w.line("i2 = row")

    def along_rows(self, t: TensorRef, across: str = "[:, None]") -> list[tuple[str, Expr]]:
        """Return the address terms of the rows of a block: indices and strides."""
        terms = super().along_rows(t, across)
        if self.together == 1:
            return terms
        count = self.q.shape[2]
        near = (f"near{across}", t.strides[-3 if across else -2])
        rows = f"(x{across} % {self.factor(count)})"
        return [near, *((rows, stride) for _, stride in terms if count is not ONE)]

    def steps(self, loop: BlockLoop, length: int, steps: str) -> str:
        """Return the range of steps of the program's part."""
        piece, parts, name = piece_of(length), self.number("parts"), f"{loop.name}_pieces"
        pieces = f"tl.cdiv({self.columns}, {piece})" if length >= ENDLESS else str(length // piece)
        self.writer.line(f"{name} = {loop.name}_count * {pieces}")
        ends = (f"{name} * {part} // {parts}" for part in ("part", "(part + 1)"))
        return ", ".join(f"{end} * ({piece} // RBLOCK)" for end in ends)

    def pointer(self, name: str, t: TensorRef, head: str) -> None:
        """Emit the pointer to the program's head of a tensor, or its part of a result."""
        if t not in self.kernel.outputs:
            super().pointer(name, t, head)
            return
        super().pointer(name, evolve(t, shape=t.shape[1:], strides=t.strides[1:]), head)
        at = self.address(f"{name}_head", ("part", t.strides[0]))
        self.writer.line(f"{name}_head = {at}")
