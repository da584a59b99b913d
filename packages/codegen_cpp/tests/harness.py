"""Builds kernels with g++ and runs them on NumPy arrays."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, TemplateKernel
from gyrator_ir.kernel.parse import read_launchable
from gyrator_ir.provenance import Origin
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.text.lines import parse_lines
from gyrator_testing.interp.dtypes import NUMPY as ALL
from gyrator_testing.interp.template import run_template
from gyrator_testing.kernels.built import BuiltKernels, built, caller, lacking, text_file
from gyrator_testing.kernels.rows import TYPES

FLAGS = (
    "-Og -std=c++17 -shared -fPIC -nostdlib -fno-math-errno -fno-trapping-math -ffp-contract=off "
    "-fopenmp -fno-exceptions -fno-rtti -fno-strict-aliasing -w"
).split()
"""The umbrella's tests of ops, loops, gradients and models run kernels as they are optimised for
users; here, thousands are built to compare what their text means."""
__all__ = [
    "ARCHS", "NUMPY", "Library", "check_image_kernels", "check_refusal", "image_kernels",
    "kernel_of", "lacking", "parameter_lines", "target",
]  # fmt: skip

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


def kernel_of(text: str) -> Launchable:
    """Return the only kernel of a text."""
    (kernel,) = map(read_launchable, parse_lines(text))
    return kernel


def parameter_lines(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Return the text of the parameters of a kernel of `f32`, in row-major order."""
    return [
        f"  parameter {n}: f32{list(shape)} "
        f"strides {[math.prod(shape[k + 1 :]) for k in range(len(shape))]} on cpu"
        for n, shape in zip(names, shapes, strict=True)
    ]


def image_kernels(
    kernels: Sequence[TemplateKernel], arch: str, folder: Path
) -> tuple[BuiltKernels, str]:
    """Return convolutions that were built together, and their text."""
    units = CppBackend().emit(kernels, ShapeFacts(), (), target(arch))
    flags = [*FLAGS, *Isa.of(arch).flags]
    library = BuiltKernels(
        kernels, units, lambda u: built(text_file(u.text, arch, folder), flags), None
    )
    return library, "".join(u.text for u in units)


def check_image_kernels(
    library: BuiltKernels,
    kernels: Sequence[TemplateKernel],
    shapes: Sequence[Sequence[tuple[int, ...]]],
    spoil: Callable[[np.ndarray], None],
) -> list[np.ndarray]:
    """Compare convolutions with the interpreter, for random parameters and after `spoil` has put
    special numbers into the image. Return what the interpreter has for the latter."""
    rng = np.random.default_rng(3)
    spoiled = []
    for kernel, own in zip(kernels, shapes, strict=True):
        for special in (False, True):
            arrays = [rng.standard_normal(math.prod(s), np.float32) for s in own]
            if special:
                spoil(arrays[0].reshape(own[0]))
            expected = _check_image_kernel(library, kernel, arrays)
        spoiled.append(expected)
    return spoiled


def _check_image_kernel(
    library: BuiltKernels, kernel: TemplateKernel, arrays: Sequence[np.ndarray]
) -> np.ndarray:
    """Run a convolution and the interpreter on its parameters, `p0` and so on; the last one is the
    result. Return what the interpreter has there."""
    buffers = {f"p{n}": a for n, a in enumerate(arrays)}
    result = list(buffers)[-1]
    expected = {name: a.copy() for name, a in buffers.items()}
    with np.errstate(all="ignore"):
        run_template(kernel, expected, {})
    buffers[result].fill(7)
    assert library(kernel.name, buffers) == 0
    np.testing.assert_allclose(buffers[result], expected[result], rtol=1e-4, atol=1e-4)
    return expected[result]


def check_refusal(kernel: TemplateKernel, arch: str, why: str) -> None:
    """Check that a template is refused for a reason, or not at all if that is empty."""
    refusal = CppBackend().refuses_template(kernel, target(arch))
    assert (refusal is None) == (not why)
    if refusal is not None:
        assert refusal.code == "GY-CPP-024"
        assert why in refusal.message
