"""What tile passes share."""

from collections.abc import Callable, Sequence

from attrs import evolve

from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import Repeat, TiledGroup, TiledKernel, TileProgram

Tile = Callable[[TiledKernel, ShapeFacts], TiledKernel]


def each_kernel(program: TileProgram, tile: Tile) -> TileProgram:
    """Return the program with `tile` applied to every kernel, those of groups included."""
    return _with(program, [_one(k, program.facts, tile) for k in program.kernels])


def each_alone(program: TileProgram, tile: Tile) -> TileProgram:
    """Return the program with `tile` applied to every kernel that has a launch of its own."""
    facts = program.facts
    return _with(
        program, [tile(k, facts) if isinstance(k, TiledKernel) else k for k in program.kernels]
    )


def _with(
    program: TileProgram, kernels: Sequence[TiledKernel | TiledGroup | Repeat]
) -> TileProgram:
    if all(new is old for new, old in zip(kernels, program.kernels, strict=True)):
        return program
    return evolve(program, kernels=tuple(kernels))


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
