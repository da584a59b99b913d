"""What random kernels seldom meet: text, special values, errors, refusals, wide indices."""

import ast
import itertools
import re

import numpy as np
import pytest
from attrs import evolve
from triton_build import kernel
from triton_corpus import (
    POSITIONS,
    RESULTS,
    T0,
    gather,
    histogram,
    kept_row,
    layer_norm,
    product,
    rows,
    scan,
    softmax,
    summed_columns,
    taken_in_turns,
    through_memory,
    turned,
)
from triton_harness import NUMPY, Library, target

from gyrator_codegen.passes.blocks.choose_blocks import ChooseBlocks
from gyrator_codegen_triton.dtypes import TYPES, cast
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.backend import TilingBackend
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
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import ShapeFacts, expr
from gyrator_ir.kernel.nodes import Local
from gyrator_ir.provenance import Origin
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.tile.nodes import Repeat, Threads, TiledGroup, TileProgram
from gyrator_ir.tile.plain import untiled
from gyrator_ir.types import DType
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.write import F32, F64, I0, I1, I64, R0, S0, S1, inner, outer

SIZES = ((0, 5), (1, 1), (3, 15), (2, 16), (5, 17), (3, 40))
KINDS = [k for k in ReduceKind if k not in (ReduceKind.ANY, ReduceKind.ALL, ReduceKind.XOR)]
MODES = (StoreMode.ADD, StoreMode.MIN, StoreMode.MAX)
SUMMED = ((3, 5, 17, F32, 1), (2, 16, 64, F32, 1), (4, 1, 30, F32, 1), (2, 3, 20, F32, 3))
"""Parts, rows of a part, columns, dtype, and batches of rows of a part."""


def kernels():
    for kind in KINDS:
        yield rows(f"rows_any_{kind.value}", S0, S1, kind)
        yield rows(f"rows_{kind.value}", 3, 21, kind)
    yield from (softmax("softmax_any", S0, S1), softmax("softmax_here", 3, 40, into="x"))
    yield from (layer_norm("norm_any", S0, S1), layer_norm("norm", 3, 40))
    yield from (kept_row("kept", 5, 3, 7), through_memory("through_any", S0, S1))
    yield from (summed_columns(f"summed_{'_'.join(map(str, s[:3]))}", *s) for s in SUMMED)
    yield from (gather("checked"), gather("promised", check=False))
    yield taken_in_turns("in_turns", 3, 25)
    yield from (turned("turned", 9, 14), turned("turned_any", S0, S1), turned("tiled", 60, 70))
    for kind in ScanKind:
        yield scan(f"scan_{kind.value}", 2, 19, kind)
        yield scan(f"scan_back_{kind.value}", 2, 19, kind, reverse=True)
    yield kernel(
        "counted", [(I0, S0)], [],
        [outer(Load("a", "at", I0), Bind(T0, "a", expr(5)), Const("b", 1.0, F32),
               Store("z", T0, "b", StoreMode.ADD))],
        {"at": I64, "z": F32},
    )  # fmt: skip
    for dtype in (F32, F64, I64):
        yield from (histogram(f"histogram_{dtype.value}_{m.value}", dtype, m) for m in MODES)


@pytest.fixture(scope="module")
def library(interpreter, text_folder):
    result = Library(list(kernels()), interpreter, text_folder)
    assert not result.refused
    return result


def check(library, name, arrays, tolerance=2e-6, blocks=None, **sizes):
    want = {k: v.copy() for k, v in arrays.items()}
    run_kernel(library.kernels[name], want, sizes)
    library(name, arrays, blocks, **sizes)
    for k, v in want.items():
        if v.dtype.kind in "iub":
            np.testing.assert_array_equal(arrays[k], v, err_msg=k)
        else:
            np.testing.assert_allclose(arrays[k], v, tolerance, tolerance * 30, err_msg=k)


def arrays_of(library, name, size, rng):
    result = {}
    for b in library.kernels[name].parameters:
        dtype = NUMPY[b.dtype]
        result[b.name] = rng.standard_normal(max(size, 1)).astype(dtype)
    return result


def special(rng, m, n):
    """Rows of numbers; then of equal ones, with NaN, with infinities, of -inf alone."""
    x = rng.standard_normal((m, n)).astype(np.float32)
    if m > 2 and n > 2:
        x[0] = 2.0
        x[1, n // 2 :: 3] = np.nan
        x[2, 1] = -np.inf
    return x.ravel()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "n"), SIZES)
