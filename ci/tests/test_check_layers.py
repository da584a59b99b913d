"""The layer checker finds each kind of violation, and nothing in code that obeys."""

import subprocess
import sys

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
[common]
names = ["attrs"]
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
        src.mkdir(parents=True, exist_ok=True)
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
        ("import numpy", "imports numpy, which packages/scheduler/pyproject.toml does not declare"),
        ("def f():\n    import numpy.linalg", "imports numpy"),
        ("import importlib\nimportlib.import_module('numpy')", "imports numpy"),
        ("__import__('numpy')", "imports numpy"),
        ("import gyrator_other", "imports gyrator_other, which packages/scheduler"),
        ("from gyrator_new.a import x", "imports gyrator_new, which packages/scheduler"),
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


KEPT = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("layers", sys.argv[1])
layers = importlib.util.module_from_spec(spec)
sys.modules["layers"] = layers
spec.loader.exec_module(layers)
root = Path(sys.argv[2])
rules = layers.Rules.read(root / "layers.toml")
sys.exit(not layers.kept(root, layers.packages(root), rules))
"""


def test_layers_are_import_linters_contracts(problems, tmp_path, root):
    """What is broken is told with the line, also inside of functions and under TYPE_CHECKING."""
    for name in ("ir", "runtime", "other"):
        src = tmp_path / "packages" / name / "src" / f"gyrator_{name}"
        src.mkdir(parents=True)
        (src / "__init__.py").write_text("")

    def broken(text):
        problems(a=text)
        command = (sys.executable, "-c", KEPT, str(root / "ci" / "check_layers.py"), str(tmp_path))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert broken("import gyrator_ir, sympy")[0] == 0
    hidden = "if TYPE_CHECKING:\n    import gyrator_runtime"
    code, said = broken(f"def f():\n    from torch import nn\n{hidden}\n")
    assert code == 1
    assert "gyrator_scheduler, which is of the layer 'scheduler' BROKEN" in said
    assert "gyrator_scheduler.a -> torch (l.2)" in said
    assert "gyrator_scheduler.a -> gyrator_runtime (l.4)" in said
