"""Writes kernels and runs them in the process that interprets Triton."""

from hashlib import sha256

from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.body.nodes import StoreMode
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.grid import grid_of
from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.tile.loops import in_one_step
from gyrator_ir.tile.nodes import TiledGroup
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import NUMPY as ALL
from gyrator_testing.kernels.rows import TYPES

NUMPY = {d: ALL[d] for d in TYPES}
ATOMICS = frozenset(
    (d, m)
    for d in (DType.F32, DType.F64, DType.I32, DType.I64)
    for m in (StoreMode.ADD, StoreMode.MIN, StoreMode.MAX, StoreMode.TOTAL)
)


UNITS = frozenset({DType.F32, DType.F16, DType.BF16, DType.I8})


def target(arch="sm_90", matrix_units=UNITS, converted=(), **heuristics):
    return Target(
        device="cuda",
        arch=arch,
        kernel_backend="triton",
        capabilities=Capabilities(
            dtypes=frozenset(NUMPY),
            atomics=ATOMICS,
            matrix_units=frozenset(matrix_units),
            converted=frozenset(converted),
        ),
        heuristics=Heuristics(**({"cores": 132} | heuristics)),
    )


def written(schedule):
    """Return the text of a schedule's kernels."""
    kernels = [n for n in schedule.nodes if isinstance(n, Kernel)]
    units = TritonBackend().emit(kernels, schedule.facts, schedule.origins, target())
    return "\n".join(unit.text for unit in units)


class Library:
    """Kernels written together."""

    def __init__(self, kernels, interpreter, folder, facts=None, origins=(), **heuristics):
        bound = self.target = target(**heuristics)
        backend = TritonBackend()
        self._interpreter = interpreter
        alone = [k for k in kernels if isinstance(k, Kernel)]
        groups = [k for k in kernels if isinstance(k, KernelGroup)]
        self.refused = {k.name: backend.refuses(k, bound) for k in alone}
        self.refused = {name: d for name, d in self.refused.items() if d}
        written = [k for k in alone if k.name not in self.refused]
        facts = facts or ShapeFacts()
        tiled = backend.tile([*written, *groups], facts, origins, bound)
        self.units = backend.emit_tiled(tiled, bound)
        self.tiled = {
            t.name if isinstance(t, TiledGroup) else t.kernel.name: t for t in tiled.kernels
        }
        self.kernels = {k.name: k for k in kernels}
        self.sources = {s.kernel: s for u in self.units for s in u.kernels}
        self.paths = {}
        for unit in self.units:
            path = folder / f"k{sha256(unit.text.encode()).hexdigest()[:16]}.py"
            path.write_text(unit.text, encoding="utf-8")
            self.paths |= {s.kernel: str(path) for s in unit.kernels}

    def __call__(self, name, arrays, blocks=None, **sizes):
        """Run a kernel in place on flat arrays, with small blocks or those given."""
        kernel, source = self.kernels[name], self.sources[name]
        for b in kernel.parameters:
            assert arrays[b.name].dtype == NUMPY[b.dtype], b.name
        inputs = [arrays[b.name] for b in kernel.parameters]
        kinds = [b.dtype for b in kernel.parameters]
        numbers = [sizes[s.name] for s in kernel.sizes]
        values = self._small_blocks(name) | (blocks or {})
        path = self.paths[name]
        grid = grid_of(source, numbers, values)
        self._interpreter.run(path, source.symbol, inputs, kinds, numbers, values, grid)

    def _small_blocks(self, name):
        """Return small blocks, since the interpreter folds element by element."""
        kernel, tiled = self.kernels[name], self.tiled[name]
        if not isinstance(kernel, KernelGroup):
            parts = {"": (kernel, tiled)}
        elif len(kernel.kernels) == 1:
            parts = {"": (kernel.kernels[0], tiled.kernels[0])}
        else:
            pairs = zip(kernel.kernels, tiled.kernels, strict=True)
            parts = {str(n): pair for n, pair in enumerate(pairs)}
        best = dict(self.sources[name].candidates[0].values)
        values = {}
        for number, (k, t) in parts.items():
            values[f"XBLOCK{number}"] = 8 if k.inner else 64
            if f"RBLOCK{number}" in best:
                steps = not k.inner or not in_one_step(t)
                values[f"RBLOCK{number}"] = 16 if steps else best[f"RBLOCK{number}"]
        return values | {"XBLOCK": 16, "RBLOCK": 16, "KBLOCK": 32} if "KBLOCK" in best else values