def test_looped_reduction(library, kind, m, n):
    name = f"rows_any_{kind.value}"
    arrays = arrays_of(library, name, max(m, n, 1), np.random.default_rng(m + n))
    arrays["x"] = special(np.random.default_rng(m * n), m, n)
    if kind is ReduceKind.WELFORD:
        arrays["x"] = np.nan_to_num(arrays["x"], neginf=-3.0)
    if not arrays["x"].size:
        arrays["x"] = np.zeros(1, np.float32)
    check(library, name, arrays, 2e-5, s0=m, s1=n)


@pytest.mark.parametrize("kind", KINDS)
def test_persistent_reduction(library, kind):
    name = f"rows_{kind.value}"
    arrays = arrays_of(library, name, 21, np.random.default_rng(1))
    arrays["x"] = special(np.random.default_rng(2), 3, 21)
    if kind is ReduceKind.WELFORD:
        arrays["x"] = np.nan_to_num(arrays["x"], neginf=-3.0)
    assert len(library.kernels[name].stages[1].body) == RESULTS.get(kind, 1)
    assert (arrays["y0"].dtype == np.int64) == (kind in POSITIONS)
    check(library, name, arrays, 2e-5)


@pytest.mark.parametrize("seed", [2, 6, 25])
@pytest.mark.parametrize(("name", "n"), [("rows_welford", 21), ("rows_any_welford", 70)])
def test_equal_elements_have_their_own_mean(library, name, n, seed):
    rows = np.random.default_rng(seed).standard_normal((3, 1)).astype(np.float32)
    arrays = arrays_of(library, name, 3 * n, np.random.default_rng(8))
    arrays["x"] = np.repeat(rows, n, 1).ravel()
    library(name, arrays, s0=3, s1=n)
    np.testing.assert_array_equal(arrays["y0"][:3], rows[:, 0])
    np.testing.assert_array_equal(arrays["y1"][:3], 0)


@pytest.mark.parametrize("kind", ScanKind)
@pytest.mark.parametrize("back", ["", "back_"])
def test_scan(library, kind, back):
    name = f"scan_{back}{kind.value}"
    arrays = arrays_of(library, name, 38, np.random.default_rng(3))
    arrays["x"][[3, 4, 21]] = arrays["x"][2]  # ties
    if kind is not ScanKind.LOGSUMEXP:
        arrays["x"][30] = np.nan
    check(library, name, arrays, 2e-5)


@pytest.mark.parametrize(
    ("name", "m", "n"),
    [("softmax_any", 3, 40), ("softmax_here", 3, 40), ("norm", 3, 40), ("norm_any", 4, 35),
     ("through_any", 3, 40), ("turned_any", 9, 14)],
)  # fmt: skip
def test_rows(library, name, m, n):
    arrays = arrays_of(library, name, m * n, np.random.default_rng(4))
    sizes = {"s0": m, "s1": n} if name.endswith("_any") else {}
    check(library, name, arrays, 2e-5, **sizes)


@pytest.mark.parametrize("shape", SUMMED)
@pytest.mark.parametrize("xblock", [1, 2, 8])
def test_sums_of_columns_beside_rows(library, shape, xblock):
    units, m, n, _, batches = shape
    rng = np.random.default_rng(xblock)
    arrays = {
        "x": rng.standard_normal(units * batches * m * n).astype(np.float32) + 2,
        "z": np.zeros(units * batches * m * n, np.float32),
        "w": rng.standard_normal(n).astype(np.float32),
        # What was there before does not count.
        "sums": np.full(units * n, np.nan, np.float32),
        "plain": np.full(units * n, 7.0, np.float32),
    }
    check(library, f"summed_{'_'.join(map(str, shape[:3]))}", arrays, blocks={"XBLOCK": xblock})


