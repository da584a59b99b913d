"""How a kernel's iteration space becomes blocks: what is flattened, and what fits at once."""

from gyrator_ir.expr import ONE, ZERO, Const, Expr, ceildiv
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.body import ScanStep
from gyrator_ir.target import Heuristics

_ELEMENT = 4  # bytes of what most rows hold
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

    Rows of up to `heuristics.scratch_bytes` are held whole; those that a loop can't do (a scan, a
    local) up to four times as much. A kernel without inner axes has rows of one element.
    """
    extent = inner_extent(kernel)
    if not isinstance(extent, Const):
        return None
    scans = any(isinstance(s, ScanStep) for stage in kernel.stages for s in stage.body)
    bound = max(heuristics.scratch_bytes // _ELEMENT, 1024)
    if scans or kernel.locals:
        bound *= _KEPT
    block = power_of_two(extent.value)
    return block if block <= bound else None


def power_of_two(value: int) -> int:
    """Return the least power of two that is not below `value`; 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()


def programs(kernel: Kernel, xblock: int) -> Expr:
    """Return how many programs a launch has."""
    return ceildiv(points(kernel), xblock)
