"""Kernels as shared libraries that run on NumPy arrays, for tests of host languages."""

import ctypes
import hashlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.source import TranslationUnit
from gyrator_testing.interp.dtypes import NUMPY, Array
from gyrator_testing.kernels.emulator import Caller, Machine, machine

_FLAGS = {"avx512": "avx512dq", "avx2": "avx2", "plain": ""}
"""Names of instruction sets in /proc/cpuinfo."""
_MACHINES = {"neon": "aarch64"}
"""Machines of the instruction sets that other machines can emulate."""


def lacking(arch: str) -> str:
    """Return why code for an instruction set cannot run here, or an empty string."""
    if arch in _MACHINES:
        cross = machine(_MACHINES[arch])
        return cross if isinstance(cross, str) else ""
    has = _FLAGS[arch] in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "" if has else f"this machine has no {arch}"


@cache
def caller(arch: str, folder: Path) -> Caller | None:
    """Return the process that calls kernels of an instruction set, or None for this one."""
    cross = machine(_MACHINES[arch]) if arch in _MACHINES else None
    return Caller(cross, folder) if isinstance(cross, Machine) and cross.emulator else None


def text_file(text: str, key: str, folder: Path) -> Path:
    """Write a text to a file whose name depends on the text and `key`; return the file."""
    name = hashlib.sha256((text + key).encode()).hexdigest()[:16]
    path = folder / f"{name}.cpp"
    path.write_text(text, encoding="utf-8")
    return path


def run(command: Sequence[str]) -> None:
    """Run a compiler; AssertionError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def built(source: Path, flags: Sequence[str], *more: str, by: Caller | None = None) -> Path:
    """Return the shared library of a C++ file, built if it does not exist."""
    path = source.with_suffix(".so")
    if not path.exists():
        compiler = "g++" if by is None else by.machine.compiler
        run([compiler, *flags, "-o", str(path), str(source), *more])
    return path


class BuiltKernels:
    """Kernels that were built together.

    Args:
        kernels: the kernels that may be called.
        units: their translation units.
        build: builds the shared library of a unit; two are built at a time.
        caller: the process that calls them, if this one cannot.
    """

    def __init__(
        self, kernels: Sequence[Kernel | KernelGroup], units: Sequence[TranslationUnit],
        build: Callable[[TranslationUnit], Path], caller: Caller | None = None,
    ) -> None:  # fmt: skip
        self.kernels = {k.name: k for k in kernels}
        self.units = units
        self.sources = {s.kernel: s for u in units for s in u.kernels}
        with ThreadPoolExecutor(2) as pool:
            paths = list(pool.map(build, units))
        self.functions: dict[str, Callable[[Sequence[Array], Sequence[int]], int]] = {}
        for unit, path in zip(units, paths, strict=True):
            for source in unit.kernels:
                self.functions[source.kernel] = (
                    loaded(path, source.symbol)
                    if caller is None
                    else partial(caller, path, source.symbol)
                )

    def __call__(self, name: str, arrays: Mapping[str, Any], **sizes: int) -> int:
        """Run a kernel in place on flat arrays; return its code."""
        kernel = self.kernels[name]
        for b in kernel.parameters:
            assert arrays[b.name].dtype == NUMPY[b.dtype], b.name
        buffers = [arrays[b.name] for b in kernel.parameters]
        return self.functions[name](buffers, [sizes[s.name] for s in kernel.sizes])


def loaded(path: Path, symbol: str) -> Callable[[Sequence[Array], Sequence[int]], int]:
    """Return a function of a shared library: it takes flat arrays and sizes, and returns a code."""
    for name in ("libgomp.so.1", "libm.so.6"):
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    function = getattr(ctypes.CDLL(str(path)), symbol)
    function.restype = ctypes.c_int64

    def call(buffers: Sequence[Array], sizes: Sequence[int]) -> int:
        pointers = [b.ctypes.data for b in buffers]
        code: int = function(
            (ctypes.c_void_p * max(1, len(pointers)))(*pointers),
            (ctypes.c_int64 * max(1, len(sizes)))(*sizes),
        )
        return code

    return call
