"""What random kernels seldom meet: layouts, ends of ranges, errors, threads, shared functions."""

import re

import numpy as np
import pytest
from attrs import evolve
from harness import ARCHS, NUMPY, Library, lacking, target

from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.body.nodes import (
    Bind,
    Const,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanKind,
    ScanStep,
    SortStep,
    Store,
    StoreMode,
)
from gyrator_ir.expr import ShapeFacts, Sym, expr
from gyrator_ir.kernel.nodes import Local
from gyrator_ir.modes import Failure
from gyrator_ir.provenance import Origin
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import (
    BOOL,
    F32,
    I0,
    I1,
    I64,
    QUOTIENTS,
    R0,
    R1,
    S0,
    S1,
    divided,
    inner,
    kernel,
    outer,
)

T0 = Sym("t0")
SIZES = ((0, 5), (1, 1), (3, 15), (2, 16), (5, 17), (4, 64), (3, 2500), (700, 33), (300, 1040))


def turned(name, dtype, m, n):
    """z[i, j] = x[j, i], doubled."""
    return kernel(
        name, [(I0, m), (I1, n)], [],
        [outer(Load("a", "x", expr(m) * I1 + I0), Store("z", expr(n) * I0 + I1, "a"))],
        {"x": dtype, "z": dtype},
    )  # fmt: skip


def rows(name, m, n, kind, results, dtype=F32):
    """Reduce x[i, r] along r into y0, y1, ..."""
    names = tuple(f"f{k}" for k in range(results))
    arg = kind in (ReduceKind.ARGMIN, ReduceKind.ARGMAX)
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [
            inner(Load("a", "x", expr(n) * I0 + R0), Reduce(names, kind, ("a",), dtype)),
            outer(*(Store(f"y{k}", I0, f) for k, f in enumerate(names))),
        ],
        {"x": dtype} | {f"y{k}": I64 if arg else dtype for k in range(results)},
    )  # fmt: skip


def second_elements(name, kind, dtype):
    """Reduce every second element of x into y, one lane after another being read."""
    return kernel(
        name, [], [(R0, S0)],
        [
            inner(Load("a", "x", expr(2) * R0), Reduce(("b",), kind, ("a",), dtype)),
            outer(Store("y", expr(0), "b")),
        ],
        {"x": dtype, "y": dtype},
    )  # fmt: skip


def columns(name, m, n, kind, results):
    """Reduce x[r, i] along r."""
    names = tuple(f"f{k}" for k in range(results))
    arg = kind in (ReduceKind.ARGMIN, ReduceKind.ARGMAX)
    return kernel(
        name, [(I0, n)], [(R0, m)],
        [
            inner(Load("a", "x", expr(n) * R0 + I0), Reduce(names, kind, ("a",), F32)),
            outer(*(Store(f"y{k}", I0, f) for k, f in enumerate(names))),
        ],
        {f"y{k}": I64 for k in range(results)} if arg else None,
    )  # fmt: skip


def softmax(name, m, n, into="z"):
    at = expr(n) * I0 + R0
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [
            inner(Load("a", "x", at), Reduce(("m", "s"), ReduceKind.ONLINE_SOFTMAX, ("a",), F32)),
            inner(
                Load("b", "x", at), Let("c", "sub", ("b", "m"), F32), Let("d", "exp", ("c",), F32),
                Let("e", "div", ("d", "s"), F32), Store(into, at, "e"),
            ),
        ],
    )  # fmt: skip


def gather(name, check, wrap=True):
    return kernel(
        name, [(I0, S0)], [],
        [outer(Load("a", "at", I0), Bind(T0, "a", expr(7), wrap, check), Load("b", "x", T0),
               Store("z", I0, "b"))],
        {"at": I64},
    )  # fmt: skip


def gathered_pairs(name):
    """The first less the second of each two neighbours, from the row that `at` names."""
    at = expr(512) * T0 + expr(2) * I0
    return kernel(
        name, [(I0, S0)], [],
        [outer(Load("a", "at", I0), Bind(T0, "a", expr(7), True, True), Load("b", "x", at),
               Load("c", "x", at + 1), Let("d", "sub", ("b", "c"), F32), Store("z", I0, "d"))],
        {"at": I64},
    )  # fmt: skip


