"""Every row of the op table, vector and scalar, against the reference interpreter."""

import numpy as np
import pytest
from harness import ARCHS, NUMPY, Library, lacking

from gyrator_ir.body.ops import OPS, Numerics
from gyrator_ir.types import DType
from gyrator_testing.kernels.compare import same_bits
from gyrator_testing.kernels.rows import uses

N = 83  # five vectors of 16 lanes and a remainder of three
USES = {use.name: use for use in uses()}


@pytest.fixture(scope="module", params=ARCHS)
def library(request, build_folder):
    if why := lacking(request.param):
        pytest.skip(why)
    kernels = [use.kernel(N) for use in USES.values()]
    return Library(kernels, request.param, build_folder, unit_statements=400)


def ulps(got, want):
    """Distance in units of the last place; 0 where both are NaN or the same infinity."""
    kind = np.int32 if got.dtype == np.float32 else np.int64
    a, b = got.view(kind).astype(object), want.view(kind).astype(object)
    low = int(np.iinfo(kind).min)
    a, b = (np.where(v < 0, low - v, v) for v in (a, b))
    apart = np.abs(a - b)
    return np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0, apart)


@pytest.mark.parametrize("name", USES)
def test_op(library, name):
    use = USES[name]
    xs = use.sample(N, np.random.default_rng(len(name)))
    for x in xs:
        x[67:] = x[:16]
    y = np.zeros(N, NUMPY[use.result])

    assert library(name, {f"x{k}": x for k, x in enumerate(xs)} | {"y": y}) == 0

    want = use.meaning(xs)
    numerics = OPS[use.op].numerics
    if numerics in (Numerics.EXACT, Numerics.ROUNDED) or not use.result.is_float:
        equal = same_bits(y, want)
        assert equal.all(), [(*(x[i] for x in xs), y[i], want[i]) for i in np.flatnonzero(~equal)]
    elif use.op == "randn":
        np.testing.assert_allclose(y, want, rtol=0, atol=2e-6)  # a product of two rounded functions
    elif numerics is Numerics.ULP and use.result is DType.F32:
        # The reference is itself rounded, so a result within 1 ulp of the truth is a step away.
        assert ulps(y, want).max() <= 1
    else:
        rel = 2e-13 if use.result is DType.F64 else 2e-5
        finite = np.isfinite(want)
        assert (same_bits(y, want) | finite).all()
        np.testing.assert_allclose(y[finite], want[finite], rtol=rel, atol=rel)
    assert (y[67:].view("u1") == y[:16].view("u1")).all()  # remainder lanes as full vectors
