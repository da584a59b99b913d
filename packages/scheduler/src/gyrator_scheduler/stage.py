"""The two stages of this package: Loop IR to Kernel IR, and Kernel IR to Wrapper IR."""

from collections.abc import Callable, Mapping

from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Schedule
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.passes import Step, ignore
from gyrator_ir.target import Target
from gyrator_scheduler.build import build
from gyrator_scheduler.host.plan import host_program
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.passes import run_passes


def schedule(
    program: LoopProgram,
    options: SchedulerOptions,
    targets: Mapping[str, Target],
    trace: Callable[[Step], None] = ignore,
) -> Schedule:
    """Decide which operations share kernels, in which order nodes run, and how long buffers live.

    `targets` maps device types to targets; every device that a kernel of the program runs on must be
    among them.

    Raises:
        SchedulerError: GY-SCHED-001, when a device has no target.
    """
    improved = run_passes(program, options, targets, trace)
    return build(improved, options, targets, trace)


def plan_host(
    schedule: Schedule, options: SchedulerOptions, targets: Mapping[str, Target]
) -> HostProgram:
    """Write what the host does in one call: bindings, allocations, launches, calls, and results."""
    return host_program(schedule, options, targets)
