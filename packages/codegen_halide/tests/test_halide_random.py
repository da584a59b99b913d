"""Random kernels against the reference interpreter, by tile loops and by autoschedulers."""

import pytest
from attrs import evolve
from halide_harness import Library, build, lacking, target

from gyrator_codegen_halide.stage import ADAMS, LI, MULLAPUDI, HalideBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.built import loaded
from gyrator_testing.kernels.compare import assert_same_writes
from gyrator_testing.kernels.random import random_case

FORMS = {"pointwise": 1, "reduction": 3, "scan": 1}
"""How many there are of each form for one of the option's number."""


def check(cases, library):
    for case in cases:
        name = case.kernel.name
        want = {k: v.copy() for k, v in case.arrays.items()}
        got = {k: v.copy() for k, v in case.arrays.items()}
        run_kernel(case.kernel, want, case.sizes)
        assert library(name, got, **case.sizes) == 0, name
        assert_same_writes(case.kernel, got, want)


@pytest.mark.parametrize("form", FORMS)
def test_kernels(form, build_folder, pytestconfig):
    count = FORMS[form] * pytestconfig.getoption("--halide-kernels")
    archs = ("avx512", "avx2", "plain")
    for place, arch in enumerate(archs):
        if lacking(arch):
            continue
        cases = [random_case(seed, form) for seed in range(place, count, len(archs))]
        library = Library([c.kernel for c in cases], build_folder, arch, parallel_grain=4000)
        assert not library.refused
        check(cases, library)


@pytest.mark.parametrize("backend", [MULLAPUDI, ADAMS, LI])
def test_autoschedulers(backend, build_folder):
    cases = [random_case(5, "pointwise"), random_case(4, "reduction"), random_case(1, "scan")]
    kernels = [c.kernel for c in cases]
    library = Library(kernels, build_folder, "avx2", backend=backend())
    assert not library.refused
    tiled = Library(kernels[1:2], build_folder, "avx2", backend=HalideBackend())
    assert library.units[1].text != tiled.units[0].text
    check(cases, library)


def test_an_autoscheduler_that_fails_is_left_out(build_folder):
    case = random_case(4, "reduction")
    units = HalideBackend("halide-none2000", "None2000").emit(
        [case.kernel], ShapeFacts(), (), target("avx2")
    )
    library = Library([case.kernel], build_folder, "avx2")
    (name,) = library.functions
    library.functions[name] = loaded(build(units[0], build_folder), units[0].kernels[0].symbol)
    check([case], library)


def test_a_build_that_takes_too_much_ends(build_folder):
    case = random_case(4, "reduction")
    (unit,) = HalideBackend().emit([case.kernel], ShapeFacts(), (), target("avx2"))
    for limit, less in (
        ("MOST_MEMORY = 4 << 30", "MOST_MEMORY = 1 << 20"),
        ("MOST_SECONDS = 120", "MOST_SECONDS = 0"),
    ):
        assert limit in unit.text
        with pytest.raises(AssertionError, match="GY-HALIDE-006: Halide failed, or took more"):
            build(evolve(unit, text=unit.text.replace(limit, less)), build_folder)
