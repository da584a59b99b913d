"""Conversions, poison, reductions, scans and sorts against point-by-point definitions."""

import math

import ml_dtypes
import numpy as np
import pytest

from gyrator_ir.body.nodes import ReduceKind, ScanKind
from gyrator_ir.types import DType
from gyrator_testing.interp import folds
from gyrator_testing.interp.dtypes import DTYPES, NUMPY, cast, poisoned, scalar

RNG = np.random.default_rng(3)


def test_every_type_has_a_numpy_type():
    assert set(NUMPY) == set(DType)
    assert all(NUMPY[d].itemsize == d.size for d in DType)
    assert all(DTYPES[NUMPY[d]] is d for d in DType)


@pytest.mark.parametrize("dtype", DType)
def test_poison_shows(dtype):
    array = poisoned(dtype, 3)
    if dtype.is_float or dtype.is_complex:
        assert np.isnan(array.astype(np.complex128)).all()
    elif dtype is DType.BOOL:
        assert array.all()
    else:
        assert (array.view(np.uint8) == 0xA5).all()


def test_floats_become_integers_towards_zero():
    x = np.array([1.9, -1.9, 0.5, -0.5, 255.0, 127.9], np.float32)
    assert cast(x, DType.I32).tolist() == [1, -1, 0, 0, 255, 127]
    assert cast(x[:4], DType.I8).tolist() == [1, -1, 0, 0]
    assert cast(np.array([2.0**63, 3.0]), DType.U64).tolist() == [2**63, 3]


def test_integers_wrap():
    assert cast(np.array([300, -1, 128]), DType.U8).tolist() == [44, 255, 128]
    assert cast(np.array([300, -1, 128]), DType.I8).tolist() == [44, -1, -128]


def test_what_is_not_zero_is_true():
    assert cast(np.array([0.0, -0.0, math.nan, 0.1]), DType.BOOL).tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_wide_floats_reach_narrow_ones_by_way_of_f32():
    # Just above the middle between two bf16 numbers, but on it once rounded to f32.
    x = np.array([1 + 2.0**-8 + 2.0**-40])
    assert float(cast(x, DType.BF16)[0]) == 1.0
    half = np.array([1 + 2.0**-11 + 2.0**-40])
    assert float(cast(half, DType.F16)[0]) == 1.0


def test_f8_saturates_where_it_has_no_infinity():
    x = np.array([1e30, -math.inf, 464.0, math.nan, 1.0], np.float32)
    got = cast(x, DType.F8E4M3).astype(np.float32)
    assert got[:3].tolist() == [448, -448, 448]
    assert math.isnan(got[3])
    assert cast(x, DType.F8E5M2).astype(np.float32)[0] == math.inf


def test_constants():
    assert scalar(0.1, DType.BF16) == ml_dtypes.bfloat16(0.1)
    assert scalar(2**64 - 1, DType.U64) == 2**64 - 1
    assert scalar(-1, DType.I8) == -1
    assert math.copysign(1, float(scalar(-0.0, DType.F32))) == -1


def rows(dtype, shape=(5, 7)):
    if dtype is DType.BOOL:
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype.is_int:
        return RNG.integers(0, 5, shape).astype(NUMPY[dtype])
    x = RNG.standard_normal(shape).astype(NUMPY[dtype])
    x[0, [2, 4]] = np.nan
    x[1, :] = x[1, 0]  # ties
    x[2, 3] = np.inf
    return x


def better(a, b, sign):
    """Whether b beats a; NaN beats everything."""
    return (math.isnan(b) and not math.isnan(a)) or sign * b > sign * a


def first_best(line, sign):
    best = 0
    for k, v in enumerate(line):
        if better(line[best], v, sign):
            best = k
    return best


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.U8])
@pytest.mark.parametrize(("kind", "sign"), [(ReduceKind.ARGMIN, -1), (ReduceKind.ARGMAX, 1)])
def test_positions(kind, sign, dtype):
    x = rows(dtype)
    (got,) = folds.reduce(kind, [x], dtype)
    assert got.dtype == np.int64
    assert got.tolist() == [first_best(line, sign) for line in x.tolist()]


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.I8])
def test_sums_products_extremes(dtype):
    x = rows(dtype)
    (total,), (product,) = (folds.reduce(k, [x], dtype) for k in (ReduceKind.SUM, ReduceKind.PROD))
    assert total.dtype == product.dtype == NUMPY[dtype]
    with np.errstate(all="ignore"):
        for k, line in enumerate(x):
            s, p = NUMPY[dtype].type(0), NUMPY[dtype].type(1)
            for v in line:
                s, p = NUMPY[dtype].type(s + v), NUMPY[dtype].type(p * v)
            np.testing.assert_allclose(total[k], s, rtol=1e-5)
            np.testing.assert_allclose(product[k], p, rtol=1e-5)
    (low,), (high,) = (folds.reduce(k, [x], dtype) for k in (ReduceKind.MIN, ReduceKind.MAX))
    np.testing.assert_array_equal(low, [line[first_best(line, -1)] for line in x])
    np.testing.assert_array_equal(high, [line[first_best(line, 1)] for line in x])


