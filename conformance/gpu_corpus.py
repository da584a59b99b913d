"""The fixed corpus of kernels, each launched once on the device: `compute-sanitizer` watches.

    compute-sanitizer --tool memcheck python conformance/gpu_corpus.py

The corpus is that of codegen_triton's tests, which CI compiles for other targets. Buffers are as
long as the kernels say they use, each an allocation of its own, and random; results are not looked
at here.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.body.nodes import Bind, Load, Store
from gyrator_ir.expr import Const, Expr, ShapeFacts, Sym, expr, subs
from gyrator_ir.grid import grid_of
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_runtime.accelerator import AcceleratorDevice
from gyrator_runtime.host import DTYPES

sys.path.insert(0, str(Path(__file__).parent.parent / "packages" / "codegen_triton" / "tests"))

from triton_corpus import corpus

SIZES = {"s0": 61, "s1": 300, "s2": 45}
"""What sizes are that a kernel takes."""
_MASKED = {("convolved", "x"): 2 * 8 * 8 * 16}
"""Buffers of which masks leave out what an address alone would reach: their elements."""
_FLAGS = ("enable_fp_fusion", "debug", "sanitize_overflow")


def lengths(kernel: Kernel) -> dict[str, int]:
    """Return how many elements of each parameter a kernel reads or writes, at the most."""
    last: dict[Sym, Expr] = {s: expr(SIZES[s.name]) for s in kernel.sizes}
    for axis in (*kernel.axes, *kernel.inner):
        last[axis.symbol] = subs(axis.extent, last) - 1
    body = kernel.statements
    for s in body:
        if isinstance(s, Bind):
            last[s.symbol] = subs(s.size, last) - 1
    found = dict.fromkeys((p.name for p in kernel.parameters), 1)
    for s in body:
        if isinstance(s, Load | Store) and s.buffer in found:
            end = subs(s.index, last)
            assert isinstance(end, Const), (kernel.name, s.buffer, end)
            found[s.buffer] = max(found[s.buffer], end.value + 1)
    return {n: _MASKED.get((kernel.name, n), elements) for n, elements in found.items()}


def filled(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Return random elements on the device; integers are small enough to index with, and floats of
    8 bits are bytes, as kernels take them."""
    if dtype.is_floating_point:
        numbers = torch.randn(elements, device="cuda").to(dtype)
        return numbers.view(torch.uint8) if dtype.itemsize == 1 else numbers
    return torch.randint(0, 2 if dtype is torch.bool else 5, (elements,), device="cuda").to(dtype)


def launch(kernel: Kernel, source: KernelSource, module: Any) -> None:
    """Run a kernel as Triton's own launcher does."""
    span = lengths(kernel)
    tensors = [filled(span[p.name], DTYPES[p.dtype]) for p in kernel.parameters]
    values = dict(source.candidates[0].values)
    values |= {n: bool(values[n]) for n in _FLAGS if n in values}
    sizes = [SIZES[s.name] for s in kernel.sizes]
    getattr(module, source.symbol)[grid_of(source, sizes, values)](*tensors, *sizes, **values)


def written() -> Iterator[tuple[Kernel, KernelSource, TranslationUnit]]:
    """Yield the corpus with the texts for this device."""
    properties = AcceleratorDevice(NVIDIA_GPU.facts).properties(0)
    target = NVIDIA_GPU.target(properties.arch, properties.cores)
    kernels = {k.name: k for k in corpus()}
    for unit in TritonBackend().emit(list(kernels.values()), ShapeFacts(), (), target):
        for source in unit.kernels:
            yield kernels[source.kernel], source, unit


def main() -> int:
    """Launch every kernel; print its name when it is done."""
    with TemporaryDirectory() as folder:
        for kernel, source, unit in written():
            path = os.path.join(folder, f"{source.symbol}.py")
            Path(path).write_text(unit.text)
            spec = importlib.util.spec_from_file_location(source.symbol, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            launch(kernel, source, module)
            torch.cuda.synchronize()
            print(source.symbol, "done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
