"""What is written: text, checks, scatters, strips, refusals."""

import subprocess
import sys

import numpy as np
import pytest
from attrs import evolve
from llvm_harness import ATOMICS, NUMPY, Library, target

from gyrator_codegen_llvm.build import compiled, loaded
from gyrator_codegen_llvm.stage import LlvmBackend
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
from gyrator_ir.expr import ShapeFacts, Sym, expr
from gyrator_ir.kernel.nodes import Local
from gyrator_ir.modes import Numerics
from gyrator_ir.provenance import Origin
from gyrator_ir.tile.nodes import Threads
from gyrator_ir.types import DType
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.compare import assert_close, assert_same_writes
from gyrator_testing.kernels.write import (
    F32,
    F64,
    I0,
    I64,
    QUOTIENTS,
    R0,
    S0,
    S1,
    divided,
    inner,
    kernel,
    outer,
)

AT, T0 = S1 * I0 + R0, Sym("t0")
DOUBLED = kernel(
    "doubled",
    [(I0, S0)],
    [],
    [outer(Load("a", "x", I0), Let("b", "add", ("a", "a"), F32), Store("y", I0, "b"))],
)
TEXT = """\
!0 = distinct !{}
!1 = !{!"llvm.loop.parallel_accesses", !0}
define i64 @gy_k_doubled(ptr readonly %buffers, ptr readonly %sizes) nounwind {
entry:
  %x_place = getelementptr ptr, ptr %buffers, i64 0
  %x = load ptr, ptr %x_place
  %y_place = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %y_place
  %s0_place = getelementptr i64, ptr %sizes, i64 0
  %s0 = load i64, ptr %s0_place
  %i0_nonempty = icmp sgt i64 %s0, 0
  br i1 %i0_nonempty, label %i0_loop, label %i0_end
i0_loop:
  %i0 = phi i64 [ 0, %entry ], [ %i0_after, %i0_next ]
  %at = getelementptr float, ptr %x, i64 %i0
  %a = load float, ptr %at, !llvm.access.group !0
  %v = fadd float %a, %a
  %at_1 = getelementptr float, ptr %y, i64 %i0
  store float %v, ptr %at_1, !llvm.access.group !0
  br label %i0_next
i0_next:
  %i0_after = add nsw i64 %i0, 1
  %i0_more = icmp slt i64 %i0_after, %s0
  br i1 %i0_more, label %i0_loop, label %i0_end, !llvm.loop !2
i0_end:
  ret i64 0
}
!2 = distinct !{!2, !1}
"""


def emitted(*kernels, origins=()):
    return LlvmBackend().emit(list(kernels), ShapeFacts(), origins, target("plain"))


def test_text():
    (unit,) = emitted(DOUBLED)
    assert unit.text == TEXT and unit.symbols == ("gy_k_doubled",)
    assert isinstance(LlvmBackend(), TilingBackend)


def test_kernels_that_differ_in_names_share_a_function():
    origins = (Origin("n", "aten.add", "f.py:1", "y = x + x # ü \\"),)
    noted = evolve(DOUBLED, origins=(0,))
    (unit,) = emitted(noted, evolve(noted, name="again"), origins=origins)
    first, second = unit.kernels
    assert (first.kernel, second.kernel, second.symbol) == ("doubled", "again", "gy_k_doubled")
    row = first.source_map[0][0] - 1
    assert first.text.splitlines()[row].startswith("; n = aten.add ; f.py:1: y = x + x")
    assert unit.text.isascii() and unit.text.count("define i64") == 1


KINDS = {
    "sum": (ReduceKind.SUM, F32), "double": (ReduceKind.SUM, F64), "max": (ReduceKind.MAX, F32),
    "argmin": (ReduceKind.ARGMIN, F32), "welford": (ReduceKind.WELFORD, F32),
    "softmax": (ReduceKind.ONLINE_SOFTMAX, F32), "prod": (ReduceKind.PROD, I64),
    "wide": (ReduceKind.ARGMAX, I64), "bytes": (ReduceKind.XOR, DType.I8),
    "any": (ReduceKind.ANY, DType.BOOL),
}  # fmt: skip


