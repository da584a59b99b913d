"""Groups of random kernels on every instruction set, against the reference interpreter."""

import random

import numpy as np
import pytest
from attrs import evolve
from harness import ARCHS, Library, lacking, target

from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import KernelGroup
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.compare import assert_same_writes
from gyrator_testing.kernels.random import Case, random_case

FORMS = ("pointwise", "reduction", "scan", "sort")
CASES = [random_case(seed, FORMS[seed % 4]) for seed in range(24)]


def group(number: int) -> tuple[KernelGroup, list[Case]]:
    """Kernels that agree about the symbols that they share, some of them as several members."""
    rng = random.Random(number)
    sizes: dict[str, int] = {}
    chosen: list[Case] = []
    for case in rng.sample(CASES, len(CASES)):
        if len(chosen) < 6 and all(sizes.get(k, v) == v for k, v in case.sizes.items()):
            sizes |= case.sizes
            chosen.append(case)
    numbers = [*(rng.randrange(6) for _ in range(7)), *range(6)]
    kernels = [evolve(c.kernel, name=f"g{number}_{n}") for n, c in enumerate(chosen)]
    whole = KernelGroup(f"g{number}", kernels[0].device, tuple(kernels), tuple(numbers))
    return whole, [chosen[n] for n in numbers]


def another(whole: KernelGroup, cases: list[Case]) -> tuple[KernelGroup, list[Case]]:
    """The kernels of a group under other names, in another order, with the members reversed."""
    kernels = [evolve(k, name=f"other_{k.name}") for k in reversed(whole.kernels)]
    numbers = [len(kernels) - 1 - n for n in reversed(whole.members)]
    group = evolve(whole, name="other", kernels=tuple(kernels), members=tuple(numbers))
    return group, cases[::-1]


GROUPS = [group(0), another(*group(0)), group(1), group(2)]


@pytest.fixture(scope="module", params=ARCHS)
def library(request, build_folder):
    if why := lacking(request.param):
        pytest.skip(why)
    groups = [g for g, _ in GROUPS]
    return Library(groups, request.param, build_folder, parallel_grain=40)


@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_group(library, number) -> None:
    whole, cases = GROUPS[number]
    sizes = {name: size for case in cases for name, size in case.sizes.items()}
    got: dict[str, np.ndarray] = {}
    for member, case in enumerate(cases):
        for name, array in case.arrays.items():
            got[whole.parameter(member, name)] = array.copy()

    assert library(whole.name, got, **sizes) == 0

    for member, case in enumerate(cases):
        want = {k: v.copy() for k, v in case.arrays.items()}
        run_kernel(case.kernel, want, sizes)
        actual = {k: got[whole.parameter(member, k)] for k in case.arrays}
        assert_same_writes(case.kernel, actual, want)


def test_groups_of_a_unit_share_functions() -> None:
    def functions(*groups: KernelGroup, cores: int) -> list[int]:
        bound = target("avx2", cores=cores, unit_statements=9999)
        units = CppBackend().emit(groups, ShapeFacts(), (), bound)
        return [unit.text.count("_part(void *const *buffers") for unit in units]

    one, other = GROUPS[0][0], GROUPS[1][0]
    assert functions(one, cores=1) == [6]
    assert functions(one, other, cores=1) == [6]
    assert functions(one, other, cores=2) == [6, 6]
