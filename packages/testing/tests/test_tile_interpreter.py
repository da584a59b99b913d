"""A tiled kernel means what its kernel means, whatever was decided; wrong decisions are found."""

import numpy as np
import pytest
from attrs import evolve

from gyrator_ir.body.nodes import Axis, Const, Let, Load, Reduce, ReduceKind, Store, StoreMode
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.source import Configuration
from gyrator_ir.tile.nodes import (
    Choice,
    Loop,
    LoopKind,
    Method,
    Reduction,
    Threads,
    TiledKernel,
    TileProgram,
)
from gyrator_ir.tile.parse import parse
from gyrator_ir.tile.plain import untiled
from gyrator_ir.tile.print import show
from gyrator_ir.tile.verify import verify
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import NUMPY
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.interp.tile import run_tiled
from gyrator_testing.kernels.compare import assert_same_writes
from gyrator_testing.kernels.random import FORMS, Limits, random_case
from gyrator_testing.kernels.write import F32, I0, R0, inner, kernel, outer

SMALL = Limits(extents=(1, 2, 3, 5, 8, 17), long=(70,), points=600)
GRID, LOOP = LoopKind.GRID, LoopKind.LOOP
BFLOAT16 = NUMPY[DType.BF16]
_STEPS = (1, 2, 4, 8, 32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(12))
def test_any_tiling_means_what_the_kernel_means(form, seed):
    case = random_case(seed, form, limits=SMALL)
    tiled = _random_tiling(case.kernel, np.random.default_rng(seed))
    program = TileProgram("p", (tiled,))
    assert parse(show(program)) == verify(program)
    want = {k: v.copy() for k, v in case.arrays.items()}
    got = {k: v.copy() for k, v in case.arrays.items()}

    run_kernel(case.kernel, want, case.sizes)
    run_tiled(tiled, got, case.sizes, seed=seed)

    assert_same_writes(case.kernel, got, want)


def row_sums(*loops: Loop, **changes: object) -> TiledKernel:
    made = kernel(
        "k0",
        [(I0, 6)],
        [(R0, 10)],
        [
            inner(Load("a", "x", 10 * I0 + R0), Reduce(("s",), ReduceKind.SUM, ("a",), F32)),
            outer(Store("y", I0, "s")),
        ],
        spans={"x": 60, "y": 6},
    )
    tiled = untiled(made)
    return evolve(tiled, loops=loops or tiled.loops, **changes)


def run(tiled: TiledKernel, configuration: Configuration | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(60).astype(np.float32) for p in tiled.kernel.parameters}
    run_tiled(tiled, arrays, {}, configuration)
    return arrays


def test_choices_take_the_values_of_a_configuration():
    choice = Choice("XBLOCK", (2, 4))
    loops = Loop(GRID, (I0,), "XBLOCK"), Loop(LOOP, (R0,), 4)
    with pytest.raises(TypeError, match="choice 'XBLOCK' is not bound"):
        run(row_sums(*loops))
    for given in (None, Configuration((("XBLOCK", 4),))):
        found = run(row_sums(*loops, choices=(choice,)), given)
        want = found["x"].reshape(6, 10).sum(1)
        np.testing.assert_allclose(found["y"][:6], want, rtol=1e-5)


def test_an_element_that_no_loop_reaches_is_found():
    with pytest.raises(InterpreterError, match=r"GY-INTERP-006.*misses an element"):
        run(row_sums(Loop(GRID, (I0,)), Loop(GRID, (R0,), 5)))


def test_units_that_share_a_result_are_found():
    shared = kernel(
        "k0",
        [(I0, 6)],
        [],
        [outer(Load("a", "x", I0), Store("y", I0 % 3, "a"))],
        spans={"x": 6, "y": 3},
    )
    with pytest.raises(InterpreterError, match="another unit stores to"):
        run(untiled(shared))
    run(evolve(untiled(shared), threads=Threads(0)))


def test_units_that_combine_into_one_place_say_so():
    made = kernel(
        "k0",
        [(I0, 6)],
        [],
        [outer(Load("a", "x", I0), Store("y", I0 % 3, "a", StoreMode.ADD))],
        spans={"x": 6, "y": 3},
    )
    tiled = untiled(made)
    assert tiled.atomic == ("y",)
    run(tiled)
    with pytest.raises(InterpreterError, match="another unit stores to"):
        run(evolve(tiled, atomic=()))


