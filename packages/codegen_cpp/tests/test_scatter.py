"""Folds into addresses that points may share, their owners, and fills."""

import numpy as np
import pytest
from harness import ARCHS, NUMPY, Library, lacking

from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Store, StoreMode
from gyrator_ir.expr import Sym, expr
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import BOOL, F32, I0, I1, I64, S0, S1, kernel, outer

T0 = Sym("t0")
ROWS, WIDTH, TABLE = 37, 83, 11


def scattered(name, m, n, address, size, dtype=F32, mode=StoreMode.ADD, masked=False):
    """Fold x[i0, i1] into z at an address made of t0 = at[i0, i1]."""
    at = expr(n) * I0 + I1
    body = [Load("a", "at", at), Bind(T0, "a", expr(size)), Load("b", "x", at)]
    mask = None
    if masked:
        body += [IndexValue("n", at, I64), Const("k", 3, I64), Const("o", 0, I64)]
        body += [Let("r", "remainder", ("n", "k"), I64), Let("m", "ne", ("r", "o"), BOOL)]
        mask = "m"
    body.append(Store("z", address, "b", mode, mask=mask))
    types = {"at": I64, "x": dtype, "z": dtype}
    return kernel(name, [(I0, m), (I1, n)], [], [outer(*body)], types)


def filled(name, m, n, value, dtype):
    """Fill an inner rectangle of z, whose rows are 5 longer."""
    body = Const("a", value, dtype), Store("z", (expr(n) + 5) * I0 + I1 + 2, "a")
    return kernel(name, [(I0, m), (I1, n)], [], [outer(*body)], {"z": dtype})


SCATTERS = {
    "rows": (ROWS, WIDTH, WIDTH * T0 + I1, TABLE),
    "rows_any": (S0, S1, S1 * T0 + I1, TABLE),
    "planes": (ROWS, WIDTH, TABLE * I0 + T0, TABLE),
    "meeting": (ROWS, WIDTH, T0, TABLE),
    "apart": (ROWS, WIDTH, 2 * WIDTH * T0 + 2 * I1 + 3, TABLE),
    "apart_any": (S0, S1, 2 * S1 * T0 + 2 * I1 + 3, TABLE),
}
FOLDS = {
    f"{place}_{dtype.value}_{mode.value}{'_masked' * masked}": (place, dtype, mode, masked)
    for place in SCATTERS
    for dtype, mode, masked in [
        (F32, StoreMode.ADD, False), (F32, StoreMode.ADD, True), (DType.BF16, StoreMode.MAX, False),
        (I64, StoreMode.MUL, False), (DType.U8, StoreMode.ADD, True),
    ]
}  # fmt: skip
FILLS = {
    f"fill_{dtype.value}_{n}_{size}": (value, dtype, size)
    for n, (value, dtype) in enumerate(
        [(0.0, F32), (-0.0, F32), (0, DType.I32), (False, BOOL), (0.0, DType.BF16), (3, I64)]
    )
    for size in ("known", "any")
}


def kernels():
    for name, (place, dtype, mode, masked) in FOLDS.items():
        m, n, address, size = SCATTERS[place]
        yield scattered(name, m, n, address, size, dtype, mode, masked)
    cast = [Load("a", "x", I0), Let("b", "cast", ("a",), DType.BF16)]
    add = Store("z", I0, "b", StoreMode.ADD)
    types = {"x": F32, "z": DType.BF16}
    yield kernel("rounded", [(I0, ROWS)], [], [outer(*cast, add)], types)
    for name, (value, dtype, size) in FILLS.items():
        yield filled(name, *((S0, S1) if size == "any" else (ROWS, WIDTH)), value, dtype)


@pytest.fixture(scope="module", params=ARCHS)
def library(request, build_folder):
    if why := lacking(request.param):
        pytest.skip(why)
    return Library(list(kernels()), request.param, build_folder, parallel_grain=100)


@pytest.mark.parametrize("name", FOLDS)
def test_fold_into_memory(library, name):
    place, dtype, mode, masked = FOLDS[name]
    rng = np.random.default_rng(len(name))
    at = rng.integers(0, TABLE, (ROWS, WIDTH))
    x = rng.integers(0, 3, (ROWS, WIDTH)).astype(NUMPY[dtype])
    row, column = np.indices(at.shape)
    in_rows = WIDTH * at + column
    where = {"planes": TABLE * row + at, "meeting": at}.get(place, in_rows)
    if place.startswith("apart"):
        where = 2 * in_rows + 3
    z = np.ones(2 * max(ROWS, WIDTH) * TABLE + 9, NUMPY[dtype])
    want = z.astype("f8" if dtype.is_float else z.dtype)
    counts = (WIDTH * row + column) % 3 != 0 if masked else np.ones_like(at, bool)
    ufunc = {StoreMode.ADD: np.add, StoreMode.MUL: np.multiply, StoreMode.MAX: np.maximum}[mode]
    with np.errstate(over="ignore"):
        ufunc.at(want, where[counts], x[counts].astype(want.dtype))

    assert library(name, {"at": at, "x": x, "z": z}, s0=ROWS, s1=WIDTH) == 0

    np.testing.assert_array_equal(z.astype(want.dtype), want)


def test_what_is_combined_is_rounded_first(library):
    x = np.full(ROWS, 1 + 2**-8, "f4")  # rounds to 1
    z = np.full(ROWS, 2**-8, NUMPY[DType.BF16])

    assert library("rounded", {"x": x, "z": z}) == 0

    np.testing.assert_array_equal(z.astype("f4"), 1)


@pytest.mark.parametrize("name", FOLDS)
def test_atomics_only_where_points_of_several_threads_meet(library, name):
    assert ("gy_atomic" in library.sources[name].text) == (
        FOLDS[name][0] in ("meeting", "rows_any", "apart_any")
    )


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("size", [(ROWS, WIDTH), (0, 5), (3, 0), (1, 1), (2, 5000)])
def test_fill(library, name, size):
    value, dtype, known = FILLS[name]
    m, n = (ROWS, WIDTH) if known == "known" else size
    z = np.full((m, n + 5), 7).astype(NUMPY[dtype])
    want = z.copy()
    want[:, 2 : n + 2] = value

    assert library(name, {"z": z}, s0=m, s1=n) == 0

    np.testing.assert_array_equal(z.view("u1"), want.view("u1"))
    clears = value == 0 and not np.signbit(value)
    assert ("gy_clear" in library.sources[name].text) == clears


@pytest.mark.parametrize(
    ("name", "rows"), [("fill_f32_0_any", 2), ("fill_f32_0_any", 600), ("fill_bf16_4_any", 3)]
)
def test_tensors_larger_than_caches_are_cleared(library, name, rows):
    """Rows have any alignment."""
    dtype = FILLS[name][1]
    columns = (17 << 20) // (rows * dtype.size) + 3
    z = np.ones((rows, columns + 5), NUMPY[dtype])
    inner = z[:, 2 : columns + 2]

    assert library(name, {"z": z}, s0=rows, s1=columns) == 0

    assert not inner.any()
    inner[:] = 1
    assert (z == 1).all()
