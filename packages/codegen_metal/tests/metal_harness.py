"""Builds Metal kernels as C++ against the shim and runs them on NumPy arrays."""

import ctypes
import subprocess
from hashlib import sha256

from gyrator_codegen_metal.dtypes import TYPES
from gyrator_codegen_metal.shim import host_unit
from gyrator_codegen_metal.stage import MetalBackend
from gyrator_ir.body.nodes import StoreMode
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import NUMPY

FLAGS = (
    "-O1 -std=c++17 -shared -fPIC -fno-math-errno -fno-trapping-math -ffp-contract=off "
    "-fno-exceptions -fno-rtti -fno-strict-aliasing -w"
).split()
ATOMICS = frozenset(
    (d, m)
    for d in TYPES
    for m in StoreMode
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


class Library:
    """Kernels that were built together, without those that are refused."""

    def __init__(self, kernels, folder, facts=None, edit=None, **heuristics):
        bound = target(**heuristics)
        backend = MetalBackend()
        self.refused = {k.name: d for k in kernels if (d := backend.refuses(k, bound))}
        written = [k for k in kernels if k.name not in self.refused]
        self.tiled = backend.tile(written, facts or ShapeFacts(), (), bound)
        if edit is not None:
            self.tiled = edit(self.tiled)
        self.units = backend.emit_tiled(self.tiled, bound)
        self.kernels = {k.name: k for k in kernels}
        self.functions = {}
        built = []
        for unit in self.units:
            text = host_unit(unit).text
            key = sha256(text.encode()).hexdigest()[:16]
            source, path = folder / f"{key}.cpp", folder / f"{key}.so"
            source.write_text(text, encoding="utf-8")
            command = ["g++", *FLAGS, "-o", str(path), str(source)]
            built.append((unit, path, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
            if len(built) % 2 == 0:
                built[-2][2].wait()
        for unit, path, process in built:
            said = process.communicate()[1]
            assert process.returncode == 0, said[:4000]
            library = ctypes.CDLL(str(path))
            for s in unit.kernels:
                function = getattr(library, s.symbol)
                function.restype = ctypes.c_int64
                self.functions[s.kernel] = function

    def __call__(self, name, arrays, **sizes):
        """Run a kernel in place on flat arrays; return its code."""
        kernel = self.kernels[name]
        for b in kernel.parameters:
            assert arrays[b.name].dtype == NUMPY[b.dtype], b.name
        pointers = [arrays[b.name].ctypes.data for b in kernel.parameters]
        values = [sizes[s.name] for s in kernel.sizes]
        buffers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        numbers = (ctypes.c_int64 * max(1, len(values)))(*values)
        return self.functions[name](buffers, numbers)
