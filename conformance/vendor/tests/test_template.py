"""The template of a target: generated, installed beside the toy's device, and put to work."""

import os
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

TEMPLATE = Path(__file__).parents[3] / "templates" / "target" / "template"
ANSWERS = {"device": "toy", "package": "gyrator_acme", "start": "gyrator_toy.device:start"}
INSTALLED = {
    "METADATA": "Metadata-Version: 2.1\nName: gyrator-acme\nVersion: 0.1.0\n",
    "entry_points.txt": "[gyrator.targets]\ngyrator_acme = gyrator_acme.target:TARGET\n",
}


def generate(folder: Path, **answers: str) -> None:
    """Write the template with these answers, as copier does."""
    environment = jinja2.Environment(keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    for file in (p for p in TEMPLATE.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        name = environment.from_string(file.relative_to(TEMPLATE).as_posix()).render(answers)
        text = environment.from_string(file.read_text()).render(answers)
        made = folder / name.removesuffix(".jinja")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A generated package, with what an installer would write beside it."""
    generate(tmp_path / "acme", **ANSWERS)
    about = tmp_path / "acme" / "src" / "gyrator_acme-0.1.0.dist-info"
    about.mkdir()
    for name, text in INSTALLED.items():
        (about / name).write_text(text)
    return tmp_path / "acme"


def run(acme: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(acme / "src"), *sys.path])
    cache = {"GYRATOR_CACHE_DIR": str(acme / "cache"), "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], cwd=acme, env={**os.environ, **cache},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_generated_target_compiles_its_first_fused_program(acme: Path) -> None:
    done = run(acme, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.long
def test_a_bug_planted_in_a_generated_target_is_found(acme: Path) -> None:
    language = acme / "src" / "gyrator_acme" / "language.py"
    text = language.read_text()
    language.write_text(text.replace('"sub": "-"', '"sub": "+"'))
    assert text != language.read_text()
    found = ("kernels", "--target", "gyrator_acme", "--count", "60", "--forms", "reduction")
    done = run(acme, "-m", "gyrator_testing", *found, "--points", "500")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "= sub " in done.stdout


def test_a_template_without_a_start_is_whole(tmp_path: Path) -> None:
    generate(tmp_path, **{**ANSWERS, "start": "", "device": "npu"})
    text = (tmp_path / "src" / "gyrator_acme" / "target.py").read_text()
    assert "importlib" not in text and 'DEVICE = "npu"' in text
    for file in tmp_path.rglob("*.py"):
        compile(file.read_text(), str(file), "exec")
