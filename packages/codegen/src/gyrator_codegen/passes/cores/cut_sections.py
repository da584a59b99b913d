"""`cut-sections`: cut the vectors' axis where comparisons of positions along it change, or forms of
indices."""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice, pairwise
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.lanes import PRICES
from gyrator_codegen.nests import Nest, nest
from gyrator_codegen.passes.cores.accesses.classify_accesses import classify
from gyrator_codegen.passes.cores.unroll_parts import change_points
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.sections import section_body
from gyrator_codegen.value_ranges import ValueRanges
from gyrator_ir.body.nodes import Bind, Const, Let, Load, Store
from gyrator_ir.body.rewrite import defined, expressions
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const as Number
from gyrator_ir.expr import Expr, FloorDiv, Max, Min, Mod, Node, ShapeFacts, Sym, iter_nodes, linear
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.tile.loops import in_loop, kernel_facts
from gyrator_ir.tile.nodes import Access, Section, TiledKernel

_STATEMENTS = 256
"""Maximum number of statements of all sections."""
_PARTIAL = 2
"""The cost of a partial vector, in vectors."""
_FORMS = 8
"""Maximum number of forms of an index."""
_FEW = 4
"""So few elements, as at the borders of a padding, are moved faster one by one than by a partial
vector."""

_WHOLE = (Access.UNIFORM, Access.UNIT)
"""Accesses of a partial vector that are not done lane by lane."""