def histogram(name, dtype, mode):
    return kernel(
        name, [(I0, S0)], [],
        [outer(Load("a", "at", I0), Bind(T0, "a", expr(5)), Load("b", "x", I0),
               Store("z", T0, "b", mode))],
        {"at": I64, "x": dtype, "z": dtype},
    )  # fmt: skip


def two_axes(name, m, n, k):
    """Mean and deviations of x[i, r0, r1] over r0, r1, and a row kept for the next stage."""
    at = (expr(m) * R0 + I0) * expr(k) + R1
    row = expr(k) * R0 + R1
    return kernel(
        name, [(I0, m)], [(R0, n), (R1, k)],
        [
            inner(Load("a", "x", at), Let("b", "exp", ("a",), F32), Store("row", row, "b"),
                  Reduce(("u", "v", "w"), ReduceKind.WELFORD, ("b",), F32)),
            inner(Load("c", "row", row), Let("d", "sub", ("c", "u"), F32), Store("z", at, "d")),
            outer(Store("y", I0, "v")),
        ],
        locals_=[Local("row", F32, expr(n) * expr(k))],
    )  # fmt: skip


def scan_beside_turned(name, m, n, k):
    """The running sum of x[i, r0, r1], and -w[i, r1, r0] in stages that want vectors along r0."""
    at, turned = (expr(n) * I0 + R0) * expr(k) + R1, (expr(k) * I0 + R1) * expr(n) + R0
    step = ScanStep(("c",), ScanKind.SUM, ("a",), F32)
    stages = [inner(Load("a", "x", at), step, Store("z", at, "c"))]
    for j in range(3):
        negated = Let(f"d{j}", "neg", (f"b{j}",), F32)
        stages.append(inner(Load(f"b{j}", "w", turned), negated, Store(f"v{j}", turned, f"d{j}")))
    return kernel(name, [(I0, m)], [(R0, n), (R1, k)], stages)


def two_passes(name, n, k):
    """The sum of x[r0, r1], and the sum of squares of what exceeds a part of it."""
    x = Load("a", "x", expr(k) * R0 + R1)
    return kernel(
        name, [], [(R0, n), (R1, k)],
        [
            inner(x, Reduce(("u",), ReduceKind.SUM, ("a",), F32)),
            inner(x, Let("b", "sub", ("a", "u"), F32), Let("c", "mul", ("b", "b"), F32),
                  Reduce(("v",), ReduceKind.SUM, ("c",), F32)),
            outer(Store("y", expr(0), "u"), Store("z", expr(0), "v")),
        ],
    )  # fmt: skip


def in_order(name, dtype, down):
    """Sort x[i, r] along r, with positions."""
    at = expr(S1) * I0 + R0
    step = SortStep(("v", "p"), ("a",), dtype, descending=down)
    return kernel(
        name, [(I0, S0)], [(R0, S1)],
        [inner(Load("a", "x", at), step, Store("z", at, "v"), Store("y", at, "p"))],
        {"x": dtype, "z": dtype, "y": I64},
    )  # fmt: skip


SORTED = (F32, DType.F64, DType.F16, I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL)
SHORT = (DType.I8, DType.U8, DType.I16, DType.U16)
TURNED = {
    f"turned_{d.value}_{m}_{n}": (d, m, n)
    for d, m, n in [(d, 37, 50) for d in NUMPY] + [(F32, 64, 64), (DType.BF16, 32, 48)]
}
FOLDS = {
    ReduceKind.SUM: 1, ReduceKind.MIN: 1, ReduceKind.MAX: 1, ReduceKind.ARGMIN: 1,
    ReduceKind.ARGMAX: 1, ReduceKind.WELFORD: 3, ReduceKind.ONLINE_SOFTMAX: 2, ReduceKind.PROD: 1,
}  # fmt: skip


