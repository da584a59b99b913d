"""Matching of two clusters in a common iteration space."""

from collections.abc import Iterable, Iterator, Mapping

from gyrator_ir.body.nodes import Axis
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Const, Expr, Sym, stride_of, subs
from gyrator_ir.target import Heuristics
from gyrator_scheduler.access import is_indirect
from gyrator_scheduler.fusion.axes import (
    NOTHING,
    Refinement,
    by_stride,
    concatenated,
    first_free,
    identity,
    refine,
    space,
    strides_in,
)
from gyrator_scheduler.fusion.cluster import Cluster
from gyrator_scheduler.ranges import Ranges

MAX_ANCHORS = 4
MAX_BUFFERS = 96
LONG_ROW = 64
"""Minimum row length, in elements per adjacent point, from which a separate kernel for the row,
with more parallelism, repays its launch."""


@frozen
class Joint:
    """The common iteration space of two clusters; `first` runs before `second`."""

    points: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    first: Mapping[Sym, Expr]
    second: Mapping[Sym, Expr]
    first_inner: bool
    """The first cluster has no inner axes and moves into those of the second."""
    second_inner: bool
    first_totals: bool = False
    """The reductions of the first cluster, over points of the second, become totals."""
    second_totals: bool = False


@frozen
class Refused:
    """Two clusters are not fused."""

    reason: str
    """The reason as a sentence, with `{}` for the buffer that it concerns."""
    buffer: str = ""

    @property
    def text(self) -> str:
        """The reason with the buffer's name."""
        return self.reason.format(self.buffer)


@frozen
class _Layout:
    """A common iteration space, before memory accesses are checked."""

    points: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    left_inner: bool = False
    right_inner: bool = False
    left_totals: bool = False
    right_totals: bool = False


def match(
    first: Cluster, second: Cluster, ranges: Ranges, heuristics: Heuristics
) -> Joint | Refused:
    """Return a common iteration space in which every value that `second` reads from `first` is
    written and read in the same iteration, or the reason why there is none.

    The candidates are derived from the layouts of the buffers that both access.
    """
    reason = _always_refused(first, second, heuristics)
    if reason:
        return Refused(reason)
    swap = _prefers_second(second, first)
    left, right = (second, first) if swap else (first, second)
    free = first_free(left.axes + right.axes)
    problem = Refused("the iteration spaces have different extents")
    for anchor in _anchors(first, second):
        addresses = None if anchor is None else (anchor[::-1] if swap else anchor)
        refinement = _refined(left, right, addresses, free)
        if refinement is None:
            continue
        layout = _assign_roles(left, right, refinement)
        if isinstance(layout, str):
            other = _with_totals(left, right, refinement, addresses, heuristics)
            if other is None:
                problem = Refused(layout)
                continue
            layout = other
        maps = (refinement.right, refinement.left) if swap else (refinement.left, refinement.right)
        levels = (layout.left_inner, layout.right_inner)
        totals = (layout.left_totals, layout.right_totals)
        if swap:
            levels, totals = levels[::-1], totals[::-1]
        joint = Joint(layout.points, layout.inner, *maps, *levels, *totals)
        conflict = _conflict(first, second, joint, ranges) or _unprofitable(
            first, second, joint, ranges, heuristics
        )
        if conflict is None:
            return joint
        problem = conflict
    return problem


def _always_refused(first: Cluster, second: Cluster, heuristics: Heuristics) -> str | None:
    if first.never_fused or second.never_fused:
        return "a reduction, scan or sort of a single element is not fused"
    if first.size + second.size > heuristics.fusion_statements:
        return f"together they exceed {heuristics.fusion_statements} statements"
    if first.reductions + second.reductions > max(heuristics.fusion_folds, 1):
        return f"together they reduce more than {heuristics.fusion_folds} values"
    if len(first.loads) + len(second.loads) + len(first.stores) + len(second.stores) > MAX_BUFFERS:
        return f"together they touch more than {MAX_BUFFERS} buffers"
    if first.inner and second.inner and (first.scans or second.scans):
        return "a scan or sort shares its axis with pointwise operations only"
    return None


def _prefers_second(second: Cluster, first: Cluster) -> bool:
    """Return whether to keep the axes of `second` rather than those of `first`."""
    if bool(first.inner) != bool(second.inner):
        return bool(second.inner)
    if first.ordered != second.ordered:
        return second.ordered
    return second.size > first.size


def _anchors(first: Cluster, second: Cluster) -> Iterator[tuple[Expr, Expr] | None]:
    """Yield pairs of addresses of buffers that both access, the best first; then None, for
    matching axes by their order alone."""
    visited: set[tuple[Expr, Expr]] = set()
    forwarded = []
    if len(first.stores) <= len(second.loads):
        forwarded = [b for b in first.stores if b in second.loads]
    else:
        forwarded = [b for b in second.loads if b in first.stores]
    for b in forwarded[:MAX_ANCHORS]:
        address = next(iter(second.loads[b]))
        pair = (first.stores[b].address, address)
        if pair not in visited:
            visited.add(pair)
            yield pair
    for n, b in enumerate(_shared(first, second)):
        if n == MAX_ANCHORS:
            break
        pair = (next(iter(first.loads[b])), next(iter(second.loads[b])))
        if pair not in visited:
            visited.add(pair)
            yield pair
    yield None


