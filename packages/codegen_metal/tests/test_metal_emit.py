"""What is written: text, launches, checks, atomics, refusals, and what the same text does."""

import numpy as np
import pytest
from attrs import evolve
from metal_harness import NUMPY, Library, target

from gyrator_codegen_metal.shim import host_unit
from gyrator_codegen_metal.stage import MetalBackend
from gyrator_codegen_metal.support import RESERVED, sections
from gyrator_ir.backend import TilingBackend
from gyrator_ir.body.nodes import (
    Bind,
    Check,
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
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import ShapeFacts, Sym, evaluate, expr
from gyrator_ir.kernel.nodes import Local
from gyrator_ir.provenance import Origin
from gyrator_ir.tile.nodes import Loop, LoopKind, Threads
from gyrator_ir.types import DType
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.compare import assert_close, assert_same_writes
from gyrator_testing.kernels.write import F32, F64, I0, I64, R0, S0, S1, inner, kernel, outer

AT, T0 = S1 * I0 + R0, Sym("t0")
KINDS = {
    "sum": (ReduceKind.SUM, F32), "max": (ReduceKind.MAX, F32), "argmin": (ReduceKind.ARGMIN, F32),
    "welford": (ReduceKind.WELFORD, F32), "softmax": (ReduceKind.ONLINE_SOFTMAX, F32),
    "prod": (ReduceKind.PROD, I64), "wide": (ReduceKind.ARGMAX, I64),
    "bytes": (ReduceKind.XOR, DType.I8),
}  # fmt: skip


def rows(name, kind, dtype):
    """Reduce rows of unknown length and number; the last result is stored beside each element."""
    names = tuple("fgh")[: {ReduceKind.WELFORD: 3, ReduceKind.ONLINE_SOFTMAX: 2}.get(kind, 1)]
    real = I64 if name in ("argmin", "wide") else dtype
    stages = [
        inner(Load("a", "x", AT), Reduce(names, kind, ("a",), dtype)),
        outer(*(Store(f"y{k}", I0, n) for k, n in enumerate(names))),
        inner(Store("z", AT, names[-1])),
    ]
    types = {"x": dtype, "z": real} | {f"y{k}": real for k in range(3)}
    return kernel(name, [(I0, S0)], [(R0, S1)], stages, types)


@pytest.fixture(scope="module")
def library(build_folder):
    known = ShapeFacts()
    return {
        lanes: Library(
            [rows(n, *k) for n, k in KINDS.items()], build_folder, known, edit=_shared(lanes)
        )
        for lanes in (1, 32, 64, 1024)
    }


def _shared(lanes):
    def edit(program):
        loops = (Loop(LoopKind.GRID, (I0,), max(256 // lanes, 1) if lanes <= 32 else 1),)
        loops += (Loop(LoopKind.LOOP, (R0,), lanes),)
        return evolve(program, kernels=tuple(evolve(k, loops=loops) for k in program.kernels))

    return edit


@pytest.mark.parametrize("name", KINDS)
def test_rows_of_unknown_length(library, name):
    """Every way to share a row gives its reduction, for rows of any length, empty ones too."""
    rng = np.random.default_rng(3)
    for m, n in ((3, 0), (1, 1), (70, 31), (9, 65), (2, 3000), (0, 4)):
        for lanes, built in library.items():
            result = built.kernels[name]
            if n == 0 and name in ("max", "argmin", "wide"):
                continue
            arrays = {b.name: np.zeros(m * n + m + 1, NUMPY[b.dtype]) for b in result.parameters}
            arrays["x"][:] = np.round(rng.standard_normal(arrays["x"].size) * 8)
            want = {k: v.copy() for k, v in arrays.items()}

            run_kernel(result, want, {"s0": m, "s1": n})
            assert built(name, arrays, s0=m, s1=n) == 0, (lanes, m, n)

            assert_same_writes(result, arrays, want)


def test_long_sums_are_as_close_as_in_float64(build_folder):
    """A thread that adds a million elements loses none of them."""
    alone = Library([rows("sum", *KINDS["sum"])], build_folder, edit=_shared(1))
    x = np.random.default_rng(1).random(1 << 20, np.float32)
    arrays = {"x": x, "y0": np.zeros(1, np.float32), "z": np.zeros(1 << 20, np.float32)}

    assert alone("sum", arrays, s0=1, s1=1 << 20) == 0

    np.testing.assert_allclose(arrays["y0"][0], x.astype(np.float64).sum(), rtol=6e-8)


def scatter(name, dtype, mode, check):
    """Fold x into z at the addresses in `at`."""
    body = [Load("i", "at", I0), Bind(T0, "i", expr(7), True, check), Load("a", "x", I0)]
    body.append(Store("z", T0 + 1, "a", mode))
    return kernel(name, [(I0, 90)], [], [outer(*body)], {"at": I64, "x": dtype, "z": dtype})


FOLDS = {
    f"{d.value}_{m.value}": (d, m)
    for d in NUMPY
    for m in StoreMode
    if d in {b for b, _ in target().capabilities.atomics}
    if m is StoreMode.SET or (d, m) in target().capabilities.atomics
}


@pytest.fixture(scope="module")
def scatters(build_folder):
    kernels = [scatter(n, d, m, Check.NONE) for n, (d, m) in FOLDS.items()]
    checked = [scatter(f"{c.name}", F32, StoreMode.ADD, c) for c in (Check.INDEX, Check.RUNTIME)]
    return Library([*kernels, *checked], build_folder)


@pytest.mark.parametrize("name", FOLDS)
def test_scatters_fold_into_one_another(scatters, name):
    dtype, _ = FOLDS[name]
    rng = np.random.default_rng(len(name))
    at = rng.integers(-7, 7, 90)
    low = -3 if dtype.is_signed or dtype.is_float else 1
    arrays = {"at": at, "x": rng.integers(low, 3, 90).astype(NUMPY[dtype])}
    arrays["z"] = rng.integers(low, 3, 9).astype(NUMPY[dtype])
    want = {k: v.copy() for k, v in arrays.items()}

    run_kernel(scatters.kernels[name], want, {})
    assert scatters(name, arrays) == 0

    assert_close(arrays["z"], want["z"], name, 4)


@pytest.mark.parametrize("check", [Check.INDEX, Check.RUNTIME])
def test_an_index_outside_is_reported_and_not_used(scatters, check):
    at = np.zeros(90, np.int64)
    at[[4, 80]] = 7, -8
    arrays = {"at": at, "x": np.ones(90, np.float32), "z": np.zeros(9, np.float32)}

    assert scatters(check.name, arrays) == 1

    assert arrays["z"].sum() == 88
    (source,) = [s for u in scatters.units for s in u.kernels if s.kernel == check.name]
    assert source.checks[0].failure == ("IndexError" if check is Check.INDEX else "RuntimeError")


def test_text_and_launch():
    """One function a kernel, named arguments in order, the user's lines, and how many groups."""
    backend = MetalBackend()
    assert isinstance(backend, TilingBackend)
    result = evolve(rows("sum", *KINDS["sum"]), origins=(0,))
    again = evolve(result, name="sum_again")
    origins = (Origin("n", "aten.sum", "f.py:1", "y = x.sum() # ü \\"),)
    (unit,) = backend.emit([result, again], ShapeFacts(), origins, target())
    first, second = unit.kernels
    assert (first.kernel, second.kernel, second.symbol) == ("sum", "sum_again", "sum")
    assert unit.text.count("kernel void") == 1 and unit.text.isascii()
    assert unit == backend.emit([result, again], ShapeFacts(), origins, target())[0]
    row = first.source_map[0][0] - 1
    assert first.text.splitlines()[row].startswith("// n = aten.sum // f.py:1: y = x.sum()")
    assert [a.name for a in first.arguments] == ["x_1", "y0_1", "z", "s0", "s1"]
    assert "device const float* x_1 [[buffer(0)]]" in first.text
    assert "#pragma METAL fp math_mode(safe)" in first.text
    assert evaluate(first.grid[0], {Sym("s0"): 9, Sym("s1"): 5}) == 2
    assert 'extern "C" int64_t sum(' in host_unit(unit).text
    assert "gy_erf" not in unit.text


def test_functions_of_the_support_are_reserved_or_prefixed():
    for section in sections():
        assert all(name.startswith("gy_") for name in section.names)
    assert {"kernel", "device", "thread", "half"} <= RESERVED


def test_names_of_the_language_are_not_taken():
    body = [Load("half", "device", I0), Let("thread", "neg", ("half",), F32)]
    result = kernel("constant", [(I0, 4)], [], [outer(*body, Store("kernel", I0, "thread"))])
    (unit,) = MetalBackend().emit([result], ShapeFacts(), (), target())
    assert "device const float* device_1" in unit.text and unit.kernels[0].symbol == "constant_1"


ROW = expr(8) * I0 + R0
SUM = ScanStep(("c",), ScanKind.SUM, ("a",), F32)
REFUSED = {
    "GY-METAL-002": [Let("b", "cast", ("a",), F64)],
    "GY-METAL-003": [Let("b", "erfinv", ("a",), F32), Store("y", ROW, "b")],
    "GY-METAL-004": [Let("b", "cast", ("a",), I64), Store("y", I0, "b", StoreMode.MAX)],
    "GY-METAL-005": [SUM, SortStep(("v", "p"), ("a",), F32), Store("y", ROW, "v")],
    "GY-METAL-006": [Store("row", I0, "a")],
    "GY-METAL-007": [Store(f"y{k}", ROW, "a") for k in range(30)],
}


@pytest.mark.parametrize("code", REFUSED)
def test_refusals(code):
    types = {"y": I64} if code == "GY-METAL-004" else {}
    locals_ = [Local("row", F32, expr(8))] if code == "GY-METAL-006" else []
    stages = [inner(Load("a", "x", ROW), *REFUSED[code])]
    result = kernel("k", [(I0, 4)], [(R0, 8)], stages, types, locals_=locals_)

    results = MetalBackend().refuses(result, target())

    assert results is not None and results.code == code
    assert results.where.endswith("kernel k") and results.help


def test_other_refusals():
    sort = SortStep(("v", "p"), ("a",), F32)
    for extent in (S0, expr(1025)):
        stages = [inner(Load("a", "x", R0), sort, Store("y", R0, "v"))]
        result = MetalBackend().refuses(kernel("k", [], [(R0, extent)], stages), target())
        assert result is not None and result.code == "GY-METAL-005"
    both = inner(Load("a", "x", ROW), SUM, evolve(SUM, names=("d",), reverse=True))
    result = MetalBackend().refuses(kernel("k", [(I0, 4)], [(R0, 8)], [both]), target())
    assert result is not None and "both directions" in result.message
    row = Local("row", F32, S0)
    retained = inner(Load("a", "x", R0), Store("row", R0, "a"))
    result = MetalBackend().refuses(
        kernel("k", [], [(R0, S0)], [retained], locals_=[row]), target()
    )
    assert result is not None and result.code == "GY-METAL-006"


GRID, LOOP = LoopKind.GRID, LoopKind.LOOP
TILINGS = {
    "groups of 2048": {"loops": (Loop(GRID, (I0,), 64), Loop(LOOP, (R0,), 32))},
    "half a SIMD group": {"loops": (Loop(GRID, (I0,)), Loop(LOOP, (R0,), 16))},
    "two rows of a group": {"loops": (Loop(GRID, (I0,), 2), Loop(LOOP, (R0,), 64))},
    "rows in two loops": {"loops": (Loop(GRID, (I0,)), Loop(LOOP, (R0,), 64), Loop(LOOP, (R0,)))},
    "host threads": {"threads": Threads(1)},
    "cleared": {"cleared": ("z",)},
}


@pytest.mark.parametrize("name", TILINGS)
def test_tilings_of_other_machines_are_refused(name):
    backend = MetalBackend()
    program = backend.tile([rows("sum", *KINDS["sum"])], ShapeFacts(), (), target())
    (tiled,) = program.kernels
    program = evolve(program, kernels=(evolve(tiled, **TILINGS[name]),))
    with pytest.raises(UnsupportedError, match="GY-METAL-001"):
        backend.emit_tiled(program, target())


def test_scans_and_sorts_have_one_way_each():
    backend = MetalBackend()
    steps = {(1, 64): SUM, (8, 32): SortStep(("c", "p"), ("a",), F32)}
    for (points, lanes), step in steps.items():
        result = kernel("k", [(I0, 4)], [(R0, 8)], [inner(Load("a", "x", ROW), step)])
        program = backend.tile([result], ShapeFacts(), (), target())
        loops = Loop(GRID, (I0,), points), Loop(LOOP, (R0,), lanes)
        program = evolve(program, kernels=(evolve(program.kernels[0], loops=loops),))
        with pytest.raises(UnsupportedError, match=r"a scan needs|a row that"):
            backend.emit_tiled(program, target())


def test_wide_reductions_are_refused():
    backend = MetalBackend()
    program = backend.tile([rows("sum", *KINDS["sum"])], ShapeFacts(), (), target())
    (tiled,) = program.kernels
    wide = evolve(tiled, reductions=(evolve(tiled.reductions[0], wide=True),))
    with pytest.raises(UnsupportedError, match="accumulation"):
        backend.emit_tiled(evolve(program, kernels=(wide,)), target())
