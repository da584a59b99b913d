"""Builds kernels with g++ and runs them on NumPy arrays."""

import ctypes
import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.stage import ARCHITECTURES, CppBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Schedule
from gyrator_ir.provenance import Origin
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_testing.interp.dtypes import NUMPY as ALL
from gyrator_testing.kernels.rows import TYPES

FLAGS = (
    "-O3 -std=c++17 -shared -fPIC -nostdlib -fno-math-errno -fno-trapping-math -ffp-contract=off "
    "-fopenmp -fno-exceptions -fno-rtti -fno-strict-aliasing -w"
).split()
NUMPY = {d: ALL[d] for d in TYPES}
ARCHS = ("avx512", "avx2", "plain")


def target(arch: str, **heuristics: int) -> Target:
    """Return a CPU target for an instruction set."""
    given = {"cores": 2} | heuristics
    return Target(
        device="cpu",
        arch=arch,
        kernel_backend="c++",
        capabilities=Capabilities(dtypes=frozenset(NUMPY)),
        heuristics=Heuristics(**given),
    )


def written(arch: str, schedule: Schedule) -> str:
    """Return the text of a schedule's kernels, without what units take from the prelude."""
    kernels = [n for n in schedule.nodes if isinstance(n, Kernel)]
    units = CppBackend().emit(kernels, schedule.facts, schedule.origins, target(arch))
    return "\n".join(source.text for unit in units for source in unit.kernels)


def runs_here(arch: str) -> bool:
    """Say whether this machine has the instruction set."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return {"avx512": "avx512dq", "avx2": "avx2", "plain": "sse2"}[arch] in flags


class Library:
    """Kernels that were built together."""

    def __init__(
        self, kernels: Sequence[Kernel | KernelGroup], arch: str, folder: Path,
        facts: ShapeFacts | None = None,
        origins: Sequence[Origin] = (), optimise: str = "-O3", **heuristics: int,
    ) -> None:  # fmt: skip
        bound = target(arch, **heuristics)
        backend = CppBackend()
        alone = [k for k in kernels if isinstance(k, Kernel)]
        groups = [k for k in kernels if isinstance(k, KernelGroup)]
        for k in (*alone, *(k for g in groups for k in g.kernels)):
            assert backend.refuses(k, bound) is None
        facts = facts or ShapeFacts()
        self.units = backend.emit(alone, facts, origins, bound)
        self.units += backend.emit_groups(groups, facts, origins, bound)
        self.kernels = {k.name: k for k in kernels}
        self.sources = {s.kernel: s for u in self.units for s in u.kernels}
        ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)
        ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)
        self.functions = {}
        for unit in self.units:
            path = self._build(unit.text, ARCHITECTURES[arch], folder, optimise)
            library = ctypes.CDLL(str(path))
            for source in unit.kernels:
                function = getattr(library, source.symbol)
                function.restype = ctypes.c_int64
                self.functions[source.kernel] = function

    @staticmethod
    def _build(text: str, isa: Isa, folder: Path, optimise: str) -> Path:
        key = hashlib.sha256((text + optimise).encode()).hexdigest()[:16]
        source, path = folder / f"{key}.cpp", folder / f"{key}.so"
        if not path.exists():
            source.write_text(text, encoding="utf-8")
            flags = [optimise if f == "-O3" else f for f in FLAGS]
            command = ["g++", *flags, *isa.flags, "-o", str(path), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:4000]
        return path

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
