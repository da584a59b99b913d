"""Random kernels in Triton's interpreter against the reference interpreter."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_build import CUDA
from triton_harness import NUMPY, Library, target

from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.body.ops import OPS, Numerics
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import poisoned
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.compare import assert_close, assert_same_writes
from gyrator_testing.kernels.random import Limits, random_case
from gyrator_testing.strategies import schedules

# The interpreter folds element by element.
SMALL = Limits(extents=(1, 2, 3, 5, 8, 13), long=(40, 70), points=160)
CASES = {
    f"{form}_{seed}": random_case(seed, form, CUDA, SMALL)
    for form, count in (("pointwise", 40), ("reduction", 50), ("scan", 14), ("sort", 8))
    for seed in range(count)
}
REFUSED = {"GY-TRITON-003", "GY-TRITON-005"}


@pytest.fixture(scope="module")
def library(interpreter, text_folder):
    kernels = [c.kernel for c in CASES.values()]
    return Library(kernels, interpreter, text_folder, unit_statements=600)


def test_few_are_refused(library):
    assert {d.code for d in library.refused.values()} <= REFUSED
    assert len(library.refused) < len(CASES) / 5


@pytest.mark.parametrize("name", CASES)
def test_kernel(library, name):
    case = CASES[name]
    if name in library.refused:
        # Locals and sorts over a range that is not known, as `REFUSED` says.
        assert case.kernel.locals or name.startswith("sort")
        return
    want = {k: v.copy() for k, v in case.arrays.items()}
    got = {k: v.copy() for k, v in case.arrays.items()}

    run_kernel(case.kernel, want, case.sizes)
    library(name, got, **case.sizes)

    assert_same_writes(case.kernel, got, want)


EXACT = frozenset(
    row.name
    for row in OPS.values()
    if row.numerics in (Numerics.EXACT, Numerics.ROUNDED) and row.name != "fma"
)


@given(
    schedule=schedules(
        dynamic=False, max_operations=2, ops=EXACT, kinds=("pointwise", "reduction", "scan")
    ),
    seed=st.integers(0, 1 << 20),
)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_drawn_schedule(interpreter, text_folder, schedule, seed):
    rng = np.random.default_rng(seed)
    for kernel in schedule.kernels:
        if TritonBackend().refuses(kernel, target()) is not None:
            continue
        arrays = {b.name: _storage(b, rng) for b in kernel.parameters}
        want = {k: v.copy() for k, v in arrays.items()}
        try:
            run_kernel(kernel, want, {})
        except (IndexError, InterpreterError):
            continue  # the numbers at random are no indices
        Library([kernel], interpreter, text_folder)(kernel.name, arrays)
        for b in kernel.parameters:
            assert_close(arrays[b.name], want[b.name], b.name, 4)


def _storage(b, rng):
    spans = [(n.value - 1) * s.value for n, s in zip(b.shape, b.strides, strict=True)]
    array = poisoned(b.dtype, sum(spans) + 1 if all(n.value for n in b.shape) else 0)
    if b.dtype is DType.BOOL:
        array[...] = rng.random(array.size) < 0.5
    elif b.dtype.is_int:
        array[...] = rng.integers(0, 3, array.size)
    else:
        array[...] = rng.integers(-4, 5, array.size) / 2
    assert array.dtype == NUMPY[b.dtype]
    return array
