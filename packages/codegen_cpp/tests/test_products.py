"""Products of matrices from panels: every layout, type and edge, against the interpreter."""

import ctypes
from itertools import product as pairs

import numpy as np
import pytest
from attrs import evolve
from harness import ARCHS, NUMPY, Library, lacking, target

from gyrator_codegen.passes import vector_pipeline
from gyrator_codegen.stage import tile
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.parse import parse
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import poisoned
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.interp.tile import run_tiled
from gyrator_testing.kernels.compare import assert_same_writes

SIZES = {
    "even": (24, 32, 40),
    "odd": (37, 45, 19),
    "few": (5, 75, 30),
    "deep": (9, 17, 801),
    "shallow": (30, 50, 3),
    "tall": (205, 21, 33),
    "wide": (13, 1100, 9),
    "many": (67, 131, 387),
    "blocks": (290, 70, 390),
}
LAYOUTS = ("along depth", "along points", "strided")
PANELS = "panels of "
PANEL_COLUMNS = (8, 16, 32)
"""Of which some are those of a register tile, or several tiles, or a part of one."""
PANEL_SIZES = ((5, 64, 30), (37, 96, 387), (290, 32, 19), (290, 96, 390), (3, 32, 1))
DOT_SIZES = ((4, 100, 256), (5, 47, 263), (23, 97, 385))
DOT_TYPES = ("f32", "bf16", "f16")
TYPES = {"f32": "f32", "bf16": "f32", "f16": "f32", "f64": "f64", "i8": "i32", "u8": "i32"}


def text(m, n, k, left, right, stored="f32", batches=2):
    """Return a kernel: a bias is added to products of batches, and the result clamped."""
    summed = TYPES[stored]

    def factor(name, points, symbol, layout):
        if layout.startswith(PANELS):
            width = int(layout.removeprefix(PANELS))
            index = f"{points * k}*i0 + {width * k}*({symbol} // {width}) + {width}*r0"
            load = f"{name} = load {name}_p[{index} + {symbol} % {width}]"
            return f"{name}_p: {stored}[{batches * points * k}] strides [1] on cpu", load, ""
        step, across = {
            "along depth": (1, k), "along points": (points, 1), "strided": (2, 2 * k + 1),
        }[layout]  # fmt: skip
        whole = 2 * points * (k + 1) + 2 * k
        load = f"{name}0 = load {name}_p[{whole}*i0 + {across}*{symbol} + {step}*r0]"
        cast = f"{name}: {summed} = cast {name}0"
        return f"{name}_p: {stored}[{batches * whole}] strides [1] on cpu", load, cast

    (p, p_load, p_cast), (q, q_load, q_cast) = (
        factor("a", m, "i1", left), factor("b", n, "i2", right)
    )  # fmt: skip
    return f"""\
tile.program 1 @p
  tile
    kernel k on cpu (i0 < {batches}, i1 < {m}, i2 < {n}) inner (r0 < {k})
      parameter {p}
      parameter {q}
      parameter bias: {summed}[{n}] strides [1] on cpu
      parameter rows: {summed}[{m}] strides [1] on cpu
      parameter out: {summed}[{batches * m * n}] strides [1] on cpu
      inner
        {p_load}
        {q_load}
        {p_cast}
        {q_cast}
        s: {summed} = reduce.dot a, b
      outer
        c = load bias[i2]
        d: {summed} = add s, c
        e = load rows[i1]
        f: {summed} = maximum d, e
        store out[{m * n}*i0 + {n}*i1 + i2], f
    grid (i0)
    grid (i1)
    grid (i2)
    loop (r0)
    reduce s accumulate
"""


def kernel_of(name, text):
    """Return the kernel of a program, under a name of its own."""
    word = name.replace(", ", "_").replace(" ", "_")
    return evolve(parse(text).kernels[0].kernel, name=word)


def arrays_of(kernel, seed):
    """Return random arrays for a kernel's parameters; what is stored to holds no results yet."""
    random = np.random.default_rng(seed)
    arrays = {}
    for p in kernel.parameters:
        values = random.normal(size=p.shape[0].value)
        if p.dtype.size == 1 or p.dtype is DType.I32:
            values = random.integers(0, 9, len(values))
        arrays[p.name] = values.astype(NUMPY[p.dtype])
    arrays["out"] = poisoned(kernel.parameters[-1].dtype, len(arrays["out"]))
    return arrays


