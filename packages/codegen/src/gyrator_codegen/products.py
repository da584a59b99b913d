"""Which kernels are matrix products, for every kind of machine.

The rows, columns and batches of a dot reduction are those of `gyrator_ir.loop.contraction`.
"""

from collections.abc import Iterable, Sequence

from gyrator_codegen.lanes import consecutive
from gyrator_ir.body.nodes import Axis, Bind, Const, IndexValue, Let, Load, Reduce, Store
from gyrator_ir.body.rewrite import AnyStatement, defined, used
from gyrator_ir.define import frozen
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level, Stage
from gyrator_ir.loop.contraction import Roles, needed_for, roles


@frozen
class DotReductions:
    """The dot reductions of a kernel whose inner stage computes nothing else."""

    body: Sequence[KernelStatement]
    """Of the stage that reduces."""
    reduces: Sequence[Reduce]
    roles: Roles
    """Of the axes, for the first reduction."""
    swapped: Sequence[bool]
    """For each reduction, whether its rows are the columns of the first one."""


def dot_reductions(kernel: Kernel) -> DotReductions | None:
    """Return the dot reductions of a kernel, or None if it has other reductions, stores along the
    inner axes, or products whose rows and columns differ."""
    inside = [stage for stage in kernel.stages if stage.level is Level.INNER]
    if not kernel.inner or kernel.locals or len(inside) != 1:
        return None
    body = inside[0].body
    reduces = [s for s in body if isinstance(s, Reduce)]
    if not reduces or any(isinstance(s, Store) for s in body):
        return None
    sides = [roles(kernel.axes, body, s) for s in reduces]
    first = sides[0]
    if first is None:
        return None
    swapped = []
    for side in sides:
        if side is None:
            return None
        swapped.append((side.rows, side.columns) == (first.columns, first.rows))
        if not swapped[-1] and side != first:
            return None
    return DotReductions(body, reduces, first, swapped)


def stands_alone(body: Sequence[AnyStatement], value: str) -> bool:
    """Return whether a value is computed from memory and indices only, for each element."""
    needed = needed_for(body, value)
    names = {n for s in needed for n in defined(s)}
    return all(
        isinstance(s, Load | Let | Const | IndexValue | Bind) and names.issuperset(used(s))
        for s in needed
    )


def results_follow(rows: Sequence[Axis], columns: Sequence[Axis], stages: Iterable[Stage]) -> bool:
    """Return whether results are contiguous along the last row axis rather than the last column
    axis."""
    score = 0
    for stage in stages:
        for s in stage.body:
            if stage.level is Level.OUTER and isinstance(s, Load | Store):
                weight = 4 if isinstance(s, Store) else 1
                score += weight * consecutive(s.index, columns[-1])
                score -= weight * consecutive(s.index, rows[-1])
    return score < 0