@pytest.mark.parametrize("n", [40, S1], ids=["whole", "loop"])
def test_rows_divided_by_the_same_number(interpreter, text_folder, n):
    """Within 1 ulp, as the interpreter rounds both operations of a fused multiply-add."""
    at = expr(n) * I0 + R0
    body = (Load("a", "x", at), Load("b", "y", I0), Let("c", "div", ("a", "b"), F32))
    k = kernel(
        "k", [(I0, S0)], [(R0, n)], [inner(*body, Store("z", at, "c"))],
        {"x": F32, "y": F32, "z": F32},
    )  # fmt: skip
    library = Library([k], interpreter, text_folder)
    assert "gy_divide_by_reciprocal(a, b)" in library.units[0].text
    special = np.float32([0, 1e-45, 1e-39, 1e-30, 1, 3, 1e30, 2e38, 3.4e38, np.inf, np.nan])
    special = np.concatenate([special, -special])
    normal = np.random.default_rng(11).standard_normal((18, 40)).astype(np.float32)
    dividends = np.concatenate([np.resize(special, (len(special), 40)), normal])
    divisors = np.concatenate([special, normal[:, 0]])
    arrays = {"x": dividends.ravel(), "y": divisors, "z": np.zeros(dividends.size, np.float32)}
    sizes = {"s0": len(divisors)} | ({"s1": 40} if n is S1 else {})
    library("k", arrays, **sizes)
    with np.errstate(all="ignore"):
        wanted = dividends / divisors[:, None]
    found = arrays["z"].reshape(wanted.shape)
    ends = ~np.isfinite(wanted) | (wanted == 0)
    np.testing.assert_array_equal(found[ends], wanted[ends])
    signs = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[signs], np.signbit(wanted)[signs])
    np.testing.assert_array_max_ulp(found[~ends], wanted[~ends], 1)


def test_tiles_follow_both_orders(library):
    check(library, "tiled", arrays_of(library, "tiled", 4200, np.random.default_rng(6)), 0)
    check(
        library, "tiled", arrays_of(library, "tiled", 4200, np.random.default_rng(7)), 0,
        blocks={"XBLOCK": 16, "RBLOCK": 32},
    )  # fmt: skip
    (unit,) = TritonBackend().emit([turned("k", 512, 512)], ShapeFacts(), (), target())
    assert "tl.load(x_1 + (x + 512*r)" in unit.text and "tl.store(z + (512*x + r)" in unit.text
    assert dict(unit.kernels[0].candidates[0].values)["RBLOCK"] == 32
    assert "RBLOCK" not in library.sources["turned"].text  # too small to gain anything


def test_rows_side_by_side_are_held_together():
    columns = kernel(
        "columns", [(I0, 4096)], [(R0, 2048)],
        [inner(Load("a", "x", 4096 * R0 + I0), Reduce(("c",), ReduceKind.SUM, ("a",), DType.F32)),
         outer(Store("y", I0, "c"))],
    )  # fmt: skip
    (unit,) = TritonBackend().emit([columns], ShapeFacts(), (), target())
    assert dict(unit.kernels[0].candidates[0].values)["XBLOCK"] >= 16
    assert "for start in tl.range" in unit.text


def test_what_is_the_same_for_all_points_of_a_block_is_loaded_once(interpreter, text_folder):
    at = (expr(70) * I0 + R0) * 96 + I1
    columns = kernel(
        "columns", [(I0, 3), (I1, 96)], [(R0, 70)],
        [inner(Load("a", "x", at), Load("w", "w", 70 * I0 + R0), Let("b", "mul", ("a", "w"), F32),
               Reduce(("c",), ReduceKind.SUM, ("b",), F32)),
         outer(Store("y", 96 * I0 + I1, "c"))],
    )  # fmt: skip
    library = Library([columns], interpreter, text_folder)
    source = library.sources["columns"]
    assert "tl.load(w + (70*i0 + r), mask=r_mask" in source.text
    # 32 points in a row have one weight, wherever they start: 96 is three times 32.
    assert all(32 % dict(c.values)["XBLOCK"] == 0 for c in source.candidates)
    rng = np.random.default_rng(8)
    for block in (8, 32):
        arrays = arrays_of(library, "columns", 3 * 70 * 96, rng)
        want = {k: v.copy() for k, v in arrays.items()}
        run_kernel(columns, want, {})
        library("columns", arrays, blocks={"XBLOCK": block})
        np.testing.assert_allclose(arrays["y"], want["y"], 2e-5, 2e-5)


