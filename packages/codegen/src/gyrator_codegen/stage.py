"""Kernels in, kernels with all decisions about the machine out."""

from collections.abc import Callable, Sequence

from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.loop.body import Reduce
from gyrator_ir.passes import Pass, Step, ignore
from gyrator_ir.provenance import Origin
from gyrator_ir.tile.nodes import (
    Loop,
    LoopKind,
    Method,
    Reduction,
    TiledGroup,
    TiledKernel,
    TileProgram,
)


def tile(
    kernels: Sequence[Kernel | KernelGroup],
    facts: ShapeFacts,
    passes: Sequence[Pass[TileProgram]],
    origins: Sequence[Origin] = (),
    name: str = "kernels",
    trace: Callable[[Step], None] = ignore,
) -> TileProgram:
    """Return the kernels as a language prints them: from plain loops, by the passes in order."""
    program = TileProgram(name, tuple(map(untiled, kernels)), facts, tuple(origins))
    for p in passes:
        before, program = program, p.run(program)
        trace(Step(p.name, before, program))
    return program


def untiled(kernel: Kernel | KernelGroup) -> TiledKernel | TiledGroup:
    """Return a kernel as plain loops: a unit of work for each point, its elements one by one."""
    if isinstance(kernel, KernelGroup):
        kernels = tuple(map(_plain, kernel.kernels))
        return TiledGroup(kernel.name, kernel.device, kernels, kernel.members)
    return _plain(kernel)


def _plain(kernel: Kernel) -> TiledKernel:
    grid = tuple(Loop(LoopKind.GRID, (a.symbol,)) for a in kernel.axes)
    inner = tuple(Loop(LoopKind.LOOP, (a.symbol,)) for a in kernel.inner)
    reductions = tuple(
        Reduction(s.names[0], Method.ACCUMULATE)
        for stage in kernel.stages
        for s in stage.body
        if isinstance(s, Reduce)
    )
    return TiledKernel(kernel, grid + inner, reductions)
