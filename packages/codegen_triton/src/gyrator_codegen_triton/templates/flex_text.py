"""What kernels of flexible attention and of its gradients share: formulas, and walks over blocks.

Formulas are statements as those of any kernel, printed as such: rows, or columns where blocks of
scores are turned, are the first dimension of a block, and what does not change during a walk is
written before it.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attrs import define, evolve, field, frozen

from gyrator_codegen.positions import Blocks, Flat
from gyrator_codegen_triton.body import statement
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.templates.attention_text import AttentionText
from gyrator_ir.body.nodes import Axis, Bind, Statement
from gyrator_ir.body.nodes import Const as ConstStatement
from gyrator_ir.body.rewrite import defined, expressions, used
from gyrator_ir.expr import Const, Expr, Sym
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.formulas import BATCH, COLUMN, HEAD, PLACES, ROW, apart
from gyrator_ir.loop.nodes import Formula, Literal, TensorRef
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.tile.plain import untiled
from gyrator_ir.types import DType

LOG2E = math.log2(math.e)
_ENDLESS = 1 << 20
"""A block of so many places is all that there are."""


@frozen
class Walk:
    """A walk over the blocks that a block looks at."""

    counts: TensorRef
    places: TensorRef
    masked: bool
    """The formula of the mask says where rows look."""
    name: str


@define(eq=False)
class FlexText(AttentionText):
    """What is known while one kernel is written."""

    formulas: tuple[Formula, ...] = field(init=False)
    """Those of the kernel, whose names all differ."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.formulas = apart(self.kernel.formulas)
        for symbol in PLACES:
            assert self.names.stable(symbol.name) == symbol.name

    def number(self, name: str) -> int:
        """Return an attribute that is an integer."""
        found = dict(self.kernel.attributes)[name]
        assert isinstance(found, Literal) and isinstance(found.value, int)
        return found.value

    def divides(self, count: Expr) -> bool:
        """Whether blocks of columns fill so many places."""
        fills = isinstance(count, Const) and not count.value % self.number("column_block")
        return fills or super().divides(count)

    def formula(self, name: str) -> Formula:
        """Return the formula of this name."""
        return next(f for f in self.formulas if f.name == name)

    @property
    def plain(self) -> bool:
        """Whether scores stay as they are."""
        score = self.formula("score")
        others = [s for f in self.formulas if f.name == "slope" for s in f.body]
        given = {f.given[0] for f in self.formulas if f.given}
        return score.result in score.given and given.isdisjoint(n for s in others for n in used(s))

    @property
    def everywhere(self) -> bool:
        """Whether the mask is true at each place."""
        mask = self.formula("mask")
        return any(
            isinstance(s, ConstStatement) and s.name == mask.result and s.value is True
            for s in mask.body
        )

    @property
    def factor_of_scores(self) -> float:
        """What scores are multiplied by before exponentials to base 2 are taken of them."""
        return self.scale * LOG2E if self.plain and self.scale > 0 else LOG2E

    def walks(self, tensors: Sequence[TensorRef]) -> list[Walk]:
        """Return the walks over pairs of tensors: of blocks with a mask, and of whole ones."""
        names = ("some", "whole")
        return [
            Walk(tensors[2 * n], tensors[2 * n + 1], not n and not self.everywhere, names[n])
            for n in range(len(tensors) // 2)
        ]

    def begin_walks(self, walks: Sequence[Walk], head: str, block: str) -> None:
        """Write how many blocks there are to walk over for block number `block`."""
        for walk in walks:
            self.begin(f"{walk.name}_count", walk.counts, head)
            self.begin(f"{walk.name}_place", walk.places, head)
            at = self.address(f"{walk.name}_count_head", (block, walk.counts.strides[2]))
            self.writer.line(f"{walk.name}_count = tl.load({at})")

    @contextmanager
    def walk(self, walk: Walk, block: str, length: int, step: str, extent: str) -> Iterator[None]:
        """Write the loop over blocks of `step` places of those that block number `block` looks at,
        which begin at `start`."""
        w, s = self.writer, walk.places.strides
        steps = f"({length} // {step})" if length < _ENDLESS else f"tl.cdiv({extent}, {step})"
        number = f"{walk.name}_count * {steps}"
        with w.block(f"for place in range(0, {number}):", end=""):
            at = self.address(f"{walk.name}_place_head", (block, s[2]), (f"place // {steps}", s[3]))
            wide = ".to(tl.int64)" if self.wide else ""
            listed = f"tl.load({at}){wide}"
            if length >= _ENDLESS:
                w.line(f"start = place * {step}")
            else:
                w.line(f"start = {listed} * {length} + place % {steps} * {step}")
            yield

    # Formulas -------------------------------------------------------------------------------

    def code(self, turned: bool) -> Code:
        """Return what writes statements over a block of scores; with `turned`, columns are its
        first dimension."""
        k = self.kernel
        row, column = Axis(ROW, self.q.shape[2]), Axis(COLUMN, self.k.shape[2])
        first, second = (column, row) if turned else (row, column)
        body = tuple(s for f in self.formulas for s in f.body)
        axes = (Axis(BATCH, self.q.shape[0]), Axis(HEAD, self.q.shape[1]), row, column)
        stub = Kernel(k.name, k.device, axes, (), (), parameters=k.parameters, sizes=k.sizes)
        others = {s.symbol for s in body if isinstance(s, Bind)} | {BATCH, HEAD, ROW, COLUMN}
        flats = (Flat("i", (first,), others), Flat("r", (second,), others))
        blocks = Blocks((first,), (second,), tiles=True)
        tiled = untiled(stub)
        assert isinstance(tiled, TiledKernel)
        code = Code(tiled, self.writer, self.names, self.wide, blocks, flats)
        code.letters = ("column", "row") if turned else ("row", "column")
        code.lengths = ("RBLOCK", "XBLOCK") if turned else ("XBLOCK", "RBLOCK")
        code.inner = True
        return code

    def still(self, code: Code, names: Sequence[str], moving: Sym) -> None:
        """Write what the formulas of these names compute without `moving` or what they are
        given."""
        for name in names:
            for s in _parted(self.formula(name), moving)[0]:
                statement(code, s)

    def apply(self, code: Code, name: str, moving: Sym, given: Sequence[str]) -> str:
        """Write what is left of a formula after `still`; return its result, a whole block."""
        f = self.formula(name)
        inside = evolve(code, values=dict(code.values), bound=dict(code.bound))
        for value, text in zip(f.given, given, strict=True):
            inside.values[value] = Value(text, DType.F32, True, True)
        for s in _parted(f, moving)[1]:
            statement(inside, s)
        found = inside.values[f.result]
        return found.text if found.x and found.r else inside.full(found.text)

    # A step of a walk -----------------------------------------------------------------------

    def weigh(self, along: str) -> None:
        """Write the weights of scores, from the logarithms of their sums to base 2."""
        factor = self.factor_of_scores
        self.writer.line(f"weights = tl.exp2(scores * {factor!r} - sums{along})")

    def incline(self, code: Code, moving: Sym, along: str, seen: Sequence[str]) -> None:
        """Write the gradients of the products, of `factors` and the rows' `mean`."""
        w = self.writer
        w.line(f"slopes = weights * (factors - mean{along})")
        slope = self.formula("slope")
        if slope.result != slope.given[1]:
            text = self.apply(code, "slope", moving, ["products", "slopes"])
            w.line(f"slopes = {_chosen(seen, text, '0.0')}")

    def judge(self, code: Code, walk: Walk, moving: Sym, bounds: Sequence[str]) -> list[str]:
        """Write what becomes of `products`: `scores`; return the conditions under which they
        count."""
        w = self.writer
        if not self.plain or self.scale <= 0:
            w.line(f"products = products * {self.scale!r}")
        scores = "products" if self.plain else self.apply(code, "score", moving, ["products"])
        seen = [*bounds, *([self.apply(code, "mask", moving, [])] if walk.masked else [])]
        w.line(f"scores = {_chosen(seen, scores, '-inf')}")
        return seen


def _chosen(conditions: Sequence[str], value: str, other: str) -> str:
    if not conditions:
        return value
    filled = other if other == "0.0" else f'float("{other}")'
    return f"tl.where({' & '.join(conditions)}, {value}, {filled})"


def _parted(f: Formula, moving: Sym) -> tuple[list[Statement], list[Statement]]:
    """Return the statements that depend neither on `moving` nor on what is given, and the rest."""
    names, symbols = set(f.given), {moving}
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
