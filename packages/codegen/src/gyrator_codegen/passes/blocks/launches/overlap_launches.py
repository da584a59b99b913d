"""`overlap-launches`: what a launch does before the previous one ends."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import each_kernel, each_of
from gyrator_ir.body.nodes import Load
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.nodes import TiledKernel, TiledTemplate, TileProgram, Wait


@frozen
class OverlapLaunches:
    """Let kernels that may overlap the previous launch issue early loads before they wait for it.

    A kernel that streams a matrix keeps the device busy until its last programs start. The next
    launch then starts early, while these wait. After a small kernel that would occupy the device
    for nothing, so that the next launch starts once the small kernel has waited.

    This pass runs after `stream-loads`.
    """

    name: ClassVar[str] = "overlap-launches"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with waits in all kernels that may overlap the previous launch."""
        return each_of(each_kernel(program, _waiting), TiledTemplate, _waiting_template)


def _waiting(tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
    free = tiled.kernel.overlap
    if free is None:
        return tiled
    # The rows of totals are loaded in a loop.
    early = () if tiled.kernel.totals else tiled.early
    loads = (s for s in tiled.kernel.statements if isinstance(s, Load) and s.buffer in free)
    first = tuple(s.name for s in loads if s.name in early)
    return evolve(tiled, wait=Wait(first, not set(first).isdisjoint(tiled.streamed)))


def _waiting_template(tiled: TiledTemplate, facts: ShapeFacts) -> TiledTemplate:
    return tiled if tiled.kernel.overlap is None else evolve(tiled, wait=Wait())
