"""Every candidate that tuning may choose for a kernel computes the same."""

import numpy as np
import pytest
from harness import ARCHS, FLAGS, lacking, target
from test_emit import F32, FOLDS, S0, S1, columns, folded, rows, softmax, turned

from gyrator_codegen.stage import tile
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.choices import only, with_candidates
from gyrator_testing.kernels.built import BuiltKernels, built, caller, text_file

SIZES = {"static": (69, 1000), "any": (37, 1003)}


def kernels():
    for kind, results in FOLDS.items():
        for name, sizes in (("static", SIZES["static"]), ("any", (S0, S1))):
            yield rows(f"rows_{name}_{kind.value}", *sizes, kind, results)
            yield columns(f"columns_{name}_{kind.value}", *sizes[::-1], kind, results)
    yield softmax("softmax", *SIZES["static"])
    yield turned("turned", F32, 500, 300)


@pytest.fixture(scope="module", params=[a for a in ARCHS if a != "plain"])
def candidates(request, build_folder):
    """Return the libraries with the first candidate of each kernel, the second, and so on.
    Scalar kernels have no choices."""
    arch = request.param
    if why := lacking(arch):
        pytest.skip(why)
    bound, backend, given = target(arch, unit_statements=200), CppBackend(), list(kernels())
    program = tile(given, ShapeFacts(), backend.passes(bound))
    flags = [*FLAGS, *Isa.of(arch).flags]
    by = caller(arch, build_folder)
    libraries = []
    for number in range(max(len(k.candidates) for k in program.kernels)):
        chosen = [
            with_candidates(k, (k.candidates[number],))
            for k in program.kernels
            if number < len(k.candidates)
        ]
        units = backend.emit_tiled(only(program, chosen), bound)
        libraries.append(BuiltKernels(
            [k.kernel for k in chosen], units,
            lambda unit: built(text_file(unit.text, arch, build_folder), flags, by=by), by,
        ))  # fmt: skip
    return libraries


def of(candidates, name):
    """Return the libraries that have a kernel, of which there are several."""
    having = [library for library in candidates if name in library.kernels]
    assert len(having) > 1, "nothing to choose"
    return having


@pytest.mark.parametrize("kind", FOLDS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("direction", ["rows", "columns"])
def test_folds(candidates, kind, size, direction):
    m, n = SIZES[size] if direction == "rows" else SIZES[size][::-1]
    x = np.random.default_rng(m).standard_normal((m, n)) + 3
    x = (1 + x / 1000 if kind is ReduceKind.PROD else x).astype("f")
    line = x if direction == "rows" else x.T
    want = folded(kind, line.astype("d"))
    position = kind in (ReduceKind.ARGMIN, ReduceKind.ARGMAX)
    sizes = dict(zip(("s0", "s1"), SIZES[size], strict=True)) if size == "any" else {}
    name = f"{direction}_{size}_{kind.value}"

    for library in of(candidates, name):
        got = [np.zeros(line.shape[0], "i8" if position else "f") for _ in want]
        arrays = {"x": x} | {f"y{k}": y for k, y in enumerate(got)}
        assert library(name, arrays, **sizes) == 0
        for y, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(y, expected, rtol=0 if position else 3e-6)


def test_softmax(candidates):
    x = np.random.default_rng(2).standard_normal(SIZES["static"]).astype("f")
    want = np.exp(x.astype("d")) / np.exp(x.astype("d")).sum(1, keepdims=True)

    for library in of(candidates, "softmax"):
        z = np.zeros_like(x)
        assert library("softmax", {"x": x, "z": z}) == 0
        np.testing.assert_allclose(z, want, rtol=3e-6)


def test_transposed(candidates):
    x = np.random.default_rng(3).random((300, 500), "f")

    for library in of(candidates, "turned"):
        z = np.zeros((500, 300), "f")
        assert library("turned", {"x": x, "z": z}) == 0
        np.testing.assert_array_equal(z, x.T)
