"""Loops that are cut where a concatenation or a padding selects something else."""

import numpy as np
import pytest
from harness import ARCHS, NUMPY, Library, lacking

from gyrator_ir.body.nodes import Const, IndexValue, Let, Load, Store
from gyrator_ir.expr import expr
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
