"""Kernels as shared libraries, run on NumPy arrays: what tests of host languages share."""

import ctypes
import hashlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.source import TranslationUnit
from gyrator_testing.interp.dtypes import NUMPY

_FLAGS = {"avx512": "avx512dq", "avx2": "avx2", "plain": ""}
"""What /proc/cpuinfo calls instruction sets."""


def runs_here(arch: str) -> bool:
    """Say whether this machine has the instruction set."""
    return _FLAGS[arch] in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def text_file(text: str, key: str, folder: Path) -> Path:
    """Write a text to a file of its own among those for `key`; return the file."""
    name = hashlib.sha256((text + key).encode()).hexdigest()[:16]
    path = folder / f"{name}.cpp"
    path.write_text(text, encoding="utf-8")
    return path


def run(command: Sequence[str]) -> None:
    """Run a compiler. AssertionError with what it said where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def built(source: Path, flags: Sequence[str], *more: str) -> Path:
    """Return the shared library of a file of C++, built where there is none yet."""
    path = source.with_suffix(".so")
    if not path.exists():
        run(["g++", *flags, "-o", str(path), str(source), *more])
    return path


class BuiltKernels:
    """Kernels that were built together.

    Args:
        kernels: those that may be called.
        units: their texts.
        build: makes the shared library of a unit; two are made at a time.
    """

    def __init__(
        self, kernels: Sequence[Kernel | KernelGroup], units: Sequence[TranslationUnit],
        build: Callable[[TranslationUnit], Path],
    ) -> None:  # fmt: skip
        self.kernels = {k.name: k for k in kernels}
        self.units = units
        self.sources = {s.kernel: s for u in units for s in u.kernels}
        ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)
        ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)
        with ThreadPoolExecutor(2) as pool:
            paths = list(pool.map(build, units))
        self.functions: dict[str, Any] = {}
        for unit, path in zip(units, paths, strict=True):
            library = ctypes.CDLL(str(path))
            for source in unit.kernels:
                function = getattr(library, source.symbol)
                function.restype = ctypes.c_int64
                self.functions[source.kernel] = function

    def __call__(self, name: str, arrays: Mapping[str, Any], **sizes: int) -> int:
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
