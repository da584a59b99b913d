"""Minima and maxima along rows and columns, with their positions."""

import numpy as np
import pytest
from harness import ARCHS, NUMPY, Library, lacking

from gyrator_ir.body.nodes import Load, Reduce, ReduceKind, Store
from gyrator_ir.expr import expr
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import (
    F32,
    F64,
    I0,
    I32,
    I64,
    R0,
    R1,
    S0,
    S1,
    inner,
    kernel,
    outer,
)

SHAPES = ((1, 1), (3, 5), (40, 7), (9, 100), (70, 64))
CASES = {
    f"{way}_{dtype.value}_{points}_{length}": (way, dtype, points, length)
    for way in ("rows", "columns", "planes")
    for dtype in (F32, F64, I32, I64, DType.BF16, DType.U8, DType.BOOL)
    for points, length in SHAPES
}


def extremes(name, way, dtype, points, length):
    """Reduce x along the last axis, the first one, or the last two, which have lengths of `length`
    and 3."""
    along, wide = [(R0, length)], dtype.compute
    at = I0 + expr(points) * R0 if way == "columns" else expr(length) * I0 + R0
    if way == "planes":
        along, at = [*along, (R1, 3)], expr(3) * at + R1
    body = [
        Load("a", "x", at),
        Reduce(("v",), ReduceKind.MAX, ("a",), wide),
        Reduce(("p",), ReduceKind.ARGMAX, ("a",), wide),
        Reduce(("q",), ReduceKind.ARGMIN, ("a",), wide),
    ]
    after = [Store(to, I0, value) for to, value in zip("mno", "vpq", strict=True)]
    types = {"x": dtype, "m": wide, "n": I64, "o": I64}
    return kernel(name, [(I0, points)], along, [inner(*body), outer(*after)], types)


@pytest.fixture(scope="module", params=ARCHS)
def library(request, build_folder):
    if why := lacking(request.param):
        pytest.skip(why)
    kernels = [extremes(name, *case) for name, case in CASES.items()]
    kernels += [extremes(f"any_{way}", way, F32, S0, S1) for way in ("rows", "columns")]
    return Library(kernels, request.param, build_folder)


def inputs(dtype, shape):
    """Yield numbers with many ties, NaN among them, and equal numbers, infinite ones too."""
    rng = np.random.default_rng(sum(shape))
    few = rng.integers(0, 2 if dtype is DType.BOOL else 5, shape).astype(NUMPY[dtype])
    yield few
    yield np.zeros_like(few)
    if dtype.is_float:
        yield np.where(rng.random(shape) < 0.1, few.dtype.type(np.nan), few)
        yield np.full_like(few, -np.inf)
        yield np.full_like(few, np.inf)
    elif dtype is not DType.BOOL:
        yield np.full_like(few, np.iinfo(few.dtype).min)
        yield np.full_like(few, np.iinfo(few.dtype).max)


def check(library, name, x, lines, **sizes):
    wide = lines.astype("f4") if x.dtype.itemsize == 2 else lines
    points = len(lines)
    out = {
        "m": np.zeros(points, wide.dtype),
        "n": np.ones(points, "i8"),
        "o": np.ones(points, "i8"),
    }

    assert library(name, {"x": x, **out}, **sizes) == 0

    np.testing.assert_array_equal(out["m"], wide.max(-1))
    np.testing.assert_array_equal(out["n"], wide.argmax(-1))
    np.testing.assert_array_equal(out["o"], wide.argmin(-1))


@pytest.mark.parametrize("name", CASES)
def test_the_first_extreme_or_nan_is_taken(library, name):
    way, dtype, points, length = CASES[name]
    shape = {"rows": (points, length), "columns": (length, points), "planes": (points, 3 * length)}
    for x in inputs(dtype, shape[way]):
        check(library, name, x, x.T if way == "columns" else x)


@pytest.mark.parametrize(("points", "length"), [(0, 4), *SHAPES, (33, 515)])
def test_lengths_of_any_number(library, points, length):
    for x in inputs(F32, (points, length)):
        check(library, "any_rows", x, x, s0=points, s1=length)
        check(library, "any_columns", x.T.copy(), x, s0=points, s1=length)