@frozen
class CutSections(KernelPass):
    """Compute points between two positions at which comparisons or forms of indices change by loops
    of their own, if that takes fewer statements.

    What a concatenation or a padding selects is then known before the loop, so that no vector needs
    masks, or values that it drops; and what is wrapped or reflected at the ends of a row is
    contiguous between them. This pass runs after those that refer to statements.
    """

    name: ClassVar[str] = "cut-sections"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled)
        if loops is None or not loops.across or loops.columns or len(kernel.stages) > 1:
            return tiled
        extent = loops.axis.extent
        if tiled.transposed or tiled.pairs or kernel.locals or not isinstance(extent, Number):
            return tiled
        row, inside = range(extent.value), kernel_facts(kernel, facts)
        ends = [x for axis, *x in change_points(kernel, inside) if axis is loops.axis]
        turns = _turns_of_loads(tiled, loops, row, inside)
        compared = {t for x in ends for t in x}
        choices: list[tuple[set[int], list[str]]] = [(compared, [])]
        if any(first < last for first, last in ends):
            # Between the two ends, vectors have masks anyway: these may as well be whole.
            n = loops.lanes
            vectors = {t for first, last in ends for t in (first // n * n, -(-last // n) * n)}
            choices.append((vectors, []))
        if turns:
            choices.append((compared.union(*turns.values()), [*turns]))
        cuts = [
            cut
            for starts, loads in choices
            if (cut := _cut(tiled, loops, row, inside, starts, loads)) is not None
        ]
        best = min([tiled, *cuts], key=lambda t: _cost(t, loops, row)) if cuts else tiled
        # Only the sections of whole rows occur in each unit, with bounds that are constants.
        whole = best.sections and loops.rows and len(row) <= loops.grid_step
        return _with_scalars(best, row) if whole else best


def _turns_of_loads(
    tiled: TiledKernel, loops: Nest, row: range, facts: ShapeFacts
) -> dict[str, list[int]]:
    """Return, for each load that is contiguous between few positions only, those positions."""
    axes = {a.symbol for a in tiled.kernel.axes}
    broken = {a.index for a in tiled.accesses if a.kind in (Access.RUNS, Access.LANES)}
    turns: dict[str, list[int]] = {}
    for s in tiled.kernel.statements:
        if isinstance(s, Load) and s.index in broken and s.index.free_symbols <= axes:
            starts = [*islice(_turns(s.index, loops.symbol, row, facts), _FORMS)]
            if 0 < len(starts) < _FORMS:
                turns[s.name] = starts
    return turns


def _turns(index: Expr, symbol: Sym, row: range, facts: ShapeFacts) -> Iterator[int]:
    """Yield the positions, in order and after the first, from which an index has another form."""
    form = facts.with_range(symbol, row[0], row[-1]).simplify(index)
    turns = (_turn(node, symbol, row.start) for node in iter_nodes(form))
    at = next((t for t in turns if t is not None and row.start < t < row.stop), None)
    if at is not None:
        yield from _turns(form, symbol, range(row.start, at), facts)
        yield at
        yield from _turns(form, symbol, range(at, row.stop), facts)


def _turn(node: Node, symbol: Sym, start: int) -> int | None:
    """Return the first position after `start` from which a minimum, a maximum or a remainder takes
    another form; None if it does not, or if the position is unknown."""
    match node:
        case Max(args=(a, b)) | Min(args=(a, b)):
            slope, rest = _line(a - b, symbol)
            return None if slope == 0 else (-rest // slope if slope > 0 else rest // -slope) + 1
        case Mod(a=a, b=Number(value=n)):
            slope, rest = _line(a, symbol)
            if slope == 1:
                return start + n - (start + rest) % n
            return start + (rest - start) % n + 1 if slope == -1 else None
    return None


def _line(e: Expr, symbol: Sym) -> tuple[int, int]:
    """Return the slope of an expression along a symbol and its value at 0, both 0 if they are not
    constant."""
    slopes, rest = linear(e, [symbol]) or ({}, e)
    slope = slopes.get(symbol)
    if not isinstance(slope, Number) or not isinstance(rest, Number):
        return 0, 0
    return slope.value, rest.value


def _cut(
    tiled: TiledKernel, loops: Nest, row: range, facts: ShapeFacts, starts: Collection[int],
    loads: Collection[str],
) -> TiledKernel | None:  # fmt: skip
    """Return the kernel with sections that begin at `starts`, in which `loads` have simpler
    indices; None if that is one section, or too many statements.

    Vectors that start elsewhere than at multiples of their length may divide differently.
    """
    inner = sorted(t for t in starts if t in row[1:])
    if not inner:
        return None
    cut = _with_sections(tiled, loops, [0, *inner, row.stop], facts, loads)
    if any(t % loops.lanes for t in inner) and _divides(cut, loops.symbol):
        inner = [t for t in inner if t % loops.lanes == 0]
        cut = _with_sections(tiled, loops, [0, *inner, row.stop], facts, loads)
    return cut if inner and sum(map(len, _bodies(cut))) <= _STATEMENTS else None


def _with_sections(
    tiled: TiledKernel, loops: Nest, bounds: Sequence[int], facts: ShapeFacts,
    loads: Collection[str],
) -> TiledKernel:  # fmt: skip
    sections = tuple(
        _section(tiled.kernel, facts.with_range(loops.symbol, start, end - 1), start, loads)
        for start, end in pairwise(bounds)
    )
    known = {a.index for a in tiled.accesses}
    new = dict.fromkeys(e for s in sections for _, e in s.indices if e not in known)
    accesses = (*tiled.accesses, *(classify(e, loops) for e in new))
    return evolve(tiled, sections=sections, accesses=accesses)


def _with_scalars(tiled: TiledKernel, row: range) -> TiledKernel:
    """Return the kernel with short sections that only move elements computed point by point."""
    ends = (*(s.start for s in tiled.sections[1:]), row.stop)
    sections = tuple(
        evolve(s, scalar=end - s.start <= _FEW and _only_moves(tiled, s))
        for s, end in zip(tiled.sections, ends, strict=False)
    )
    return evolve(tiled, sections=sections)


def _only_moves(tiled: TiledKernel, section: Section) -> bool:
    body = in_loop(tiled, section_body(tiled.kernel, section))
    return all(isinstance(s, Load | Store) for s in body)


def _section(kernel: Kernel, facts: ShapeFacts, start: int, loads: Collection[str]) -> Section:
    ranges = ValueRanges(facts, kernel.storage)
    results: dict[bool, list[str]] = {True: [], False: []}
    indices: list[tuple[str, Expr]] = []
    for s in kernel.statements:
        ranges.add(s)
        if isinstance(s, Let) and (result := ranges.compared(s)) is not None:
            results[result].append(s.name)
        elif isinstance(s, Load) and s.name in loads:
            indices.append((s.name, facts.simplify(s.index)))
    return Section(start, tuple(results[True]), tuple(results[False]), tuple(indices))


def _divides(tiled: TiledKernel, symbol: Sym) -> bool:
    return any(
        isinstance(node, FloorDiv | Mod) and symbol in node.free_symbols
        for body in _bodies(tiled)
        for s in body
        for e in expressions(s)
        for node in iter_nodes(e)
    )


def _bodies(tiled: TiledKernel) -> list[tuple[KernelStatement, ...]]:
    """Return the statements in the loop of each section, or of all points."""
    if tiled.sections:
        return [section_body(tiled.kernel, s, tiled.ahead) for s in tiled.sections]
    return [tuple(s for s in tiled.kernel.statements if not {*defined(s)} & {*tiled.ahead})]


def _cost(tiled: TiledKernel, loops: Nest, row: range) -> int:
    """Return the number of statements that the vectors of a row run; a load counts by the price of
    its kind of access."""
    kinds = {a.index: a.kind for a in tiled.accesses}
    bounds = [*(s.start for s in tiled.sections), row.stop] if tiled.sections else [0, row.stop]
    total = 0
    for body, (start, end) in zip(_bodies(tiled), pairwise(bounds), strict=True):
        vectors, rest = divmod(end - start, loops.lanes)
        for s in body:
            kind = kinds.get(s.index, Access.UNIT) if isinstance(s, Load) else Access.UNIT
            if isinstance(s, Const | Bind):
                continue
            if kind in _WHOLE:
                total += vectors + _PARTIAL * bool(rest)
            else:
                total += vectors * _price(kind) + -(-rest * _price(Access.LANES) // loops.lanes)
    return total


def _price(kind: Access) -> int:
    return PRICES[kind] // PRICES[Access.UNIT]