CASES = (
    {
        f"odd, {left}, {right}": text(*SIZES["odd"], left, right)
        for left, right in pairs(LAYOUTS, LAYOUTS)
    }
    | {
        f"{size}, {left}, {right}": text(*SIZES[size], left, right)
        for size in SIZES
        for left, right in (LAYOUTS[:2], LAYOUTS[1::-1])
    }
    | {
        f"{stored}, {left}, {right}": text(*SIZES["odd"], left, right, stored)
        for stored, (left, right) in pairs(TYPES, pairs(LAYOUTS[:2], LAYOUTS[:2]))
    }
    | {
        f"dots of {stored}, {m}, {n}, {k}": text(m, n, k, "along depth", "along depth", stored)
        for stored, (m, n, k) in pairs(DOT_TYPES, DOT_SIZES)
    }
    | {
        f"panels of {columns}, {m}, {n}, {k}": text(m, n, k, "along depth", f"{PANELS}{columns}")
        for columns, (m, n, k) in pairs(PANEL_COLUMNS, PANEL_SIZES)
    }
)

KERNELS = {name: kernel_of(name, text) for name, text in CASES.items()}


@pytest.fixture(scope="module", params=ARCHS)
def library(request, build_folder):
    if why := lacking(request.param):
        pytest.skip(why)
    return Library(list(KERNELS.values()), request.param, build_folder, unit_statements=600)


@pytest.mark.parametrize("name", CASES)
def test_product(library, name):
    kernel = KERNELS[name]
    want = arrays_of(kernel, len(name))
    got = {name: array.copy() for name, array in want.items()}

    run_kernel(kernel, want, {})
    assert library(kernel.name, got) == 0

    assert_same_writes(kernel, got, want)


@pytest.mark.parametrize("size", ["many", "blocks"])
def test_a_thread_computes_units_of_the_same_rows_together(library, size):
    name = f"{size}, {LAYOUTS[0]}, {LAYOUTS[1]}"
    kernel = KERNELS[name]
    want = arrays_of(kernel, 7)
    whole, halves = ({n: a.copy() for n, a in want.items()} for _ in range(2))

    run_kernel(kernel, want, {})
    openmp = ctypes.CDLL("libgomp.so.1")
    before = openmp.omp_get_max_threads()
    for threads, arrays in ((1, whole), (2, halves)):
        openmp.omp_set_num_threads(threads)
        assert library(kernel.name, arrays) == 0
    openmp.omp_set_num_threads(before)

    assert_same_writes(kernel, whole, want)
    np.testing.assert_array_equal(whole["out"], halves["out"])


@pytest.mark.parametrize("stored", DOT_TYPES)
def test_few_rows_along_depth_are_dot_products_of_vectors(stored):
    kernel = KERNELS[f"dots of {stored}, 5, 47, 263"]
    (unit,) = CppBackend().emit((kernel,), ShapeFacts(), (), target("avx512"))
    assert "gy_dot_product<sf32, 5>" in unit.text


@pytest.mark.parametrize(("arch", "columns"), [("avx512", 32), ("avx2", 16), ("neon", 8)])
@pytest.mark.parametrize("width", PANEL_COLUMNS)
def test_panels_are_read_where_they_are(arch, columns, width):
    """If a register tile is a panel or a part of one; otherwise they are packed again."""
    kernel = KERNELS[f"panels of {width}, 37, 96, 387"]
    (unit,) = CppBackend().emit((kernel,), ShapeFacts(), (), target(arch))
    assert (", true>(" in unit.text) == (width % columns == 0)


@pytest.mark.parametrize("arch", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize(
    "name",
    [
        "odd, strided, along points",
        "i8, along points, along points",
        "panels of 16, 37, 96, 387",
        "panels of 32, 5, 64, 30",
    ],
)
def test_products_are_tiles_of_registers(arch, name):
    passes = vector_pipeline(target(arch), Isa.of(arch).lanes)
    program = tile((KERNELS[name],), ShapeFacts(), passes)
    assert program.kernels[0].contraction is not None
    got = arrays_of(KERNELS[name], 5)
    want = {name: array.copy() for name, array in got.items()}

    run_kernel(KERNELS[name], want, {})
    run_tiled(program.kernels[0], got, {}, seed=3)

    assert_same_writes(KERNELS[name], got, want)