def _shared(first: Cluster, second: Cluster) -> list[str]:
    few, many = first.loads, second.loads
    if len(few) > len(many):
        few, many = many, few
    return [b for b in few if b in many]


def _refined(
    left: Cluster, right: Cluster, anchor: tuple[Expr, Expr] | None, free: int
) -> Refinement | None:
    """Match axes by the strides of an anchor's addresses, and axes of stride 0 by their order."""
    if _have_same_axes(left, right) and (anchor is None or anchor[0] is anchor[1]):
        return identity(left.axes)
    if anchor is None:
        refinement = refine(left.axes, right.axes, free)
        if refinement is not None or bool(left.inner) == bool(right.inner):
            return refinement
        return refine(left.points, right.points, free)
    left_strides = strides_in(anchor[0], left.axes)
    right_strides = strides_in(anchor[1], right.axes)
    if left_strides is None or right_strides is None:
        return None
    left_moving, left_rest = by_stride(left.axes, left_strides)
    right_moving, right_rest = by_stride(right.axes, right_strides)
    moving = refine(left_moving, right_moving, free)
    if moving is None:
        return None
    free += len(moving.dims)
    rest = refine(left_rest, right_rest, free) if left_rest and right_rest else NOTHING
    return None if rest is None else concatenated(moving, rest)


def _have_same_axes(left: Cluster, right: Cluster) -> bool:
    """Return whether two clusters have the same axes, with the same names and levels."""
    a, b = left.axes, right.axes
    return (
        len(a) == len(b)
        and len(left.points) == len(right.points)
        and all(x.symbol is y.symbol and x.extent is y.extent for x, y in zip(a, b, strict=True))
    )


def _assign_roles(left: Cluster, right: Cluster, r: Refinement) -> _Layout | str:
    """Assign each common axis to the parallel or the inner axes, or return the reason why that is
    impossible. If only one cluster has inner axes, it is `left`."""
    if any(a.symbol not in r.right_parts for a in right.points):
        return "the other has axes that this one lacks"
    points, inner = (_parts_of(axes, r.left_parts, r) for axes in (left.points, left.inner))
    missing = [a for a in left.axes if a.symbol not in r.left_parts]
    if right.inner:
        if missing or any(a.symbol not in r.right_parts for a in right.inner):
            return "the reductions run over different ranges"
        reduced = [p for a in right.inner for p in r.right_parts[a.symbol]]
        if set(reduced) != {a.symbol for a in inner}:
            return "the reductions run over different axes"
        if right.ordered and reduced != [a.symbol for a in inner]:
            return "the positions that an arg-reduction returns would change"
        return _Layout(points, inner)
    if not left.inner:
        if missing:
            return "this one has axes that the other lacks"
        return _Layout(points, ())
    if not missing:
        if left.scans and len(inner) > 1:
            return "the scanned axis would be split"
        return _Layout(points, inner, right_inner=True)
    if {a.symbol for a in missing} == {a.symbol for a in left.inner}:
        if left.scans:
            return "a scan or sort shares its axis with pointwise operations only"
        return _Layout(points, inner)
    return "the parallel axes of the reduction are not those of the other"


def _with_totals(
    left: Cluster, right: Cluster, r: Refinement, anchor: tuple[Expr, Expr] | None,
    heuristics: Heuristics,
) -> _Layout | None:  # fmt: skip
    """Return the space of rows, consecutive in memory, in which the sums of the other cluster over
    consecutive rows are totals, or None."""
    if anchor is None or not heuristics.total_elements:
        return None
    sides = (left, r.left_parts, anchor[0]), (right, r.right_parts, anchor[1])
    for n, ((rows, parts, address), (sums, others, _)) in enumerate((sides, sides[::-1])):
        if not (rows.inner and sums.sums) or rows.scans:
            continue
        if not (_covers(parts, rows) and _covers(others, sums)):
            continue
        points, inner = _parts_of(rows.points, parts, r), _parts_of(rows.inner, parts, r)
        summed = _parts_of(sums.inner, others, r)
        first = len(points) - len(summed)
        if first < 1 or points[first:] != summed:
            continue
        contiguous = stride_of(address, rows.inner[-1].symbol) is ONE
        known = all(isinstance(a.extent, Const) for a in inner)
        short = space(inner) <= heuristics.total_elements
        many = space(points) * space(inner) >= heuristics.total_grain
        parallel = 2 * space(points[:first]) >= heuristics.cores
        if contiguous and known and short and many and parallel:
            return _Layout(points, inner, left_totals=n == 1, right_totals=n == 0)
    return None