def kernels():
    yield from (turned(name, *use) for name, use in TURNED.items())
    yield turned("turned_any", F32, S0, S1)
    for kind, results in FOLDS.items():
        yield rows(f"rows_{kind.value}", S0, S1, kind, results)
        yield columns(f"columns_{kind.value}", S0, S1, kind, results)
        yield rows(f"rows_static_{kind.value}", 5, 1000, kind, results)
        yield columns(f"columns_static_{kind.value}", 1000, 37, kind, results)
    yield from (softmax("softmax_any", S0, S1), softmax("softmax_static", 6, 1003))
    yield softmax("softmax_over_itself", 6, 1024, into="x")
    yield from (gather("checked", True), gather("promised", False))
    yield gathered_pairs("gathered_pairs")
    for dtype in SHORT:
        yield second_elements(f"lowest_{dtype.value}", ReduceKind.MIN, dtype)
        yield second_elements(f"highest_{dtype.value}", ReduceKind.MAX, dtype)
    for dtype in (F32, DType.F64, I64, DType.I32, DType.BF16, DType.U8):
        for mode in (StoreMode.ADD, StoreMode.MIN, StoreMode.MAX, StoreMode.MUL):
            yield histogram(f"histogram_{dtype.value}_{mode.value}", dtype, mode)
    for dtype in SORTED:
        yield in_order(f"up_{dtype.value}", dtype, down=False)
        yield in_order(f"down_{dtype.value}", dtype, down=True)
    yield two_passes("two_passes", S0, 24)
    yield divided("divided")
    yield scan_beside_turned("scan_beside_turned", 3, 4, 5)
    yield from (two_axes("two_axes", 9, 3, 50), two_axes("two_axes_any", S0, S1, 50))


@pytest.fixture(scope="module", params=ARCHS)
def library(request, build_folder):
    if why := lacking(request.param):
        pytest.skip(why)
    return Library(list(kernels()), request.param, build_folder, unit_statements=200)


@pytest.mark.parametrize("name", TURNED)
def test_turned(library, name):
    dtype, m, n = TURNED[name]
    x = np.arange(m * n).reshape(n, m).astype(NUMPY[dtype])
    z = np.zeros((m, n), NUMPY[dtype])

    assert library(name, {"x": x, "z": z}) == 0

    assert (z.view("u1") == np.ascontiguousarray(x.T).view("u1")).all()


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("dtype", SORTED)
def test_sorts_keep_the_order_of_equals(library, dtype, down):
    rng = np.random.default_rng(3)
    for m, n, bits in ((3, 5, 0), (2, 63, 0), (3, 64, 0), (4, 700, 60), (4, 700, 0), (1, 5000, 0),
                       (2, 5000, 20), (2, 5000, 40), (1, 5000, 64), (2, 100, -1), (2, 300, -1),
                       (1, 4100, -1)):  # fmt: skip
        x = rng.integers(-300, 300, (m, n))
        if bits < 0:  # Few differ.
            x //= 250
        elif bits:  # Some are equal, the others differ in more bits.
            far = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (m, n))
            x = np.where(rng.random((m, n)) < 0.3, x, far)
        with np.errstate(over="ignore"):
            x = x.astype(NUMPY[dtype])
        if dtype.is_float:
            x = (x / 7).astype(x.dtype)
            special = rng.choice([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf], (m, n))
            x = np.where(rng.random((m, n)) < 0.2, special, x).astype(x.dtype)
        z, y = np.zeros_like(x), np.zeros((m, n), "i8")

        assert library(f"{'down' if down else 'up'}_{dtype.value}", {"x": x, "z": z, "y": y},
                       s0=m, s1=n) == 0  # fmt: skip

        # Ranks, the same for equal values, NaN the highest.
        _, ranks = np.unique(x, return_inverse=True, equal_nan=True)
        want = np.argsort((-ranks if down else ranks).reshape(m, n), axis=-1, kind="stable")
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(z, np.take_along_axis(x, want, -1))


@pytest.mark.parametrize("size", SIZES)
def test_turned_any_size(library, size):
    m, n = size
    x, z = np.random.default_rng(1).random((n, m), "f"), np.zeros((m, n), "f")

    assert library("turned_any", {"x": x, "z": z}, s0=m, s1=n) == 0

    np.testing.assert_array_equal(z, x.T)


