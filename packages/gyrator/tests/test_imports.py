"""A first compile imports what it needs: an import takes part of its time, whatever it is for."""

import json
import subprocess
import sys
from typing import Any

import pytest

MODEL = """
import gc, json, sys
import attrs, torch

collector = {}
def note(event, args):
    if event == "import":
        collector.setdefault(args[0], (gc.get_freeze_count(), gc.get_threshold()[0]))
sys.addaudithook(note)
torch.compile(torch.sin, backend="gyrator")
from gyrator import Session

net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Softmax(-1))
with Session(options={"cache": False, "strict": True, "progress": False}) as session:
    call = torch.compile(net, backend=session.backend)
    call(torch.randn(3, 8)).sum().backward()
    with torch.no_grad():
        call(torch.randn(3, 8))
loaded = sorted(sys.modules)
x = torch.ones(3, requires_grad=True)
with Session(options={"cache": False, "strict": True}) as session:
    torch.compile(lambda v: (v.sin() * v.sin()).sum(), backend=session.backend)(x).backward()
assert x.grad is not None
classes = {
    value
    for name, module in list(sys.modules.items())
    if name.partition(".")[0].startswith("gyrator")
    for value in vars(module).values()
    if isinstance(value, type) and value.__module__ == name and "__attrs_attrs__" in vars(value)
}
assert len(classes) > 100
slow = sorted(f"{c.__module__}.{c.__qualname__}" for c in classes if attrs.inspect(c).added_repr)
print(json.dumps([loaded, sorted(sys.modules), slow, collector["gyrator.frontend.aot"]]))
"""
ON_THE_WAY = {"gyrator_lowering", "gyrator_scheduler", "gyrator_codegen_cpp", "gyrator_runtime"}
ELSEWHERE = (
    "gyrator.aot",
    "gyrator.autotune.matmuls",
    "gyrator.cli",
    "gyrator.demo",
    "gyrator.frontend.background",
    "gyrator.reports.explain",
    "gyrator.wrappers",
    "gyrator_codegen.passes.blocks",
    "gyrator_codegen.passes.threads",
    "gyrator_codegen_halide",
    "gyrator_codegen_llvm",
    "gyrator_codegen_metal",
    "gyrator_codegen_triton",
    "gyrator_runtime.native.pure",
    "gyrator_runtime.package",
    "gyrator_runtime.standalone",
    "gyrator_runtime.triton.build",
    "gyrator_testing",
    "gyrator_wrapper_cpp",
    "gyrator_wrapper_fx",
    "jinja2",
    "llvmlite",
    "pygments",
    "rich",
)
"""Modules, and folders of them, that a model on the CPU with a C++ compiler has no use for."""


@pytest.fixture(scope="module")
def loaded() -> list[Any]:
    """The modules that a model's first step loads, those after one that is partitioned, and the
    classes among them that attrs itself defines; and how many objects were left out of garbage
    collections when the compiler was imported, and how many new ones would start one."""
    done = subprocess.run([sys.executable, "-c", MODEL], check=True, capture_output=True, text=True)
    actual: list[Any] = json.loads(done.stdout)
    return actual


def test_a_first_compile_imports_nothing_of_other_languages_and_tools(
    loaded: list[Any],
) -> None:
    names, *_ = loaded
    assert {name.partition(".")[0] for name in names} >= ON_THE_WAY
    assert [n for n in names if any(n == e or n.startswith(f"{e}.") for e in ELSEWHERE)] == []


def test_training_imports_nothing_that_only_torchinductor_needs(loaded: list[Any]) -> None:
    """AOTAutograd's partitioner would import its lowerings: a sixth of a first training step."""
    _, names, *_ = loaded
    parts = ("lowering", "pattern_matcher", "ir", "scheduler", "compile_fx")
    assert [n for n in parts if f"torch._inductor.{n}" in names] == []


def test_classes_on_the_way_generate_methods_when_they_are_called(loaded: list[Any]) -> None:
    """The decorators of `gyrator_ir.define` take less time than those of attrs."""
    *_, slow, _ = loaded
    assert slow == []


def test_the_compiler_is_imported_without_collections(loaded: list[Any]) -> None:
    """A full one took as long as 400 of its modules, one of new objects as long as 100."""
    *_, (frozen, threshold) = loaded
    assert frozen
    assert threshold == 0
