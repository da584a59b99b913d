"""The pass pipelines of Loop IR, which prepares a program for fusion, and of Kernel IR."""

from collections.abc import Mapping

from gyrator_ir.kernel.nodes import Numerics, Schedule
from gyrator_ir.levels import KERNEL, LOOP
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.passes import Pipeline, when
from gyrator_ir.target import Target
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.passes.common_subexpressions import CommonSubexpressions
from gyrator_scheduler.passes.drop_dead_buffers import DropDeadBuffers
from gyrator_scheduler.passes.elide_roundings import ElideRoundings
from gyrator_scheduler.passes.inline_pointwise import InlinePointwise
from gyrator_scheduler.passes.integer_indices import IntegerIndices
from gyrator_scheduler.passes.merge_axes import MergeAxes
from gyrator_scheduler.passes.one_hot_sums import OneHotSums
from gyrator_scheduler.passes.reorder_axes import ReorderAxes
from gyrator_scheduler.passes.reverse_scans import ReverseScans
from gyrator_scheduler.passes.simplify_indices import SimplifyIndices
from gyrator_scheduler.passes.split_reductions import SplitReductions
from gyrator_scheduler.passes.split_scans import SplitScans
from gyrator_scheduler.passes.unit_reductions import UnitReductions
from gyrator_scheduler.passes.update_in_place import UpdateInPlace


def loop_pipeline(
    options: SchedulerOptions, targets: Mapping[str, Target]
) -> Pipeline[LoopProgram]:
    """Return the passes that run before fusion, in order."""
    numbers = [t.heuristics for t in targets.values()]
    cost = min((h.inline_cost for h in numbers), default=0)
    statements = min((h.fusion_statements for h in numbers), default=0)
    by_device = tuple((device, t.heuristics) for device, t in sorted(targets.items()))
    units = frozenset(d for d, t in targets.items() if t.capabilities.matrix_units)
    whole = options.numerics is Numerics.BATCH_INVARIANT
    inline = InlinePointwise(cost, statements, not options.hold_operands)
    passes = (
        DropDeadBuffers(),
        UpdateInPlace(),
        SimplifyIndices(),
        UnitReductions(),
        when(options.fusion and options.inline, inline),
        IntegerIndices(),
        CommonSubexpressions(),
        ReverseScans(),
        OneHotSums(),
        when(options.numerics is Numerics.FAST, ElideRoundings()),
        when(
            not whole,
            SplitReductions(by_device=by_device, matrix_units=units, exact=options.in_order),
        ),
        when(not whole, SplitScans(by_device)),
        ReorderAxes(options.in_order),
        MergeAxes(),
    )
    pipeline = Pipeline(LOOP, passes, "each" if options.verify_each else "never")
    return options.passes.apply(pipeline)


def kernel_pipeline(options: SchedulerOptions) -> Pipeline[Schedule]:
    """Return the passes over a finished schedule, in order: those that the caller adds."""
    pipeline = Pipeline(KERNEL, (), "each" if options.verify_each else "never")
    return options.passes.apply(pipeline)
