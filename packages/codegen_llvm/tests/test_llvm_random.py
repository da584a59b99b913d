"""Random kernels against the reference interpreter."""

import pytest
from attrs import evolve
from llvm_harness import Library

from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.built import lacking
from gyrator_testing.kernels.compare import assert_same_writes
from gyrator_testing.kernels.random import random_case

FORMS = ("pointwise", "reduction", "scan")
COUNT = 40


def check(cases, library):
    for case in cases:
        name = case.kernel.name
        want = {k: v.copy() for k, v in case.arrays.items()}
        got = {k: v.copy() for k, v in case.arrays.items()}
        run_kernel(case.kernel, want, case.sizes)
        assert library(name, got, **case.sizes) == 0, name
        assert_same_writes(case.kernel, got, want)


def in_strips(program):
    """Compute every kernel that has points and inner axes in strips of 7 points."""

    def edited(tiled):
        axes = len(tiled.kernel.axes)
        if not axes or not tiled.kernel.inner or tiled.kernel.locals:
            return tiled
        loops = list(tiled.loops)
        loops[axes - 1] = evolve(loops[axes - 1], step=7)
        return evolve(tiled, loops=tuple(loops))

    return evolve(program, kernels=tuple(map(edited, program.kernels)))


@pytest.mark.parametrize("arch", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize("form", FORMS)
def test_kernels(form, arch):
    if lacking(arch):
        pytest.skip(lacking(arch))
    cases = [random_case(seed, form) for seed in range(COUNT)]
    for edit in (None, in_strips):
        library = Library([c.kernel for c in cases], arch, edit=edit)
        assert len(library.refused) < COUNT // 2
        check([c for c in cases if c.kernel.name not in library.refused], library)