def test_a_unit_that_loads_what_another_stores_is_found():
    made = kernel(
        "k0",
        [(I0, 6)],
        [],
        [outer(Const("c", 1.0, F32), Load("a", "y", 5 - I0), Store("y", I0, "a"))],
        spans={"y": 6},
    )
    with pytest.raises(InterpreterError, match="another unit"):
        run(untiled(made))


def test_a_stage_in_several_steps_keeps_its_values_for_each():
    made = kernel(
        "k0",
        [(I0, 4)],
        [(R0, 3)],
        [
            inner(Load("a", "x", 4 * R0 + I0), Reduce(("s",), ReduceKind.SUM, ("a",), F32)),
            outer(Load("b", "x", I0)),
            inner(Load("c", "x", 4 * R0 + I0), Let("d", "mul", ("c", "b"), F32),
                  Store("y", 4 * R0 + I0, "d")),
        ],
        spans={"x": 12, "y": 12},
    )  # fmt: skip
    loops = Loop(GRID, (I0,), 4), Loop(LOOP, (R0,)), Loop(LOOP, (I0,), 2)
    found = run(evolve(untiled(made), loops=loops))
    x = found["x"][:12].reshape(3, 4)
    np.testing.assert_allclose(found["y"][:12].reshape(3, 4), x * x[0], rtol=1e-6)


LOOKED_UP = """tile.program 1 @p
  tile
    kernel k0 on cpu (i0 < 32)
      parameter n: i64[32] strides [1] on cpu
      parameter x: f32[80] strides [1] on cpu
      parameter y: f32[32] strides [1] on cpu
      outer
        a = load n[i0]
        t0 = bind a below 9 check
        b = load x[i0 + 4*t0]
        store y[i0], b
    grid (i0) by 32
    loop (i0) by 8
    access [i0 + 4*t0] {access}
"""


@pytest.mark.parametrize(
    ("access", "sound"),
    [
        ("gathered of {t0=4, i0=1}", True),
        ("gathered of {t0=4, i0=2}", False),
        ("gathered of {t0=8, i0=1}", False),
        ("gathered of {t0=4}", False),
        ("unit", False),
        ("lanes", True),
    ],
)
def test_an_access_that_goes_on_otherwise_is_found(access, sound):
    rng = np.random.default_rng(0)
    arrays = {"n": rng.integers(0, 9, 32), "x": rng.standard_normal(80).astype(np.float32)}
    arrays["y"] = np.zeros(32, np.float32)
    if ran(LOOKED_UP.format(access=access), arrays, sound, "GY-INTERP-006"):
        np.testing.assert_array_equal(arrays["y"], arrays["x"][np.arange(32) + 4 * arrays["n"]])


def ran(text, arrays, sound, message):
    """Run the kernel of a program that is sound; of any other, check that the interpreter finds out
    why. Return whether it is sound."""
    (tiled,) = verify(parse(text)).kernels
    if sound:
        run_tiled(tiled, arrays, {})
    else:
        with pytest.raises(InterpreterError, match=message):
            run_tiled(tiled, arrays, {})
    return sound


@pytest.mark.parametrize(("section", "sound"), [("8 false (c)", True), ("7 false (c)", False)])
def test_a_section_that_settles_a_comparison_wrongly_is_found(section, sound):
    arrays = {"x": np.arange(8, dtype=np.float32), "y": np.zeros(32, np.float32)}
    if ran(CUT.format(section=section), arrays, sound, "c is not always False from 7"):
        np.testing.assert_array_equal(arrays["y"][:8], arrays["x"])


@pytest.mark.parametrize(("start", "sound"), [(7, True), (8, True), (6, False)])
def test_a_section_that_settles_an_index_wrongly_is_found(start, sound):
    arrays = {"x": np.arange(8, dtype=np.float32), "y": np.zeros(32, np.float32)}
    if ran(BENT.format(start=start), arrays, sound, "the index of a is not always this from 6"):
        np.testing.assert_array_equal(arrays["y"], np.minimum(np.arange(32), 7))


