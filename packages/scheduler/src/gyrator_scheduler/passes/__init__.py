"""Loop IR passes that prepare a program for fusion, and the list of them that runs by default."""

from collections.abc import Callable, Mapping

from gyrator_ir.kernel.nodes import Numerics
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.loop.verify import verify
from gyrator_ir.passes import Pass, Step
from gyrator_ir.target import Target
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.passes.common_subexpressions import CommonSubexpressions
from gyrator_scheduler.passes.drop_dead_buffers import DropDeadBuffers
from gyrator_scheduler.passes.elide_roundings import ElideRoundings
from gyrator_scheduler.passes.inline_pointwise import InlinePointwise
from gyrator_scheduler.passes.merge_axes import MergeAxes
from gyrator_scheduler.passes.reorder_axes import ReorderAxes
from gyrator_scheduler.passes.simplify_indices import SimplifyIndices
from gyrator_scheduler.passes.split_reductions import SplitReductions
from gyrator_scheduler.passes.split_scans import SplitScans
from gyrator_scheduler.passes.unit_reductions import UnitReductions


def default_pipeline(
    options: SchedulerOptions, targets: Mapping[str, Target]
) -> tuple[Pass[LoopProgram], ...]:
    """Return the passes that run before fusion, in order."""
    numbers = [t.heuristics for t in targets.values()]
    cost = min((h.inline_cost for h in numbers), default=0)
    statements = min((h.fusion_statements for h in numbers), default=0)
    by_device = tuple((device, t.heuristics) for device, t in sorted(targets.items()))
    units = frozenset(d for d, t in targets.items() if t.capabilities.matrix_units)
    inline = InlinePointwise(cost, statements, not options.hold_operands)
    fast: tuple[Pass[LoopProgram], ...] = ()
    if options.numerics is Numerics.FAST:
        fast = (ElideRoundings(),)
    return (
        DropDeadBuffers(),
        SimplifyIndices(),
        UnitReductions(),
        *((inline,) if options.fusion and options.inline else ()),
        CommonSubexpressions(),
        *fast,
        SplitReductions(by_device=by_device, matrix_units=units),
        SplitScans(by_device),
        ReorderAxes(),
        MergeAxes(),
    )


def all_passes() -> dict[str, Callable[..., Pass[LoopProgram]]]:
    """Return the passes of this package by name, for building pipelines from text."""
    classes: tuple[type[Pass[LoopProgram]], ...] = (
        CommonSubexpressions,
        DropDeadBuffers,
        ElideRoundings,
        InlinePointwise,
        MergeAxes,
        ReorderAxes,
        SimplifyIndices,
        SplitReductions,
        SplitScans,
        UnitReductions,
    )
    return {c.name: c for c in classes}


def run_passes(
    program: LoopProgram,
    options: SchedulerOptions,
    targets: Mapping[str, Target],
    trace: Callable[[Step], None],
) -> LoopProgram:
    """Run the pipeline of the options.

    Raises:
        VerifyError: with `options.verify_each`, when a pass breaks an invariant.
    """
    passes = default_pipeline(options, targets) if options.pipeline is None else options.pipeline
    for p in passes:
        before, program = program, p.run(program)
        if options.verify_each and program is not before:
            verify(program)
        trace(Step(p.name, before, program))
    return program
