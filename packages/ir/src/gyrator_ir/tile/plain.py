"""Untiled kernels, the input of the first tile pass."""

from gyrator_ir.body.nodes import Reduce, Store
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, TemplateKernel
from gyrator_ir.modes import ATOMIC_MODES
from gyrator_ir.tile.nodes import (
    Loop,
    LoopKind,
    Method,
    Reduction,
    TiledGroup,
    TiledKernel,
    TiledTemplate,
)


def untiled(kernel: Launchable) -> TiledKernel | TiledGroup | TiledTemplate:
    """Return a kernel as scalar loops, with one unit of work per point, or for all points that
    totals sum over."""
    if isinstance(kernel, KernelGroup):
        kernels = tuple(map(_plain, kernel.kernels))
        return TiledGroup(kernel.name, kernel.device, kernels, kernel.members)
    if isinstance(kernel, TemplateKernel):
        return TiledTemplate(kernel)
    return _plain(kernel)


def _plain(kernel: Kernel) -> TiledKernel:
    summed = tuple(a.symbol for a in kernel.summed)
    grid = tuple(Loop(LoopKind.GRID, (a.symbol,)) for a in kernel.axes if a.symbol not in summed)
    rows = (Loop(LoopKind.LOOP, summed),) if summed else ()
    inner = tuple(Loop(LoopKind.LOOP, (a.symbol,)) for a in kernel.inner)
    reductions = tuple(
        Reduction(s.names[0], Method.ACCUMULATE) for s in kernel.statements if isinstance(s, Reduce)
    )
    combined = dict.fromkeys(
        s.buffer for s in kernel.statements if isinstance(s, Store) and s.mode in ATOMIC_MODES
    )
    return TiledKernel(kernel, grid + rows + inner, reductions, atomic=tuple(combined))
