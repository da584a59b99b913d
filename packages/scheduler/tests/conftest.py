"""Makes the helper modules beside the tests importable, and the passes known to file tests."""

import sys
from pathlib import Path

import pytest

from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Schedule
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.target import Heuristics
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.passes import loop_pipeline
from gyrator_scheduler.passes.split_scans import SplitScans
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_testing.filetest.plugin import register

sys.path.insert(0, str(Path(__file__).parent))

from scheduler_programs import target

pytest_plugins = ["gyrator_testing.filetest.plugin"]

_SPLIT_SCANS = SplitScans(
    (("cpu", Heuristics(cores=8, split_reduction_points=16, split_scan_extent=512)),)
)
"""It has no options that text could give."""


def _schedule(program: LoopProgram) -> Schedule:
    return schedule(program, SchedulerOptions(), target())


def _unfused(program: LoopProgram) -> Schedule:
    return schedule(program, SchedulerOptions(fusion=False), target())


def _captured(program: LoopProgram) -> Schedule:
    return schedule(program, SchedulerOptions(device_graphs=True), target(graphs=True))


def _plan_host(planned: Schedule) -> HostProgram:
    return plan_host(planned, SchedulerOptions(), target())


def pytest_configure(config: pytest.Config) -> None:
    """Register what this package offers to its `.gy` files."""
    passes = loop_pipeline(SchedulerOptions(), {}).table
    improve = loop_pipeline(SchedulerOptions(), target()).run
    stages = {
        "loop-passes": improve,
        "schedule": _schedule,
        "schedule-without-fusion": _unfused,
        "schedule-with-device-graphs": _captured,
        "plan-host": _plan_host,
    }
    plugins = {name: type(p) for name, p in passes.items()}
    register(config, passes=plugins | {SplitScans.name: _SPLIT_SCANS}, stages=stages)
