"""What is particular to Halide: aliases, checks, sizes, repeats, refusals, GPU text."""

import subprocess
import sys

import numpy as np
import pytest
from attrs import evolve
from halide_harness import Library, script, target

from gyrator_codegen_halide.stage import HalideBackend, HalideCudaBackend
from gyrator_ir.body.nodes import Bind, Let, Load, Reduce, ReduceKind, SortStep, Store
from gyrator_ir.expr import ShapeFacts, Sym, SymKind, expr
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.modes import Failure
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import F32, I0, I64, R0, inner, kernel, outer

SOFTMAX = kernel(
    "softmax",
    [(I0, 40)],
    [(R0, 100)],
    [
        inner(
            Load("a", "x", 100 * I0 + R0),
            Reduce(("m", "n"), ReduceKind.ONLINE_SOFTMAX, ("a",), F32),
        ),
        inner(
            Load("b", "x", 100 * I0 + R0),
            Let("c", "sub", ("b", "m"), F32),
            Let("d", "exp", ("c",), F32),
            Let("e", "div", ("d", "n"), F32),
            Store("y", 100 * I0 + R0, "e"),
        ),
    ],
    {"x": F32, "y": F32},
)


def softmax(x):
    e = np.exp(x.reshape(40, 100) - x.reshape(40, 100).max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)).ravel()


def test_results_may_lie_where_operands_do(build_folder):
    x = np.random.default_rng(1).standard_normal(4000).astype(np.float32)
    want = softmax(x)
    Library([SOFTMAX], build_folder)("softmax", {"x": x, "y": x})
    np.testing.assert_allclose(x, want, rtol=1e-6, atol=1e-7)


