"""Builds kernels with g++ and runs them on NumPy arrays."""

from collections.abc import Sequence
from pathlib import Path

from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.provenance import Origin
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_testing.interp.dtypes import NUMPY as ALL
from gyrator_testing.kernels.built import BuiltKernels, built, caller, lacking, text_file
from gyrator_testing.kernels.rows import TYPES

FLAGS = (
    "-Og -std=c++17 -shared -fPIC -nostdlib -fno-math-errno -fno-trapping-math -ffp-contract=off "
    "-fopenmp -fno-exceptions -fno-rtti -fno-strict-aliasing -w"
).split()
"""The umbrella's tests of ops, loops, gradients and models run kernels as they are optimised for
users; here, thousands are built to compare what their text means."""
__all__ = ["ARCHS", "NUMPY", "Library", "lacking", "target"]

NUMPY = {d: ALL[d] for d in TYPES}
ARCHS = ("avx512", "avx2", "neon", "plain")


def target(arch: str, **heuristics: int) -> Target:
    """Return a CPU target for an instruction set."""
    inputs = {"cores": 2} | heuristics
    return Target(
        device="cpu",
        arch=arch,
        kernel_backend="c++",
        capabilities=Capabilities(dtypes=frozenset(NUMPY)),
        heuristics=Heuristics(**inputs),
    )


class Library(BuiltKernels):
    """Kernels that were built together."""

    def __init__(
        self, kernels: Sequence[Kernel | KernelGroup], arch: str, folder: Path,
        facts: ShapeFacts | None = None,
        origins: Sequence[Origin] = (), **heuristics: int,
    ) -> None:  # fmt: skip
        bound = target(arch, **heuristics)
        backend = CppBackend()
        alone = [k for k in kernels if isinstance(k, Kernel)]
        groups = [k for k in kernels if isinstance(k, KernelGroup)]
        for k in (*alone, *(k for g in groups for k in g.kernels)):
            assert backend.refuses(k, bound) is None
        facts = facts or ShapeFacts()
        units = backend.emit(alone, facts, origins, bound)
        units += backend.emit(groups, facts, origins, bound)
        flags = [*FLAGS, *Isa.of(arch).flags]
        by = caller(arch, folder)
        super().__init__(
            kernels, units,
            lambda unit: built(text_file(unit.text, arch, folder), flags, by=by), by,
        )  # fmt: skip
