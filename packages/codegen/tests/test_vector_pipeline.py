"""Whatever the passes decide about random kernels verifies, and means what the kernels mean."""

import pytest
from attrs import evolve

from gyrator_codegen import tile
from gyrator_codegen.passes import vector_pipeline
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.tile.nodes import Repeat
from gyrator_ir.tile.parse import parse
from gyrator_ir.tile.print import show
from gyrator_ir.tile.verify import verify
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.interp.tile import run_tiled
from gyrator_testing.kernels.compare import assert_same_writes
from gyrator_testing.kernels.random import FORMS, Limits, random_case

SMALL = Limits(extents=(1, 2, 3, 5, 8, 17, 33), long=(70, 300), points=900)


def passes(lanes, cores, grain=64):
    numbers = Heuristics(cores=cores, parallel_grain=grain)
    target = Target(
        device="cpu",
        arch="any",
        kernel_backend="c++",
        capabilities=Capabilities(dtypes=frozenset()),
        heuristics=numbers,
    )
    return vector_pipeline(target, lanes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(20))
def test_decisions_keep_the_meaning(form, seed):
    case = random_case(seed, form, limits=SMALL)
    decided = passes((8, 4, 1)[seed % 3], (2, 4, 1)[seed // 3 % 3])
    program = tile((case.kernel,), ShapeFacts(), ())
    for p in decided:
        program = verify(p.run(program))
    assert parse(show(program)) == program
    want = {k: v.copy() for k, v in case.arrays.items()}
    got = {k: v.copy() for k, v in case.arrays.items()}

    run_kernel(case.kernel, want, case.sizes)
    run_tiled(program.kernels[0], got, case.sizes, seed=seed)

    assert_same_writes(case.kernel, got, want)


def test_kernels_that_differ_in_names_are_decided_once():
    case = random_case(1, "reduction", limits=SMALL)
    again = evolve(case.kernel, name="again")

    program = tile((case.kernel, again), ShapeFacts(), passes(8, 2))

    assert program.kernels[1] == Repeat("again", case.kernel.name)
