"""Loop IR passes that prepare a program for fusion, and the list of them that runs by default."""

from collections.abc import Callable, Mapping

from attrs import evolve

from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.passes import Pass, Step
from gyrator_ir.target import Target
from gyrator_scheduler.options import SchedulerOptions


def default_pipeline(
    options: SchedulerOptions, targets: Mapping[str, Target]
) -> tuple[Pass[LoopProgram], ...]:
    """Return the passes that run before fusion, in order."""
    return ()


def run_passes(
    program: LoopProgram,
    options: SchedulerOptions,
    targets: Mapping[str, Target],
    trace: Callable[[Step], None],
) -> LoopProgram:
    """Run the pipeline of the options."""
    passes = default_pipeline(options, targets) if options.pipeline is None else options.pipeline
    for p in passes:
        before, program = program, p.run(program)
        trace(Step(p.name, before, program))
    return program
