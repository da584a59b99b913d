"""Builds kernels with Halide and g++, and runs them on NumPy arrays."""

import ctypes
import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gyrator_codegen_halide.stage import HalideBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_testing.interp.dtypes import NUMPY as ALL
from gyrator_testing.kernels.rows import TYPES

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


def runs_here(arch: str) -> bool:
    """Say whether this machine has the instruction set."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return {"avx512": "avx512dq", "avx2": "avx2", "plain": ""}[arch] in flags


class Library:
    """Kernels that were built together; `refused` says why others were not."""

    def __init__(
        self, kernels: Sequence[Kernel], folder: Path, arch: str = "avx2",
        facts: ShapeFacts | None = None, backend: HalideBackend | None = None, **heuristics: int,
    ) -> None:  # fmt: skip
        bound, backend = target(arch, **heuristics), backend or HalideBackend()
        reasons = {k.name: backend.refuses(k, bound) for k in kernels}
        self.refused = {name: why for name, why in reasons.items() if why is not None}
        self.kernels = {k.name: k for k in kernels if k.name not in self.refused}
        self.units = backend.emit(list(self.kernels.values()), facts or ShapeFacts(), (), bound)
        self.sources = {s.kernel: s for u in self.units for s in u.kernels}
        ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)
        ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)
        with ThreadPoolExecutor(2) as pool:
            paths = list(pool.map(lambda unit: build(unit, folder), self.units))
        self.functions = {}
        for unit, path in zip(self.units, paths, strict=True):
            library = ctypes.CDLL(str(path))
            for source in unit.kernels:
                function = getattr(library, source.symbol)
                function.restype = ctypes.c_int64
                self.functions[source.kernel] = function

    def __call__(self, name: str, arrays: Mapping[str, np.ndarray], **sizes: int) -> int:
        """Run a kernel in place on flat arrays; return its code."""
        kernel = self.kernels[name]
        for b in kernel.parameters:
            assert arrays[b.name].dtype == NUMPY[b.dtype], b.name
        pointers = [arrays[b.name].ctypes.data for b in kernel.parameters]
        values = [sizes[s.name] for s in kernel.sizes]
        buffers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        numbers = (ctypes.c_int64 * max(1, len(values)))(*values)
        code: int = self.functions[name](buffers, numbers)
        return code


def script(unit: TranslationUnit, folder: Path) -> tuple[Path, Path]:
    """Run the script of a unit; return the text's file and the object's."""
    key = hashlib.sha256(unit.text.encode()).hexdigest()[:16]
    source, obj = folder / f"{key}.cpp", folder / f"{key}.o"
    source.write_text(unit.text, encoding="utf-8")
    _run([sys.executable, str(source), str(obj)])
    return source, obj


def build(unit: TranslationUnit, folder: Path) -> Path:
    """Return the shared library of a unit."""
    source, obj = script(unit, folder)
    path = source.with_suffix(".so")
    _run(["g++", *FLAGS, "-o", str(path), str(source), str(obj)])
    return path


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
