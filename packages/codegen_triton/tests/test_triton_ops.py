"""Every row of the op table against the reference interpreter."""

import numpy as np
import pytest
from triton_build import CUDA
from triton_harness import NUMPY, Library

from gyrator_codegen_triton.ops import EMITTERS
from gyrator_ir.body.ops import OPS, Numerics
from gyrator_ir.types import DType
from gyrator_testing.kernels.compare import same_bits
from gyrator_testing.kernels.rows import uses

N = 67
USES = {use.name: use for use in uses()}


@pytest.fixture(scope="module")
def library(interpreter, text_folder):
    kernels = [use.kernel(N, CUDA) for use in USES.values()]
    made = Library(kernels, interpreter, text_folder, unit_statements=400)
    assert not made.refused
    return made


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
