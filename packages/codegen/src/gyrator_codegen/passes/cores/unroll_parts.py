"""`unroll-parts`: compute equal parts of an axis side by side, such as those of a concatenation."""

from collections.abc import Iterator, Mapping
from math import gcd
from types import MappingProxyType
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.cores.unroll_periods import cheapest, most_points, only_sets
from gyrator_codegen.passes.cores.vectorize import LANES_GUESS
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.passes.settle_conditions import settled
from gyrator_codegen.passes.unroller import Unroller
from gyrator_ir.body.nodes import Axis, Const, IndexValue, Let
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const as Number
from gyrator_ir.expr import Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, Stage
from gyrator_ir.tile.loops import kernel_facts
from gyrator_ir.tile.nodes import TiledKernel

_AFTER: Mapping[str, int] = MappingProxyType({"lt": 0, "ge": 0, "le": 1, "gt": 1})
"""Comparisons of integers, and the least difference of their operands after a change."""


@frozen
class UnrollParts(KernelPass):
    """Split an axis into equal parts between which comparisons with constants change, and compute
    a point of each part at once, if that makes accesses cheaper.

    No part needs the masks of the others, and what several of them read is loaded once: both halves
    of a rotary embedding read both halves of its input. This pass runs before any decisions.
    """

    lanes: int = LANES_GUESS
    """Elements of a vector for which the cost of accesses is compared."""

    name: ClassVar[str] = "unroll-parts"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.inner or kernel.locals or len(kernel.stages) > 1 or not only_sets(kernel):
            return tiled
        unrolled = (
            (_unrolled(kernel, axis, range(0, extent, part), facts), extent // part)
            for axis, extent, part in _parts(kernel, facts)
        )
        return cheapest(tiled, unrolled, self.lanes)


def _parts(kernel: Kernel, facts: ShapeFacts) -> Iterator[tuple[Axis, int, int]]:
    """Yield axes that have equal parts, with their extents and the longest such parts."""
    thresholds = [*change_points(kernel, kernel_facts(kernel, facts))]
    for axis in kernel.axes:
        if not isinstance(axis.extent, Number):
            continue
        extent = axis.extent.value
        inside = {t for a, *ends in thresholds if a is axis for t in ends if 0 < t < extent}
        part = gcd(extent, *inside)
        if 1 < part < extent <= part * most_points(kernel):
            yield axis, extent, part


def change_points(kernel: Kernel, facts: ShapeFacts) -> Iterator[tuple[Axis, int, int]]:
    """Yield the first and the last point along an axis, the first being 0, at which a comparison of
    indices changes. They differ if that depends on other axes, as at the diagonal of a matrix."""
    values: dict[str, Expr] = {}
    for s in kernel.statements:
        if isinstance(s, IndexValue):
            values[s.name] = s.expr
        elif isinstance(s, Const) and s.dtype.is_int:
            values[s.name] = Number(int(s.value))
        elif isinstance(s, Let) and s.op in _AFTER and values.keys() >= {*s.args}:
            left, right = (values[name] for name in s.args)
            for axis in kernel.axes:
                if points := _changes(left - right - _AFTER[s.op], axis.symbol, facts):
                    yield axis, *points


def _changes(e: Expr, symbol: Sym, facts: ShapeFacts) -> tuple[int, int] | None:
    """Return the first and the last point from which an index that steps by one along a symbol may
    have another sign, 0 being positive; None for other indices."""
    for rising, rest in ((True, e - symbol), (False, e + symbol)):
        low, high = facts.bounds(rest)
        if symbol not in rest.free_symbols and low is not None and high is not None:
            return (-high, -low) if rising else (low + 1, high + 1)
    return None


def _unrolled(kernel: Kernel, axis: Axis, starts: range, facts: ShapeFacts) -> Kernel:
    """Return the kernel with an axis as long as a part, each point of which computes one of every
    part."""
    shorter = Axis(axis.symbol, Number(starts.step))
    unroller = Unroller(kernel, axis.symbol, [axis.symbol + start for start in starts])
    (stage,) = kernel.stages
    unrolled = evolve(
        kernel,
        axes=tuple(shorter if a is axis else a for a in kernel.axes),
        stages=(Stage(stage.level, tuple(unroller.unrolled(stage.body))),),
    )
    return settled(unrolled, facts)