BENT = """\
tile.program 1 @p
  tile
    kernel k0 on cpu (i0 < 32)
      parameter x: f32[8] strides [1] on cpu
      parameter y: f32[32] strides [1] on cpu
      outer
        a = load x[min(i0, 7)]
        store y[i0], a
    grid (i0) by 32
    loop (i0) by 8
    section 0 indices {{a=i0}}
    section {start} indices {{a=7}}
"""

CUT = """\
tile.program 1 @p
  tile
    kernel k0 on cpu (i0 < 32)
      parameter x: f32[8] strides [1] on cpu
      parameter y: f32[32] strides [1] on cpu
      outer
        i: i64 = index i0
        n: i64 = const 8
        c: bool = lt i, n
        a = load x[i0] if c
        store y[i0], a
    grid (i0) by 32
    loop (i0) by 8
    section 0 true (c)
    section {section}
"""


@pytest.mark.parametrize(("least", "sound"), [(0.5, True), (0.3, False)])
def test_an_exact_cast_that_rounds_is_found(least, sound):
    arrays = {"x": np.zeros(8, BFLOAT16), "y": np.zeros(8, BFLOAT16)}
    if ran(CLAMPED.format(least=least), arrays, sound, "exact cast d rounds"):
        np.testing.assert_array_equal(arrays["y"], np.full(8, least, BFLOAT16))


CLAMPED = """\
tile.program 1 @p
  tile
    kernel k0 on cpu (i0 < 8)
      parameter x: bf16[8] strides [1] on cpu
      parameter y: bf16[8] strides [1] on cpu
      outer
        a = load x[i0]
        b: f32 = cast a
        c: f32 = const {least}
        e: f32 = maximum b, c
        d: bf16 = cast e
        store y[i0], d
    grid (i0) by 8
    loop (i0) by 8
    exact (d)
"""


def _random_tiling(kernel: Kernel, rng: np.random.Generator) -> TiledKernel:
    """Return a kernel with randomly tiled and ordered loops."""
    tiled = untiled(kernel)
    assert isinstance(tiled, TiledKernel)
    points, inner = _groups(kernel.axes, rng), _groups(kernel.inner, rng)
    order = rng.permutation(len(points))
    grid: list[Loop] = []
    own: list[Loop] = []
    for n in order:
        step = int(rng.choice(_STEPS))
        grid.append(Loop(LoopKind.GRID, points[n], step))
        within = [s for s in _STEPS if step % s == 0 and s < step]
        if within and rng.random() < 0.5:
            own.append(Loop(LoopKind.LOOP, points[n], int(rng.choice(within))))
    own += [Loop(LoopKind.LOOP, group, int(rng.choice(_STEPS))) for group in inner]
    loops = tuple(own[n] for n in rng.permutation(len(own)))
    reductions = tuple(_reduction(r, kernel, rng) for r in tiled.reductions)
    threads = Threads(int(rng.integers(0, len(grid) + 1))) if rng.random() < 0.5 else None
    return evolve(tiled, loops=(*grid, *loops), reductions=reductions, threads=threads)


def _groups(axes: tuple[Axis, ...], rng: np.random.Generator) -> list[tuple[Sym, ...]]:
    groups: list[list[Sym]] = []
    for axis in axes:
        if groups and rng.random() < 0.5:
            groups[-1].append(axis.symbol)
        else:
            groups.append([axis.symbol])
    return [tuple(g) for g in groups]


def _reduction(r: Reduction, kernel: Kernel, rng: np.random.Generator) -> Reduction:
    reduction = next(
        s for s in kernel.statements if isinstance(s, Reduce) and s.names[0] == r.result
    )
    if reduction.kind in (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX):
        return Reduction(r.result, Method.TWO_PASS, block=int(rng.choice((16, 2048))))
    if reduction.kind in (ReduceKind.SUM, ReduceKind.DOT) and reduction.dtype.is_float:
        chain = int(rng.choice((0, 4, 64)))
        return evolve(r, chain=chain, wide=not chain and bool(rng.random() < 0.5))
    return r
