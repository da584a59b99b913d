"""Random kernels of every shape, on every instruction set, against the reference interpreter."""

import pytest
from harness import ARCHS, Library, lacking

from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.compare import assert_same_writes
from gyrator_testing.kernels.random import random_case

CASES = {
    f"{form}_{seed}": random_case(seed, form)
    for form, count in (("pointwise", 60), ("reduction", 90), ("scan", 30), ("sort", 16))
    for seed in range(count)
}


@pytest.fixture(scope="module", params=ARCHS)
def library(request, build_folder):
    if why := lacking(request.param):
        pytest.skip(why)
    kernels = [c.kernel for c in CASES.values()]
    return Library(
        kernels, request.param, build_folder, parallel_grain=4000,
        unit_statements=600,
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kernel(library, name):
    case = CASES[name]
    want = {k: v.copy() for k, v in case.arrays.items()}
    got = {k: v.copy() for k, v in case.arrays.items()}

    run_kernel(case.kernel, want, case.sizes)
    assert library(name, got, **case.sizes) == 0

    assert_same_writes(case.kernel, got, want)
