"""Builds kernels with Halide and g++, and runs them on NumPy arrays."""

import sys
from collections.abc import Sequence
from pathlib import Path

from gyrator_codegen_halide.stage import HalideBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_testing.interp.dtypes import NUMPY as ALL
from gyrator_testing.kernels.built import BuiltKernels, built, lacking, run, text_file
from gyrator_testing.kernels.rows import TYPES

__all__ = ["NUMPY", "Library", "build", "lacking", "script", "target"]

FLAGS = "-O2 -std=c++17 -shared -fPIC -nostdlib -fopenmp -fno-exceptions -fno-rtti -w".split()
NUMPY = {d: ALL[d] for d in TYPES}


def target(arch: str, **heuristics: int) -> Target:
    """Return a CPU target for an instruction set."""
    return Target(
        device="cpu",
        arch=arch,
        kernel_backend="halide",
        capabilities=Capabilities(dtypes=frozenset(NUMPY)),
        heuristics=Heuristics(**({"cores": 2} | heuristics)),
    )


class Library(BuiltKernels):
    """Kernels that were built together; `refused` says why others were not."""

    def __init__(
        self, kernels: Sequence[Kernel], folder: Path, arch: str = "avx2",
        facts: ShapeFacts | None = None, backend: HalideBackend | None = None, **heuristics: int,
    ) -> None:  # fmt: skip
        bound, backend = target(arch, **heuristics), backend or HalideBackend()
        reasons = {k.name: backend.refuses(k, bound) for k in kernels}
        self.refused = {name: why for name, why in reasons.items() if why is not None}
        known = [k for k in kernels if k.name not in self.refused]
        units = backend.emit(known, facts or ShapeFacts(), (), bound)
        super().__init__(known, units, lambda unit: build(unit, folder))


def script(unit: TranslationUnit, folder: Path) -> tuple[Path, Path]:
    """Run the script of a unit; return the text's file and the object's."""
    source = text_file(unit.text, "", folder)
    obj = source.with_suffix(".o")
    run([sys.executable, str(source), str(obj)])
    return source, obj


def build(unit: TranslationUnit, folder: Path) -> Path:
    """Return the shared library of a unit."""
    source, obj = script(unit, folder)
    return built(source, FLAGS, str(obj))
