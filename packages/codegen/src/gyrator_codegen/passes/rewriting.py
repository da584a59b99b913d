"""Base class and helpers of tile passes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from attrs import evolve

from gyrator_codegen.analysis import ordered
from gyrator_ir.body.nodes import Reduce
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Stage
from gyrator_ir.tile.nodes import (
    Reduction,
    Tiled,
    TiledGroup,
    TiledKernel,
    TiledTemplate,
    TileProgram,
)

T = TypeVar("T", TiledKernel, TiledGroup, TiledTemplate)
Tile = Callable[[TiledKernel, ShapeFacts], TiledKernel]
TileMember = Callable[[TiledKernel, ShapeFacts, int], TiledKernel]
Reduced = Sequence[tuple[Reduce, Reduction]]
"""The reductions of a stage, and the decisions about them so far."""
Decide = Callable[[Stage, Reduced], Iterable[Reduction]]


def each_kernel(program: TileProgram, tile: Tile) -> TileProgram:
    """Return the program with `tile` applied to every kernel, including those of groups."""
    return each_member(program, lambda k, facts, members: tile(k, facts))


class KernelPass(ABC):
    """A pass that makes its decision for each kernel separately."""

    __slots__ = ()

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with the pass applied to every kernel, including those of groups."""
        return each_kernel(program, self._tile)

    @abstractmethod
    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        """Return the kernel with the decision of the pass."""


def each_member(program: TileProgram, tile: TileMember) -> TileProgram:
    """Return the program with `tile` applied to every kernel. Its third argument is the number of
    members of the launch, which is 1 except for groups."""
    return _with(program, [_applied(k, program.facts, tile) for k in program.kernels])


def each_of(program: TileProgram, kind: type[T], tile: Callable[[T, ShapeFacts], T]) -> TileProgram:
    """Return the program with `tile` applied to every launch of one kind: a kernel of its own, a
    group, or a template."""
    facts = program.facts
    return _with(program, [tile(k, facts) if isinstance(k, kind) else k for k in program.kernels])


def _with(program: TileProgram, kernels: Sequence[Tiled]) -> TileProgram:
    if all(new is old for new, old in zip(kernels, program.kernels, strict=True)):
        return program
    return evolve(program, kernels=tuple(kernels))


def _applied(kernel: Tiled, facts: ShapeFacts, tile: TileMember) -> Tiled:
    if isinstance(kernel, TiledKernel):
        return tile(kernel, facts, 1)
    if not isinstance(kernel, TiledGroup):
        return kernel
    kernels = tuple(tile(k, facts, len(kernel.members)) for k in kernel.kernels)
    if all(new is old for new, old in zip(kernels, kernel.kernels, strict=True)):
        return kernel
    return evolve(kernel, kernels=kernels)


def each_stage(tiled: TiledKernel, decide: Decide) -> TiledKernel:
    """Return the kernel with `decide` applied to every stage that has reductions but no scan or
    sort."""
    recorded = iter(tiled.reductions)
    decisions: list[Reduction] = []
    for stage in tiled.kernel.stages:
        reduced = [(s, next(recorded)) for s in stage.body if isinstance(s, Reduce)]
        unchanged = not reduced or ordered(stage)
        decisions += [r for _, r in reduced] if unchanged else decide(stage, reduced)
    if all(new is old for new, old in zip(decisions, tiled.reductions, strict=True)):
        return tiled
    return evolve(tiled, reductions=tuple(decisions))
