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


def groups(count: int, size: int, pixels: int, kind: str, dtype: str = "f64") -> LoopProgram:
    """Return a reduction over the adjacent channels of each group, and all pixels."""
    names = "m, s, n" if kind == "welford" else "m"
    stores = "".join(f"    store {name}_of[i0], {name}\n" for name in names.split(", "))
    buffers = "".join(
        f"  buffer {name}_of: {dtype}[{count}] strides [1] on cpu\n" for name in names.split(", ")
    )
    channels, results = count * size, ", ".join(f"{n}_of" for n in names.split(", "))
    return verify(
        parse(f"""\
loop.program 1 @main
  in x: {dtype}[{pixels}, {channels}] strides [{channels}, 1] on cpu
{buffers}  reduction op0 (i0 < {count}) over (r0 < {size}, r1 < {pixels})
    a = load x[{size}*i0 + r0 + {channels}*r1]
    {names}: {dtype} = reduce.{kind} a
{stores}  return {results}
""")
    )


@pytest.mark.parametrize("kind", ["welford", "sum", "max"])
@pytest.mark.parametrize(
    ("count", "size", "pixels", "is_split"),
    [
        (8, 6, 128, True),
        (8, 1, 1024, False),  # there is one column already
        (4, 16, 128, False),  # a run is long enough
        (8, 6, 16, False),  # few elements
        (64, 8, 12, False),  # as many columns as pixels
        (1, 6, 1024, False),  # few columns for two cores
    ],
)
def test_short_runs_are_split_into_columns(
    kind: str, count: int, size: int, pixels: int, is_split: bool
) -> None:
    whole = groups(count, size, pixels, kind)
    numbers = Heuristics(cores=2, split_reduction_points=1, column_parts=8)
    parts = verify(SplitReductions(by_device=(("cpu", numbers),)).run(whole))
    assert (len(parts.operations) > 1) == is_split
    if is_split:
        first = parts.operations[0]
        assert isinstance(first, Reduction)
        assert [a.extent.value for a in first.axes] == [count, size]
        assert [a.extent.value for a in first.inner] == [pixels]
    x = np.random.default_rng(size).standard_normal((pixels, count * size)) + 3
    for want, got in zip(run_loop(whole, (x,)), run_loop(parts, (x,)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_equal_elements_have_their_own_mean(seed: int) -> None:
    whole = groups(8, 6, 128, "welford", "f32")
    numbers = Heuristics(cores=2, split_reduction_points=1, column_parts=8)
    parts = SplitReductions(by_device=(("cpu", numbers),)).run(whole)
    value = np.random.default_rng(seed).standard_normal(8).astype(np.float32)
    mean, squares, _ = run_loop(parts, (np.tile(np.repeat(value, 6), (128, 1)),))
    np.testing.assert_array_equal(mean, value)
    np.testing.assert_array_equal(squares, 0)
