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
