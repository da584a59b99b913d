"""Loops that are cut where a concatenation or a padding selects something else, or continues
elsewhere in its input."""

import numpy as np
import pytest
from harness import ARCHS, NUMPY, Library, lacking

from gyrator_ir.body.nodes import Const, IndexValue, Let, Load, Store
from gyrator_ir.expr import expr, maximum, minimum
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import BOOL, I0, I1, I64, kernel, outer

DTYPES = (DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I64, DType.U8)
PARTS = ((5, 40, 3), (64, 1, 100), (8, 8, 16), (1, 2, 2), (300, 5000, 77))


def joined(name, dtype, rows, parts):
    """Concatenate x, y (after adding it to itself) and z along the last axis. Narrow floats are
    computed with, and selected, in `f32`."""
    n0, n1, n2 = parts
    total = sum(parts)
    wide = DType.F32 if dtype.is_narrow_float else dtype
    return kernel(
        name, [(I0, rows), (I1, total)], [],
        [
            outer(
                IndexValue("i", I1, I64),
                Const("first", n0, I64), Const("second", n0 + n1, I64),
                Let("in_x", "lt", ("i", "first"), BOOL),
                Let("after_x", "ge", ("i", "first"), BOOL),
                Let("before_z", "lt", ("i", "second"), BOOL),
                Let("in_z", "ge", ("i", "second"), BOOL),
                Let("in_y", "bit_and", ("after_x", "before_z"), BOOL),
                Load("x0", "x", n0 * I0 + I1, "in_x"),
                Load("y0", "y", n1 * I0 + I1 - n0, "in_y"),
                Load("z0", "z", n2 * I0 + I1 - n0 - n1, "in_z"),
                *(Let(f"{name}1", "cast", (f"{name}0",), wide) for name in "xyz"),
                Let("y2", "add", ("y1", "y1"), wide),
                Let("yz", "where", ("before_z", "y2", "z1"), wide),
                Let("xyz", "where", ("in_x", "x1", "yz"), wide),
                Let("all", "cast", ("xyz",), dtype),
                Store("w", expr(total) * I0 + I1, "all"),
            )
        ],
        dict.fromkeys("xyzw", dtype),
    )  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_part_is_in_its_place(arch, dtype, tmp_path):
    if missing := lacking(arch):
        pytest.skip(missing)
    cases = [(rows, parts) for rows in (1, 6) for parts in PARTS]
    names = [f"k{n}" for n in range(len(cases))]
    kernels = [joined(name, dtype, *case) for name, case in zip(names, cases, strict=True)]
    library = Library(kernels, arch, tmp_path)
    rng = np.random.default_rng(0)
    for name, (rows, parts) in zip(names, cases, strict=True):
        x, y, z = (rng.integers(0, 60, (rows, n)).astype(NUMPY[dtype]) for n in parts)
        w = np.zeros((rows, sum(parts)), NUMPY[dtype])
        assert library(name, {"x": x, "y": y, "z": z, "w": w}) == 0
        np.testing.assert_array_equal(w, np.concatenate([x, y + y, z], 1), err_msg=name)


def _reflected(i, size):
    distance = maximum(i, -i)
    return size - 1 - maximum(distance - size + 1, size - 1 - distance)


BORDERS = {
    "reflect": _reflected,
    "edge": lambda i, size: minimum(maximum(i, 0), size - 1),
    "wrap": lambda i, size: (i + size) % size,
}
"""The position among `size` of a position before, in or after them, by the mode of `np.pad`."""

PADDED = ((64, 2, 2), (13, 6, 1), (100, 0, 5), (37, 9, 30), (3000, 1, 2))


def bordered(name, dtype, rows, padded, mode):
    """Pad the last axis of x."""
    size, before, after = padded
    total = before + size + after
    index = size * I0 + BORDERS[mode](I1 - before, size)
    return kernel(
        name, [(I0, rows), (I1, total)], [],
        [outer(Load("x0", "x", index), Store("w", expr(total) * I0 + I1, "x0"))],
        dict.fromkeys("xw", dtype),
    )  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.BF16, DType.BOOL])
def test_every_border_is_padded(arch, dtype, tmp_path):
    if missing := lacking(arch):
        pytest.skip(missing)
    cases = [(5, p, mode) for p in PADDED for mode in BORDERS]
    names = [f"k{n}" for n in range(len(cases))]
    kernels = [bordered(name, dtype, *case) for name, case in zip(names, cases, strict=True)]
    library = Library(kernels, arch, tmp_path)
    rng = np.random.default_rng(0)
    for name, (rows, (size, *widths), mode) in zip(names, cases, strict=True):
        x = rng.integers(0, 60, (rows, size)).astype(NUMPY[dtype])
        w = np.zeros((rows, size + sum(widths)), NUMPY[dtype])
        assert library(name, {"x": x, "w": w}) == 0
        np.testing.assert_array_equal(w, np.pad(x, ((0, 0), widths), mode), err_msg=name)


def triangle(name, dtype, op, rows, columns, diagonal):
    """Keep the elements of x whose column compares in this way with a diagonal."""
    return kernel(
        name, [(I0, rows), (I1, columns)], [],
        [
            outer(
                IndexValue("row", I0 + diagonal, I64), IndexValue("column", I1, I64),
                Let("kept", op, ("column", "row"), BOOL),
                Load("x0", "x", expr(columns) * I0 + I1, "kept"),
                Store("w", expr(columns) * I0 + I1, "x0"),
            )
        ],
        dict.fromkeys("xw", dtype),
    )  # fmt: skip


KEPT = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.BF16, DType.I8])
def test_triangles_end_at_their_diagonals(arch, dtype, tmp_path):
    if missing := lacking(arch):
        pytest.skip(missing)
    sizes = [(1, 100, 0), (9, 3000, 5), (10, 64, -3), (70, 100, -90), (5, 33, 40), (6, 1, 0)]
    cases = [(op, *s) for op in KEPT for s in sizes]
    names = [f"k{n}" for n in range(len(cases))]
    kernels = [triangle(name, dtype, *case) for name, case in zip(names, cases, strict=True)]
    library = Library(kernels, arch, tmp_path)
    rng = np.random.default_rng(0)
    for name, (op, rows, columns, diagonal) in zip(names, cases, strict=True):
        x = rng.integers(1, 60, (rows, columns)).astype(NUMPY[dtype])
        w = np.ones_like(x)
        assert library(name, {"x": x, "w": w}) == 0
        kept = KEPT[op](np.arange(columns), np.arange(rows)[:, None] + diagonal)
        np.testing.assert_array_equal(w, np.where(kept, x, 0), err_msg=f"{op} {rows} {columns}")
