"""Random kernels of every shape, on every instruction set, against the reference interpreter."""

import numpy as np
import pytest
from harness import ARCHS, Library, runs_here
from random_kernels import random_case

from gyrator_ir.types import DType
from gyrator_testing.interp.kernel import run_kernel

CASES = {
    f"{form}_{seed}": random_case(seed, form)
    for form, count in (("pointwise", 60), ("reduction", 90), ("scan", 30), ("sort", 16))
    for seed in range(count)
}


@pytest.fixture(scope="module", params=ARCHS)
def library(request, build_folder):
    if not runs_here(request.param):
        pytest.skip(f"this machine has no {request.param}")
    kernels = [c.kernel for c in CASES.values()]
    return Library(
        kernels, request.param, build_folder, optimise="-O1", parallel_grain=4000,
        unit_statements=600,
    )  # fmt: skip


def assert_close(got, want, name, single):
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    loose = {2: 2e-2, 4: 3e-5, 8: 3e-5 if single else 1e-9}[got.itemsize]
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    scale = np.abs(b[finite]).max() if finite.any() else 1.0
    np.testing.assert_allclose(a, b, rtol=loose, atol=loose * max(scale, 1.0) * 0.1, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_kernel(library, name):
    case = CASES[name]
    want = {k: v.copy() for k, v in case.arrays.items()}
    got = {k: v.copy() for k, v in case.arrays.items()}

    run_kernel(case.kernel, want, case.sizes)
    assert library(name, got, **case.sizes) == 0

    body = [s for stage in case.kernel.stages for s in stage.body]
    single = any(getattr(s, "dtype", None) is DType.F32 for s in body)
    for buffer in case.kernel.parameters:
        assert_close(got[buffer.name], want[buffer.name], buffer.name, single)
