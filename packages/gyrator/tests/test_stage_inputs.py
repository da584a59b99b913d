"""Each stage as a library: what is printed, and what a wrong type at its entry is told."""

import importlib
import pkgutil
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from gyrator.config import read_config
from gyrator.targets.cpu import CPU
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_codegen_halide.stage import HalideBackend, HalideCudaBackend
from gyrator_codegen_llvm.stage import LlvmBackend
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


def _first(stage: Callable[..., Any], second: object, first: object) -> Any:
    return stage(first, second)


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


PROGRAM = parse(TEXT)
PLANNED = schedule(PROGRAM, OPTIONS, TARGETS)
HOST = plan_host(PLANNED, OPTIONS, TARGETS)
GRAPH = torch.fx.symbolic_trace(torch.nn.ReLU())
LANGUAGES = (
    CppBackend(),
    HalideBackend(),
    HalideCudaBackend(),
    LlvmBackend(),
    MetalBackend(),
    TritonBackend(),
)
WRAPPERS = (CppWrapper(), FxWrapper(), PythonWrapper())
KERNELS = "Kernel or TemplateKernel or KernelGroup"
STAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "lower": (lambda x: lower(x, LoweringOptions(), TARGETS), "GraphModule"),
    "lower, options": (lambda x: lower(GRAPH, x, TARGETS), "LoweringOptions"),
    "lower, targets": (lambda x: lower(GRAPH, LoweringOptions(), x), "Mapping"),
    "schedule": (lambda x: schedule(x, OPTIONS, TARGETS), "LoopProgram"),
    "schedule, options": (lambda x: schedule(PROGRAM, x, TARGETS), "SchedulerOptions"),
    "schedule, targets": (lambda x: schedule(PROGRAM, OPTIONS, x), "Mapping"),
    "plan_host": (lambda x: plan_host(x, OPTIONS, TARGETS), "Schedule"),
    "plan_host, options": (lambda x: plan_host(PLANNED, x, TARGETS), "SchedulerOptions"),
    "plan_host, targets": (lambda x: plan_host(PLANNED, OPTIONS, x), "Mapping"),
    "tile, kernels": (lambda x: CppBackend().tile(x, HOST.facts, (), TARGET), "Sequence"),
    "tile, a kernel": (lambda x: CppBackend().tile([x], HOST.facts, (), TARGET), KERNELS),
    "tile, facts": (lambda x: CppBackend().tile(HOST.kernels, x, (), TARGET), "ShapeFacts"),
    "to_graph": (to_graph, "HostProgram"),
}
for language in LANGUAGES:
    name = type(language).__name__
    tiled = CppBackend().tile(HOST.kernels, HOST.facts, (), TARGET)
    STAGES[f"emit_tiled, {name}"] = (partial(_first, language.emit_tiled, TARGET), "TileProgram")
    STAGES[f"emit_tiled, {name}, target"] = (partial(language.emit_tiled, tiled), "Target")
for wrapper in WRAPPERS:
    function = "to_graph" if wrapper == FxWrapper() else "emit"
    STAGES[f"{function}, {type(wrapper).__name__}"] = (wrapper.emit, "HostProgram")


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("wrong", [3, None, torch.nn.ReLU()], ids=["number", "none", "module"])
def test_a_wrong_type_is_told_what_is_meant(name: str, wrong: object) -> None:
    stage, expected = STAGES[name]
    with pytest.raises(InputError) as raised:
        stage(wrong)
    diagnostic = raised.value.diagnostic
    assert diagnostic.code == "GY-STAGE-001"
    assert diagnostic.message.startswith(f"{name.partition(',')[0]} takes a {expected}, not a")
    assert type(wrong).__name__ in diagnostic.message and diagnostic.help
    for named in re.findall(r"`(gyrator_[\w.]+)`", diagnostic.help):
        module, _, function = named.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function)), named


def test_a_text_is_no_program() -> None:
    for stage, expected in STAGES.values():
        with pytest.raises(InputError, match="GY-STAGE-001") as raised:
            stage(TEXT)
        assert expected in str(raised.value) or KERNELS in str(raised.value)


def test_a_target_alone_is_told_to_be_given_by_device_type() -> None:
    with pytest.raises(
        InputError, match=r"schedule takes a Mapping[\s\S]*{target\.device: target}"
    ):
        schedule(PROGRAM, OPTIONS, TARGET)  # type: ignore[arg-type]


def test_every_language_is_among_them() -> None:
    message = {type(one) for one in (*LANGUAGES, *WRAPPERS)}
    for package in pkgutil.iter_modules():
        if package.name.startswith(("gyrator_codegen_", "gyrator_wrapper_")):
            stage = importlib.import_module(f"{package.name}.stage")
            actual = {
                one
                for one in vars(stage).values()
                if isinstance(one, type)
                and one.__module__ == stage.__name__
                and hasattr(one, "emit")
            }
            assert actual and actual <= message, package.name
