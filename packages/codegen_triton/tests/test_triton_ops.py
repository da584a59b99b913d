"""Every row of the op table against the reference interpreter."""

import numpy as np
import pytest
from triton_build import CUDA
from triton_harness import NUMPY, Library

from gyrator_codegen_triton.ops import EMITTERS
from gyrator_ir.body.ops import OPS, Numerics
from gyrator_ir.types import DType
from gyrator_testing.kernels.compare import same_bits
from gyrator_testing.kernels.rows import Use, uses

N = 67
USES = {use.name: use for use in uses()}


@pytest.fixture(scope="module")
def library(interpreter, text_folder):
    kernels = [use.kernel(N, CUDA) for use in USES.values()]
    result = Library(kernels, interpreter, text_folder, unit_statements=400)
    assert not result.refused
    return result


def test_every_row_has_an_emitter():
    assert set(EMITTERS) == set(OPS)


@pytest.mark.parametrize("name", USES)
def test_op(library, name):
    use = USES[name]
    xs = use.sample(N, np.random.default_rng(len(name)))
    y = np.zeros(N, NUMPY[use.result])

    library(name, {f"x{k}": x for k, x in enumerate(xs)} | {"y": y})

    want = use.meaning(xs)
    # The interpreter multiplies and adds with two roundings where a device's `fma` has one.
    exact = OPS[use.op].numerics in (Numerics.EXACT, Numerics.ROUNDED) and use.op != "fma"
    if exact or not use.result.is_float:
        equal = same_bits(y, want)
        assert equal.all(), [(*(x[i] for x in xs), y[i], want[i]) for i in np.flatnonzero(~equal)]
    elif use.op == "randn":
        np.testing.assert_allclose(y, want, rtol=0, atol=2e-6)  # a product of rounded functions
    else:
        rel = 2e-12 if use.result is DType.F64 else 2e-6
        finite = np.isfinite(want)
        assert (same_bits(y, want) | finite).all()
        np.testing.assert_allclose(y[finite], want[finite], rtol=rel, atol=rel)


CONVERTED = (DType.F8E4M3, DType.F8E5M2)


@pytest.mark.parametrize("dtype", CONVERTED)
def test_devices_that_convert_floats_of_8_bits_give_the_same(interpreter, text_folder, dtype):
    # Triton's interpreter does not round as devices do: numbers that need none, and infinities.
    numbers = np.arange(256, dtype=np.uint8).view(NUMPY[dtype]).astype(np.float32)
    beyond = [6.2e4, -1e30, np.inf, -np.inf] if dtype is DType.F8E5M2 else []
    xs = np.concatenate([numbers[np.isfinite(numbers)], np.float32(beyond)])
    there = Use("there", "cast", (DType.F32,), dtype).kernel(len(xs), CUDA)
    back = Use("back", "cast", (dtype,), DType.F32).kernel(len(xs), CUDA)
    results = []
    for converted in (CONVERTED, ()):
        library = Library([there, back], interpreter, text_folder, converted=converted)
        assert ("float8" in library.sources["there"].text) is bool(converted)
        narrow, wide = np.zeros(len(xs), NUMPY[dtype]), np.zeros(len(xs), np.float32)
        library("there", {"x0": xs, "y": narrow})
        library("back", {"x0": narrow, "y": wide})
        results.append((narrow.view(np.uint8), wide[: len(xs) - len(beyond)]))
    for actual, other in zip(*results, strict=True):
        np.testing.assert_array_equal(actual, other)
