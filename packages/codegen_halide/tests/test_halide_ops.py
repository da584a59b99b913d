"""Rows of the op table against the reference interpreter, many in a kernel."""

from functools import partial

import numpy as np
import pytest
from halide_harness import Library, target

from gyrator_codegen_halide.ops import LACKING, SINGLE
from gyrator_codegen_halide.stage import HalideBackend
from gyrator_ir.body.ops import OPS, Numerics
from gyrator_ir.types import DType
from gyrator_testing.kernels.compare import same_bits
from gyrator_testing.kernels.rows import merged, run_merged, uses

N = 83  # vectors of 8 or 16, and a remainder of three
BATCH = 24
FEW = frozenset(
    "cast where neg abs maximum minimum floordiv truncdiv mod rem shl shr eq le exp log tanh erf "
    "sigmoid pow expm1 log1p nextafter ldexp copysign round rand randn randint bitcast".split()
)
"""Rows with something of their own in Halide's prelude."""
TYPES = (DType.F32, DType.F16, DType.BF16, DType.I64, DType.U8, DType.BOOL)


def refused(use):
    return HalideBackend().refuses(use.kernel(N), target("avx2")) is not None


def chosen(config):
    result = [u for u in uses() if not refused(u)]
    if config.getoption("--halide-kernels") > 5:
        return result
    first = {}
    for u in result:
        if u.op in FEW and {*u.operands, u.result} <= {*TYPES, DType.I32}:
            first.setdefault((u.op, u.operands[0] if u.op != "cast" else u.result), u)
    return list(first.values())


def judge(use, operands, got):
    want, numerics = use.meaning(operands), OPS[use.op].numerics
    if numerics in (Numerics.EXACT, Numerics.ROUNDED) or not use.result.is_float:
        assert same_bits(got, want).all(), use
    elif use.op == "randn":
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
    else:
        finite = np.isfinite(want)
        assert (same_bits(got, want) | finite).all(), use
        # The reference is itself rounded, so a result within 1 ulp of the truth is a step away.
        step = np.spacing(np.abs(want[finite])).astype(np.float64)
        apart = np.abs(got[finite].astype(np.float64) - want[finite].astype(np.float64))
        rough = 2e-13 * np.abs(want[finite]) if use.result is DType.F64 else 0.0
        assert (apart <= step * 1.5 + rough).all(), use


def test_rows(build_folder, pytestconfig):
    group = chosen(pytestconfig)
    batches = [group[k : k + BATCH] for k in range(0, len(group), BATCH)]
    kernels = [merged(f"rows{n}", batch, N) for n, batch in enumerate(batches)]
    library = Library(kernels, build_folder)
    for n, batch in enumerate(batches):
        for use, operands, got in run_merged(batch, N, partial(library, f"rows{n}")):
            judge(use, operands, got)


@pytest.mark.parametrize(
    "use", [u for u in uses() if u.op in LACKING | SINGLE], ids=lambda u: u.name
)
def test_rows_that_halide_lacks_are_refused(use):
    assert refused(use) == (use.op in LACKING or use.result is DType.F64)