def rows(name, kind, dtype, at=AT):
    """Reduce rows of unknown length and number; the last result is stored beside each element."""
    names = tuple("fgh")[: {ReduceKind.WELFORD: 3, ReduceKind.ONLINE_SOFTMAX: 2}.get(kind, 1)]
    real = I64 if name in ("argmin", "wide") else dtype
    stages = [
        inner(Load("a", "x", at), Reduce(names, kind, ("a",), dtype)),
        outer(*(Store(f"y{k}", I0, n) for k, n in enumerate(names))),
        inner(Store("z", at, names[-1])),
    ]
    types = {"x": dtype, "z": real} | {f"y{k}": real for k in range(3)}
    return kernel(name, [(I0, S0)], [(R0, S1)], stages, types)


@pytest.fixture(scope="module")
def libraries():
    columns = [rows(n, *k, at=S0 * R0 + I0) for n, k in KINDS.items()]
    built = Library([rows(n, *k) for n, k in KINDS.items()]), Library(columns)
    assert "i0_strip" not in built[0].units[0].text and "i0_strip" in built[1].units[0].text
    return built


@pytest.mark.parametrize("name", KINDS)
def test_rows_and_columns_of_unknown_length(libraries, name):
    """A point after another, and strips of points that end before or after the last point."""
    rng = np.random.default_rng(3)
    for m, n in ((3, 0), (1, 1), (70, 31), (9, 65), (2, 3000), (0, 4), (600, 5)):
        for library in libraries:
            result = library.kernels[name]
            if n == 0 and name in ("max", "argmin", "wide"):
                continue
            arrays = {b.name: np.zeros(m * n + m + 1, NUMPY[b.dtype]) for b in result.parameters}
            arrays["x"][:] = np.round(rng.standard_normal(arrays["x"].size) * 8)
            want = {k: v.copy() for k, v in arrays.items()}

            run_kernel(result, want, {"s0": m, "s1": n})
            assert library(name, arrays, s0=m, s1=n) == 0, (m, n)

            assert_same_writes(result, arrays, want)


@pytest.mark.parametrize("name", ["sum", "double"])
def test_long_sums_lose_nothing(libraries, name):
    kind = NUMPY[KINDS[name][1]]
    x = np.random.default_rng(1).random(1 << 20).astype(kind)
    arrays = {"x": x, "y0": np.zeros(1, kind), "z": np.zeros(1 << 20, kind)}
    assert libraries[0](name, arrays, s0=1, s1=1 << 20) == 0
    exact = float(sum(map(int, (x.astype(np.float64) * 2.0**60)))) * 2.0**-60
    assert abs(arrays["y0"][0] - exact) <= np.spacing(np.array(exact, kind))


def test_the_order_of_a_sum_may_be_fixed():
    """Only sums of numbers that may be reordered are marked."""
    both = [evolve(rows("sum", *KINDS["sum"]), numerics=n) for n in Numerics]
    marked = {k.numerics: "reassoc" in emitted(k)[0].text for k in both}
    assert marked.pop(Numerics.BATCH_INVARIANT) is False and all(marked.values())
    assert "reassoc" not in emitted(rows("double", *KINDS["double"]))[0].text


def scatter(name, dtype, mode, check):
    """Fold x into z at the addresses in `at`."""
    body = [Load("i", "at", I0), Bind(T0, "i", expr(7), True, check), Load("a", "x", I0)]
    body.append(Store("z", T0 + 1, "a", mode))
    return kernel(name, [(I0, 90)], [], [outer(*body)], {"at": I64, "x": dtype, "z": dtype})


FOLDS = {f"{d.value}_{m.value}": (d, m) for d, m in ATOMICS if d is not DType.BOOL}


def test_scatters_fold_into_one_another():
    library = Library([scatter(n, d, m, Check.NONE) for n, (d, m) in FOLDS.items()])
    assert len(library.kernels) == len(FOLDS)
    for name, (dtype, _) in FOLDS.items():
        rng = np.random.default_rng(len(name))
        low = -3 if dtype.is_signed or dtype.is_float else 1
        arrays = {"at": rng.integers(-7, 7, 90)}
        arrays |= {
            n: rng.integers(low, 3, k).astype(NUMPY[dtype]) for n, k in (("x", 90), ("z", 9))
        }
        want = {k: v.copy() for k, v in arrays.items()}
        run_kernel(library.kernels[name], want, {})
        assert library(name, arrays) == 0
        assert_close(arrays["z"], want["z"], name, 4)


