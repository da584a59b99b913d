"""Random kernels of every shape against the reference interpreter, in each way to share threads."""

from functools import partial

import pytest
from attrs import evolve
from metal_harness import Library

from gyrator_codegen.passes.threads.map_threads import MapThreads
from gyrator_ir.body.nodes import SortStep
from gyrator_ir.tile.nodes import Repeat
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.compare import assert_same_writes
from gyrator_testing.kernels.random import random_case

CASES = {
    f"{form}_{seed}": random_case(seed, form)
    for form, count in (("pointwise", 40), ("reduction", 130), ("scan", 40), ("sort", 20))
    for seed in range(count)
}
EXPECTED = {"GY-METAL-002", "GY-METAL-004", "GY-METAL-005", "GY-METAL-006"}
WAYS = {
    "chosen": None,
    "alone": MapThreads(serial=1 << 62),
    "simd": MapThreads(serial=0, long=1 << 62, many=1 << 62),
    "group": MapThreads(serial=0, long=0, many=1 << 62),
}


def mapped(way, program):
    """Tile again, but for scans and sorts, which have one way."""
    again = way.run(program)
    kernels = [
        old if isinstance(old, Repeat) or any(map(_sorts, old.kernel.stages)) else new
        for old, new in zip(program.kernels, again.kernels, strict=True)
    ]
    return evolve(program, kernels=tuple(kernels))


def _sorts(stage):
    return any(isinstance(s, SortStep) for s in stage.body)


@pytest.fixture(scope="module", params=WAYS)
def library(request, build_folder):
    way = WAYS[request.param]
    chosen = {n: c for n, c in CASES.items() if way is None or n.startswith(("red", "scan"))}
    edit = None if way is None else partial(mapped, way)
    kernels = [c.kernel for c in chosen.values()]
    return Library(kernels, build_folder, edit=edit, unit_statements=600)


def test_kernels(library):
    assert {d.code for d in library.refused.values()} <= EXPECTED
    assert len(library.functions) > 80
    for name in library.functions:
        case = CASES[name]
        want = {k: v.copy() for k, v in case.arrays.items()}
        got = {k: v.copy() for k, v in case.arrays.items()}

        run_kernel(case.kernel, want, case.sizes)
        assert library(name, got, **case.sizes) == 0, name

        assert_same_writes(case.kernel, got, want)
