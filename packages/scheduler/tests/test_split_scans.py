"""Running folds of few long rows, in three steps."""

import numpy as np
import pytest

from gyrator_ir.body.nodes import Axis, Let, Load, ScanKind, ScanStep, Store
from gyrator_ir.expr import Const, Expr, Sym, expr
from gyrator_ir.loop.nodes import Buffer, LoopProgram, Reduction, Scan, TensorInput, TensorRef
from gyrator_ir.loop.verify import verify
from gyrator_ir.target import Heuristics
from gyrator_ir.types import Device, DType
from gyrator_scheduler.passes.split_scans import SplitScans
from gyrator_testing.interp.loop import run_loop

CPU = Device("cpu")
NUMBERS = Heuristics(cores=8, split_reduction_points=64, split_scan_extent=512)
I0, R0, S0 = Sym("i0"), Sym("r0"), Sym("s0")


def program(kind: ScanKind, n: Expr, back: bool, dtype: DType, rows: int = 3) -> LoopProgram:
    """y = scan of -x along rows, which are apart from one another by more than their length."""
    x, y = (
        Buffer(name, dtype, CPU, (Const(rows), n), (n + gap, Const(1)))
        for name, gap in (("x", 5), ("y", 0))
    )
    at = (n + 5) * I0 + R0
    scan = Scan(
        "op0", (Axis(I0, Const(rows)),), Axis(R0, n),
        (Load("a", "x", at), Let("b", "neg", ("a",), dtype)),
        ScanStep(("c",), kind, ("b",), dtype, back), (Store("y", n * I0 + R0, "c"),),
    )  # fmt: skip
    result = TensorRef("y", dtype, y.shape, y.strides, Const(0))
    return LoopProgram("main", (TensorInput(x),), (), (y,), (scan,), (result,))


def split(program: LoopProgram) -> LoopProgram:
    return verify(SplitScans((("cpu", NUMBERS),)).run(program))


@pytest.mark.parametrize("n", [2048, 2053, 515])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("kind", [ScanKind.SUM, ScanKind.PROD, ScanKind.MIN, ScanKind.MAX])
def test_results_are_those_of_one_scan(kind: ScanKind, back: bool, n: int) -> None:
    dtype = DType.F64 if kind in (ScanKind.MIN, ScanKind.MAX) else DType.I64
    whole = program(kind, expr(n), back, dtype)
    parts = split(whole)
    assert [type(op) for op in parts.operations] == [Reduction, Scan, Scan]
    rng = np.random.default_rng(n)
    x = rng.integers(-9, 9, (3, n + 5))[:, :n]
    if dtype is DType.F64:
        x = rng.standard_normal((3, n + 5))[:, :n]
        x[1, n // 3] = np.nan
    (want,), (got,) = run_loop(whole, (x,)), run_loop(parts, (x,))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("kind", "n", "rows"),
    [(ScanKind.ARGMAX, 4096, 3), (ScanKind.SUM, 500, 3), (ScanKind.SUM, 4096, 64)],
)
def test_others_stay(kind: ScanKind, n: int, rows: int) -> None:
    whole = program(kind, expr(n), False, DType.I64, rows)
    assert SplitScans((("cpu", NUMBERS),)).run(whole) is whole
    assert SplitScans().run(whole) is whole
