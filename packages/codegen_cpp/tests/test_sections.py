"""Loops that are cut where a concatenation or a padding selects something else."""

import numpy as np
import pytest
from harness import ARCHS, NUMPY, Library, lacking

from gyrator_ir.body.nodes import Const, IndexValue, Let, Load, Store
from gyrator_ir.expr import expr
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import BOOL, I0, I1, I64, kernel, outer

PARTS = ((5, 40, 3), (64, 1, 100), (8, 8, 16), (1, 2, 2), (300, 5000, 77))


def joined(name, dtype, rows, parts):
    """Concatenate x, y (after adding it to itself) and z along the last axis."""
    n0, n1, n2 = parts
    total = sum(parts)
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
                Load("a", "x", n0 * I0 + I1, "in_x"),
                Load("b", "y", n1 * I0 + I1 - n0, "in_y"),
                Let("b2", "add", ("b", "b"), dtype),
                Load("c", "z", n2 * I0 + I1 - n0 - n1, "in_z"),
                Let("bc", "where", ("before_z", "b2", "c"), dtype),
                Let("abc", "where", ("in_x", "a", "bc"), dtype),
                Store("w", expr(total) * I0 + I1, "abc"),
            )
        ],
        dict.fromkeys("xyzw", dtype),
    )  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I32, DType.I64, DType.U8])
def test_every_part_is_in_its_place(arch, dtype, tmp_path):
    if missing := lacking(arch):
        pytest.skip(missing)
    cases = [(rows, parts) for rows in (1, 6) for parts in PARTS]
    names = [f"k{n}" for n in range(len(cases))]
    kernels = [joined(name, dtype, *case) for name, case in zip(names, cases, strict=True)]
    library = Library(kernels, arch, tmp_path)
    rng = np.random.default_rng(0)
    for name, (rows, parts) in zip(names, cases, strict=True):
        x, y, z = (rng.integers(0, 100, (rows, n)).astype(NUMPY[dtype]) for n in parts)
        w = np.zeros((rows, sum(parts)), NUMPY[dtype])
        assert library(name, {"x": x, "y": y, "z": z, "w": w}) == 0
        np.testing.assert_array_equal(w, np.concatenate([x, y + y, z], 1), err_msg=name)