@pytest.mark.parametrize("check", [Check.INDEX, Check.RUNTIME])
def test_an_index_outside_is_reported_and_not_used(check):
    library = Library([scatter("k", F32, StoreMode.ADD, check)])
    at = np.zeros(90, np.int64)
    at[80] = -8
    arrays = {"at": at, "x": np.ones(90, np.float32), "z": np.zeros(9, np.float32)}
    assert library("k", arrays) == 1
    assert arrays["z"].sum() == 80
    (source,) = library.units[0].kernels
    assert source.checks[0].failure == ("IndexError" if check is Check.INDEX else "RuntimeError")


def test_results_may_lie_where_operands_do():
    library = Library([DOUBLED])
    x = np.arange(100, dtype=np.float32)
    assert library("doubled", {"x": x, "y": x}, s0=100) == 0
    np.testing.assert_array_equal(x, 2 * np.arange(100))


def test_code_lives_as_long_as_its_addresses():
    (unit,) = emitted(DOUBLED)
    (address,) = loaded(compiled(unit.text, "plain"), unit.symbols).values()
    assert address.engine.get_function_address("gy_k_doubled") == address
    with pytest.raises(RuntimeError, match="no function other"):
        loaded(compiled(unit.text, "plain"), ["other"])
    with pytest.raises(RuntimeError):
        compiled("define", "plain")


ROW = expr(8) * I0 + R0
SUM = ScanStep(("c",), ScanKind.SUM, ("a",), F32)
REFUSED = {
    "GY-LLVM-001": [Let("b", "cast", ("a",), DType.F8E5M2)],
    "GY-LLVM-002": [SortStep(("v", "p"), ("a",), F32), Store("y", ROW, "v")],
    "GY-LLVM-003": [SUM, Reduce(("m", "n"), ReduceKind.ONLINE_SOFTMAX, ("c",), F32)],
    "GY-LLVM-004": [Store("row", I0, "a")],
}


@pytest.mark.parametrize("code", REFUSED)
def test_refusals(code):
    locals_ = [Local("row", F32, expr(8))] if code == "GY-LLVM-004" else []
    stages = [inner(Load("a", "x", ROW), *REFUSED[code])]
    result = kernel("k", [(I0, 4)], [(R0, 8)], stages, locals_=locals_)
    refusal = LlvmBackend().refuses(result, target("avx2"))
    assert refusal is not None and refusal.code == code and refusal.help


@pytest.mark.parametrize("extent", [S0, expr(1 << 19)])
def test_long_locals_are_refused(extent):
    kept = inner(Load("a", "x", R0), Store("row", R0, "a"))
    result = kernel("k", [], [(R0, extent)], [kept], locals_=[Local("row", F32, extent)])
    assert LlvmBackend().refuses(result, target("avx2")).code == "GY-LLVM-004"


def test_f16_needs_its_instructions():
    moved = outer(Load("a", "x", I0), Store("y", I0, "a"))
    half = kernel("k", [(I0, 4)], [], [moved], {"x": DType.F16, "y": DType.F16})
    refusals = {arch: LlvmBackend().refuses(half, target(arch)) for arch in ("plain", "avx2")}
    assert refusals["avx2"] is None and refusals["plain"].code == "GY-LLVM-001"


def test_tilings_of_other_machines_are_refused():
    backend = LlvmBackend()
    program = backend.tile([rows("sum", *KINDS["sum"])], ShapeFacts(), (), target("avx2"))
    (tiled,) = program.kernels
    grid, loop = tiled.loops
    others = [
        evolve(tiled, threads=Threads(1)),
        evolve(tiled, loops=(grid, evolve(loop, step=8))),
        evolve(tiled, loops=(loop, grid)),
        evolve(tiled, reductions=(evolve(tiled.reductions[0], unroll=4),)),
        evolve(tiled, reductions=(evolve(tiled.reductions[0], wide=False),)),
    ]
    for other in others:
        with pytest.raises(UnsupportedError, match="GY-LLVM-005"):
            backend.emit_tiled(evolve(program, kernels=(other,)), target("avx2"))


def test_printing_imports_no_llvm():
    script = (
        "import sys, gyrator_codegen_llvm.stage; print({'llvmlite', 'torch'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_the_least_index_divided_by_minus_one():
    """Quotients wrap, as processors' own instruction does not."""
    library = Library([divided("divided")])
    for a, b, quotient, remainder in QUOTIENTS:
        y = np.zeros(4, np.int64)
        assert library("divided", {"y": y}, u0=a, u1=b) == 0
        assert y.tolist() == [quotient, remainder] * 2
