"""What tile passes share."""

from collections.abc import Callable

from attrs import evolve

from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import Repeat, TiledGroup, TiledKernel, TileProgram

Tile = Callable[[TiledKernel, ShapeFacts], TiledKernel]


def each_kernel(program: TileProgram, tile: Tile) -> TileProgram:
    """Return the program with `tile` applied to every kernel, those of groups included."""
    kernels = tuple(_one(k, program.facts, tile) for k in program.kernels)
    if all(new is old for new, old in zip(kernels, program.kernels, strict=True)):
        return program
    return evolve(program, kernels=kernels)


def _one(
    kernel: TiledKernel | TiledGroup | Repeat, facts: ShapeFacts, tile: Tile
) -> TiledKernel | TiledGroup | Repeat:
    if isinstance(kernel, TiledKernel):
        return tile(kernel, facts)
    if isinstance(kernel, Repeat):
        return kernel
    kernels = tuple(tile(k, facts) for k in kernel.kernels)
    if all(new is old for new, old in zip(kernels, kernel.kernels, strict=True)):
        return kernel
    return evolve(kernel, kernels=kernels)
