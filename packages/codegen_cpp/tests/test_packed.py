"""Kernels of 8-bit and 16-bit integers, whose elements the compiler packs into registers."""

import subprocess

import numpy as np
import pytest
from harness import ARCHS, NUMPY, Library, lacking, target

from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.body.nodes import Const, Let, Load, Store
from gyrator_ir.expr import ShapeFacts, expr
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import BOOL, I0, I1, kernel, outer

NARROW = (DType.I8, DType.U8, DType.I16, DType.U16, BOOL)
SHAPES = ((1, 64), (1, 1000), (3, 127), (5, 65), (2, 4097))
PITCH = 5000  # elements from row to row


def compared(name, dtype, shape, wide=DType.I16):
    """Compare x with y and with the one element z, select, and convert."""
    x, y, w = (PITCH * I0 + I1 + offset for offset in (3, 1, 2))
    number = () if dtype is BOOL else (
        Const("three", 3, dtype), Let("product", "mul", ("least", "three"), dtype),
        Let("sum", "sub", ("product", "a"), dtype), Let("size", "abs", ("sum",), dtype),
        Let("chosen", "where", ("both", "size", "b"), dtype),
    )  # fmt: skip
    chosen = "chosen" if number else "least"
    return kernel(
        name, [(I0, shape[0]), (I1, shape[1])], [],
        [
            outer(
                Load("a", "x", x), Load("b", "y", y), Load("c", "z", expr(0)),
                Let("less", "lt", ("a", "b"), BOOL), Let("above", "ge", ("a", "c"), BOOL),
                Let("other", "bit_xor", ("less", "above"), BOOL),
                Let("both", "where", ("other", "above", "less"), BOOL),
                Let("least", "minimum", ("a", "b"), dtype),
                *number,
                Let("far", "cast", (chosen,), wide),
                Store("v", w, "both"), Store("w", w, chosen), Store("u", w, "far"),
            )
        ],
        dict.fromkeys("xyzw", dtype) | {"v": BOOL, "u": wide},
    )  # fmt: skip


def expected(a, b, c):
    less, above = a < b, a >= c
    both = np.where(less ^ above, above, less)
    least = np.minimum(a, b)
    if a.dtype == bool:
        return both, least
    with np.errstate(over="ignore"):
        return both, np.where(both, np.abs(least * a.dtype.type(3) - a), b)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", NARROW)
def test_packed_elements_have_their_values(arch, dtype, tmp_path):
    if missing := lacking(arch):
        pytest.skip(missing)
    wide = DType.I8 if dtype is DType.I16 else DType.I16
    kernels = [compared(f"k{n}", dtype, shape, wide) for n, shape in enumerate(SHAPES)]
    library = Library(kernels, arch, tmp_path)
    rng = np.random.default_rng(0)
    for n, (rows, columns) in enumerate(SHAPES):
        size = rows * PITCH
        x, y, z = (rng.integers(0, 2 if dtype is BOOL else 1 << 16, k) for k in (size, size, 1))
        x, y, z = (v.astype(NUMPY[dtype]) for v in (x, y, z))
        v, w, u = np.ones(size, bool), np.zeros(size, NUMPY[dtype]), np.zeros(size, NUMPY[wide])
        a, b = (
            np.stack([p[r * PITCH + at :][:columns] for r in range(rows)])
            for p, at in ((x, 3), (y, 1))
        )
        both, chosen = expected(a, b, z[0])
        want_v, want_w, want_u = v.copy(), w.copy(), u.copy()
        for r in range(rows):
            row = slice(r * PITCH + 2, r * PITCH + 2 + columns)
            want_v[row], want_w[row], want_u[row] = both[r], chosen[r], chosen[r].astype(u.dtype)

        assert library(f"k{n}", {"x": x, "y": y, "z": z, "v": v, "w": w, "u": u}) == 0

        np.testing.assert_array_equal(v, want_v, err_msg=f"k{n}")
        np.testing.assert_array_equal(w, want_w, err_msg=f"k{n}")
        np.testing.assert_array_equal(u, want_u, err_msg=f"k{n}")


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("arch", "size"), [("avx512", 64), ("avx2", 32)])
def test_the_compiler_packs_steps(arch, size, dtype, tmp_path):
    """With the options of kernels for users, which leave it few of its loop transformations."""
    if missing := lacking(arch):
        pytest.skip(missing)
    case = compared("k", dtype, SHAPES[1])
    (unit,) = CppBackend().emit([case], ShapeFacts(), (), target(arch))
    source = tmp_path / "k.cpp"
    source.write_text(unit.text)
    flags = ["-O2", "-fno-tree-slp-vectorize", "-fno-trapping-math", *Isa.of(arch).flags]
    flags += ["-mprefer-vector-width=512"] if arch == "avx512" else []
    flags += ["-std=c++17", "-fopenmp", "-fopt-info-vec"]

    done = subprocess.run(
        ["g++", *flags, "-c", source, "-o", "/dev/null"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert f"loop vectorized using {size} byte vectors" in done.stderr
