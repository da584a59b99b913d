"""Which axes of a long fold become parts, on a device that reads many elements at once."""

import numpy as np
import pytest

from gyrator_ir.loop.nodes import LoopProgram, Reduction
from gyrator_ir.loop.parse import parse
from gyrator_ir.loop.verify import verify
from gyrator_ir.target import Heuristics
from gyrator_scheduler.passes.split_reductions import SplitReductions
from gyrator_testing.interp.loop import run_loop

NUMBERS = {"cores": 2, "split_reduction_points": 8, "split_reduction_extent": 64}


def program(rows: int, columns: int) -> LoopProgram:
    return verify(
        parse(f"""\
loop.program 1 @main
  in x: f64[{rows}, {columns}] strides [{columns}, 1] on cpu
  buffer y: f64[] strides [] on cpu
  reduction op0 () over (r0 < {rows}, r1 < {columns})
    a = load x[{columns}*r0 + r1]
    b: f64 = reduce.sum a
    store y[0], b
  return y
""")
    )


def split(whole: LoopProgram, adjacent: int, part: int = 1) -> LoopProgram:
    numbers = Heuristics(adjacent_points=adjacent, **NUMBERS)
    return verify(SplitReductions(by_device=(("cpu", numbers),), part=part).run(whole))


@pytest.mark.parametrize(
    ("rows", "columns", "adjacent", "inner"),
    [
        (12, 64, 32, (64,)),  # rows are parts: their elements lie side by side
        (12, 64, 1, (12, 8)),
        (12, 1024, 32, (12, 128)),  # parts of rows are long enough
        (64, 4, 32, (8, 4)),
    ],
)
def test_parts_are_runs(rows: int, columns: int, adjacent: int, inner: tuple[int, ...]) -> None:
    whole = program(rows, columns)
    parts = split(whole, adjacent)
    first, _ = parts.operations
    assert isinstance(first, Reduction)
    assert tuple(a.extent.value for a in first.inner) == inner
    x = np.random.default_rng(rows).integers(-9, 9, (rows, columns)).astype(np.float64)
    (want,), (got,) = run_loop(whole, (x,)), run_loop(parts, (x,))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("part", "count"), [(64, 8), (256, 4), (4096, 2)])
def test_parts_have_enough_elements_for_adjacent_points(part: int, count: int) -> None:
    whole = program(1, 1024)
    first, _ = split(whole, 32, part).operations
    assert isinstance(first, Reduction)
    assert tuple(a.extent.value for a in first.axes) == (count,)
    first, _ = split(whole, 1, part).operations
    assert isinstance(first, Reduction)
    assert tuple(a.extent.value for a in first.axes) == (8,)
