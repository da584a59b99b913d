"""Unrolling of points of a kernel, so that one point computes several."""

from collections.abc import Iterator, Sequence

from attrs import evolve

from gyrator_codegen.analysis import value_names
from gyrator_ir.body.nodes import Axis, Bind
from gyrator_ir.body.rewrite import defined, renamed
from gyrator_ir.expr import ONE, Const, Expr, Sym, exact_quotient
from gyrator_ir.kernel.nodes import Kernel, KernelStatement


def split_axis(kernel: Kernel, axis: Axis, points: int) -> tuple[Kernel, list[Expr]]:
    """Return the kernel with an axis `points` times shorter, without its statements, and the
    positions along the old axis of the points that are now one.

    The extent must be a multiple of `points`. An axis that would have one point is dropped, unless
    it is the only one.
    """
    count = exact_quotient(axis.extent, Const(points))
    assert count is not None
    single = count is ONE and len(kernel.axes) > 1
    axes = [Axis(axis.symbol, count) if a is axis else a for a in kernel.axes]
    if single:
        axes = [a for a in axes if a.symbol is not axis.symbol]
    base: Expr = Const(0) if single else axis.symbol * points
    return evolve(kernel, axes=tuple(axes)), [base + offset for offset in range(points)]


class Unroller:
    """Unrolls the bodies of a kernel over several points along an axis, statement by statement.

    Points are independent, so their statements can be interleaved: loads and stores of adjacent
    elements become adjacent statements, and chains of dependent statements run side by side.
    """

    def __init__(self, kernel: Kernel, symbol: Sym, points: Sequence[Expr]) -> None:
        body = kernel.statements
        self.values = value_names(kernel)
        self.bound = {s.symbol for s in body if isinstance(s, Bind)}
        self.symbols: list[dict[Sym, Expr]] = [{symbol: p} for p in points]
        self.names: list[dict[str, str]] = [{} for _ in points]

    def unrolled(self, body: Sequence[KernelStatement]) -> Iterator[KernelStatement]:
        """Yield the statements of a body for all points. Bodies are passed in order."""
        for s in body:
            for names, symbols in zip(self.names, self.symbols, strict=True):
                own = {name: self.values.take(name) for name in defined(s)}
                if isinstance(s, Bind):
                    symbols[s.symbol] = self._symbol(s.symbol)
                names.update(own)
                yield renamed(s, names, symbols)

    def _symbol(self, old: Sym) -> Sym:
        number = 0
        while (new := Sym(f"t{number}", old.kind)) in self.bound:
            number += 1
        self.bound.add(new)
        return new
