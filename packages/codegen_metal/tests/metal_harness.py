"""Builds Metal kernels as C++ against the shim and runs them on NumPy arrays."""

from gyrator_codegen_metal.dtypes import TYPES
from gyrator_codegen_metal.shim import host_unit
from gyrator_codegen_metal.stage import MetalBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.modes import ATOMIC_MODES, StoreMode
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import NUMPY
from gyrator_testing.kernels.built import BuiltKernels, built, text_file

__all__ = ["NUMPY", "Library", "target"]

FLAGS = (
    "-Og -std=c++17 -shared -fPIC -fno-math-errno -fno-trapping-math -ffp-contract=off "
    "-fno-exceptions -fno-rtti -fno-strict-aliasing -w"
).split()
ATOMICS = frozenset(
    (d, m)
    for d in TYPES
    for m in ATOMIC_MODES
    if d is not DType.BOOL and (d.size < 8 or m is StoreMode.ADD)
)


def target(**heuristics):
    return Target(
        device="cpu",
        arch="metal",
        kernel_backend="metal",
        capabilities=Capabilities(dtypes=frozenset(TYPES), atomics=ATOMICS),
        heuristics=Heuristics(**heuristics),
    )


class Library(BuiltKernels):
    """Kernels that were built together, without those that are refused."""

    def __init__(self, kernels, folder, facts=None, edit=None, **heuristics):
        bound = target(**heuristics)
        backend = MetalBackend()
        self.refused = {k.name: d for k in kernels if (d := backend.refuses(k, bound))}
        known = [k for k in kernels if k.name not in self.refused]
        self.tiled = backend.tile(known, facts or ShapeFacts(), (), bound)
        if edit is not None:
            self.tiled = edit(self.tiled)
        units = backend.emit_tiled(self.tiled, bound)
        super().__init__(
            known, units, lambda unit: built(text_file(host_unit(unit).text, "", folder), FLAGS)
        )
