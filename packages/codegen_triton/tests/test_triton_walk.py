"""Scans and exponentials of rows of any length, and sorts, against their definitions."""

from functools import partial

import numpy as np
import pytest
from triton_corpus import cast_rows, exponentials, scan, sorted_rows
from triton_harness import NUMPY, Library

from gyrator_ir.body.nodes import ScanKind
from gyrator_ir.types import DType
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.write import F32, F64, I64, S0, S1

SORTED = (F32, F64, I64, DType.U8, DType.F16)
WIDENED = (DType.F16, DType.BF16)
WAYS = ("up", "down")
EXPONENTIALS = tuple((dtype, stride) for dtype in (F32, DType.F16) for stride in (72, 73))
"""Rows that are aligned to accesses of 16 bytes, or not."""


def kernels():
    for kind in ScanKind:
        for back in (False, True):
            yield scan(f"scan_{kind.value}_{back}", S0, S1, kind, back)
    yield scan("scan_i64", S0, S1, ScanKind.SUM, dtype=I64)
    for dtype in SORTED:
        for way in WAYS:
            yield sorted_rows(f"sorted_{dtype.value}_{way}", 3, 21, dtype, way == "down")
    for dtype in WIDENED:
        for way in WAYS:
            descending = way == "down"
            yield cast_rows(f"widened_{dtype.value}_{way}", 3, 21, dtype, descending=descending)
        for target in (F64, DType.I32):
            yield cast_rows(f"cast_{dtype.value}_to_{target.value}", 3, 21, dtype, target)
    for dtype, stride in EXPONENTIALS:
        yield exponentials(f"exponentials_{dtype.value}_{stride}", S0, S1, stride, dtype)
    yield sorted_rows("sorted_one", 3, 1)
    yield sorted_rows("sorted_whole", 3, 16)


@pytest.fixture(scope="module")
def library(interpreter, text_folder):
    result = Library(list(kernels()), interpreter, text_folder, unit_statements=600)
    assert not result.refused
    return result


def run(library, name, x, blocks=None, **sizes):
    """Run a kernel on `x`; return what it gives, and what the definition gives."""
    result = []
    for way in (
        partial(library, blocks=blocks),
        lambda name, arrays, **_: run_kernel(library.kernels[name], arrays, sizes),
    ):
        parameters = library.kernels[name].parameters
        arrays = {b.name: np.zeros(x.size, NUMPY[b.dtype]) for b in parameters}
        arrays["x"] = x.ravel().copy()
        way(name, arrays, **sizes)
        result.append(arrays)
    return result


@pytest.mark.parametrize("kind", ScanKind)
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("m", "n"), [(2, 43), (9, 1)])
def test_scan_of_any_length(library, kind, back, m, n):
    x = np.random.default_rng(n).standard_normal((m, n)).astype(np.float32)
    if n > 40:
        x[0, [3, 4, 21, 40]] = x[0, 2]  # ties
        if kind is not ScanKind.LOGSUMEXP:
            x[1, 30] = np.nan
    got, want = run(library, f"scan_{kind.value}_{back}", x, s0=m, s1=n)
    if kind in (ScanKind.ARGMIN, ScanKind.ARGMAX):
        np.testing.assert_array_equal(got["y"], want["y"])
        if back:
            np.testing.assert_array_equal(got["v"], want["v"])
    else:
        np.testing.assert_allclose(got["y"], want["y"], 2e-5, 1e-5)


def test_scan_of_integers_is_exact(library):
    x = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, (2, 70))
    got, want = run(library, "scan_i64", x, s0=2, s1=70)
    np.testing.assert_array_equal(got["y"], want["y"])


def drawn(dtype, n):
    """Three rows: of many equal values, of any, and of what is hard to order."""
    rng = np.random.default_rng(n)
    kind = NUMPY[dtype]
    if dtype.is_int:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        x = rng.integers(low, high, (3, n), dtype=kind, endpoint=True)
        x[2, : n // 2] = rng.choice([low, high, 0], n // 2)
    else:
        x = rng.standard_normal((3, n)).astype(kind)
        x[2] = rng.choice([np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0, -1e-30], n)
    x[0] = rng.integers(0, 3, n)
    return x


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", SORTED)
def test_sort(library, dtype, way):
    got, want = run(library, f"sorted_{dtype.value}_{way}", drawn(dtype, 21))
    np.testing.assert_array_equal(got["z"], want["z"])
    np.testing.assert_array_equal(got["y"], want["y"])
    signs = np.signbit if not dtype.is_int else np.sign
    np.testing.assert_array_equal(signs(got["y"]), signs(want["y"]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", WIDENED)
def test_sort_of_widened_floats(library, dtype, way):
    name = f"widened_{dtype.value}_{way}"
    got, want = run(library, name, drawn(dtype, 21))
    np.testing.assert_array_equal(got["z"], want["z"])
    np.testing.assert_array_equal(got["y"], want["y"])
    assert "gy_sorted_places_in_32(" in library.sources[name].text


@pytest.mark.parametrize("target", [F64, DType.I32])
@pytest.mark.parametrize("dtype", WIDENED)
def test_sort_of_16_bit_floats_in_another_type(library, dtype, target):
    x = np.random.default_rng(1).integers(-3000, 3000, (3, 21)).astype(NUMPY[dtype])
    got, want = run(library, f"cast_{dtype.value}_to_{target.value}", x)
    np.testing.assert_array_equal(got["z"], want["z"])
    np.testing.assert_array_equal(got["y"], want["y"])


@pytest.mark.parametrize(("name", "n"), [("sorted_one", 1), ("sorted_whole", 16)])
def test_sort_without_room_to_spare(library, name, n):
    got, want = run(library, name, drawn(F32, n))
    np.testing.assert_array_equal(got["z"], want["z"])
    np.testing.assert_array_equal(got["y"], want["y"])


@pytest.mark.parametrize(("dtype", "stride"), EXPONENTIALS)
@pytest.mark.parametrize(("n", "block"), [(72, 16), (70, 64), (1, 16)])
def test_exponentials_in_groups(library, dtype, stride, n, block):
    x = (np.random.default_rng(n).standard_normal((6, stride)) * 5).astype(NUMPY[dtype])
    x[1, n // 2] = np.inf
    x[2, [n - 1, 0]] = -np.inf, np.nan
    x[3] = -np.inf
    x[4, : n // 2] = -np.inf
    x[5] = 60_000
    name, blocks = f"exponentials_{dtype.value}_{stride}", {"XBLOCK": 2, "RBLOCK": block}
    assert library.tiled[name].reductions[0].group > 1
    with np.errstate(invalid="ignore"):
        got, want = run(library, name, x, blocks=blocks, s0=6, s1=n)
    np.testing.assert_array_equal(got["y"][:6], want["y"][:6])
    np.testing.assert_allclose(got["z"][:6], want["z"][:6], 1e-5)
