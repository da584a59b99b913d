"""Which templates of flexible attention C++ has, and the results of each of its block sizes; other
results are tested in conformance."""

import numpy as np
import pytest
from harness import FLAGS, lacking, target

from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.stage import CppBackend
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Launchable
from gyrator_ir.kernel.parse import read_launchable
from gyrator_ir.text.lines import parse_lines
from gyrator_ir.tile.choices import only, with_candidates
from gyrator_testing.interp.template import run_template
from gyrator_testing.kernels.built import BuiltKernels, built, text_file

TEXT = """kernel t on cpu template flex_attention (q, q, q, n, at) -> (y) with {{scale=0.5, row_block={block}, column_block=64, lists=1}}
  parameter q: {dtype}[1, 1, 5, {length}] strides [5*{length}, 5*{length}, {length}, 1] on cpu
  parameter n: i32[1, 1, 1] strides [1, 1, 1] on cpu
  parameter at: i32[1, 1, 1, 1] strides [1, 1, 1, 1] on cpu
  parameter y: {dtype}[1, 1, 5, {length}] strides [5*{length}, 5*{length}, {length}, 1] on cpu
  formula score (score) -> score
  formula mask () -> a
    a: bool = const true
"""  # noqa: E501


@pytest.mark.parametrize(
    ("dtype", "length", "block", "supported"),
    [("f32", 4, 64, True), ("f64", 4, 64, False), ("f32", 600, 64, False), ("f32", 4, 40, False)],
)
def test_types_and_lengths(dtype: str, length: int, block: int, supported: bool) -> None:
    text = TEXT.format(dtype=dtype, length=length, block=block)
    (kernel,) = map(read_launchable, parse_lines(text))
    why = CppBackend().refuses_template(kernel, target("avx2"))
    assert (why is None) == supported
    if supported:
        (unit,) = CppBackend().emit([kernel], ShapeFacts(), (), target("avx2"))
        assert "_some_all(" not in unit.text  # nothing is left of formulas that change nothing
    else:
        assert why is not None and why.code == "GY-CPP-024"


def test_builds_of_templates_begin_first() -> None:
    plain = "kernel k on cpu (i0 < 4)\n  parameter y: f32[4] strides [1] on cpu\n"
    plain += "  outer\n    a: f32 = const 1.0\n    store y[i0], a\n"
    text = plain + TEXT.format(dtype="f32", length=4, block=64)
    kernels = tuple(map(read_launchable, parse_lines(text)))
    units = CppBackend().emit(kernels, ShapeFacts(), (), target("avx2"))
    assert [[k.kernel for k in unit.kernels] for unit in units] == [["t"], ["k"]]


def test_kernels_are_units_for_the_cores_that_templates_leave() -> None:
    template = TEXT.format(dtype="f32", length=4, block=64)
    flex = read_launchable(*parse_lines(template))
    plain = "kernel k{n} on cpu (i0 < {n})\n  parameter y: f32[{n}] strides [1] on cpu\n"
    plain += "  outer\n    a: f32 = const 1.0\n    store y[i0], a\n"

    def units(count: int, *others: Launchable) -> list[str]:
        text = "".join(plain.format(n=16 * n) for n in range(1, count + 1))
        kernels = (*others, *map(read_launchable, parse_lines(text)))
        bound = target("avx2", cores=2, unit_statements=9999)
        return [u.name for u in CppBackend().emit(kernels, ShapeFacts(), (), bound)]

    assert units(4) == ["unit0", "unit1"]
    assert units(4, flex) == ["template0", "unit0"]
    assert units(400, flex) == ["template0", "unit0", "unit1"]


CAUSAL = """kernel t on cpu template flex_attention (p0, p1, p1, p2, p3) -> (p4) with {scale=0.25, row_block=128, column_block=128, lists=1}
  parameter p0: f32[1, 2, 200, 20] strides [8000, 4000, 20, 1] on cpu
  parameter p1: f32[1, 2, 210, 20] strides [8400, 4200, 20, 1] on cpu
  parameter p2: i32[1, 2, 2] strides [0, 0, 1] on cpu
  parameter p3: i32[1, 2, 2, 2] strides [0, 0, 2, 1] on cpu
  parameter p4: f32[1, 2, 200, 20] strides [8000, 4000, 20, 1] on cpu
  formula score (score) -> d
    b: i32 = index i3 - i2
    e: f32 = cast b
    d: f32 = add score, e
  formula mask () -> c
    a: i32 = index i2
    b: i32 = index i3
    c: bool = ge a, b
"""  # noqa: E501


EVERY_BLOCK = CAUSAL.replace(", p2, p3)", ")").replace("lists=1", "lists=0")
EARLIER = EVERY_BLOCK.replace("-> d", "-> score", 1)


