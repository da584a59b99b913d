"""How a kernel's iteration space becomes blocks: what is flattened, and what fits at once."""

from gyrator_codegen import Access, lane_access
from gyrator_ir.expr import ONE, ZERO, Const, Expr, ceildiv
from gyrator_ir.kernel.nodes import Kernel, Level
from gyrator_ir.loop.body import Bind, Load, Reduce, ReduceKind, ScanStep, SortStep, Store
from gyrator_ir.target import Heuristics

_ELEMENT = 4  # bytes of what most rows hold
_LEVEL = 32  # points that are enough for whole lines of memory
_ABREAST = 64  # elements of a row where many rows are held at once
SORTED = 1024
"""The longest row that a kernel sorts: the compiler takes ever longer for the networks."""
_STEPS = 128  # inner elements of a fold that may be stepped through
_KEPT = 4  # how much longer a row may be where a loop can't do it


def points(kernel: Kernel) -> Expr:
    """Return the number of points: the product of the axes' extents."""
    total: Expr = ONE
    for a in kernel.axes:
        total = total * a.extent
    return total


def inner_extent(kernel: Kernel) -> Expr:
    """Return the number of inner elements of each point."""
    total: Expr = ONE
    for a in kernel.inner:
        total = total * a.extent
    return total


def inner_position(kernel: Kernel) -> Expr:
    """Return the linear, row-major position over the inner axes."""
    position: Expr = ZERO
    for a in kernel.inner:
        position = position * a.extent + a.symbol
    return position


def rblock(kernel: Kernel, heuristics: Heuristics) -> int | None:
    """Return the block that holds all inner elements of a point, or None where a loop is needed.

    Rows of up to `heuristics.scratch_bytes` are held whole; those that a loop can't do, for they
    have a local, up to four times as much, and those to sort up to `SORTED` elements. Where
    elements are consecutive from point to point rather than along the row, a program holds many
    rows at once, shorter ones; short folds of products are stepped through. A kernel without inner
    axes has rows of one element.
    """
    extent = inner_extent(kernel)
    if not isinstance(extent, Const):
        return None
    bound = max(heuristics.scratch_bytes // _ELEMENT, 1024)
    if stepped(kernel):
        return None
    if sorts(kernel):
        bound = SORTED
    elif kernel.locals:
        bound *= _KEPT
    elif kernel.inner and not contiguous_inside(kernel):
        bound = min(bound, _ABREAST)
    block = power_of_two(extent.value)
    return block if block <= bound else None


def stepped(kernel: Kernel) -> bool:
    """Say whether a loop takes one inner element of many points at a time.

    That is best for a short fold of products across what is consecutive, as a convolution of each
    channel alone is: what is read lies side by side, and the element's place is the same for all.
    """
    inside = [stage for stage in kernel.stages if stage.level is Level.INNER]
    extent = inner_extent(kernel)
    if kernel.locals or len(inside) != 1 or not kernel.inner or not isinstance(extent, Const):
        return False
    folds = [s for s in inside[0].body if isinstance(s, Reduce)]
    dots = bool(folds) and all(s.kind is ReduceKind.DOT for s in folds)
    others = any(isinstance(s, Store | SortStep | ScanStep | Bind) for s in inside[0].body)
    short = 1 < extent.value <= _STEPS
    return dots and short and not others and not contiguous_inside(kernel)


def sorts(kernel: Kernel) -> bool:
    """Say whether the kernel sorts its rows."""
    return any(isinstance(s, SortStep) for stage in kernel.stages for s in stage.body)


def contiguous_inside(kernel: Kernel) -> bool:
    """Say whether more accesses are consecutive along the last inner axis than along a point's."""
    if not kernel.inner:
        return False
    score = 0
    for stage in kernel.stages:
        for s in stage.body:
            if isinstance(s, Load | Store):
                for axes, sign in ((kernel.inner, 1), (kernel.axes, -1)):
                    if axes:
                        symbol = axes[-1].symbol
                        kind = lane_access(s.index, symbol, 16, frozenset()).kind
                        weight = 4 if not s.index.free_symbols.isdisjoint(
                            {a.symbol for a in kernel.inner}
                        ) else 1  # fmt: skip
                        score += sign * weight * (kind is Access.UNIT)
    return score >= 0


def level(kernel: Kernel, heuristics: Heuristics) -> int:
    """Return the longest block of points that always lies within the last axis; 0 where blocks may
    be of any length.

    In such a block the other axes stand still: what is loaded by them alone is loaded once, not
    for every point. That matters to loops which fold across what is consecutive.
    """
    if len(kernel.axes) < 2 or not kernel.inner or contiguous_inside(kernel):
        return 0
    extent = kernel.axes[-1].extent
    if rblock(kernel, heuristics) is not None or not isinstance(extent, Const) or stepped(kernel):
        return 0
    longest = extent.value & -extent.value
    return longest if longest >= _LEVEL else 0


def power_of_two(value: int) -> int:
    """Return the least power of two that is not below `value`; 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()


def programs(kernel: Kernel, xblock: int) -> Expr:
    """Return how many programs a launch has."""
    return ceildiv(points(kernel), xblock)
