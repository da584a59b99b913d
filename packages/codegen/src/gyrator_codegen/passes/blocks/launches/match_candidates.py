"""`match-candidates`: the same number of warps for different kernels of a launch."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import guess
from gyrator_codegen.passes.rewriting import each_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.source import Configuration
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import TiledGroup, TiledKernel, TileProgram

_WARPS = "num_warps"


@frozen
class MatchCandidates:
    """Give each kernel of a group one candidate for each of the kernel with the most elements, with
    its number of warps: the programs of a launch all have the same."""

    name: ClassVar[str] = "match-candidates"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with matching candidates in all groups of several kernels."""
        return each_of(program, TiledGroup, _matched)


def _matched(group: TiledGroup, facts: ShapeFacts) -> TiledGroup:
    if len(group.kernels) == 1:
        return group

    def elements(place: int) -> int:
        kernel = group.kernels[place].kernel
        each = guess(extent_of((*kernel.axes, *kernel.inner)), facts)
        return each * group.members.count(place)

    largest = group.kernels[max(range(len(group.kernels)), key=elements)]
    warps = [_warps(c) for c in largest.candidates]
    kernels = (k if k is largest else _with_warps(k, warps) for k in group.kernels)
    return evolve(group, kernels=tuple(kernels))


def _with_warps(tiled: TiledKernel, warps: list[int]) -> TiledKernel:
    """Return the kernel with its best candidate for each number of warps."""
    best: dict[int, Configuration] = {}
    for c in tiled.candidates:
        best.setdefault(_warps(c), c)
    first, *_ = tiled.candidates
    candidates = (best[n] if n in best else _with(first, n) for n in warps)
    choices = (
        evolve(c, values=tuple(sorted({*c.values, *warps}))) if c.name == _WARPS else c
        for c in tiled.choices
    )
    return evolve(tiled, choices=tuple(choices), candidates=tuple(candidates))


def _warps(c: Configuration) -> int:
    return dict(c.values)[_WARPS]


def _with(c: Configuration, warps: int) -> Configuration:
    return Configuration(tuple((n, warps if n == _WARPS else v) for n, v in c.values))
