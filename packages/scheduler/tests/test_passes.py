"""The pipelines: their passes' names, and how options and edits change them."""

import re
from typing import ClassVar

import pytest
from attrs import evolve, frozen
from scheduler_programs import Maker, target

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.diagnostics import VerifyError
from gyrator_ir.kernel.nodes import Numerics, Schedule
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.passes import Off, PassEdits, Tracer
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.passes import loop_pipeline
from gyrator_scheduler.stage import schedule

PASSES = loop_pipeline(SchedulerOptions(), {}).table


@frozen
class Rename:
    """Runs on programs and on schedules."""

    name: ClassVar[str] = "rename"
    to: str = "renamed"

    def run(self, program: LoopProgram) -> LoopProgram:
        return evolve(program, name=self.to)


@frozen
class Spoil:
    name: ClassVar[str] = "spoil"

    def run(self, program: LoopProgram) -> LoopProgram:
        return evolve(program, buffers=())


def program() -> LoopProgram:
    m = Maker()
    x = m.input("x", 8, 1)
    return m.program(m.pointwise("exp", m.reduction(ReduceKind.SUM, x, [1])[0]))


def run(edits: PassEdits) -> tuple[Schedule, list[tuple[str, str, bool]]]:
    tracer = Tracer()
    result = schedule(program(), SchedulerOptions(passes=edits), target(), tracer)
    return result, [(s.level, s.name, s.changed) for s in tracer.steps]


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_is_called_as_its_class_and_its_file_are(name: str) -> None:
    cls = type(PASSES[name])
    assert re.sub("(?<!^)([A-Z])", r"-\1", cls.__name__).lower() == name
    assert cls.__module__ == f"gyrator_scheduler.passes.{name.replace('-', '_')}"


def test_options_switch_passes_off() -> None:
    def off(options: SchedulerOptions) -> list[str]:
        return [p.name for p in loop_pipeline(options, {}).passes if isinstance(p, Off)]

    assert off(SchedulerOptions()) == ["elide-roundings"]
    fast = SchedulerOptions(numerics=Numerics.FAST, inline=False)
    assert off(fast) == ["inline-pointwise"]


def test_passes_of_both_levels_are_the_callers_to_change() -> None:
    plain, steps = run(PassEdits())
    ran = [p.name for p in loop_pipeline(SchedulerOptions(), {}).passes if not isinstance(p, Off)]
    assert [name for _, name, _ in steps] == ran
    assert ("loop", "unit-reductions", True) in steps
    edits = PassEdits().after("unit-reductions", Rename()).without("simplify-indices")
    result, steps = run(edits.last("kernel", Rename("kernels")))
    assert result == evolve(plain, name="kernels")
    assert steps[2:4] == [("loop", "unit-reductions", True), ("loop", "rename", True)]
    assert steps[-1] == ("kernel", "rename", True)


@pytest.mark.parametrize("level", ["loop", "kernel"])
def test_what_a_pass_breaks_is_found_and_names_it(level: str) -> None:
    with pytest.raises(VerifyError, match=f"from: pass 'spoil' of the level {level}"):
        run(PassEdits().last(level, Spoil()))
