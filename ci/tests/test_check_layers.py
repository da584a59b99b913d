"""The layer checker finds each kind of violation, and nothing in code that obeys."""

import pytest

RULES = """
[layers]
data = []
scheduler = ["data"]
runtime = ["data"]
[closed]
torch = ["scheduler"]
[modules]
pyyaml = ["yaml"]
[offered]
names = ["attrs"]
[forbidden]
"torch._inductor" = "it is the peer"
[devices]
names = ["cpu", "cuda"]
files = ["packages/scheduler/src/gyrator_scheduler/targets/**"]
"""
PROJECT = """
[project]
name = "gyrator-{0}"
version = "0.1.0"
dependencies = {2}
[tool.hatch.build.targets.wheel]
packages = ["src/gyrator_{0}"]
[tool.gyrator]
layer = "{1}"
"""


@pytest.fixture
def problems(tmp_path, layers):
    """Return a function from files (`a__b` for a/b.py of the package `scheduler`) to problems."""
    (tmp_path / "layers.toml").write_text(RULES)
    rules = layers.Rules.read(tmp_path / "layers.toml")
    declared = ["gyrator-ir>=0.1", "torch>=2", "sympy", "gyrator-runtime", "PyYAML"]
    for name, layer, needs in (
        ("ir", "data", []), ("scheduler", "scheduler", declared), ("runtime", "runtime", []),
        ("other", "data", []),
    ):  # fmt: skip
        (tmp_path / "packages" / name).mkdir(parents=True)
        text = PROJECT.format(name, layer, needs)
        (tmp_path / "packages" / name / "pyproject.toml").write_text(text)

    def check(**files):
        src = tmp_path / "packages" / "scheduler" / "src" / "gyrator_scheduler"
        src.mkdir(parents=True)
        (src / "__init__.py").write_text("")
        for name, text in files.items():
            path = src / f"{name.replace('__', '/').replace('FACADE', '__init__')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return layers.check(tmp_path, rules)

    return check


def test_obedient_code_has_no_problem(problems):
    text = "import os\nimport attrs\nimport sympy, yaml\nfrom gyrator_ir.types import DType\n"
    assert problems(a=text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch", "may not import torch"),
        ("def f():\n    import torch", "may not import torch"),
        ("def f():\n    from torch import nn", "may not import torch"),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
            "may not import torch",
        ),
        ("import importlib\nimportlib.import_module('torch')", "may not import torch"),
        ("__import__('torch')", "may not import torch"),
        ("import gyrator_runtime", "may not import gyrator_runtime, which is 'runtime'"),
        ("import numpy", "imports numpy, which packages/scheduler/pyproject.toml does not declare"),
        ("import gyrator_other", "imports gyrator_other, which packages/scheduler"),
        ("from gyrator_new.a import x", "imports gyrator_new, which packages/scheduler"),
        ("from . import other", "relative import"),
        ("from .other import x", "relative import"),
        ("import torch._inductor.config", "torch._inductor"),
        ("from torch import _inductor", "torch._inductor"),
        ("def f(torch):\n    return torch._inductor.config", "uses torch._inductor"),
        ("x = 'cuda'", 'names the device "cuda"'),
        ("x = 'cuda:1'", 'names the device "cuda:1"'),
        ("def f(i):\n    return f'cuda:{i}'", "names the device"),
        ("def f(kind='cpu'): ...", 'names the device "cpu"'),
    ],
)
def test_violation_is_found(problems, text, message):
    found = problems(a=text)

    assert found, "no problem found"
    assert any(message in problem for problem in found), found
    assert all(problem.startswith("packages/scheduler/src/") for problem in found)


def test_docstrings_may_name_devices(problems):
    assert problems(a='"""cpu"""\ndef f():\n    """cuda"""\n') == []


def test_longer_words_are_no_devices(problems):
    assert problems(a="x = 'cpu_count'\ny = 'the cuda toolkit'") == []


def test_target_definitions_may_name_devices(problems):
    assert problems(targets__one="x = 'cpu'") == []


def test_cycle_is_found(problems):
    (found,) = problems(
        a="from gyrator_scheduler.b import x",
        b="def f():\n    from gyrator_scheduler import a",
    )

    assert "import cycle" in found


def test_facade_that_re_exports_is_no_cycle(problems):
    assert (
        problems(
            p__FACADE="from gyrator_scheduler.p.a import x",
            p__a="from gyrator_scheduler.p import b",
            p__b="y = 1",
        )
        == []
    )


def test_package_without_a_layer_is_found(tmp_path, layers):
    (tmp_path / "layers.toml").write_text(RULES)
    (tmp_path / "packages" / "new" / "src").mkdir(parents=True)
    (tmp_path / "packages" / "new" / "pyproject.toml").write_text(PROJECT.format("new", "", []))

    (found,) = layers.check(tmp_path, layers.Rules.read(tmp_path / "layers.toml"))

    assert found.startswith("packages/new/pyproject.toml: layer ''")
