"""Shared parts of flexible attention kernels and their gradients: formulas and loops over blocks.

Formulas consist of ordinary kernel statements. Rows, or columns in transposed blocks of scores, are
the first dimension of a block. Loop-invariant statements are emitted before the loop.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attrs import evolve, field

from gyrator_codegen.positions import Blocks, Flat
from gyrator_codegen_triton.body import statement
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.templates.attention_text import AttentionText
from gyrator_ir.body.nodes import Axis, Bind, Statement
from gyrator_ir.body.rewrite import defined, expressions, used
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import Const, Expr, Sym
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.formulas import COLUMN, ROW, SCORE_INDICES, is_true, with_distinct_names
from gyrator_ir.loop.nodes import Formula, TensorRef
from gyrator_ir.loop.templates import ENDLESS, literal
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.tile.plain import untiled
from gyrator_ir.types import DType

LOG2E = math.log2(math.e)


@frozen
class BlockLoop:
    """A loop over the blocks that a block attends to."""

    listed: tuple[TensorRef, TensorRef] | None
    """The numbers of blocks and their indices; None for all blocks."""
    masked: bool
    """Whether the mask's formula is applied."""
    name: str


@define(eq=False)
class FlexText(AttentionText):
    """The state while a kernel is emitted."""

    formulas: tuple[Formula, ...] = field(init=False)
    """The formulas of the kernel, with distinct names."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.formulas = with_distinct_names(self.kernel.formulas)
        for symbol in SCORE_INDICES:
            assert self.names.stable(symbol.name) == symbol.name

    def number(self, name: str) -> int:
        """Return an integer attribute."""
        return literal(self.kernel.attributes, name, int)

    def divides(self, count: Expr) -> bool:
        """Return whether blocks of columns divide `count`."""
        fills = isinstance(count, Const) and not count.value % self.number("column_block")
        return fills or super().divides(count)

    def formula(self, name: str) -> Formula:
        """Return the formula with this name."""
        return next(f for f in self.formulas if f.name == name)

    @property
    def plain(self) -> bool:
        """Whether scores are not modified."""
        score = self.formula("score")
        others = [s for f in self.formulas if f.name == "slope" for s in f.body]
        arguments = {f.parameters[0] for f in self.formulas if f.parameters}
        return score.result in score.parameters and arguments.isdisjoint(
            n for s in others for n in used(s)
        )

    @property
    def everywhere(self) -> bool:
        """Whether the mask is true everywhere."""
        return is_true(self.formula("mask"))

    @property
    def factor_of_scores(self) -> float:
        """Factor of scores in exponentials to base 2."""
        return self.scale * LOG2E if self.plain and self.scale > 0 else LOG2E

    def block_loops(self, tensors: Sequence[TensorRef]) -> list[BlockLoop]:
        """Return the loops over pairs of tensors, over partial blocks and over full ones, or the
        loop over all blocks if there are none."""
        masked = not self.everywhere
        if not tensors:
            return [BlockLoop(None, masked, "some")]
        pairs = zip(tensors[::2], tensors[1::2], strict=True)
        return [
            BlockLoop(pair, masked and not n, name)
            for n, (pair, name) in enumerate(zip(pairs, ("some", "whole"), strict=False))
        ]

    def begin_loops(
        self, loops: Sequence[BlockLoop], head: str, block: str, length: int, extent: str
    ) -> None:
        """Emit the number of blocks in each loop for block number `block`, of all that `extent` has
        if none are listed."""
        for loop in loops:
            if loop.listed is None:
                count = f"tl.cdiv({extent}, {length})" if length < ENDLESS else "1"
            else:
                counts, blocks = loop.listed
                self.pointer(f"{loop.name}_count", counts, head)
                self.pointer(f"{loop.name}_place", blocks, head)
                count = self.address(f"{loop.name}_count_head", (block, counts.strides[2]))
                count = f"tl.load({count})"
            self.writer.line(f"{loop.name}_count = {count}")

    @contextmanager
    def block_loop(
        self, loop: BlockLoop, block: str, length: int, step: str, extent: str
    ) -> Iterator[None]:
        """Emit the loop over blocks of length `step` within those that block number `block` attends
        to, each of which begins at `start`."""
        w = self.writer
        steps = f"({length} // {step})" if length < ENDLESS else f"tl.cdiv({extent}, {step})"
        with w.block(f"for place in range({self.steps(loop, length, steps)}):", end=""):
            if length >= ENDLESS or loop.listed is None:
                w.line(f"start = place * {step}")
            else:
                s = loop.listed[1].strides
                place = f"{loop.name}_place_head"
                at = self.address(place, (block, s[2]), (f"place // {steps}", s[3]))
                wide = ".to(tl.int64)" if self.wide else ""
                w.line(f"start = tl.load({at}){wide} * {length} + place % {steps} * {step}")
            yield

    def steps(self, loop: BlockLoop, length: int, steps: str) -> str:
        """Return the range of steps of a loop over blocks of `length` elements with `steps` steps
        each."""
        return f"0, {loop.name}_count * {steps}"

    # Formulas -------------------------------------------------------------------------------

    @property
    def first_axes(self) -> tuple[Axis, ...]:
        """The axes of the rows of a block."""
        return (Axis(ROW, self.q.shape[2]),)

    def code(self, transposed: bool) -> Code:
        """Return the emission state of statements over a block of scores. With `transposed`,
        columns are its first dimension."""
        k = self.kernel
        rows, columns = self.first_axes, (Axis(COLUMN, self.k.shape[2]),)
        first, second = (columns, rows) if transposed else (rows, columns)
        body = tuple(s for f in self.formulas for s in f.body)
        sizes = (*self.q.shape[:3], self.k.shape[2])
        axes = tuple(map(Axis, SCORE_INDICES, sizes))
        stub = Kernel(k.name, k.device, axes, (), (), parameters=k.parameters, sizes=k.sizes)
        others = {s.symbol for s in body if isinstance(s, Bind)} | set(SCORE_INDICES)
        flats = (Flat("i", first, others), Flat("r", second, others))
        blocks = Blocks(first, second, tiles=True)
        tiled = untiled(stub)
        assert isinstance(tiled, TiledKernel)
        code = Code(tiled, blocks, flats, self.writer, self.names, self.wide)
        code.letters = ("column", "row") if transposed else ("row", "column")
        code.lengths = ("RBLOCK", "XBLOCK") if transposed else ("XBLOCK", "RBLOCK")
        code.inner = True
        return code

    def invariant(self, code: Code, names: Sequence[str], moving: Sym) -> None:
        """Emit the statements of these formulas that depend neither on `moving` nor on their
        arguments."""
        for name in names:
            for s in _split_invariant(self.formula(name), moving)[0]:
                statement(code, s)

    def apply(self, code: Code, name: str, moving: Sym, arguments: Sequence[str]) -> str:
        """Emit the other statements of a formula; return its result as a full block."""
        f = self.formula(name)
        inside = evolve(code, values=dict(code.values), bound=dict(code.bound))
        for value, text in zip(f.parameters, arguments, strict=True):
            inside.values[value] = Value(text, DType.F32, True, True)
        for s in _split_invariant(f, moving)[1]:
            statement(inside, s)
        result = inside.values[f.result]
        return result.text if result.x and result.r else inside.full(result.text)

    # A step of a loop -----------------------------------------------------------------------

    def weights(self, along: str) -> None:
        """Emit the weights, from the scores and the base-2 logarithms of their sums."""
        factor = self.factor_of_scores
        self.writer.line(f"weights = tl.exp2(scores * {factor!r} - sums{along})")

    def product_gradients(
        self, code: Code, moving: Sym, along: str, conditions: Sequence[str]
    ) -> None:
        """Emit the gradients of the products, from `factors` and the rows' `mean`."""
        w = self.writer
        w.line(f"slopes = weights * (factors - mean{along})")
        slope = self.formula("slope")
        if slope.result != slope.parameters[1]:
            text = self.apply(code, "slope", moving, ["products", "slopes"])
            w.line(f"slopes = {_chosen(conditions, text, '0.0')}")

    def scores(self, code: Code, loop: BlockLoop, moving: Sym, bounds: Sequence[str]) -> list[str]:
        """Emit `scores` from `products`; return the conditions under which they are not masked."""
        w = self.writer
        if not self.plain or self.scale <= 0:
            w.line(f"products = products * {self.scale!r}")
        scores = "products" if self.plain else self.apply(code, "score", moving, ["products"])
        conditions = [*bounds, *([self.apply(code, "mask", moving, [])] if loop.masked else [])]
        w.line(f"scores = {_chosen(conditions, scores, '-inf')}")
        return conditions


def _chosen(conditions: Sequence[str], value: str, other: str) -> str:
    if not conditions:
        return value
    filled = other if other == "0.0" else f'float("{other}")'
    return f"tl.where({' & '.join(conditions)}, {value}, {filled})"


def _split_invariant(f: Formula, moving: Sym) -> tuple[list[Statement], list[Statement]]:
    """Return the statements that depend neither on `moving` nor on the arguments, and the rest."""
    names, symbols = set(f.parameters), {moving}
    first: list[Statement] = []
    rest: list[Statement] = []
    for s in f.body:
        depends = not names.isdisjoint(used(s))
        depends |= any(not symbols.isdisjoint(e.free_symbols) for e in expressions(s))
        (rest if depends else first).append(s)
        if depends:
            names.update(defined(s))
            if isinstance(s, Bind):
                symbols.add(s.symbol)
    return first, rest