def test_a_matrix_that_is_read_once_leaves_the_caches_first(interpreter, text_folder):
    product = kernel(
        "product", [(I0, 20)], [(R0, 70)],
        [inner(Load("a", "w", 70 * I0 + R0), Load("b", "x", R0),
               Reduce(("c",), ReduceKind.DOT, ("a", "b"), F32)),
         outer(Load("d", "z", I0), Let("e", "add", ("c", "d"), F32), Store("y", I0, "e"))],
    )  # fmt: skip
    library = Library([product], interpreter, text_folder)
    text = library.sources["product"].text
    matrix, vector, added = (
        next(line for line in text.splitlines() if f"tl.load({b} +" in line)
        for b in ("w", "x_1", "z")
    )
    assert "evict_first" in matrix and "evict_last" in vector and "evict" not in added
    assert text.index(added) < text.index("tl.sum")
    rng = np.random.default_rng(2)
    sizes = {"w": 1400, "x": 70, "z": 20, "y": 20}
    arrays = {b: rng.standard_normal(n).astype(np.float32) for b, n in sizes.items()}
    expected = arrays["w"].reshape(20, 70) @ arrays["x"] + arrays["z"]
    library("product", arrays)
    np.testing.assert_allclose(arrays["y"], expected, 2e-5, 2e-5)


def test_parts_that_take_turns_are_read_and_written_at_once(library):
    rng = np.random.default_rng(1)
    sizes = {"x": 150, "c": 25, "z": 150}
    arrays = {b: rng.standard_normal(n).astype(np.float32) for b, n in sizes.items()}
    check(library, "in_turns", arrays)
    text = library.sources["in_turns"].text
    assert text.count("tl.load(") == 2
    assert text.count("tl.store(") == 1


def test_local_stays_in_registers(library):
    check(library, "kept", arrays_of(library, "kept", 105, np.random.default_rng(5)), 2e-5)
    assert "tl.debug_barrier" not in library.sources["kept"].text
    assert "tl.debug_barrier" in library.sources["through_any"].text


@pytest.mark.parametrize("name", ["checked", "promised"])
def test_gather(library, name):
    at = np.array([0, 6, -7, -1, 3], np.int64)
    arrays = {"at": at, "x": np.arange(7, dtype=np.float32), "z": np.zeros(5, np.float32)}
    check(library, name, arrays, s0=5)
    assert ("tl.device_assert" in library.sources[name].text) == (name == "checked")


@pytest.mark.parametrize("wrong", [7, -8])
def test_index_out_of_bounds(library, wrong):
    at = np.array([0, wrong], np.int64)
    arrays = {"at": at, "x": np.zeros(7, np.float32), "z": np.zeros(2, np.float32)}
    with pytest.raises(RuntimeError, match="index out of bounds"):
        library("checked", arrays, s0=2)


@pytest.mark.parametrize("dtype", [F32, I64])
@pytest.mark.parametrize("mode", MODES)
def test_histogram(library, dtype, mode):
    rng = np.random.default_rng(6)
    arrays = {
        "at": rng.integers(-0, 5, 70),
        "x": rng.integers(-9, 9, 70).astype(NUMPY[dtype]),
        "z": rng.integers(-9, 9, 5).astype(NUMPY[dtype]),
    }
    check(library, f"histogram_{dtype.value}_{mode.value}", arrays, s0=70)


def test_the_same_number_is_added_everywhere(library):
    arrays = {"at": np.arange(70) % 4, "z": np.zeros(5, np.float32)}
    check(library, "counted", arrays, s0=70)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("mode", [StoreMode.MIN, StoreMode.MAX])
def test_a_nan_of_either_sign_stays_in_a_scatter(library, dtype, mode):
    kind, nan = NUMPY[dtype], np.nan
    arrays = {
        "at": np.array([0, 1, 2, 2, 3, 3, 4, 4, 0, 1]),
        "x": np.array([1, -1, nan, 1, -nan, -1, -nan, 2, -3, 3], kind),
        "z": np.array([nan, -nan, 1, -1, -nan], kind),
    }
    assert list(np.signbit(arrays["z"])) == [False, True, False, True, True]
    check(library, f"histogram_{dtype.value}_{mode.value}", arrays, s0=10)
    assert np.isnan(arrays["z"]).all()


def test_golden_text():
    body = (
        Load("a", "x", 64 * I0 + R0),
        Let("b", "exp", ("a",), F32),
        Store("y", 64 * I0 + R0, "b"),
    )
    k = kernel("exps", [(I0, 8), (R0, 64)], [], [outer(*body)])
    row = Origin("exps", "aten.exp.default", "model.py:3 in forward", "y = x.exp()")
    (unit,) = TritonBackend().emit(
        [k.__class__(**_fields(k, origins=(0,)))], ShapeFacts(), (row,), target()
    )
    source = unit.kernels[0]
    assert source.text == unit.text == GOLDEN
    line, number = source.source_map[0]
    assert number == 0
    assert source.text.splitlines()[line - 1].endswith("# model.py:3 in forward: y = x.exp()")


