"""What tile passes share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from attrs import evolve

from gyrator_codegen.analysis import ordered
from gyrator_ir.body.nodes import Reduce
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Stage
from gyrator_ir.tile.nodes import Reduction, Tiled, TiledGroup, TiledKernel, TileProgram

Tile = Callable[[TiledKernel, ShapeFacts], TiledKernel]
TileMember = Callable[[TiledKernel, ShapeFacts, int], TiledKernel]
Reduced = Sequence[tuple[Reduce, Reduction]]
"""What a stage reduces, and how so far."""
Decide = Callable[[Stage, Reduced], Iterable[Reduction]]


def each_kernel(program: TileProgram, tile: Tile) -> TileProgram:
    """Return the program with `tile` applied to every kernel, those of groups included."""
    return each_member(program, lambda k, facts, members: tile(k, facts))


class KernelPass(ABC):
    """A pass that decides for each kernel by itself."""

    __slots__ = ()

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with every kernel, those of groups included, as the pass has it."""
        return each_kernel(program, self._tile)

    @abstractmethod
    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        """Return a kernel with what the pass decides."""


def each_member(program: TileProgram, tile: TileMember) -> TileProgram:
    """Return the program with `tile` applied to every kernel, which is told how many members its
    launch has: one, but for groups."""
    return _with(program, [_one(k, program.facts, tile) for k in program.kernels])


def each_alone(program: TileProgram, tile: Tile) -> TileProgram:
    """Return the program with `tile` applied to every kernel that has a launch of its own."""
    facts = program.facts
    return _with(
        program, [tile(k, facts) if isinstance(k, TiledKernel) else k for k in program.kernels]
    )


def _with(program: TileProgram, kernels: Sequence[Tiled]) -> TileProgram:
    if all(new is old for new, old in zip(kernels, program.kernels, strict=True)):
        return program
    return evolve(program, kernels=tuple(kernels))


def _one(kernel: Tiled, facts: ShapeFacts, tile: TileMember) -> Tiled:
    if isinstance(kernel, TiledKernel):
        return tile(kernel, facts, 1)
    if not isinstance(kernel, TiledGroup):
        return kernel
    kernels = tuple(tile(k, facts, len(kernel.members)) for k in kernel.kernels)
    if all(new is old for new, old in zip(kernels, kernel.kernels, strict=True)):
        return kernel
    return evolve(kernel, kernels=kernels)


def each_stage(tiled: TiledKernel, decide: Decide) -> TiledKernel:
    """Return the kernel with `decide` applied to every stage that reduces, but those that walk
    elements in order: scans and sorts."""
    recorded = iter(tiled.reductions)
    found: list[Reduction] = []
    for stage in tiled.kernel.stages:
        here = [(s, next(recorded)) for s in stage.body if isinstance(s, Reduce)]
        found += [r for _, r in here] if not here or ordered(stage) else decide(stage, here)
    if all(new is old for new, old in zip(found, tiled.reductions, strict=True)):
        return tiled
    return evolve(tiled, reductions=tuple(found))
