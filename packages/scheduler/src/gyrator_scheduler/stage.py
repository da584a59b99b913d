"""The two stages of this package: Loop IR to Kernel IR, and Kernel IR to Wrapper IR."""

from collections.abc import Callable, Mapping

from attrs import evolve

from gyrator_ir.checks import takes
from gyrator_ir.deadline import NEVER
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Schedule, TemplateKernel
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.passes import Tracer
from gyrator_ir.target import Target
from gyrator_scheduler.build import build, choices, slack
from gyrator_scheduler.fusion.kernel_cache import KernelCache
from gyrator_scheduler.host.plan import host_program
from gyrator_scheduler.memory import needs, program_peak
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.partitions import home
from gyrator_scheduler.passes import kernel_pipeline, loop_pipeline
from gyrator_scheduler.templates import missing_template, refuses_none, with_fallbacks


def schedule(
    program: LoopProgram,
    options: SchedulerOptions,
    targets: Mapping[str, Target],
    tracer: Tracer | None = None,
    refuses: Callable[[TemplateKernel], str] = refuses_none,
) -> Schedule:
    """Decide which operations share kernels, in which order nodes run, and how long buffers live.

    `targets` maps device types to targets; every device that a kernel of the program runs on must
    be among them. A template becomes its library call if its target does not offer it, or if
    `refuses`, which represents the kernel language, returns a non-empty reason.

    Raises:
        SchedulerError: GY-SCHED-001, when a device has no target.
        VerifyError: with `options.verify_each` or caller-supplied passes, when a pass breaks an
            invariant.
        LateError: GY-COMPILE-003, when the tracer's deadline has passed.
    """
    takes("schedule", program, LoopProgram)
    takes("schedule", options, SchedulerOptions)
    takes("schedule", targets, Mapping)
    program = replace_missing_templates(program, targets, refuses)
    best: tuple[int, Schedule] | None = None
    limit: int | None = None
    if options.keep_peak:
        peak = program_peak(program, options.released)
        limit = peak + slack(program, targets, peak)
    kernels = KernelCache()
    deadline = NEVER if tracer is None else tracer.deadline
    for choice in choices(options):
        improved = loop_pipeline(choice, targets).run(program, tracer)
        candidate = build(improved, choice, targets, limit, kernels, deadline)
        peak = needs(candidate, options.released)
        if best is None or peak < best[0]:
            best = peak, candidate
        if limit is None or best[0] <= limit:
            break
    assert best is not None
    return kernel_pipeline(options).run(best[1], tracer)


def replace_missing_templates(
    program: LoopProgram,
    targets: Mapping[str, Target],
    refuses: Callable[[TemplateKernel], str] = refuses_none,
) -> LoopProgram:
    """Return the input of the pass pipeline: templates that the target lacks, or that `refuses`
    gives a reason against, become library calls."""
    return with_fallbacks(program, lambda k: missing_template(k, targets) or refuses(k))


def plan_host(
    schedule: Schedule, options: SchedulerOptions, targets: Mapping[str, Target]
) -> HostProgram:
    """Return the host program of one call: bindings, allocations, launches, calls and results."""
    takes("plan_host", schedule, Schedule)
    takes("plan_host", options, SchedulerOptions)
    takes("plan_host", targets, Mapping)
    return evolve(host_program(schedule, options, targets), home=home(schedule))