def folded(kind, x):
    """What a fold of the last axis is, in float64."""
    with np.errstate(all="ignore"):
        match kind:
            case ReduceKind.SUM:
                return [x.sum(-1)]
            case ReduceKind.PROD:
                return [x.prod(-1)]
            case ReduceKind.MIN:
                return [x.min(-1, initial=np.inf)]
            case ReduceKind.MAX:
                return [x.max(-1, initial=-np.inf)]
            case ReduceKind.ARGMIN:
                return [x.argmin(-1) if x.shape[-1] else np.zeros(x.shape[:-1])]
            case ReduceKind.ARGMAX:
                return [x.argmax(-1) if x.shape[-1] else np.zeros(x.shape[:-1])]
            case ReduceKind.WELFORD:
                count = x.shape[-1]
                mean = x.sum(-1) / max(count, 1)
                return [mean, ((x - mean[..., None]) ** 2).sum(-1), np.full(mean.shape, count)]
        top = x.max(-1, initial=-np.inf)
        return [top, np.exp(x - top[..., None]).sum(-1)]


@pytest.mark.parametrize("kind", FOLDS)
@pytest.mark.parametrize("size", [*SIZES, (5, 1000), (1000, 37)])
@pytest.mark.parametrize("direction", ["rows", "columns"])
def test_fold(library, kind, size, direction):
    m, n = size
    rng = np.random.default_rng(m * n)
    x = np.round(rng.standard_normal((m, n)) * 4, 1) + 3
    x = (1 + x / 1000 if kind is ReduceKind.PROD else x).astype("f")
    line = x if direction == "rows" else x.T
    want = folded(kind, line.astype("d"))
    position = kind in (ReduceKind.ARGMIN, ReduceKind.ARGMAX)
    static = {"rows": (5, 1000), "columns": (1000, 37)}[direction] == size
    for name in [f"{direction}_{kind.value}"] + [f"{direction}_static_{kind.value}"] * static:
        got = [np.zeros(line.shape[0], "i8" if position else "f") for _ in want]

        assert library(name, {"x": x} | {f"y{k}": y for k, y in enumerate(got)}, s0=m, s1=n) == 0

        for y, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(y, expected, rtol=0 if position else 3e-6, atol=1e-6)


@pytest.mark.parametrize("direction", ["rows", "columns"])
def test_sums_are_as_exact_as_eager(library, direction):
    """A cascade's error does not grow with the length of the sum."""
    x = np.random.default_rng(5).random((4, 200_000), "f")
    x = x if direction == "rows" else np.ascontiguousarray(x.T)
    y = np.zeros(4, "f")

    library(f"{direction}_sum", {"x": x, "y0": y}, s0=x.shape[0], s1=x.shape[1])

    want = x.astype("d").sum(1 if direction == "rows" else 0)
    np.testing.assert_allclose(y, want, rtol=1.2e-7)


@pytest.mark.parametrize("rows", [0, 1, 700])
def test_two_cascades_in_one_scope(library, rows):
    x = (np.random.default_rng(5).random((rows, 24)) / (24 * rows or 1)).astype("f")
    y, z = np.zeros(1, "f"), np.zeros(1, "f")

    assert library("two_passes", {"x": x, "y": y, "z": z}, s0=rows) == 0

    np.testing.assert_allclose(y, x.sum(dtype="d"), rtol=1e-6)
    np.testing.assert_allclose(z, ((x.astype("d") - y) ** 2).sum(), rtol=1e-6)


def test_scans_run_in_the_order_of_their_axes(library):
    x = np.random.default_rng(5).random((3, 20), "f")
    arrays = {name: np.zeros(60, "f") for name in ("w", "z", "v0", "v1", "v2")}

    assert library("scan_beside_turned", {"x": x} | arrays) == 0

    np.testing.assert_allclose(arrays["z"].reshape(3, 20), x.cumsum(1), rtol=1e-6)


@pytest.mark.parametrize("direction", ["rows", "columns"])
def test_deviation_far_from_zero(library, direction):
    x = (np.random.default_rng(6).standard_normal((3, 5000)) + 10_000).astype("f")
    want = folded(ReduceKind.WELFORD, x.astype("d"))
    x = x if direction == "rows" else np.ascontiguousarray(x.T)
    got = [np.zeros(3, "f") for _ in range(3)]

    library(
        f"{direction}_welford", {"x": x} | {f"y{k}": y for k, y in enumerate(got)},
        s0=x.shape[0], s1=x.shape[1],
    )  # fmt: skip

    for y, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(y, expected, rtol=2e-6)