def test_operands_that_are_written_before_they_are_read_are_copied(build_folder):
    """Two loop nests: the second one reads what the first one's results lie upon."""
    twice = kernel(
        "twice",
        [(I0, 100)],
        [],
        [
            outer(
                Load("a", "x", I0),
                Let("b", "add", ("a", "a"), F32),
                Store("y", I0, "b"),
                Load("c", "x", 99 - I0),
                Store("z", 2 * (I0 // 3) + I0 % 3 + I0, "c"),
            )
        ],
        spans={"x": 100, "y": 100, "z": 300},
    )
    library = Library([twice], build_folder)
    x = np.arange(100, dtype=np.float32)
    z = np.zeros(300, np.float32)
    assert library("twice", {"x": x, "y": x, "z": z}) == 0
    i = np.arange(100)
    want = np.zeros(300, np.float32)
    want[2 * (i // 3) + i % 3 + i] = 99 - i
    np.testing.assert_array_equal(z, want)
    np.testing.assert_array_equal(x, 2.0 * i)


T0 = Sym("t0", SymKind.INDIRECT)


def test_stages_may_use_a_name_for_different_values(build_folder):
    """And names that C++ and the script take."""
    at = 10 * I0 + R0
    twice = kernel(
        "twice",
        [(I0, 4)],
        [(R0, 10)],
        [
            inner(Load("add", "int", at), Reduce(("m",), ReduceKind.SUM, ("add",), F32)),
            inner(
                Load("k", "at", at),
                Bind(T0, "k", expr(40)),
                Load("add", "failed", T0),
                Let("b", "mul", ("add", "m"), F32),
                Store("def", at, "b"),
            ),
        ],
        {"at": I64},
        dict.fromkeys(("int", "at", "failed", "def"), 40),
    )
    rng = np.random.default_rng(2)
    x, z = rng.random((2, 40), np.float32)
    k, y = rng.integers(0, 40, 40), np.zeros(40, np.float32)
    arrays = {"int": x, "at": k, "failed": z, "def": y}
    assert Library([twice], build_folder)("twice", arrays) == 0
    want = z[k].reshape(4, 10) * x.reshape(4, 10).sum(1, keepdims=True)
    np.testing.assert_allclose(y.reshape(4, 10), want, rtol=1e-6)


def gather(**bind):
    body = (
        Load("p", "at", I0),
        Bind(T0, "p", expr(10), **bind),
        Load("a", "x", T0),
        Store("y", I0, "a"),
    )
    spans = {"at": 20, "x": 10, "y": 20}
    return kernel("gather", [(I0, 20)], [], [outer(*body)], {"at": I64}, spans)


def test_indices_are_checked(build_folder):
    library = Library([gather(wrap=True)], build_folder)
    x, at = np.arange(10, dtype=np.float32), np.arange(-10, 10)
    y = np.zeros(20, np.float32)
    assert library("gather", {"at": at, "x": x, "y": y}) == 0
    np.testing.assert_array_equal(y, x[at])
    at[7] = 10
    code = library("gather", {"at": at, "x": x, "y": y})
    (check,) = [c for c in library.sources["gather"].checks if c.code == code]
    assert check.failure is Failure.INDEX


def test_sizes_beyond_coordinates_end_the_launch(build_folder):
    size = Sym("s0", SymKind.SIZE)
    copy = kernel(
        "copy",
        [(I0, size)],
        [],
        [outer(Load("a", "x", I0), Store("y", I0, "a"))],
        {"x": F32, "y": F32},
    )
    library = Library([copy], build_folder)
    x, y = np.ones(50, np.float32), np.zeros(50, np.float32)
    assert library("copy", {"x": x, "y": y}, s0=50) == 0 and (y == 1).all()
    assert library("copy", {"x": x[:0], "y": y[:0]}, s0=0) == 0
    code = library("copy", {"x": x, "y": y}, s0=1 << 31)
    (check,) = [c for c in library.sources["copy"].checks if c.code == code]
    assert "GY-HALIDE-004" in check.message


def test_kernels_that_differ_in_names_share_a_function():
    units = HalideBackend().emit(
        [SOFTMAX, evolve(SOFTMAX, name="again")], ShapeFacts(), (), target("avx2")
    )
    (unit,) = units
    assert [k.kernel for k in unit.kernels] == ["softmax", "again"]
    assert len(set(unit.symbols)) == 1


def _sorted() -> Kernel:
    body = (
        Load("a", "x", R0),
        SortStep(("v", "p"), ("a",), F32),
        Store("y", R0, "v"),
    )
    return kernel("k", [], [(R0, 9)], [inner(*body)], {"x": F32, "y": F32})


def _moved() -> Kernel:
    body = (Load("a", "x", I0), Store("y", I0, "a"), Load("b", "y", 8 - I0), Store("z", I0, "b"))
    return kernel("k", [(I0, 9)], [], [outer(*body)], {"x": F32, "y": F32, "z": F32})


def _of(dtype: DType, count: int) -> Kernel:
    body = (Load("a", "x", I0), Store("y", I0, "a"))
    return kernel("k", [(I0, count)], [], [outer(*body)], {"x": dtype, "y": dtype})


@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        (_sorted(), "GY-HALIDE-002"),
        (_moved(), "GY-HALIDE-003"),
        (_of(DType.F8E4M3, 8), "GY-HALIDE-001"),
        (_of(F32, 1 << 31), "GY-HALIDE-004"),
    ],
)
def test_refusals(kernel, code):
    assert HalideBackend().refuses(kernel, target("avx2")).code == code


def test_text_for_cuda_compiles(build_folder):
    backend = HalideCudaBackend()
    gpu = evolve(target("sm_80", cores=100, scratch_bytes=1 << 15), device="gpu")
    assert backend.refuses(SOFTMAX, gpu) is None
    (unit,) = backend.emit([SOFTMAX], ShapeFacts(), (), gpu)
    assert ".gpu_blocks(block).gpu_threads(thread)" in unit.text
    _, obj = script(unit, build_folder)
    assert b".target sm_80" in obj.read_bytes()
    assert backend.refuses(gather(), gpu).code == "GY-HALIDE-003"


def test_the_package_imports_no_halide():
    script_text = (
        "import sys, gyrator_codegen_halide.stage; print({'halide', 'torch'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script_text], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
