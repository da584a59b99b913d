"""What ends in one kernel, and what does not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from scheduler_fuzz import check
from scheduler_programs import Maker, target

from gyrator_ir.body.nodes import Reduce, ReduceKind
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Schedule
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.passes import PassEdits
from gyrator_scheduler import build
from gyrator_scheduler.fusion.fuse import Fusion, fuse
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import schedule

OPTIONS = SchedulerOptions()


def scheduled(maker: Maker, *outputs: str, **numbers: int) -> Schedule:
    return schedule(maker.program(*outputs), OPTIONS, target(**numbers))


def softmax(m: Maker, x: str, dim: int) -> str:
    (top,) = m.reduction(ReduceKind.MAX, x, [dim])
    e = m.pointwise("exp", m.pointwise("sub", x, top))
    (total,) = m.reduction(ReduceKind.SUM, e, [dim])
    return m.pointwise("div", e, total)


@pytest.mark.parametrize(("dim", "points", "inner"), [(1, "512", "768"), (0, "768", "512")])
def test_softmax_of_gelu_is_one_kernel_with_scratch_rows(dim: int, points: str, inner: str) -> None:
    m = Maker()
    x = m.input("x", 512, 768)
    s = scheduled(m, softmax(m, m.pointwise("erf", x), dim))
    (kernel,) = s.kernels
    assert ([repr(a.extent) for a in kernel.axes], [repr(a.extent) for a in kernel.inner]) == (
        [points],
        [inner],
    )
    ops = [x.op for stage in kernel.stages for x in stage.body if hasattr(x, "op")]
    assert ops.count("erf") == 1 and ops.count("exp") == 1
    assert len(kernel.locals) == 1, "both rows share their scratch"
    assert [b.name for b in s.buffers] == [kernel.writes[0]]


def gradients_of_a_norm(rows: tuple[int, ...], columns: int, early: bool) -> LoopProgram:
    """The gradients of normalised rows and of their weight, whose sum comes `early` or last."""
    m = Maker()
    shape = (*rows, columns)
    dims = list(range(len(rows)))
    x, dy, w = m.input("x", *shape), m.input("dy", *shape), m.input("w", columns)
    product = m.pointwise("mul", x, dy)
    bias, weight = dy, product
    sums = [m.reduction(ReduceKind.SUM, t, dims)[0] for t in (bias, weight)] if early else []
    scaled = m.pointwise("mul", product, w)
    (total,) = m.reduction(ReduceKind.SUM, scaled, [len(rows)])
    dx = m.pointwise("sub", dy, m.pointwise("mul", x, total))
    if not early:
        sums = [m.reduction(ReduceKind.SUM, t, dims)[0] for t in (dx, weight)]
    return m.program(dx, *sums)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("rows", [(64,), (2, 32), (8, 12)])
def test_kernels_of_rows_sum_columns(rows: tuple[int, ...], early: bool) -> None:
    program = gradients_of_a_norm(rows, 16, early)
    numbers = {"cores": 4, "total_elements": 16, "adjacent_points": 4}
    by_rows, *merges = schedule(program, OPTIONS, target(**numbers)).kernels
    assert len(by_rows.totals) == 2 and by_rows.summed
    assert [k.totals for k in merges] == [(), ()], "each adds up the parts of one sum"
    check(program, 1, OPTIONS, **numbers)


@pytest.mark.parametrize(
    ("rows", "columns", "numbers"),
    [
        ((64,), 16, {"total_elements": 0}),
        ((64,), 16, {"total_elements": 8}),  # longer rows
        ((64,), 16, {"total_grain": 1025}),  # fewer elements
        ((61,), 16, {}),  # which do not divide
        ((12,), 16, {}),  # too few
    ],
)
def test_other_kernels_do_not(rows: tuple[int, ...], columns: int, numbers: dict[str, int]) -> None:
    program = gradients_of_a_norm(rows, columns, True)
    all_ = {"cores": 4, "total_elements": 64, "adjacent_points": 4} | numbers
    assert not any(k.totals for k in schedule(program, OPTIONS, target(**all_)).kernels)
    check(program, 1, OPTIONS, **all_)


@pytest.mark.parametrize(
    ("shape", "held", "kernels"),
    [((3, 256), 256, 1), ((3, 256), 128, 2), ((256, 3), 256, 2)],
)
def test_few_long_rows_are_one_kernel_if_programs_hold_them(
    shape: tuple[int, int], held: int, kernels: int
) -> None:
    m = Maker()
    x = m.input("x", *shape)
    (largest,) = m.reduction(ReduceKind.MAX, x, [shape.index(256)])
    program = m.program(m.pointwise("sub", x, largest))
    numbers = {"cores": 4, "parallel_grain": 64, "total_elements": held}
    assert len(schedule(program, OPTIONS, target(**numbers)).kernels) == kernels
    check(program, 1, OPTIONS, **numbers)


def test_dynamic_rows_fuse_through_memory_when_scratch_is_unbounded() -> None:
    m = Maker()
    s0, s1 = Sym("s0"), Sym("s1")
    x = m.input("x", s0, s1)
    out = softmax(m, m.pointwise("erf", x), 1)
    s = scheduled(m, out)
    (kernel,) = s.kernels
    assert not kernel.locals
    assert [b.name for b in s.buffers] == [out], "rows are kept in the place of the result"
    assert kernel.sizes == (s0, s1)


def test_layer_norm_after_a_product_seen_in_another_shape_is_one_kernel() -> None:
    m = Maker()
    a, w = m.input("a", 512, 768), m.input("w", 768, 768)
    residual, gamma = m.input("residual", 4, 128, 768), m.input("gamma", 768)
    y = m.mm(a, w, (512, 768))
    v = m.view("abs", y, (4, 128, 768), lambda i, j, k: 98304 * i + 768 * j + k)
    z = m.pointwise("add", v, residual)
    (mean,) = m.reduction(ReduceKind.SUM, z, [2])
    d = m.pointwise("sub", z, mean)
    (variance,) = m.reduction(ReduceKind.SUM, m.pointwise("mul", d, d), [2])
    scale = m.pointwise("rsqrt", variance)
    out = m.pointwise("mul", m.pointwise("mul", d, scale), gamma)
    s = scheduled(m, out, z, scale)
    (kernel,) = s.kernels
    assert [stage.level for stage in kernel.stages] == [
        Level.INNER,
        Level.INNER,
        Level.OUTER,
        Level.INNER,
    ]
    lives = {life.buffer: life for life in s.lifetimes}
    assert lives[z].reuses == y


def test_batch_norm_statistics_normalisation_and_running_mean_are_one_kernel() -> None:
    m = Maker()
    x, running = m.input("x", 64, 32, 7, 7), m.input("running", 1, 32, 1, 1)
    mean, squares, _ = m.reduction(ReduceKind.WELFORD, x, [0, 2, 3], 3)
    scale = m.pointwise("rsqrt", squares)
    out = m.pointwise("mul", m.pointwise("sub", x, mean), scale)
    m.store("running", m.pointwise("add", running, mean))
    (kernel,) = scheduled(m, out).kernels
    assert [repr(a.extent) for a in kernel.axes] == ["32"]
    assert [repr(a.extent) for a in kernel.inner] == ["64", "49"]


def test_sibling_sums_of_one_tensor_are_one_stage() -> None:
    m = Maker()
    x, y = m.input("x", 256, 64), m.input("y", 256, 64)
    (a,) = m.reduction(ReduceKind.SUM, x, [0])
    (b,) = m.reduction(ReduceKind.SUM, m.pointwise("mul", x, y), [0])
    (kernel,) = scheduled(m, a, b).kernels
    assert [stage.level for stage in kernel.stages] == [Level.INNER, Level.OUTER]


def test_strangers_stay_apart_and_rows_and_columns_too() -> None:
    m = Maker()
    x, y = m.input("x", 64, 64), m.input("y", 64, 64)
    a, b = m.pointwise("exp", x), m.pointwise("exp", y)
    assert len(scheduled(m, a, b).kernels) == 2
    m = Maker()
    x = m.input("x", 64, 32)
    (rows,) = m.reduction(ReduceKind.SUM, x, [1])
    (columns,) = m.reduction(ReduceKind.SUM, x, [0])
    first, second = scheduled(m, rows, columns).kernels
    assert [(r.other, r.reason) for r in second.refusals] == [
        (first.name, "the reductions run over different axes")
    ]
    assert first.refusals[0].other == second.name


def test_a_value_that_is_read_at_other_points_goes_through_memory() -> None:
    m = Maker()
    x = m.input("x", 8, 8)
    a = m.pointwise("exp", x)
    b = m.view("neg", a, (8, 8), lambda i, j: 8 * i + (7 - j))
    s = scheduled(m, a, b)
    assert len(s.kernels) == 2


def test_transposed_reader_shares_the_loop() -> None:
    m = Maker()
    x = m.input("x", 64, 32)
    a = m.pointwise("exp", x)
    b = m.view("neg", a, (32, 64), lambda i, j: 32 * j + i)
    assert len(scheduled(m, a, b).kernels) == 1


def test_what_runs_between_keeps_two_kernels_apart() -> None:
    m = Maker()
    x, w = m.input("x", 64, 64), m.input("w", 64, 64)
    a = m.pointwise("exp", x)
    b = m.pointwise("add", a, m.mm(a, w, (64, 64)))
    s = scheduled(m, a, b)
    assert [isinstance(n, Kernel) for n in s.nodes] == [True, False, True]
    assert "depends on the first" in s.kernels[0].refusals[0].reason


def test_no_fusion_gives_a_kernel_an_operation() -> None:
    m = Maker()
    x = m.input("x", 8, 8)
    y = softmax(m, x, 1)
    s = schedule(m.program(y), SchedulerOptions(fusion=False), target())
    assert len(s.kernels) == 5


# Growth ------------------------------------------------------------------------------------------


def chain(n: int) -> LoopProgram:
    m = Maker()
    x = m.input("x", 512, 768)
    for _ in range(n):
        x = m.pointwise("neg", x)
    return m.program(x)


def fan_out(n: int) -> LoopProgram:
    m = Maker()
    y = m.pointwise("exp", m.input("x", 512, 768))
    return m.program(*[m.pointwise("neg", y) for _ in range(n)])


def doubling(n: int) -> LoopProgram:
    m = Maker()
    a, b = m.input("x", 512, 768), m.input("y", 512, 768)
    for _ in range(n // 2):
        a, b = m.pointwise("add", a, b), m.pointwise("mul", a, b)
    return m.program(a, b)


def layer(m: Maker, x: str, weights: str, scale: str) -> str:
    def norm(x: str) -> str:
        mean, squares, _ = m.reduction(ReduceKind.WELFORD, x, [1], 3)
        d = m.pointwise("mul", m.pointwise("sub", x, mean), m.pointwise("rsqrt", squares))
        return m.pointwise("mul", d, scale)

    rows: tuple[Expr | int, ...] = (512, 768)
    h = norm(x)
    q, k = (m.pointwise("add", m.mm(h, weights, rows), scale) for _ in range(2))
    h = m.mm(softmax(m, m.mm(q, k, rows), 1), weights, rows)
    x = m.pointwise("add", x, h)
    h = m.mm(norm(x), weights, rows)
    h = m.mm(m.pointwise("mul", h, m.pointwise("erf", h)), weights, rows)
    return m.pointwise("add", x, h)


def transformer(n: int) -> LoopProgram:
    m = Maker()
    x, weights, scale = m.input("x", 512, 768), m.input("w", 768, 768), m.input("scale", 768)
    while len(m.operations) < n:
        x = layer(m, x, weights, scale)
    return m.program(x)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[LoopProgram], int]:
    """Return what counts the steps of fusion, without the passes that would shrink a program."""
    counts: list[int] = []

    def counted(*arguments: Any) -> Fusion:
        counts.append((fusion := fuse(*arguments)).steps)
        return fusion

    def run(program: LoopProgram) -> int:
        options = SchedulerOptions(passes=PassEdits().only("loop"), keep_peak=False)
        schedule(program, options, target())
        return counts.pop()

    monkeypatch.setattr(build, "fuse", counted)
    return run


@pytest.mark.parametrize("make", [chain, fan_out, doubling, transformer])
def test_steps_grow_nearly_linearly(make: Any, steps: Callable[[LoopProgram], int]) -> None:
    small, large = steps(make(500)), steps(make(4000))
    assert math.log(large / small) / math.log(8) <= 1.1


def test_a_transformer_layer_is_few_kernels_and_each_is_compiled_once() -> None:
    layer, many = (schedule(transformer(n), OPTIONS, target()) for n in (10, 200))
    layers = len(many.nodes) / len(layer.nodes)
    assert len(layer.kernels) <= 7
    assert len(many.kernels) <= layers * 7


def test_kernels_fold_a_limited_number_of_values() -> None:
    m = Maker()
    x = m.input("x", 64, 256)
    outputs = []
    for k in range(20):
        y = m.pointwise("mul", x, m.input(f"f{k}", 256))
        outputs += m.reduction(ReduceKind.SUM, y, [1])
    folds = [
        sum(isinstance(s, Reduce) for stage in kernel.stages for s in stage.body)
        for kernel in scheduled(m, *outputs, fusion_folds=6).kernels
    ]
    assert sorted(folds) == [2, 6, 6, 6]
