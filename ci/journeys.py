"""Plays those who build on Gyrator, from installed wheels: `python -P ci/journeys.py [vendor ...]`.

Each journey runs in an empty folder and sees no source of ours: what it reads of the repository is
what its player would, pages of the manual and the template of a target.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PROGRAM = """loop.program 1 @rows
  in n: size s0
  in x: f32[s0, 8] strides [8, 1] on cpu
  buffer y: f32[s0, 8] strides [8, 1] on cpu
  buffer z: f32[s0] strides [1] on cpu
  pointwise op0 (i0 < s0, i1 < 8)
    a = load x[8*i0 + i1]
    b: f32 = exp a
    store y[8*i0 + i1], b
  reduction op1 (i0 < s0) over (r0 < 8)
    a = load y[8*i0 + r0]
    s: f32 = reduce.sum a
    store z[i0], s
  return z
"""


class FailedError(Exception):
    """A step of a journey."""


def run(folder: Path, *command: str, expected: int = 0, said: str = "") -> str:
    """Run a step; return what it printed.

    Raises:
        FailedError: another exit status, or output without what it has to say.
    """
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"PATH": path, "GYRATOR_CACHE_DIR": str(folder / "cache")}
    print("$", " ".join(command), flush=True)
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=900, check=False,
    )  # fmt: skip
    if done.returncode != expected or said not in done.stdout:
        raise FailedError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def pages(folder: Path, *names: str) -> None:
    """Run the examples of pages of the manual."""
    found = [str(ROOT / name) for name in names]
    run(folder, sys.executable, "-P", str(ROOT / "ci" / "run_doc_examples.py"), *found,
        said="0 pages failed")  # fmt: skip


def vendor(folder: Path) -> None:
    """Begin a target from the template, compile, search, plant a bug, and run the suite."""
    answers = ("device=toy", "package=gyrator_acme", "start=gyrator_toy.device:start")
    given = [part for answer in answers for part in ("-d", answer)]
    run(folder, "copier", "copy", "--defaults", *given, str(ROOT / "templates" / "target"), "acme")
    acme = folder / "acme"
    more = ("--no-deps", "--no-build-isolation", "-e", ".")
    run(acme, sys.executable, "-m", "pip", "install", "-q", *more)
    try:
        run(acme, sys.executable, "-m", "pytest", "-q", "tests", said="3 passed")
        search = (sys.executable, "-m", "gyrator_testing", "kernels", "--target", "gyrator_acme")
        run(acme, *search, "--count", "60", "--points", "500", said="random kernels ran")
        suite = (sys.executable, "-m", "gyrator_conformance", "--target", "gyrator_acme")
        chosen = ("--wrapper", "python", "-k", "mlp and static and float32")
        run(acme, *suite, *chosen, "--json", "cells.json", said="100.0 %")
        language = acme / "src" / "gyrator_acme" / "language.py"
        text = language.read_text()
        language.write_text(text.replace('"sub": "-"', '"sub": "+"'))
        run(acme, *search, "--count", "60", "--points", "500", expected=1, said="= sub ")
        (file,) = (acme / "kernel-faults").glob("*.gy")
        run(acme, str(BIN / "gyrator"), "verify", str(file), expected=2, said="GY-VERIFY-011")
        language.write_text(text)
        run(acme, str(BIN / "gyrator"), "verify", str(file), said="runs")
    finally:
        run(acme, sys.executable, "-m", "pip", "uninstall", "-q", "-y", "gyrator-acme")


def engineer(folder: Path) -> None:
    """Write passes, patterns and rules, and look at what passes do to a text."""
    pages(
        folder, "docs/how-to/custom-passes.md", "docs/how-to/add-a-pass.md",
        "docs/how-to/add-a-lowering.md", "docs/from-torchinductor.md",
    )  # fmt: skip
    (folder / "rows.gy").write_text(PROGRAM)
    opt = (str(BIN / "gyrator"), "opt", "rows.gy")
    run(folder, *opt, "--to", "kernel", "--print-changed", said="kernel k0")
    run(folder, *opt, "--passes", "inline-pointwise", said="reduction op1")
    run(folder, *opt, "--to", "kernels", said='extern "C"')
    run(folder, str(BIN / "gyrator"), "verify", "rows.gy", said="runs")


def researcher(folder: Path) -> None:
    """Use single stages as libraries, and read what the compiler did to a model."""
    names = ("ir", "scheduler", "codegen", "codegen_cpp", "codegen_triton", "lowering")
    pages(folder, *(f"packages/{name}/README.md" for name in (*names, "testing", "wrapper_fx")))
    pages(folder, "docs/tutorial.md", "docs/how-to/read-a-kernel.md")


JOURNEYS: Mapping[str, Callable[[Path], None]] = {
    "vendor": vendor,
    "engineer": engineer,
    "researcher": researcher,
}


def main(names: list[str]) -> int:
    """Make the journeys named, or all; return 1 if one fails."""
    spec = find_spec("gyrator")
    assert spec is not None and "site-packages" in str(spec.origin), "not the wheel"
    failed = 0
    for name in names or JOURNEYS:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                JOURNEYS[name](Path(folder))
                said = "arrived"
            except FailedError as error:
                said, failed = f"FAILED\n{error}", failed + 1
        print(f"{name}: {said} ({time.perf_counter() - start:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
