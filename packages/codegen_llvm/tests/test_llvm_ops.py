"""Every row of the op table against the reference interpreter, many in a kernel."""

from functools import partial

import numpy as np
import pytest
from llvm_harness import NUMPY, Library, target

from gyrator_codegen_llvm.ops import EMITTERS, LACKING
from gyrator_codegen_llvm.stage import LlvmBackend
from gyrator_ir.body.ops import OPS, Numerics
from gyrator_ir.types import DType
from gyrator_testing.kernels.built import lacking
from gyrator_testing.kernels.compare import same_bits
from gyrator_testing.kernels.rows import merged, run_merged, uses

N = 83  # vectors of 8 or 16, and a remainder of three
BATCH = 24


def refused(use, arch="avx2"):
    return LlvmBackend().refuses(use.kernel(N), target(arch)) is not None


def judge(use, operands, got):
    want, numerics = use.meaning(operands), OPS[use.op].numerics
    if numerics in (Numerics.EXACT, Numerics.ROUNDED) or not use.result.is_float:
        assert same_bits(got, want).all(), use
        return
    finite = np.isfinite(want)
    assert (same_bits(got, want) | finite).all(), use
    # The reference is itself rounded, so a result within 1 ulp of the truth is a step away.
    step = np.spacing(np.abs(want[finite])).astype(np.float64)
    apart = np.abs(got[finite].astype(np.float64) - want[finite].astype(np.float64))
    rough = 2e-15 * np.abs(want[finite]) if use.result is DType.F64 else 0.0
    assert (apart <= step * 1.5 + rough).all(), use


@pytest.mark.parametrize("arch", ["avx512", "avx2", "plain"])
def test_rows(arch):
    if lacking(arch):
        pytest.skip(lacking(arch))
    group = [u for u in uses() if not refused(u, arch)]
    assert {u.op for u in group} == set(OPS) - LACKING
    batches = [group[k : k + BATCH] for k in range(0, len(group), BATCH)]
    library = Library([merged(f"rows{n}", batch, N) for n, batch in enumerate(batches)], arch)
    for n, batch in enumerate(batches):
        for use, operands, got in run_merged(batch, N, partial(library, f"rows{n}")):
            judge(use, operands, got)


def test_the_rest_is_refused():
    assert EMITTERS.keys() == OPS.keys() - LACKING
    for u in uses():
        narrow = {*u.operands, u.result} - NUMPY.keys()
        assert refused(u) == (u.op in LACKING or bool(narrow)), u


@pytest.mark.parametrize("op", ["exp", "tanh", "erf", "sigmoid"])
def test_functions_are_accurate_everywhere(op):
    """The functions that LLVM vectorises, on floats of every magnitude."""
    if lacking("avx2"):
        pytest.skip(lacking("avx2"))
    use = next(u for u in uses() if u.op == op and u.result is DType.F32)
    bits = np.arange(0, 1 << 32, 40009, dtype=np.uint32)
    x = bits.view(np.float32)
    y = np.zeros(x.size, np.float32)
    library = Library([use.kernel(x.size)])
    assert library(use.name, {"x0": x, "y": y}) == 0
    judge(use, [x], y)
