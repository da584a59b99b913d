"""Builds kernels with LLVM in this process and runs them on NumPy arrays."""

import ctypes

from gyrator_codegen_llvm.build import compiled, loaded
from gyrator_codegen_llvm.dtypes import TYPES
from gyrator_codegen_llvm.stage import LlvmBackend
from gyrator_ir.body.nodes import StoreMode
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.modes import ATOMIC_MODES
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_testing.interp.dtypes import NUMPY as ALL

NUMPY = {d: ALL[d] for d in TYPES}
ATOMICS = frozenset((d, m) for d in TYPES for m in {StoreMode.SET, *ATOMIC_MODES})


def target(arch, **heuristics):
    return Target(
        device="cpu",
        arch=arch,
        kernel_backend="llvm",
        capabilities=Capabilities(dtypes=frozenset(NUMPY), atomics=ATOMICS),
        heuristics=Heuristics(**heuristics),
    )


class Library:
    """Kernels that were built together; `refused` says why others were not."""

    def __init__(self, kernels, arch="avx2", facts=None, edit=None):
        bound, backend = target(arch), LlvmBackend()
        reasons = {k.name: backend.refuses(k, bound) for k in kernels}
        self.refused = {name: why for name, why in reasons.items() if why is not None}
        self.kernels = {k.name: k for k in kernels if k.name not in self.refused}
        known = list(self.kernels.values())
        program = backend.tile(known, facts or ShapeFacts(), (), bound)
        self.units = backend.emit_tiled(program if edit is None else edit(program), bound)
        self.addresses = {}
        for unit in self.units:
            found = loaded(compiled(unit.text, arch), unit.symbols)
            self.addresses |= {s.kernel: found[s.symbol] for s in unit.kernels}

    def __call__(self, name, arrays, **sizes):
        """Run a kernel in place on flat arrays; return its code."""
        kernel = self.kernels[name]
        for b in kernel.parameters:
            assert arrays[b.name].dtype == NUMPY[b.dtype], b.name
        pointers = [arrays[b.name].ctypes.data for b in kernel.parameters]
        numbers = [sizes[s.name] for s in kernel.sizes]
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
        return function(self.addresses[name])(
            (ctypes.c_void_p * max(1, len(pointers)))(*pointers),
            (ctypes.c_int64 * max(1, len(numbers)))(*numbers),
        )
