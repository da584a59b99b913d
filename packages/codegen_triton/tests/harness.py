"""Runs kernels in Triton's interpreter on NumPy arrays."""

import importlib.util
from pathlib import Path

import numpy as np
import triton.language as tl
from mathlib import MathLibrary

from gyrator_codegen_triton.shape import rblock
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.loop.body import StoreMode
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import NUMPY as ALL

NUMPY = {d: n for d, n in ALL.items() if not d.is_complex and d.size > 1 or not d.is_float}
NUMPY = {d: n for d, n in NUMPY.items() if not d.is_complex}
TRITON = {
    DType.F64: "float64", DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16",
    DType.I64: "int64", DType.I32: "int32", DType.I16: "int16", DType.I8: "int8",
    DType.U64: "uint64", DType.U32: "uint32", DType.U16: "uint16", DType.U8: "uint8",
    DType.BOOL: "bool",
}  # fmt: skip
ATOMICS = frozenset(
    (d, m)
    for d in (DType.F32, DType.F64, DType.I32, DType.I64)
    for m in (StoreMode.ADD, StoreMode.MIN, StoreMode.MAX)
)


def target(arch="sm_90", **heuristics):
    return Target(
        device="cuda",
        arch=arch,
        kernel_backend="triton",
        capabilities=Capabilities(dtypes=frozenset(NUMPY), atomics=ATOMICS),
        heuristics=Heuristics(**({"cores": 132} | heuristics)),
    )


class Pointer:
    """An array that Triton's interpreter takes for a tensor in host memory."""

    def __init__(self, array, dtype):
        self.array, self.dtype = array, dtype

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def new_empty(self, *_, **__):
        return Pointer(self.array, self.dtype)

    def set_(self, storage, *_):
        self.array = storage.array

    def storage_offset(self):
        return 0

    def size(self):
        return self.array.shape

    stride = size

    def copy_(self, other):
        assert other.array is self.array


def load(text: str, path: Path):
    """Import a text, with a mathematical library that works on a host."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.libdevice = MathLibrary(tl)
    return module


class Library:
    """Kernels written together."""

    def __init__(self, kernels, folder, facts=None, origins=(), **heuristics):
        bound = target(**heuristics)
        backend = TritonBackend()
        self.refused = {k.name: backend.refuses(k, bound) for k in kernels}
        self.refused = {name: d for name, d in self.refused.items() if d}
        written = [k for k in kernels if k.name not in self.refused]
        self.units = backend.emit(written, facts or ShapeFacts(), origins, bound)
        self.kernels = {k.name: k for k in kernels}
        self.sources = {s.kernel: s for u in self.units for s in u.kernels}
        self.modules = {}
        for k, unit in enumerate(self.units):
            module = load(unit.text, folder / f"{unit.name}_{abs(hash(unit.text))}_{k}.py")
            self.modules |= {s.kernel: module for s in unit.kernels}

    def __call__(self, name, arrays, blocks=None, **sizes):
        """Run a kernel in place on flat arrays, with small blocks or those given."""
        kernel, source, module = self.kernels[name], self.sources[name], self.modules[name]
        values = dict(source.candidates[0].values)
        values = {n: v for n, v in values.items() if n in ("XBLOCK", "RBLOCK")}
        # Small blocks: the interpreter folds element by element.
        values["XBLOCK"] = 8 if kernel.inner else 64
        if "RBLOCK" in values and rblock(kernel, target().heuristics) is None:
            values["RBLOCK"] = 16
        values |= blocks or {}
        given = [sizes[s.name] for s in kernel.sizes]
        grid = getattr(module, f"{source.symbol}_grid")(*given, values["XBLOCK"])
        if not grid[0]:
            return
        pointers = []
        for b in kernel.parameters:
            assert arrays[b.name].dtype == NUMPY[b.dtype], b.name
            pointers.append(Pointer(arrays[b.name], TRITON[b.dtype]))
        with np.errstate(all="ignore"):
            getattr(module, source.symbol)[grid](*pointers, *given, **values)
