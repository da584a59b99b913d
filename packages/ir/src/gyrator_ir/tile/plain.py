"""Untiled kernels, the input of the first tile pass."""

from gyrator_ir.body.nodes import Reduce, Store, StoreMode
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, TemplateKernel
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
    """Return a kernel as scalar loops, with one unit of work per point."""
    if isinstance(kernel, KernelGroup):
        kernels = tuple(map(_plain, kernel.kernels))
        return TiledGroup(kernel.name, kernel.device, kernels, kernel.members)
    if isinstance(kernel, TemplateKernel):
        return TiledTemplate(kernel)
    return _plain(kernel)


def _plain(kernel: Kernel) -> TiledKernel:
    grid = tuple(Loop(LoopKind.GRID, (a.symbol,)) for a in kernel.axes)
    inner = tuple(Loop(LoopKind.LOOP, (a.symbol,)) for a in kernel.inner)
    reductions = tuple(
        Reduction(s.names[0], Method.ACCUMULATE) for s in kernel.statements if isinstance(s, Reduce)
    )
    combined = dict.fromkeys(
        s.buffer for s in kernel.statements if isinstance(s, Store) and s.mode is not StoreMode.SET
    )
    return TiledKernel(kernel, grid + inner, reductions, atomic=tuple(combined))
