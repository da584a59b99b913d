"""Groups of kernels, in Triton's interpreter against the reference interpreter."""

import pytest
from attrs import evolve
from triton_build import CUDA
from triton_harness import Library

from gyrator_ir.kernel.nodes import KernelGroup
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.compare import assert_same_writes
from gyrator_testing.kernels.random import Limits, random_case

SMALL = Limits(extents=(1, 2, 3, 5, 8, 13), long=(40, 70), points=160)
SEEDS = {f"{form}_{seed}": (seed, form) for form in ("pointwise", "reduction") for seed in range(8)}
CASES = {name: random_case(*seed, CUDA, SMALL) for name, seed in SEEDS.items()}
MEMBERS = 5  # odd at two bits of a place


CORES = {"a_block": 132, "some_blocks": 1}
PAIRS = [
    pytest.param(cores, name, id=f"{way}-{name}", marks=pytest.mark.long if (k + n) % 2 else ())
    for k, (way, cores) in enumerate(CORES.items())
    for n, name in enumerate(CASES)
]


@pytest.fixture(scope="module")
def library(request, interpreter, text_folder):
    """On one multiprocessor a member has two programs, which take its blocks in turn."""
    groups = [
        KernelGroup(name, CUDA, (evolve(c.kernel, name=f"{name}_k"),), (0,) * MEMBERS)
        for name, c in CASES.items()
    ]
    return Library(groups, interpreter, text_folder, cores=request.param)


@pytest.mark.parametrize(("library", "name"), PAIRS, indirect=["library"])
def test_group(library, name):
    case, whole = CASES[name], library.kernels[name]
    inputs = {}
    for member in range(MEMBERS):
        for key, array in case.arrays.items():
            # Other numbers for each member, where they are no indices.
            actual = (
                array.copy() if array.dtype.kind in "iub" else array * array.dtype.type(member % 3)
            )
            inputs[whole.parameter(member, key)] = actual
    got = {key: array.copy() for key, array in inputs.items()}

    library(name, got, **case.sizes)

    for member in range(MEMBERS):
        keys = {key: whole.parameter(member, key) for key in case.arrays}
        want = {key: inputs[k].copy() for key, k in keys.items()}
        run_kernel(case.kernel, want, case.sizes)
        assert_same_writes(case.kernel, {key: got[k] for key, k in keys.items()}, want)


STATIC = [name for name, case in CASES.items() if not case.sizes]
KINDS = {
    f"kinds_{n}": names for n, names in enumerate(zip(STATIC, STATIC[1:], STATIC[3:], strict=False))
}
ORDER = {"some": (0, 1, 2, 1), "many": (0, 1, 2, 1, 2, 2, 0, 1, 1)}
"""The kernels of the members: one program a block for few, persistent programs for many."""


@pytest.fixture(scope="module")
def kinds(interpreter, text_folder):
    groups = [
        KernelGroup(
            f"{name}_{order}",
            CUDA,
            tuple(evolve(CASES[c].kernel, name=f"k{n}") for n, c in enumerate(names)),
            members,
        )
        for name, names in KINDS.items()
        for order, members in ORDER.items()
    ]
    return Library(groups, interpreter, text_folder, cores=1)


@pytest.mark.parametrize("order", ORDER)
@pytest.mark.parametrize("name", KINDS)
def test_different_kernels(kinds, name, order):
    whole = kinds.kernels[f"{name}_{order}"]
    cases = [CASES[KINDS[name][kernel]] for kernel in whole.members]
    inputs = {
        whole.parameter(member, key): array.copy()
        for member, case in enumerate(cases)
        for key, array in case.arrays.items()
    }
    got = {key: array.copy() for key, array in inputs.items()}

    kinds(f"{name}_{order}", got)

    for member, case in enumerate(cases):
        keys = {key: whole.parameter(member, key) for key in case.arrays}
        want = {key: inputs[k].copy() for key, k in keys.items()}
        run_kernel(case.kernel, want, {})
        assert_same_writes(case.kernel, {key: got[k] for key, k in keys.items()}, want)
