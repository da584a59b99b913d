"""`unroll-periods`: points that take turns at what they compute are computed side by side."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.cores.vectorize import LANES_GUESS, choose_vector_axis, price
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.passes.settle import settled
from gyrator_ir.body.nodes import Axis, Bind, Store, StoreMode
from gyrator_ir.body.rewrite import defined, expressions, renamed
from gyrator_ir.expr import (
    ONE,
    Const,
    Expr,
    FloorDiv,
    Mod,
    ShapeFacts,
    Sym,
    exact_quotient,
    iter_nodes,
)
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Stage
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.tile.plain import untiled

_LONGEST = 4
"""The longest period: every point of it has statements of its own."""
_STATEMENTS = 256
"""Bodies grow no longer than this."""


@frozen
class UnrollPeriods(KernelPass):
    """Cut an axis whose points take turns, as the parts of complex numbers in a row do, and write
    the turns out one after another, where that makes accesses cheaper.

    What was selected lane by lane is then the same for all lanes, and what lies in turn is read and
    written in pairs of vectors. It goes before what makes decisions.
    """

    lanes: int = LANES_GUESS
    """Elements of a vector, for which accesses are compared."""

    pairs: bool = False
    """No more than two neighbours take turns: others are not stored at once."""

    name: ClassVar[str] = "unroll-periods"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.inner or not kernel.axes or len(kernel.stages) > 1 or not _stores_alone(kernel):
            return tiled
        periods = list(_periods(kernel))
        if not periods:
            return tiled
        best, least = kernel, _price_of(kernel, self.lanes)
        for axis, period in periods:
            made = _unrolled(kernel, axis, period)
            if self.pairs and period > 2 and _stores_neighbours(made):
                continue
            found = _price_of(made, self.lanes) / period
            if found < least and _takes_the_same(kernel, made):
                best, least = made, found
        if best is kernel:
            return tiled
        made_plain = untiled(best)
        assert isinstance(made_plain, TiledKernel)
        return made_plain


def _stores_alone(kernel: Kernel) -> bool:
    """Whether every point stores to places of its own."""
    stores = (s for stage in kernel.stages for s in stage.body if isinstance(s, Store))
    return all(s.mode is StoreMode.SET for s in stores)


def _stores_neighbours(kernel: Kernel) -> bool:
    stores = [s for stage in kernel.stages for s in stage.body if isinstance(s, Store)]
    places = {(s.buffer, s.index) for s in stores}
    return any((s.buffer, s.index + ONE) in places for s in stores)


def _takes_the_same(kernel: Kernel, other: Kernel) -> bool:
    """Whether launches of a kernel can pass its parameters to another one."""
    touched = dict.fromkeys((*other.reads, *other.writes))
    return tuple(touched) == tuple(b.name for b in kernel.parameters)


def _price_of(kernel: Kernel, lanes: int) -> float:
    axis = choose_vector_axis(kernel, lanes)
    return float("inf") if axis is None else price(kernel, lanes, axis)


def _periods(kernel: Kernel) -> Iterator[tuple[Axis, int]]:
    """Iterate over axes with the number of points that may take turns on them."""
    size = sum(len(stage.body) for stage in kernel.stages)
    longest = min(_LONGEST, _STATEMENTS // max(size, 1))
    divisors: dict[Sym, set[int]] = {a.symbol: set() for a in kernel.axes}
    for e in {e for stage in kernel.stages for s in stage.body for e in expressions(s)}:
        for node in iter_nodes(e):
            if not isinstance(node, FloorDiv | Mod) or not isinstance(node.b, Const):
                continue
            for symbol in node.a.free_symbols:
                if symbol in divisors:
                    divisors[symbol].add(node.b.value)
    for axis in kernel.axes:
        found = divisors[axis.symbol]
        if isinstance(axis.extent, Const):
            found.add(axis.extent.value)
        for period in sorted(found):
            if 1 < period <= longest and exact_quotient(axis.extent, Const(period)) is not None:
                yield axis, period


def _unrolled(kernel: Kernel, axis: Axis, period: int) -> Kernel:
    """Return the kernel with the points of one period in each point, `period` times fewer."""
    turns = exact_quotient(axis.extent, Const(period))
    assert turns is not None
    whole = turns is ONE and len(kernel.axes) > 1
    axes = [Axis(axis.symbol, turns) if a is axis else a for a in kernel.axes]
    if whole:
        axes = [a for a in axes if a.symbol is not axis.symbol]
    base: Expr = Const(0) if whole else axis.symbol * period
    writer = _Turns(kernel, axis.symbol, [base + turn for turn in range(period)])
    stages = tuple(Stage(stage.level, writer.written(stage.body)) for stage in kernel.stages)
    return evolve(kernel, axes=tuple(axes), stages=stages)


class _Turns:
    """Writes bodies for several points at once, statement by statement.

    Points are independent, so that their statements may be done in any order: loads, and stores,
    of neighbours come to stand beside each other.
    """

    def __init__(self, kernel: Kernel, symbol: Sym, points: Sequence[Expr]) -> None:
        body = [s for stage in kernel.stages for s in stage.body]
        self.taken = {name for s in body for name in defined(s)}
        self.bound = {s.symbol for s in body if isinstance(s, Bind)}
        self.symbols: list[dict[Sym, Expr]] = [{symbol: p} for p in points]
        self.names: list[dict[str, str]] = [{} for _ in points]
        self.stored = {s.buffer for s in body if isinstance(s, Store)}
        self.types = {b.name: b.dtype for b in kernel.parameters}

    def written(self, body: Sequence[KernelStatement]) -> tuple[KernelStatement, ...]:
        """Return a body for all points."""
        made: list[KernelStatement] = []
        for s in body:
            for names, symbols in zip(self.names, self.symbols, strict=True):
                own = {name: self._fresh(name) for name in defined(s)}
                if isinstance(s, Bind):
                    symbols[s.symbol] = self._symbol(s.symbol)
                names.update(own)
                made.append(renamed(s, names, symbols))
        return settled(made, self.stored, self.types)

    def _fresh(self, name: str) -> str:
        new, k = name, 0
        while new in self.taken:
            k += 1
            new = f"{name}_{k}"
        self.taken.add(new)
        return new

    def _symbol(self, old: Sym) -> Sym:
        number = 0
        while (new := Sym(f"t{number}", old.kind)) in self.bound:
            number += 1
        self.bound.add(new)
        return new
