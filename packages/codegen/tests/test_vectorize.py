"""The loop that vectors run along."""

import pytest

from gyrator_codegen.passes.cores.vectorize import choose_vector_axis
from gyrator_ir.body.nodes import (
    Axis,
    Bind,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanKind,
    ScanStep,
    SortStep,
    Store,
)
from gyrator_ir.expr import Sym, expr
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.types import Device, DType

I0, I1, R0 = Sym("i0"), Sym("i1"), Sym("r0")
F32 = DType.F32


def kernel(axes, inner, *stages):
    return Kernel(
        "k", Device("cpu"),
        tuple(Axis(s, expr(n)) for s, n in axes), tuple(Axis(s, expr(n)) for s, n in inner), stages,
    )  # fmt: skip


def copy(x, y):
    return Stage(Level.OUTER, (Load("a", "x", x), Store("y", y, "a")))


def fold(x, y):
    reduce = Reduce(("f",), ReduceKind.SUM, ("a",), F32)
    return (
        Stage(Level.INNER, (Load("a", "x", x), reduce)),
        Stage(Level.OUTER, (Store("y", y, "f"),)),
    )


@pytest.mark.parametrize(
    ("subject", "symbol", "inner"),
    [
        (kernel([(I0, 64), (I1, 64)], [], copy(64 * I0 + I1, 64 * I0 + I1)), I1, False),
        (kernel([(I0, 64), (I1, 64)], [], copy(64 * I1 + I0, 64 * I1 + I0)), I0, False),
        (kernel([(I0, 64), (I1, 64)], [], copy(64 * I1 + I0, 64 * I0 + I1)), I1, False),
        (kernel([(I0, 64)], [(R0, 1024)], *fold(1024 * I0 + R0, I0)), R0, True),
        (kernel([(I0, 64)], [(R0, 1024)], *fold(64 * R0 + I0, I0)), I0, False),
        (kernel([(I0, 4096)], [(R0, 3)], *fold(3 * I0 + R0, I0)), I0, False),
    ],
)
def test_contiguous_axis_wins(subject, symbol, inner):
    axis = choose_vector_axis(subject, 16)

    assert axis is not None
    assert (axis.symbol, axis in subject.inner) == (symbol, inner)


@pytest.mark.parametrize(
    ("dtype", "width", "lanes", "symbol"),
    [
        (DType.BF16, 64, 16, I1),
        (DType.BF16, 100, 16, I0),  # two elements of the row from lane to lane
        (DType.F64, 64, 16, I0),  # not in a window
        (DType.BF16, 64, 4, I0),
    ],
)
def test_places_in_a_row_that_grow_slowly_are_cheap(dtype, width, lanes, symbol):
    t = [Sym(f"t{k}") for k in range(8)]
    image = (expr(64), expr(50), expr(width)), (expr(50 * width), expr(width), expr(1))
    kernel = Kernel(
        "k", Device("cpu"), (Axis(I0, expr(64)), Axis(I1, expr(64))), (),
        (
            Stage(
                Level.OUTER,
                (
                    IndexValue("p", I1, DType.I32),
                    *(Bind(s, "p", expr(width)) for s in t),
                    *(Load(f"a{s}", "x", 50 * width * I0 + s) for s in t),
                    Let("b", "add", (f"a{t[0]}", f"a{t[1]}"), F32),
                    Store("y", 64 * I0 + I1, "b"),
                ),
            ),
        ),
        parameters=(Buffer("x", dtype, Device("cpu"), *image),),
    )  # fmt: skip

    axis = choose_vector_axis(kernel, lanes)

    assert axis is not None
    assert axis.symbol is symbol


def test_scans_run_across_contiguous_points():
    body = Stage(
        Level.INNER,
        (
            Load("a", "x", 64 * R0 + I0),
            ScanStep(("f",), ScanKind.SUM, ("a",), F32),
            Store("y", 64 * R0 + I0, "f"),
        ),
    )
    axis = choose_vector_axis(kernel([(I0, 64)], [(R0, 100)], body), 16)

    assert axis is not None
    assert axis.symbol is I0


@pytest.mark.parametrize(
    ("rows", "length", "dtype", "symbol"),
    [
        (64, 100, DType.BF16, I0),
        (64, 100, F32, R0),
        (8, 100, DType.BF16, R0),
        (64, 4096, DType.BF16, R0),
    ],
)
def test_scans_that_round_run_across_short_rows(rows, length, dtype, symbol):
    body = Stage(
        Level.INNER,
        (
            Load("a", "x", length * I0 + R0),
            ScanStep(("f",), ScanKind.SUM, ("a",), F32),
            Let("b", "cast", ("f",), dtype),
            Store("y", length * I0 + R0, "b"),
        ),
    )
    axis = choose_vector_axis(kernel([(I0, rows)], [(R0, length)], body), 16)

    assert axis is not None
    assert axis.symbol is symbol


def test_sorts_take_one_point_at_a_time():
    body = Stage(
        Level.INNER,
        (
            Load("a", "x", 64 * R0 + I0),
            SortStep(("v", "p"), ("a",), F32),
            Store("y", 64 * R0 + I0, "v"),
        ),
    )
    subject = kernel([(I0, 64)], [(R0, 100)], body)

    assert choose_vector_axis(subject, 16) in subject.inner


def test_no_axes_no_vectors():
    assert choose_vector_axis(kernel([], [], copy(expr(0), expr(0))), 16) is None
