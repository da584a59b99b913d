"""Each stage as a library: what is printed, and what a wrong type at its entry is told."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gyrator.config import read_config
from gyrator.targets.cpu import CPU
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_codegen_halide.stage import HalideBackend
from gyrator_codegen_metal.stage import MetalBackend
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.diagnostics import InputError
from gyrator_ir.levels import parse_program
from gyrator_ir.loop.parse import parse
from gyrator_lowering import LoweringOptions, lower
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_wrapper_cpp.stage import CppWrapper
from gyrator_wrapper_fx.stage import FxWrapper, to_graph
from gyrator_wrapper_python.stage import PythonWrapper

TEXT = """loop.program 1 @rows
  in n: size s0
  in x: f32[s0, 8] strides [8, 1] on cpu
  buffer y: f32[s0] strides [1] on cpu
  reduction op0 (i0 < s0) over (r0 < 8)
    a = load x[8*i0 + r0]
    s: f32 = reduce.sum a
    store y[i0], s
  return y
"""
TARGET = CPU.probe(read_config())
assert TARGET is not None
TARGETS = {"cpu": TARGET}
OPTIONS = SchedulerOptions()


def test_programs_print_as_their_text() -> None:
    program = parse(TEXT)
    planned = schedule(program, OPTIONS, TARGETS)
    host = plan_host(planned, OPTIONS, TARGETS)
    tiled = CppBackend().tile(host.kernels, host.facts, host.origins, TARGET)
    for one in (program, planned, host, tiled):
        assert parse_program(str(one)) == one
        assert repr(one).startswith(type(one).__name__ + "(")
    assert str(program) == TEXT


STAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "lower": (lambda x: lower(x, LoweringOptions(), TARGETS), "GraphModule"),
    "schedule": (lambda x: schedule(x, OPTIONS, TARGETS), "LoopProgram"),
    "plan_host": (lambda x: plan_host(x, OPTIONS, TARGETS), "Schedule"),
    "emit_tiled, C++": (lambda x: CppBackend().emit_tiled(x, TARGET), "TileProgram"),
    "emit_tiled, Halide": (lambda x: HalideBackend().emit_tiled(x, TARGET), "TileProgram"),
    "emit_tiled, Metal": (lambda x: MetalBackend().emit_tiled(x, TARGET), "TileProgram"),
    "emit_tiled, Triton": (lambda x: TritonBackend().emit_tiled(x, TARGET), "TileProgram"),
    "emit, Python": (PythonWrapper().emit, "HostProgram"),
    "emit, C++": (CppWrapper().emit, "HostProgram"),
    "to_graph": (to_graph, "HostProgram"),
    "to_graph, FX": (FxWrapper().emit, "HostProgram"),
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("wrong", [TEXT, None, torch.nn.ReLU()], ids=["text", "none", "module"])
def test_a_wrong_type_is_told_what_is_meant(name: str, wrong: object) -> None:
    stage, wanted = STAGES[name]
    with pytest.raises(InputError) as raised:
        stage(wrong)
    found = raised.value.diagnostic
    assert found.code == "GY-STAGE-001"
    assert found.message.startswith(f"{name.partition(',')[0]} takes a {wanted}, and was given a")
    assert type(wrong).__name__ in found.message and found.help