def _fields(k, **changed):
    return {n: getattr(k, n) for n in k.__slots__ if n != "__weakref__"} | changed


GOLDEN = """import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def exps(x_1, y, XBLOCK: tl.constexpr):
    # exps = aten.exp.default # model.py:3 in forward: y = x.exp()
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    x_mask = x < 512 if 512 % XBLOCK else tl.full(x.shape, True, tl.int1)
    a = tl.load(x_1 + x, mask=x_mask, other=0)
    b = libdevice.exp(a)
    tl.store(y + x, b, mask=x_mask)
"""


def test_each_text_stands_alone_and_is_repeatable(library):
    again = TritonBackend().emit(list(kernels()), ShapeFacts(), (), target())
    assert again == library.units
    for source in library.sources.values():
        names = {n.name for n in ast.walk(ast.parse(source.text)) if isinstance(n, ast.FunctionDef)}
        assert source.symbol in names
        assert len(source.grid) == 1


@pytest.mark.parametrize(("n", "wide"), [(1 << 20, False), (1 << 31, True), (S0, True)])
def test_width_of_indices(n, wide):
    k = kernel("copy", [(I0, n)], [], [outer(Load("a", "x", I0), Store("y", I0, "a"))])
    (unit,) = TritonBackend().emit([k], ShapeFacts(), (), target())
    assert ("tl.int64" in unit.text) == wide


@pytest.mark.parametrize(("n", "far"), [(2**31 + 5, True), (2**31 - 5, True), (9999, False)])
@pytest.mark.parametrize("kind", [ReduceKind.SUM, ReduceKind.ARGMAX])
def test_loops_to_a_far_end_have_64_bits(n, far, kind):
    """Of a literal from 2^31 to 2^32, Triton makes an unsigned end, and of the loop nothing."""
    (unit,) = TritonBackend().emit([rows("far", 2000, n, kind)], ShapeFacts(), (), target())
    (end,) = re.findall(r"extent = (.*)", unit.text)
    assert end == (f"tl.cast({n}, tl.int64)" if far else str(n))
    assert "range(0, extent, RBLOCK" in unit.text
    if kind is ReduceKind.ARGMAX:  # a position after all others
        assert str((1 << 63 if far else 1 << 31) - 1) in unit.text


def test_bounded_size_needs_32_bits():
    k = kernel("copy", [(I0, S0)], [], [outer(Load("a", "x", I0), Store("y", I0, "a"))])
    (unit,) = TritonBackend().emit([k], ShapeFacts().with_range(S0, 0, 5000), (), target())
    assert "tl.int64" not in unit.text


def test_candidates():
    backend = TritonBackend()
    few = rows("few", 2, 1 << 20, ReduceKind.SUM)
    many = rows("many", 1 << 16, 64, ReduceKind.SUM)
    check_ = gather("checks")
    (unit,) = backend.emit([few, many, check_], ShapeFacts(), (), target())
    first = {s.kernel: dict(s.candidates[0].values) for s in unit.kernels}
    assert first["few"]["XBLOCK"] == 1 and first["few"]["RBLOCK"] >= 1024
    assert first["many"]["XBLOCK"] >= 4 and first["many"]["RBLOCK"] == 64
    assert first["checks"]["debug"] == 1 and first["checks"]["enable_fp_fusion"] == 0
    for s in unit.kernels:
        assert len(set(s.candidates)) == len(s.candidates) > 1
        for c in s.candidates:
            values = dict(c.values)
            assert values["XBLOCK"] * values.get("RBLOCK", 1) <= 1 << 20
            assert values["num_warps"] in (1, 2, 4, 8, 16)


