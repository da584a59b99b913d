"""Every row of the op table against the reference interpreter."""

import numpy as np
import pytest
from metal_harness import NUMPY, Library

from gyrator_codegen_metal.dtypes import TYPES
from gyrator_codegen_metal.ops import EMITTERS
from gyrator_ir.body.ops import OPS, Numerics
from gyrator_testing.kernels.compare import same_bits
from gyrator_testing.kernels.rows import uses

N = 97
LACKING = {"erfc", "erfinv", "lgamma", "digamma"}
USES = {use.name: use for use in uses() if set(TYPES).issuperset((*use.operands, use.result))}


@pytest.fixture(scope="module")
def library(build_folder):
    return Library([use.kernel(N) for use in USES.values()], build_folder, unit_statements=900)


def test_what_is_lacking_is_refused(library):
    assert set(OPS) - set(EMITTERS) == LACKING
    assert {USES[name].op for name in library.refused} == LACKING
    assert {d.code for d in library.refused.values()} == {"GY-METAL-003"}


@pytest.mark.parametrize("name", [n for n, use in USES.items() if use.op not in LACKING])
def test_op(library, name):
    use = USES[name]
    xs = use.sample(N, np.random.default_rng(len(name)))
    y = np.zeros(N, NUMPY[use.result])

    assert library(name, {f"x{k}": x for k, x in enumerate(xs)} | {"y": y}) == 0

    want = use.meaning(xs)
    if OPS[use.op].numerics in (Numerics.EXACT, Numerics.ROUNDED) or not use.result.is_float:
        equal = same_bits(y, want)
        assert equal.all(), [(*(x[i] for x in xs), y[i], want[i]) for i in np.flatnonzero(~equal)]
    else:
        finite = np.isfinite(want)
        assert (same_bits(y, want) | finite).all()
        np.testing.assert_allclose(y[finite], want[finite], rtol=4e-7, atol=1e-38)


def test_remainders_of_all_magnitudes(build_folder):
    """Bits at random: denormals, infinities and NaNs among them."""
    use = next(u for u in USES.values() if u.op == "fmod")
    rng = np.random.default_rng(5)
    xs = [rng.integers(0, 1 << 32, 20000, np.uint32).view(np.float32) for _ in range(2)]
    xs[1][::3] = rng.integers(0, 1 << 23, len(xs[1][::3]), np.uint32).view(np.float32)
    y = np.zeros(20000, np.float32)

    Library([use.kernel(20000)], build_folder)(use.name, {"x0": xs[0], "x1": xs[1], "y": y})

    with np.errstate(all="ignore"):
        assert same_bits(y, np.fmod(*xs)).all()