@pytest.mark.parametrize("direction", ["rows", "columns"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values(library, direction, special):
    x = np.random.default_rng(7).standard_normal((4, 100)).astype("f")
    x[0, 63] = x[0, 90] = x[1, 5] = x[2, 99] = special
    x[3] = -np.inf
    inputs = x if direction == "rows" else np.ascontiguousarray(x.T)
    sizes = {"s0": inputs.shape[0], "s1": inputs.shape[1]}
    for kind in (ReduceKind.MIN, ReduceKind.MAX, ReduceKind.ARGMIN, ReduceKind.ARGMAX,
                 ReduceKind.ONLINE_SOFTMAX):  # fmt: skip
        want = folded(kind, x.astype("d"))
        position = kind in (ReduceKind.ARGMIN, ReduceKind.ARGMAX)
        got = [np.zeros(4, "i8" if position else "f") for _ in want]

        library(
            f"{direction}_{kind.value}",
            {"x": inputs} | {f"y{k}": y for k, y in enumerate(got)},
            **sizes,
        )

        for y, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(y, expected, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_softmax(library, size):
    m, n = size
    x = (np.random.default_rng(8).standard_normal((m, n)) * 5).astype("f")
    wide = x.astype("d")
    e = np.exp(wide - wide.max(1, keepdims=True, initial=-np.inf))
    want, z = e / e.sum(1, keepdims=True), np.zeros_like(x)

    library("softmax_any", {"x": x, "z": z}, s0=m, s1=n)

    np.testing.assert_allclose(z, want, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "n"), [("softmax_static", 1003), ("softmax_over_itself", 1024)])
def test_softmax_keeps_its_exponentials(library, name, n):
    x = (np.random.default_rng(9).standard_normal((6, n)) * 5).astype("f")
    e = np.exp(x.astype("d") - x.max(1, keepdims=True))
    z = x if name == "softmax_over_itself" else np.zeros_like(x)

    library(name, {"x": x, "z": z})

    np.testing.assert_allclose(z, e / e.sum(1, keepdims=True), rtol=2e-6, atol=1e-9)
    text = library.sources[name].text
    assert text.count("gy_exp(") <= (2 if "gy_vload" in text else 3)


@pytest.mark.parametrize("bad", [7, -8, 1 << 40, None])
@pytest.mark.parametrize("n", [1, 16, 19, 40_000])
def test_index_check(library, bad, n):
    rng = np.random.default_rng(n)
    at, x, z = rng.integers(-7, 7, n), rng.random(7, "f"), np.zeros(n, "f")
    if bad is not None:
        at[-1] = bad

    code = library("checked", {"at": at, "x": x, "z": z}, s0=n)

    if bad is None:
        assert code == 0
        np.testing.assert_array_equal(z, x[at])
    else:
        (check,) = [c for c in library.sources["checked"].checks if c.code == code]
        assert check.failure is Failure.INDEX
        assert "out of bounds" in check.message


def test_promised_index_is_not_checked(library):
    at, x, z = np.array([3, -1, 6]), np.arange(7, dtype="f"), np.zeros(3, "f")

    assert library("promised", {"at": at, "x": x, "z": z}, s0=3) == 0

    np.testing.assert_array_equal(z, [3, 6, 6])
    assert library.sources["promised"].checks == ()


@pytest.mark.parametrize("n", [1, 7, 40])
@pytest.mark.parametrize("dtype", SHORT)
def test_extremes_of_short_integers_that_lie_apart(library, dtype, n):
    ends = np.iinfo(NUMPY[dtype])
    x = np.random.default_rng(n).integers(ends.min, ends.max, 2 * n).astype(NUMPY[dtype])
    for name, want in (("lowest", x[::2].min()), ("highest", x[::2].max())):
        y = np.zeros(1, NUMPY[dtype])
        assert library(f"{name}_{dtype.value}", {"x": x, "y": y}, s0=n) == 0
        assert y[0] == want


def test_neighbours_at_gathered_places(library):
    rng = np.random.default_rng(0)
    at, x = rng.integers(-7, 7, 250), rng.random((7, 512), "f")
    z = np.zeros(250, "f")

    assert library("gathered_pairs", {"at": at, "x": x, "z": z}, s0=250) == 0

    columns = 2 * np.arange(250)
    np.testing.assert_array_equal(z, x[at, columns] - x[at, columns + 1])


@pytest.mark.parametrize("mode", [StoreMode.ADD, StoreMode.MIN, StoreMode.MAX, StoreMode.MUL])
@pytest.mark.parametrize("dtype", [F32, DType.F64, I64, DType.I32, DType.BF16, DType.U8])
@pytest.mark.parametrize("n", [0, 21, 100_000])
def test_histogram(library, mode, dtype, n):
    """Stores that meet, from several threads, lose nothing."""
    rng = np.random.default_rng(n)
    at = rng.integers(0, 5, n)
    x = rng.integers(0, 2, n) if mode is not StoreMode.MUL else np.where(rng.random(n) < 1e-4, 2, 1)
    x = x.astype(NUMPY[dtype])
    z = np.ones(5, NUMPY[dtype])
    ufunc = {
        StoreMode.ADD: np.add, StoreMode.MUL: np.multiply,
        StoreMode.MIN: np.minimum, StoreMode.MAX: np.maximum,
    }[mode]  # fmt: skip
    if dtype is DType.BF16 and mode is StoreMode.ADD:
        at = np.arange(n) % 5
        x[200:] = 0  # so that every partial sum is a bfloat16
    want = np.ones(5, "f8" if dtype.is_float else NUMPY[dtype])
    ufunc.at(want, at, x.astype(want.dtype))

    assert library(f"histogram_{dtype.value}_{mode.value}", {"at": at, "x": x, "z": z}, s0=n) == 0

    np.testing.assert_array_equal(z.astype(want.dtype), want)


@pytest.mark.parametrize("name", ["two_axes", "two_axes_any"])
def test_row_scratch_over_two_axes(library, name):
    x = np.random.default_rng(3).standard_normal((3, 9, 50)).astype("f")
    z, y = np.zeros_like(x), np.zeros(9, "f")

    assert library(name, {"x": x, "z": z, "y": y}, s0=9, s1=3) == 0

    e = np.exp(x.astype("d"))
    np.testing.assert_allclose(z, e - e.mean((0, 2))[None, :, None], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y, e.var((0, 2)) * 150, rtol=1e-5)


# Text -------------------------------------------------------------------------------------------


def emitted(kernels, origins=(), **heuristics):
    return CppBackend().emit(kernels, ShapeFacts(), origins, target("avx512", **heuristics))


def test_source_lines_are_comments_with_a_map():
    origins = (
        Origin("add", "aten.add.Tensor", "model.py:12 in forward", "y = x \\\n + 1"),
        Origin("mul", "aten.mul.Tensor"),
    )
    k = evolve(softmax("k", 4, 64), origins=(0, 1))
    (unit,) = emitted([k], origins)
    source = unit.kernels[0]
    lines = source.text.splitlines()

    assert [lines[line - 1] for line, _ in source.source_map] == [
        r"// add = aten.add.Tensor // model.py:12 in forward: y = x \ + 1",
        "// mul = aten.mul.Tensor",
    ]
    assert [row for _, row in source.source_map] == [0, 1]
    assert source.text in unit.text


def test_same_input_gives_same_bytes():
    assert emitted(list(kernels())) == emitted(list(kernels()))
    assert CppBackend().content_hash == CppBackend().content_hash


def test_kernels_that_differ_in_names_share_a_function():
    other = kernel(
        "k1", [(I0, 4)], [(R0, 64)],
        [
            inner(Load("p", "in0", 64 * I0 + R0), Reduce(("q",), ReduceKind.SUM, ("p",), F32)),
            outer(Store("out0", I0, "q")),
        ],
    )  # fmt: skip
    inputs = [rows(f"k{n - 64}", 4, n, ReduceKind.SUM, 1) for n in (64, 66)]
    units = emitted([*inputs, other])
    symbols = {s.kernel: s.symbol for u in units for s in u.kernels}

    assert symbols["k0"] == symbols["k1"] != symbols["k2"]
    assert sum(u.text.count('extern "C" si64 gy_k_') for u in units) == 2


def test_many_kernels_are_units_for_all_cores():
    assert len(emitted([rows(f"k{n}", 4, n, ReduceKind.SUM, 1) for n in range(60, 70)])) == 2


def test_small_work_stays_on_one_thread():
    (small,) = emitted([rows("k", 4, 64, ReduceKind.SUM, 1)])
    (large,) = emitted([rows("k", 4096, 1024, ReduceKind.SUM, 1)])
    (unknown,) = emitted([rows("k", S0, S1, ReduceKind.SUM, 1)])

    assert "#pragma omp" not in small.text
    assert "#pragma omp" in large.text
    assert "return {s0, 1, s0*s1};" in unknown.text
    assert re.search(r"gy_alone\(.*, 16384\)", unknown.text)


def test_refusals():
    bound = target("avx512")
    pairs = kernel("k", [(I0, 4)], [], [outer(Load("a", "x", I0), Store("y", I0, "a"))],
                        {"x": DType.C64, "y": DType.C64})  # fmt: skip
    result = CppBackend().refuses(pairs, bound)

    assert result is not None
    assert result.code == "GY-CPP-001"
    assert CppBackend().refuses(softmax("k", 4, 4), bound) is None
    masked = kernel("k", [(I0, 4)], [], [outer(Const("c", True, BOOL), Load("a", "x", I0, "c"),
                                                Store("y", I0, "a"))])  # fmt: skip
    assert CppBackend().refuses(masked, bound) is None


def test_rows_gone_over_twice_are_fetched_ahead():
    (rows_of_4k,) = emitted([softmax("k", 64, 1024)])
    (short,) = emitted([softmax("k", 64, 64)])
    (long,) = emitted([softmax("k", 64, 100_000)])
    (once,) = emitted([rows("k", 64, 1024, ReduceKind.SUM, 1)])

    fetched = re.findall(r"__builtin_prefetch\((.*?)\);", rows_of_4k.text)
    assert fetched == ["z + 1024*i0 + r0, 1", "x + 1024*i0 + r0 + 1024"]
    for unit in (short, long, once):
        assert "__builtin_prefetch" not in unit.text


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("top", "roundings"), [(0.75, 1), (0.3, 2)])
def test_what_a_narrow_float_holds_is_not_rounded_again(arch, top, roundings, build_folder):
    if why := lacking(arch):
        pytest.skip(why)
    bf16 = DType.BF16
    clamp = kernel(
        "clamp", [(I0, 50)], [],
        [outer(
            Load("x0", "x", I0), Let("x1", "cast", ("x0",), F32), Const("top", top, F32),
            Let("low", "minimum", ("x1", "top"), F32), Let("y0", "cast", ("low",), bf16),
            Let("y1", "cast", ("y0",), F32), Let("twice", "mul", ("y1", "top"), F32),
            Let("z0", "cast", ("twice",), bf16), Let("z1", "cast", ("z0",), F32),
            Let("last", "add", ("z1", "y1"), F32), Store("z", I0, "last"),
        )],
        {"x": bf16, "z": F32},
    )  # fmt: skip
    library = Library([clamp], arch, build_folder)
    (unit,) = library.units
    text = unit.text[unit.text.index("_part(") :]
    assert len(re.findall(r"= gy_round_bf16\(", text)) == roundings * text.count("gy_mul(")
    x = np.random.default_rng(0).normal(0, 1, 50).astype(NUMPY[bf16])
    x[:4] = [np.inf, -np.inf, np.nan, -0.0]
    z = np.zeros(50, np.float32)
    assert library("clamp", {"x": x, "z": z}) == 0
    high = np.float32(top)
    y = np.minimum(x.astype(np.float32), high).astype(NUMPY[bf16]).astype(np.float32)
    want = (y * high).astype(NUMPY[bf16]).astype(np.float32) + y
    np.testing.assert_array_equal(z, want)


def test_the_least_index_divided_by_minus_one(library):
    """Quotients wrap, as processors' own instruction does not."""
    for a, b, quotient, remainder in QUOTIENTS:
        y = np.zeros(4, np.int64)
        assert library("divided", {"y": y}, u0=a, u1=b) == 0
        assert y.tolist() == [quotient, remainder] * 2
