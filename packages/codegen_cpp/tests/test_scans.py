"""Scans of rows, of which a point computes several."""

import numpy as np
import pytest
from harness import ARCHS, NUMPY, Library, lacking

from gyrator_ir.body.nodes import Let, Load, ScanKind, ScanStep, Store
from gyrator_ir.expr import expr
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import F32, I0, I1, I64, R0, S0, S1, inner, kernel

ROWS = (1, 2, 4, 5, 6, 12, 64)
WIDTHS = (1, 2, 33, 300)
CASES = {
    f"{kind.value}_{dtype.value}_{rows}_{width}{'_back' * back}": (kind, dtype, rows, width, back)
    for kind, dtype in [
        (ScanKind.SUM, F32), (ScanKind.SUM, I64), (ScanKind.PROD, DType.F64),
        (ScanKind.MAX, F32), (ScanKind.SUM, DType.BF16),
    ]
    for rows in ROWS
    for width in WIDTHS
    for back in (False, True)
}  # fmt: skip
ALONG = {ScanKind.SUM: np.add, ScanKind.PROD: np.multiply, ScanKind.MAX: np.maximum}


def scanned(name, kind, dtype, rows, width, back):
    """Scan the rows of x, doubled, two planes of them."""
    at = expr(rows * width) * I0 + expr(width) * I1 + R0
    wide = dtype.compute
    body = [Load("a", "x", at), Let("b", "cast", ("a",), wide), Let("c", "add", ("b", "b"), wide)]
    body += [ScanStep(("d",), kind, ("c",), wide, back), Let("e", "cast", ("d",), dtype)]
    body.append(Store("z", at, "e"))
    return kernel(
        name, [(I0, 2), (I1, rows)], [(R0, width)], [inner(*body)], {"x": dtype, "z": dtype}
    )


def any_size():
    """Scan rows of unknown number and width."""
    body = [Load("a", "x", S1 * I0 + R0), ScanStep(("d",), ScanKind.SUM, ("a",), F32)]
    body.append(Store("z", S1 * I0 + R0, "d"))
    return kernel("any", [(I0, S0)], [(R0, S1)], [inner(*body)], {"x": F32, "z": F32})


@pytest.fixture(scope="module", params=ARCHS)
def library(request, build_folder):
    if why := lacking(request.param):
        pytest.skip(why)
    kernels = [scanned(name, *case) for name, case in CASES.items()]
    return Library([*kernels, any_size()], request.param, build_folder)


def in_order(x, kind, back):
    """Return the scans along rows of what is accumulated in float64, rounded once."""
    wide = x.astype("f8" if x.dtype.kind not in "iu" else x.dtype)
    wide = wide[..., ::-1] if back else wide
    total = ALONG[kind].accumulate(wide, axis=-1)
    return total[..., ::-1] if back else total


@pytest.mark.parametrize("name", CASES)
def test_rows_are_scanned_in_order(library, name):
    kind, dtype, rows, width, back = CASES[name]
    rng = np.random.default_rng(len(name) + rows)
    x = rng.uniform(-1.2, 1.2, (2, rows, width))
    x = (x * 1000 if dtype.is_int else x).astype(NUMPY[dtype])
    z = np.zeros_like(x)

    assert library(name, {"x": x, "z": z}) == 0

    doubled = (x + x) if dtype.is_int else x.astype("f8") * 2
    want = in_order(doubled, kind, back)
    want = want.astype("f4").astype(x.dtype) if dtype.is_narrow_float else want.astype(x.dtype)
    np.testing.assert_array_equal(z, want)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (4, 17), (7, 40), (8, 9)])
def test_rows_of_any_number(library, shape):
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype("f4")
    z = np.zeros_like(x)

    assert library("any", {"x": x, "z": z}, s0=shape[0], s1=shape[1]) == 0

    np.testing.assert_array_equal(z, np.add.accumulate(x.astype("f8"), axis=-1).astype("f4"))


EXTREMES = [
    (kind, dtype, back)
    for kind in (ScanKind.ARGMIN, ScanKind.ARGMAX)
    for dtype in (F32, DType.F64, DType.I32, I64)
    for back in (False, True)
]
"""Running extremes with their places, of rows and, where lanes are rows, of columns."""


def with_places(kind, dtype, back, columns):
    at = S0 * R0 + I0 if columns else S1 * I0 + R0
    step = ScanStep(("v", "p"), kind, ("a",), dtype, back)
    body = [Load("a", "x", at), step, Store("y", at, "v"), Store("z", at, "p")]
    name = f"{kind.value}_{dtype.value}{'_back' * back}{'_columns' * columns}"
    return kernel(name, [(I0, S0)], [(R0, S1)], [inner(*body)], {"x": dtype, "y": dtype, "z": I64})


@pytest.fixture(scope="module", params=ARCHS)
def extremes(request, build_folder):
    if why := lacking(request.param):
        pytest.skip(why)
    kernels = [with_places(*case, columns) for case in EXTREMES for columns in (False, True)]
    return Library(kernels, request.param, build_folder)


@pytest.mark.parametrize(("kind", "dtype", "back"), EXTREMES)
@pytest.mark.parametrize("columns", [False, True])
def test_extremes_come_with_the_place_of_the_last(extremes, kind, dtype, back, columns):
    rng = np.random.default_rng(len(dtype.value) + back)
    x = rng.integers(-6, 7, (37, 50)).astype(NUMPY[dtype])
    if dtype.is_float:
        x[3, [9, 21]], x[5, 0], x[6] = np.nan, np.inf, np.nan
    value, place, best = np.zeros_like(x), np.zeros(x.shape, "i8"), x[:, -1 if back else 0].copy()
    for r in range(50)[:: -1 if back else 1]:
        reaches = x[:, r] <= best if kind is ScanKind.ARGMIN else x[:, r] >= best
        moves = reaches | (x[:, r] != x[:, r])
        best = np.where(moves, x[:, r], best)
        before = place[:, min(r + 1, 49)] if back else place[:, max(r - 1, 0)]
        value[:, r], place[:, r] = best, np.where(moves, r, before)
    arrays = {
        "x": x.T.copy() if columns else x,
        "y": np.zeros_like(x),
        "z": np.zeros(x.shape, "i8"),
    }
    if columns:
        arrays |= {"y": np.zeros_like(x.T, order="C"), "z": np.zeros(x.T.shape, "i8")}

    name = f"{kind.value}_{dtype.value}{'_back' * back}{'_columns' * columns}"
    assert extremes(name, arrays, s0=37, s1=50) == 0

    np.testing.assert_array_equal(arrays["y"].T if columns else arrays["y"], value)
    np.testing.assert_array_equal(arrays["z"].T if columns else arrays["z"], place)