def test_refusals():
    backend, at = TritonBackend(), 9 * I0 + R0
    bare = Target(
        device="cuda", arch="sm_80", kernel_backend="triton",
        capabilities=Capabilities(dtypes=frozenset({F32, I64}), ops_lacking=frozenset({"erf"})),
    )  # fmt: skip
    sort = inner(Load("a", "x", at), SortStep(("v", "p"), ("a",), F32), Store("y", at, "v"))
    both_ways = [
        inner(
            Load("a", "x", at),
            ScanStep(("b",), ScanKind.SUM, ("a",), F32), Store("y", at, "b"),
            ScanStep(("c",), ScanKind.SUM, ("a",), F32, True), Store("z", at, "c"),
        )
    ]  # fmt: skip
    erf = outer(Load("a", "x", I0), Let("b", "erf", ("a",), F32), Store("y", I0, "b"))
    local = [
        inner(Load("a", "x", at), Store("row", 8 - R0, "a")),
        inner(Load("b", "row", R0), Store("y", at, "b")),
    ]
    double = outer(Const("a", 1.0, F64), Store("y", I0, "a"))
    cases = {
        "GY-TRITON-001": kernel("k", [(I0, 4)], [], [double], {"y": F64}),
        "GY-TRITON-002": kernel("k", [(I0, 4)], [], [erf]),
        "GY-TRITON-003": kernel("k", [(I0, 4)], [(R0, ChooseBlocks().sorted + 1)], [sort]),
        "GY-TRITON-004": histogram("k", F32, StoreMode.ADD),
        "GY-TRITON-005": kernel("k", [(I0, 4)], [(R0, S0)], both_ways, {"z": F32}),
        "GY-TRITON-006": kernel(
            "k", [(I0, 4)], [(R0, 9)], local, locals_=[Local("row", F32, expr(9))]
        ),
    }
    for code, k in cases.items():
        result = backend.refuses(k, bare)
        assert result is not None and result.code == code and result.help
    copied = outer(Load("a", "x", I0), Store("y", I0, "a"))
    pairs = kernel("k", [(I0, 4)], [], [copied], {"x": DType.C64, "y": DType.C64})
    result = backend.refuses(pairs, target())
    assert result is not None and result.code == "GY-TRITON-001"


def test_what_is_printed_is_tile_ir():
    backend, bound = TritonBackend(), target()
    assert isinstance(backend, TilingBackend)
    inputs = [softmax("softmax", 3, 40), turned("tiled", 60, 70)]
    program = backend.tile(inputs, ShapeFacts(), (), bound)
    assert [t.kernel for t in program.kernels] == inputs
    assert backend.emit_tiled(program, bound) == backend.emit(inputs, ShapeFacts(), (), bound)


def test_decisions_that_text_has_no_form_for():
    backend, bound = TritonBackend(), target()
    k = softmax("softmax", 3, 40)
    (tiled,) = backend.tile([k], ShapeFacts(), (), bound).kernels
    (looped,) = backend.tile([softmax("any", S0, S1)], ShapeFacts(), (), bound).kernels
    (dense,) = backend.tile([product("product", 64, 64, 64)], ShapeFacts(), (), bound).kernels
    wrong = (
        untiled(k),
        evolve(tiled, threads=Threads(1)),
        evolve(tiled, reductions=looped.reductions),
        TiledGroup("g", k.device, (tiled, evolve(tiled, candidates=())), (0, 1)),
        TiledGroup("g", k.device, (tiled, dense), (0, 1)),
        Repeat("again", "softmax"),
    )
    for one in wrong:
        with pytest.raises(UnsupportedError, match="GY-TRITON-008"):
            backend.emit_tiled(TileProgram("p", (one,)), bound)


def test_identity():
    assert TritonBackend().name == "triton"
    assert len(TritonBackend().content_hash) == 64


def test_short_folds_across_what_is_consecutive_are_stepped_through():
    body = inner(
        Load("a", "x", 32 * I0 + I1 + 32 * R0),
        Load("b", "w", 32 * R0 + I1),
        Reduce(("f",), ReduceKind.DOT, ("a", "b"), F32),
    )
    after = outer(Store("y", 32 * I0 + I1, "f"))
    k = kernel("channels", [(I0, 4096), (I1, 32)], [(R0, 9)], [body, after])
    (unit,) = TritonBackend().emit([k], ShapeFacts(), (), target())
    (source,) = unit.kernels
    assert all(dict(c.values)["RBLOCK"] == 1 for c in source.candidates)
    assert dict(source.candidates[0].values)["XBLOCK"] >= 256
    assert "for start in range(0, extent, RBLOCK):" in source.text


def test_floats_become_unsigned_integers_in_one_conversion():
    """The hardware's own gives the nearest end of the range, as eager's kernels do."""
    for source, into in itertools.product((DType.F32, DType.F64), (DType.U32, DType.U64)):
        assert cast("v", source, into) == f"v.to({TYPES[into]})"
    assert cast("v", DType.F32, DType.U16) == "v.to(tl.uint32).to(tl.uint16)"
    assert cast("v", DType.F16, DType.U32) == "v.to(tl.float32).to(tl.uint32)"