@pytest.mark.parametrize(
    ("text", "isa"),
    [(CAUSAL, "avx2"), (EVERY_BLOCK, "avx2"), (EARLIER, "avx2"), (EARLIER, "avx512")],
    ids=["listed", "all", "earlier", "earlier-avx512"],
)
def test_every_block_of_scores_computes_the_same(text: str, isa: str, build_folder) -> None:
    if why := lacking(isa):
        pytest.skip(why)
    (kernel,) = map(read_launchable, parse_lines(text))
    bound, backend = target(isa), CppBackend()
    program = backend.tile([kernel], ShapeFacts(), (), bound)
    (tiled,) = program.kernels
    rng = np.random.default_rng(7)
    q, k = (rng.standard_normal((2, n, 20), np.float32).ravel() for n in (200, 210))
    listed = np.array([1, 2], np.int32), np.array([0, 0, 1, 0], np.int32)
    buffers = {"p0": q, "p1": k, "p2": listed[0], "p3": listed[1], "p4": np.zeros_like(q)}
    expected = {name: array.copy() for name, array in buffers.items()}
    run_template(kernel, expected, {})
    flags = [*FLAGS, *Isa.of(isa).flags]
    texts = set()
    for candidate in tiled.candidates:
        chosen = with_candidates(tiled, (candidate,))
        units = backend.emit_tiled(only(program, [chosen]), bound)
        texts.add(units[0].text)
        library = BuiltKernels(
            [kernel], units, lambda u: built(text_file(u.text, "flex", build_folder), flags), None
        )
        buffers["p4"].fill(np.nan)
        assert library("t", buffers) == 0
        np.testing.assert_allclose(buffers["p4"], expected["p4"], rtol=0, atol=2e-5)
    assert len(texts) == len(tiled.candidates) > 3
    assert all(("gy_hide_later(scores" in t) == (text is EARLIER) for t in texts)


WINDOWS = """kernel t on cpu template flex_attention (p0, p1, p1, p2) -> ({outputs}) with {{scale=0.5, row_block=128, column_block=128, lists=0}}
  parameter p0: f32[2, 2, 49, 24] strides [4704, 24, 96, 1] on cpu
  parameter p1: f32[2, 1, 70, 24] strides [1680, 0, 1, 70] on cpu
  parameter p2: f32[49, 70] strides [70, 1] on cpu
  parameter p3: f32[2, 2, 49, 24] strides [2352, 1, 48, 2] on cpu
  parameter p4: f32[2, 2, 49] strides [98, 49, 1] on cpu
  parameter p5: f32[2, 2, 49] strides [98, 49, 1] on cpu
  formula score (score) -> d
    e = load p2[i2*70 + i3]
    d: f32 = add score, e
  formula mask () -> a
    a: bool = const true
"""  # noqa: E501
NOTHING, INFINITE, NAN, BOTH, NEGATIVE = range(5)
"""Rows with special scores."""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_special_scores_of_short_rows(isa: str, outputs: int, build_folder) -> None:
    if why := lacking(isa):
        pytest.skip(why)
    names = ["p3", "p4", "p5"][:outputs]
    lines = WINDOWS.format(outputs=", ".join(names)).splitlines()
    unused = tuple(f"  parameter {n}:" for n in ("p4", "p5") if n not in names)
    text = "\n".join(line for line in lines if not line.startswith(unused))
    (kernel,) = map(read_launchable, parse_lines(text))
    rng = np.random.default_rng(3)
    sizes = {"p0": 2 * 4704, "p1": 2 * 1680, "p2": 49 * 70, "p3": 2 * 2352, "p4": 196, "p5": 196}
    buffers = {n: rng.standard_normal(s, np.float32) for n, s in sizes.items()}
    mask = buffers["p2"].reshape(49, 70)
    mask[NOTHING] = -np.inf
    mask[[INFINITE, BOTH], [3, 69]] = np.inf
    mask[[NAN, BOTH], [69, 2]] = np.nan
    mask[NEGATIVE, :66] = -np.inf
    used = {n: buffers[n] for n in ("p0", "p1", "p2", *names)}
    expected = {name: array.copy() for name, array in used.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        run_template(kernel, expected, {})
    units = CppBackend().emit([kernel], ShapeFacts(), (), target(isa))
    flags = [*FLAGS, *Isa.of(isa).flags]
    library = BuiltKernels(
        [kernel], units, lambda u: built(text_file(u.text, "flex", build_folder), flags), None
    )
    assert library("t", used) == 0
    for name in names:
        np.testing.assert_allclose(used[name], expected[name], rtol=1e-5, atol=2e-5)


FAR = """kernel t on cpu template flex_attention (q, q, v, m) -> (y) with {scale=0.5, row_block=64, column_block=64, lists=0}
  parameter q: f32[1, 1, 20, 4] strides [80, 80, 4, 1] on cpu
  parameter v: f32[1, 1, 20, 4] strides [80, 80, 4, 1] on cpu
  parameter m: f32[20] strides [1] on cpu
  parameter y: f32[1, 1, 20, 4] strides [80, 80, 4, 1] on cpu
  formula score (score) -> d
    e = load m[i3]
    d: f32 = add score, e
  formula mask () -> a
    a: bool = const true
"""  # noqa: E501


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
def test_weights_are_not_subnormal(isa: str, build_folder) -> None:
    if why := lacking(isa):
        pytest.skip(why)
    (kernel,) = map(read_launchable, parse_lines(FAR))
    buffers = {n: np.zeros(80, np.float32) for n in "qvy"} | {"m": np.full(20, -95, np.float32)}
    buffers["m"][0] = 0
    buffers["v"][4:] = 1e38  # exp(-95) times this would not be small
    units = CppBackend().emit([kernel], ShapeFacts(), (), target(isa))
    flags = [*FLAGS, *Isa.of(isa).flags]
    library = BuiltKernels(
        [kernel], units, lambda u: built(text_file(u.text, "flex", build_folder), flags), None
    )
    assert library("t", buffers) == 0
    np.testing.assert_array_equal(buffers["y"], 0)


def test_a_template_needs_the_size_of_its_blocks() -> None:
    (kernel,) = map(read_launchable, parse_lines(CAUSAL))
    bound, backend = target("avx2"), CppBackend()
    program = backend.tile([kernel], ShapeFacts(), (), bound)
    bare = only(program, [with_candidates(program.kernels[0], ())])
    with pytest.raises(UnsupportedError, match="GY-CPP-004"):
        backend.emit_tiled(bare, bound)