def test_integer_sums_wrap():
    x = np.full((1, 3), 100, np.int8)
    assert folds.reduce(ReduceKind.SUM, [x], DType.I8)[0].tolist() == [300 - 256]


def test_bools():
    x = np.array([[0, 0], [0, 1], [1, 1]], bool)
    kinds = (ReduceKind.ANY, ReduceKind.ALL, ReduceKind.XOR)
    got = [folds.reduce(k, [x], DType.BOOL)[0].tolist() for k in kinds]
    assert got == [[False, True, True], [False, False, True], [False, True, False]]


def test_welford():
    x = RNG.standard_normal((4, 9)).astype(np.float32) + 1e4
    mean, squares, count = folds.reduce(ReduceKind.WELFORD, [x], DType.F32)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(1), rtol=1e-6)
    np.testing.assert_allclose(squares, wide.var(1) * 9, rtol=1e-6)
    assert count.tolist() == [9.0] * 4


def test_online_softmax():
    x = rows(DType.F32)[3:]
    largest, total = folds.reduce(ReduceKind.ONLINE_SOFTMAX, [x], DType.F32)
    np.testing.assert_array_equal(largest, x.max(1))
    np.testing.assert_allclose(
        total, np.exp(x.astype(np.float64) - x.max(1)[:, None]).sum(1), rtol=1e-6
    )


def test_dot():
    a, b = RNG.standard_normal((2, 3, 4))
    np.testing.assert_allclose(folds.reduce(ReduceKind.DOT, [a, b], DType.F64)[0], (a * b).sum(1))


@pytest.mark.parametrize(
    ("kind", "dtype", "identity"),
    [
        (ReduceKind.SUM, DType.F32, [0.0]),
        (ReduceKind.PROD, DType.I64, [1]),
        (ReduceKind.MIN, DType.F32, [math.inf]),
        (ReduceKind.MAX, DType.I8, [-128]),
        (ReduceKind.MIN, DType.U16, [65535]),
        (ReduceKind.MAX, DType.BOOL, [False]),
        (ReduceKind.ANY, DType.BOOL, [False]),
        (ReduceKind.ALL, DType.BOOL, [True]),
        (ReduceKind.XOR, DType.I32, [0]),
        (ReduceKind.WELFORD, DType.F32, [0.0, 0.0, 0.0]),
        (ReduceKind.ONLINE_SOFTMAX, DType.F32, [-math.inf, 0.0]),
        (ReduceKind.ARGMAX, DType.F32, [0]),
        (ReduceKind.ARGMIN, DType.F32, [0]),
    ],
)
def test_identities(kind, dtype, identity):
    got = folds.reduce(kind, [np.zeros((1, 0), NUMPY[dtype])], dtype)
    assert [g.tolist() for g in got] == [[v] for v in identity]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ScanKind)
def test_scans(kind, reverse):
    x = rows(DType.F64)
    got = folds.scan(kind, x, reverse)
    for line, have in zip(x.tolist(), got.tolist(), strict=True):
        order = range(len(line) - 1, -1, -1) if reverse else range(len(line))
        seen: list[int] = []
        for k in order:
            seen.append(k)
            np.testing.assert_allclose(have[k], prefix(kind, line, seen), rtol=1e-12)


def prefix(kind, line, seen):
    values = [line[k] for k in seen]
    match kind:
        case ScanKind.SUM:
            return sum(values)
        case ScanKind.PROD:
            return math.prod(values)
        case ScanKind.LOGSUMEXP:
            with np.errstate(all="ignore"):
                return np.logaddexp.reduce(values)
    sign = -1 if kind in (ScanKind.MIN, ScanKind.ARGMIN) else 1
    best = seen[0]
    for k in seen:
        if not better(line[k], line[best], sign):
            best = k  # the last one on ties
    return best if kind in (ScanKind.ARGMIN, ScanKind.ARGMAX) else line[best]


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.BOOL])
@pytest.mark.parametrize("descending", [False, True])
def test_sorts_are_stable_and_nan_is_largest(descending, dtype):
    x = rows(dtype)
    values, positions = folds.sort(x, descending)
    for line, have, where in zip(x.tolist(), values.tolist(), positions.tolist(), strict=True):

        def key(k, line=line):
            v = line[k]
            large = isinstance(v, float) and math.isnan(v)
            rank = (large, 0 if large else v)
            return (not large, 0 if large else -v) if descending else rank

        assert where == sorted(range(len(line)), key=key)
        np.testing.assert_array_equal(have, [line[k] for k in where])
