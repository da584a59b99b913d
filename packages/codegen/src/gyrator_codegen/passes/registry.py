"""All tile passes, which users may refer to by name."""

from collections.abc import Callable

from gyrator_codegen.passes.bind_choices import BindChoices
from gyrator_codegen.passes.blocks.pipeline import block_pipeline
from gyrator_codegen.passes.cores.pipeline import vector_pipeline
from gyrator_codegen.passes.cores.reductions.accurate_sums import AccurateSums
from gyrator_codegen.passes.cores.strips import Strips
from gyrator_codegen.passes.threads.pipeline import thread_pipeline
from gyrator_ir.levels import TILE
from gyrator_ir.passes import Pass, Pipeline
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.tile.nodes import TileProgram


def every_pass() -> Pipeline[TileProgram]:
    """Return the passes of all pipelines and languages, to check the names in a user's edits."""
    target = Target(
        device="any", arch="", kernel_backend="", capabilities=Capabilities(dtypes=frozenset())
    )
    pipelines = (*vector_pipeline(target, 1), *block_pipeline(target), *thread_pipeline(target))
    passes = (*pipelines, Strips(), AccurateSums())
    return Pipeline(TILE, tuple({p.name: p for p in passes}.values()))


def all_passes() -> dict[str, Callable[..., Pass[TileProgram]]]:
    """Return the passes of this package by name, to build pipelines from text."""
    named: dict[str, Callable[..., Pass[TileProgram]]] = {BindChoices.name: BindChoices}
    return named | {name: type(p) for name, p in every_pass().table.items()}