def _parts_of(
    axes: Iterable[Axis], parts: Mapping[Sym, tuple[Sym, ...]], r: Refinement
) -> tuple[Axis, ...]:
    """Return the common axes that make up a list of axes, and the axes that have none."""
    common = {d.symbol: d for d in r.dims}
    result: list[Axis] = []
    for a in axes:
        result += [common[p] for p in parts[a.symbol]] if a.symbol in parts else [a]
    return tuple(result)


def _conflict(first: Cluster, second: Cluster, joint: Joint, ranges: Ranges) -> Refused | None:
    """Return the memory dependence that forbids one kernel, or None."""
    axes = joint.points + joint.inner

    def at(e: Expr, mapping: Mapping[Sym, Expr]) -> Expr:
        new = subs(e, mapping)
        return new if new is e else ranges.simplify(new, axes)

    sides = (first, joint.first, joint.first_totals), (second, joint.second, joint.second_totals)
    leading = {
        _leading(at(w.address, mapping), joint.points)
        for c, mapping, totals in sides
        for w in c.stores.values()
        if w.total or totals
    }
    if None in leading or len(leading) > 1:
        return Refused("totals would not be over the same last points")
    for b in _common(first.stores, second.loads):
        w = first.stores[b]
        if not w.plain or joint.first_totals:
            return Refused("{} is not stored unconditionally at each point before it is read", b)
        address = at(w.address, joint.first)
        if any(at(e, joint.second) is not address for e in second.loads[b]):
            return Refused("{} is read at other points than those that write it", b)
    for b in _common(second.stores, first.loads):
        w = second.stores[b]
        traversed = (
            w.inner or joint.second_inner or joint.first_inner or any(first.loads[b].values())
        )
        if not w.plain or (joint.inner and traversed):
            return Refused("{} is still read when it is overwritten", b)
        address = at(w.address, joint.second)
        if any(at(e, joint.first) is not address for e in first.loads[b]):
            return Refused("{} is overwritten at other points than those that read it", b)
    for b in _common(first.stores, second.stores):
        return Refused("both write {}", b)
    for c, becomes_inner in ((first, joint.first_inner), (second, joint.second_inner)):
        if joint.inner and c.mutates and (c.inner or becomes_inner):
            why = "one of them overwrites a buffer that it reads, and iterates its axis repeatedly"
            return Refused(why)
    return None


def _covers(parts: Mapping[Sym, object], c: Cluster) -> bool:
    """Return whether each axis of a cluster consists of common axes."""
    return all(a.symbol in parts for a in c.axes)


def _leading(address: Expr, points: tuple[Axis, ...]) -> int | None:
    """Return the number of first axes that an address depends on, or None if it depends on another
    axis."""
    depends = [p.symbol in address.free_symbols for p in points]
    return sum(depends) if depends == sorted(depends, reverse=True) else None


def _common(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    return [x for x in a if x in b] if len(a) <= len(b) else [x for x in b if x in a]


def _unprofitable(
    first: Cluster, second: Cluster, joint: Joint, ranges: Ranges, heuristics: Heuristics
) -> Refused | None:
    """Return the reason why one kernel would be slower than two, or None."""
    if joint.inner and (joint.first_inner or joint.second_inner) and heuristics.cores > 1:
        work = space(joint.points + joint.inner)
        few = space(joint.points) < heuristics.cores and work > heuristics.parallel_grain
        row = space(joint.inner)
        long = few and row >= LONG_ROW * heuristics.adjacent_points
        if long and not (row <= heuristics.total_elements and _reads_rows(first, second, joint)):
            return Refused("the reduction has too few points to use all threads")
    if _common(first.stores, second.loads):
        return None
    axes = joint.points + joint.inner
    for b in _shared(first, second):
        for e in first.loads[b]:
            address = subs(e, joint.first)
            if is_indirect(address):
                continue
            address = ranges.simplify(address, axes)
            for f in second.loads[b]:
                if ranges.simplify(subs(f, joint.second), axes) is not address:
                    continue
                if sum(a.symbol in address.free_symbols for a in axes) == len(axes):
                    return None
                if not joint.inner and len(address.free_symbols) and _covers_most(address, axes):
                    return None
    return Refused("they share no data worth reading once")


def _reads_rows(first: Cluster, second: Cluster, joint: Joint) -> bool:
    """Return whether the elements of a row are adjacent in a buffer, so that one program reads it
    at full speed, and keeps it for the operations after the reduction."""
    last = joint.inner[-1].symbol
    sides = (first, joint.first), (second, joint.second)
    return any(
        stride_of(subs(e, mapping), last) is ONE
        for c, mapping in sides
        for addresses in c.loads.values()
        for e in addresses
    )


def _covers_most(address: Expr, axes: tuple[Axis, ...]) -> bool:
    """Return whether an address varies along most of the iteration space."""
    moving = [a for a in axes if a.symbol in address.free_symbols]
    return space(axes) <= 4 * space(moving)
