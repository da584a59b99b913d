"""`cut-sections`: cut the vectors' axis where comparisons of positions along it change."""

from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.nests import Nest, nest
from gyrator_codegen.passes.cores.unroll_parts import change_points
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.sections import section_body
from gyrator_codegen.value_ranges import ValueRanges
from gyrator_ir.body.nodes import Bind, Const, Let
from gyrator_ir.body.rewrite import defined, expressions
from gyrator_ir.expr import Const as Number
from gyrator_ir.expr import FloorDiv, Mod, ShapeFacts, iter_nodes
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.tile.loops import kernel_facts
from gyrator_ir.tile.nodes import Section, TiledKernel

_STATEMENTS = 256
"""Maximum number of statements of all sections."""
_PARTIAL = 2
"""The cost of a partial vector, in vectors."""


@frozen
class CutSections(KernelPass):
    """Compute points between two positions at which comparisons change by loops of their own, if
    that takes fewer statements.

    What a concatenation or a padding selects is then known before the loop, so that no vector needs
    masks, or values that it drops. This pass runs after those that refer to statements.
    """

    name: ClassVar[str] = "cut-sections"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled)
        if loops is None or not loops.across or loops.columns or len(kernel.stages) > 1:
            return tiled
        if tiled.transposed or tiled.pairs or kernel.locals:
            return tiled
        starts = [*_starts(kernel, loops)]
        extent = loops.axis.extent
        if not starts or not isinstance(extent, Number):
            return tiled
        ends = [*starts, extent.value]
        sections = [
            _section(kernel, loops, range(start, end), facts) for start, end in pairwise([0, *ends])
        ]
        bodies = [section_body(kernel, section, tiled.ahead) for section in sections]
        whole = (s for s in kernel.statements if not {*defined(s)} & {*tiled.ahead})
        before = _cost(whole, extent.value, loops.lanes)
        lengths = (end - section.start for end, section in zip(ends, sections, strict=True))
        after = sum(map(_cost, bodies, lengths, repeat(loops.lanes)))
        if after >= before or sum(map(len, bodies)) > _STATEMENTS:
            return tiled
        return evolve(tiled, sections=tuple(sections))


def _starts(kernel: Kernel, loops: Nest) -> Iterator[int]:
    """Yield the positions along the vectors' axis, after 0, at which comparisons change. Vectors
    that start elsewhere than at multiples of their length may divide differently."""
    divided = any(
        isinstance(node, FloorDiv | Mod) and loops.symbol in node.free_symbols
        for s in kernel.statements
        for e in expressions(s)
        for node in iter_nodes(e)
    )
    extent = loops.axis.extent
    limit = extent.value if isinstance(extent, Number) else 0
    for start in sorted({t for axis, t in change_points(kernel) if axis is loops.axis}):
        if 0 < start < limit and not (divided and start % loops.lanes):
            yield start


def _section(kernel: Kernel, loops: Nest, positions: range, facts: ShapeFacts) -> Section:
    inside = kernel_facts(kernel, facts).with_range(loops.symbol, positions[0], positions[-1])
    ranges = ValueRanges(inside, kernel.storage)
    results: dict[bool, list[str]] = {True: [], False: []}
    for s in kernel.statements:
        ranges.add(s)
        if isinstance(s, Let) and (result := ranges.compared(s)) is not None:
            results[result].append(s.name)
    return Section(positions[0], tuple(results[True]), tuple(results[False]))


def _cost(body: Iterable[KernelStatement], length: int, lanes: int) -> int:
    """Return the statements of all vectors of a row, of which `body` has those in the loop."""
    moving = sum(not isinstance(s, Const | Bind) for s in body)
    vectors = length // lanes + _PARTIAL * bool(length % lanes)
    return moving * vectors
