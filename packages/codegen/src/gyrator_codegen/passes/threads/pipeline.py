"""The pipeline for devices that run one thread per element."""

from gyrator_codegen.passes.blocks.index_width import IndexWidth
from gyrator_codegen.passes.cores.plain_divisions import PlainDivisions
from gyrator_codegen.passes.merge_repeats import MergeRepeats
from gyrator_codegen.passes.threads.map_threads import MapThreads
from gyrator_ir.passes import Pass
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram


def thread_pipeline(target: Target) -> tuple[Pass[TileProgram], ...]:
    """Return the passes for devices that run one thread per element, in order."""
    return (MergeRepeats(), MapThreads(), IndexWidth(), PlainDivisions())
