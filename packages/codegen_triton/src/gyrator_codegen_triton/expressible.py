"""Which tiled kernels Triton can express."""

from gyrator_codegen.positions import unfit_blocks
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.tile.nodes import Repeat, Tiled, TiledGroup, TiledKernel, TiledTemplate

TILING = "GY-TRITON-008"
"""Decisions that Triton kernels can't express."""


def check_expressible(tiled: Tiled) -> None:
    """Raise UnsupportedError for decisions that no text has a form for."""
    match tiled:
        case Repeat(name=name):
            said: str | None = "each kernel has a text of its own"
        case TiledGroup(name=name, kernels=kernels):
            said = "a group is of one kernel, which is no product of matrices"
            if len(kernels) == 1 and kernels[0].contraction is None:
                said = unfit_blocks(kernels[0])
        case TiledKernel():
            name, said = tiled.kernel.name, unfit_blocks(tiled)
        case TiledTemplate():
            return
    if said:
        help = "tile for this language with `gyrator_codegen.passes.block_pipeline`"
        raise UnsupportedError.of(TILING, said, where=f"kernel {name}", help=help)
