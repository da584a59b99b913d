"""Views, indexing, concatenation, scattering, creation, mutation and calls."""

import math

import pytest
import torch
from attrs import evolve
from torch.nn import functional as F

from gyrator_ir.body.nodes import Store
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.loop.nodes import Extern, Scatter
from gyrator_ir.target import Heuristics

BAD = {
    "index": lambda x, i: x[i[0]],
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "take": lambda x, i: x.take(i + 90),
    "first": lambda x, i: x.index_select(0, i[0]),
    "second": lambda x, i: x.index_select(1, i[0]),
    "gather": lambda x, i: x.gather(1, i),
    "scatter": lambda x, i: x.scatter(1, i, 1.0),
    "add_rows": lambda x, i: x.index_add(0, i[0], x[:1]),
    "add": lambda x, i: x[0].index_add(0, i[0], x[0, :1]),
}


@pytest.mark.parametrize("name", BAD)
def test_out_of_range_indices_raise_as_in_eager(check, name: str) -> None:
    x, i = torch.randn(3, 4), torch.tensor([[7]])
    with pytest.raises((IndexError, RuntimeError)) as eager:
        BAD[name](x, i)
    with pytest.raises(eager.type) as actual:
        check._run(check.lower(BAD[name], (x, i)), lambda *_: [], (x, i), True, None, None)
    assert actual.type is eager.type


def test_views_emit_nothing(check) -> None:
    def views(x):
        y = x.view(4, 3, 2).permute(2, 0, 1)[:, 1:3].unsqueeze(0).expand(5, -1, -1, -1)
        return (
            y,
            x.t(),
            x[1],
            x[:, 2],
            x.diagonal(),
            x.unfold(1, 2, 2),
            x.reshape(-1)[3:],
            x.split(3, 1)[1],
            x.chunk(2)[0],
            x.unbind(1)[2],
            x.as_strided((2, 2), (1, 3), 2),
        )

    program = check(views, torch.randn(4, 6))
    assert not program.operations


def test_views_of_views_feed_loops(check) -> None:
    check(lambda x: x.t()[1:].reshape(3, -1)[:, ::2] * 2, torch.randn(4, 7))
    check(lambda x: x.t().reshape(-1) + 1, torch.randn(4, 7))
    check(
        lambda x: (x.view(torch.int32) + 1, x.view(torch.int16).to(torch.int32)),
        torch.randn(4, 6),
        externs=("aten.clone.default",),
    )
    check(lambda x: x.clone(memory_format=torch.contiguous_format), torch.randn(4, 6).t())


def test_index(check) -> None:
    x = torch.randn(5, 6, 7)
    i, j = torch.tensor([[0, -1], [3, 2]]), torch.tensor([4, -6])
    check(lambda x, i: (x[i], x[:, i], x[..., i]), x, i)
    check(lambda x, i, j: (x[i, j], x[i, :, j], x[:, i, j], x[:, j]), x, i, j)
    check(lambda x, i: x[i.int()], x, i)
    with pytest.raises(IndexError):
        check(lambda x, i: x[i], x, torch.tensor([7]))


def test_embedding_gather_select(check) -> None:
    table = torch.randn(10, 4)
    ids = torch.randint(0, 10, (3, 5))
    check.gradients(F.embedding, ids, table)
    check.gradients(lambda i, t: F.embedding(i, t, padding_idx=2), ids, table)
    check.gradients(lambda i, t: F.embedding(i, t), ids, table.bfloat16(), rtol=3e-2, atol=3e-2)
    shared = torch.randint(0, 10, (5,)).expand(3, 5)
    check.gradients(F.embedding, shared, table)
    check.gradients(lambda i, t: F.embedding(i.t(), t).transpose(0, 1) * 2, ids, table)
    x = torch.randn(4, 5)
    check.gradients(lambda x, i: torch.gather(x, 1, i), x, torch.randint(0, 5, (3, 2)))
    none = torch.empty(0, dtype=torch.int64)
    to_aten = ("aten.gather.default", "aten.scatter.value")
    check(lambda x, i: (x.gather(1, i), x.scatter(1, i, 2.0)), x, none, externs=to_aten)
    check.gradients(lambda x, i: x.index_select(1, i), x, torch.tensor([3, 1, 1]))
    check(lambda x, i: torch.take(x, i), x, torch.tensor([[3, -1], [19, 0]]))
    with pytest.raises(IndexError):
        check(F.embedding, torch.tensor([10]), table)


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("rows", "width", "shape"),
    [(8, 8, (3, 5)), (5, 1, (40,)), (1, 3, (2, 0)), (7, 4, ()), (9, 2, (3, 5)), (8, 9, (6,))],
)
def test_gradients_of_small_tables_are_sums(
    check, rows: int, width: int, shape: tuple[int, ...], dtype: torch.dtype, padding: int | None
) -> None:
    target = check.targets["cpu"]
    check.targets = {"cpu": evolve(target, heuristics=Heuristics(summed_rows=8))}
    ids, table = torch.randint(0, rows, shape), torch.randn(rows, width, dtype=dtype)
    padding = None if padding is None else padding % rows

    def f(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, table, padding_idx=padding).transpose(0, -1)

    bounds = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {}
    _, backward = check.gradients(f, ids, table, **bounds)
    scatters = any(isinstance(op, Scatter) for op in backward.operations)
    assert scatters == (rows > 8 or width > 8)


def test_sums_of_rows_leave_infinite_gradients_in_their_row(check) -> None:
    target = check.targets["cpu"]
    check.targets = {"cpu": evolve(target, heuristics=Heuristics(summed_rows=8))}
    scale, ids = torch.tensor([[1.0], [math.inf], [math.nan], [2.0]]), torch.tensor([0, 1, 2, 0])
    check.gradients(lambda i, t, s: F.embedding(i, t) * s, ids, torch.randn(4, 3), scale)


def test_cat_and_related_ops(check) -> None:
    x, y, z = torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 3)
    check(lambda x, y: torch.cat([x, y], 1), x, y)
    check(lambda x, z: (torch.stack([x, z]), torch.stack([x, z], -1), torch.cat([x] * 6)), x, z)
    check(lambda x, e: torch.cat([e, x, e]), x, torch.randn(0))
    check(lambda x, y: torch.cat([x, y]), torch.randn(3), torch.arange(4))
    check(
        lambda x: (
            x.flip(0, 1),
            x.roll(2, 1),
            x.roll((1, -1), (0, 1)),
            x.roll(4),
            x.repeat(2, 3),
            x.repeat(2, 1, 2),
            x.tril(),
            x.triu(1),
            x.tril(-1),
            torch.rot90(x),
        ),
        x,
    )
    check(lambda x, y: torch.cat([x, y] * 6, 1), x, y)
    check(lambda x, y: torch.cat([x, y], 1), x, y, other=(torch.randn(4, 2), torch.randn(4, 9)))


@pytest.mark.parametrize("alike", [False, True])
def test_single_elements_are_selected_where_identical_kernels_share_launches(check, alike) -> None:
    target = check.targets["cpu"]
    check.targets = {"cpu": evolve(target, heuristics=Heuristics(together_kinds=int(alike)))}

    def stacked(*tensors):
        return torch.stack([x.sum() for x in tensors]) * 2

    def joined(*tensors):
        return torch.cat(tensors)

    tensors = [torch.randn(5) for _ in range(10)]
    check(stacked, *tensors)
    check(joined, *tensors)
    scatters = [
        sum(isinstance(op, Scatter) for op in check.lower(f, tuple(tensors)).operations)
        for f in (stacked, joined)
    ]
    assert scatters == [0 if alike else 9, 9]


def _halves(x):
    first, second = x.chunk(2, -1)
    return torch.cat((F.silu(first) * second, first - second), -1)


def _stores(op) -> int:
    return sum(isinstance(s, Store) for s in getattr(op, "body", ()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_equal_parts_of_a_stored_result_are_written_by_one_loop(check, dtype) -> None:
    x = torch.randn(3, 16).gt(0).to(dtype) if dtype is torch.bool else 9 * torch.randn(3, 16)
    x = x.to(dtype)

    def f(x):
        return torch.cat((x.logical_not().to(x.dtype), x, x), 1).t(), torch.cat((x, x + x))

    assert {2, 3} <= {_stores(op) for op in check(f, x).operations}
    check(f, x.repeat(1, 2)[:, ::2])


def test_parts_are_written_by_one_loop_only_where_the_result_is_stored(check) -> None:
    x = torch.randn(4, 64)
    others = (torch.randn(7, 64),)

    def stores(f) -> int:
        program = check(f, x, other=others, externs=("aten.mm.default",))
        return max(map(_stores, program.operations))

    assert stores(_halves) == 2
    assert stores(lambda x: _halves(x).view(-1, 4) @ x.new_ones(4, 2)) == 2
    assert stores(lambda x: _halves(x) + 1) == 1
    assert stores(lambda x: torch.stack((x + 1, x - 1), -1)) == 1
    assert stores(lambda x: torch.cat((x, x[:, :32]), 1)) == 1


def test_scatter(check) -> None:
    x, src = torch.randn(4, 5), torch.randn(4, 5)
    i = torch.stack([torch.randperm(4) for _ in range(5)], 1)
    check(lambda x, i, s: (x.scatter(0, i, s), x.scatter(0, i[:2], 1.5)), x, i, src)
    dup = torch.randint(0, 4, (4, 5))
    check(
        lambda x, i, s: (x.scatter_add(0, i, s), x.index_add(1, i[0], s[:, :5], alpha=2)),
        x,
        dup,
        src,
    )
    for reduce in ("sum", "prod", "amax", "amin"):
        for self in (True, False):
            check(
                lambda x, i, s, r=reduce, k=self: x.scatter_reduce(0, i, s, r, include_self=k),
                x,
                dup,
                src,
            )
    check(
        lambda x, s: (
            x.slice_scatter(s[:, :2], 1, 1, 5, 2),
            x.select_scatter(s[0], 0, 2),
            x.diagonal_scatter(s[0, :4], 1),
            x.slice_scatter(s[1:], 0, -3),
        ),
        x,
        src,
    )


def test_index_put(check) -> None:
    x = torch.randn(5, 6)
    i, j = torch.tensor([0, 3, -1]), torch.tensor([2, 2, 5])
    v = torch.randn(3)
    check(lambda x, i, j, v: x.index_put((i, j), v), x, i, j, v)
    check(lambda x, i, v: x.index_put((i,), v[:, None]), x, i, v)
    twice = torch.tensor([1, 1, 0])
    check(lambda x, i, v: x.index_put((i,), v[:, None], accumulate=True), x, twice, v)
    check(lambda x, m: x.index_put((m,), torch.tensor(2.0)), x, x > 0, externs=())

    def mutate(x, i, v):
        x[:, i] = v
        x[1:3] += 1
        return x * 2

    check(mutate, x, i, v)


def test_cache_update_in_place(check) -> None:
    def step(cache, new, at):
        cache.index_copy_(1, at, new)
        return cache.sum(1)

    check(step, torch.randn(2, 8, 3), torch.randn(2, 2, 3), torch.tensor([4, 5]))


def test_mutation_of_inputs(check) -> None:
    def swap(x, y):
        x.add_(y)
        y.copy_(x.t())
        return x + y

    check(swap, torch.randn(4, 4), torch.randn(4, 4))

    def transpose_self(x):
        x.copy_(x.t().clone())
        x.t().mul_(2)

        return x.view(-1)

    check(transpose_self, torch.randn(4, 4))
    check(lambda x: x.t().zero_(), torch.randn(3, 4))


def test_creation(check) -> None:
    x = torch.randn(3, 4)
    check(
        lambda x: (
            torch.zeros_like(x),
            torch.ones(2, 3),
            torch.full((2,), 7),
            x.new_full((2,), 3.5),
            torch.full_like(x, 2),
            torch.arange(5),
            torch.arange(2, 11, 3),
            torch.arange(0, 1, 0.1),
            torch.linspace(0, 1, 7),
            torch.eye(3),
            torch.eye(2, 4),
            torch.full((2,), float("inf"), dtype=torch.bfloat16),
            torch.scalar_tensor(2.5),
            torch.tensor(3.0) * x,
            F.one_hot(torch.arange(3), 5),
        ),
        x,
    )


LOSSES = {
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "l1": F.l1_loss,
    "bce_logits": F.binary_cross_entropy_with_logits,
    "kl": lambda x, y, reduction: F.kl_div(x, y.sigmoid(), reduction=reduction),
    "bce": lambda x, y, reduction: F.binary_cross_entropy(
        x.sigmoid(), y.sigmoid(), reduction=reduction
    ),
    "soft_margin": lambda x, y, reduction: F.soft_margin_loss(x, y.detach(), reduction=reduction),
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(check, name: str, reduction: str) -> None:
    fn = LOSSES[name]
    x, y = torch.randn(4, 5) * 2, torch.randn(4, 5)
    check.gradients(lambda x, y: fn(x, y, reduction=reduction), x, y)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(check, reduction: str) -> None:
    x, t = torch.randn(6, 5), torch.tensor([0, 4, -100, 2, 2, 1])
    w = torch.rand(5)
    check.gradients(lambda x, t: F.cross_entropy(x, t, reduction=reduction), x, t)
    check.gradients(lambda x, t, w: F.cross_entropy(x, t, w.detach(), reduction=reduction), x, t, w)
    check.gradients(
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, reduction=reduction), x, t
    )
    image, target = torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))
    check.gradients(lambda x, t: F.cross_entropy(x, t, reduction=reduction), image, target)


def test_library_calls(check) -> None:
    x, y = torch.randn(4, 5), torch.randn(5, 6)
    program = check(lambda x, y: torch.relu(x @ y) + 1, x, y, externs=("aten.mm.default",))
    (call,) = [op for op in program.operations if isinstance(op, Extern)]
    assert (call.out, call.reason) == ("aten.mm.out", "library")
    check(lambda x, y: x.t().contiguous().t() @ y, x, y, externs=("aten.mm.default",))
    image, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    check.gradients(
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        image,
        weight,
        externs=("aten.convolution.default", "aten.convolution_backward.default"),
    )


def test_calls_by_schema(check) -> None:
    x = torch.randn(4, 4)
    check(
        lambda x: torch.linalg.svdvals(x) + 1,
        x,
        externs=("aten._linalg_svd.default",),
        rtol=1e-4,
        atol=1e-4,
    )
    check(lambda x: x.topk(2)[0] * 2, x, externs=("aten.topk.default",))
    check(
        lambda x: torch.fft.fft(x).abs() + 1,
        x,
        externs=("aten._fft_r2c.default", "aten.abs.default"),
        rtol=1e-4,
        atol=1e-4,
    )


def test_out_of_bounds_as_strided_is_refused(check) -> None:
    from gyrator_lowering import LoweringOptions, lower

    whole = torch.randn(4, 5)
    check(lambda x: x.as_strided((2, 2), (5, 1), 6) + 1, whole)
    gm = check.trace(lambda x: x.as_strided((2, 2), (5, 1), 6) + 1, (whole,))
    node = next(iter(gm.graph.nodes))
    node.meta["val"] = node.meta["val"][0]
    with pytest.raises(UnsupportedError) as error:
        lower(gm, LoweringOptions(), check.targets)
    assert error.value.diagnostic.code == "GY-LOWER-006"


def test_failing_rules_fall_back_to_calls(check) -> None:
    from gyrator_lowering import LoweringOptions, TableBuilder, lower

    table = TableBuilder()

    @table.rule("aten.sin.default")
    def broken(b, x):
        b.copy(x)
        raise ZeroDivisionError("oops")

    gm = check.trace(torch.sin, (torch.randn(3),))
    program = lower(gm, LoweringOptions(), check.targets, table.build())
    (call,) = program.operations
    assert isinstance(call, Extern)
    assert "ZeroDivisionError: oops" in call.reason
    assert len(program.buffers) == 1


def test_a_graph_with_a_sparse_input_is_refused(check) -> None:
    gm = check.trace(lambda x: x + 1, (torch.randn(3),))
    node = next(iter(gm.graph.nodes))
    node.meta["val"] = torch.eye(3).to_sparse()
    from gyrator_lowering import LoweringOptions, lower

    with pytest.raises(UnsupportedError) as error:
        lower(gm, LoweringOptions(), check.targets)
    assert error.value.diagnostic.code == "GY-LOWER-004"


def test_origins_name_the_line(check) -> None:
    program = check.gradients(lambda x: torch.tanh(x) * 2, torch.randn(3))[0]
    targets = [program.origins[op.origins[0]].target for op in program.operations]
    assert targets == ["aten.tanh.default", "aten.mul.Tensor"]


def test_lowering_is_deterministic(check) -> None:
    from gyrator_ir.loop.print import show

    fn = lambda x: (x.softmax(-1) @ x.t()).sum()  # noqa: E731
    first, second = (show(check.lower(fn, (torch.randn(4, 5),))) for _ in range(2))
    assert first == second


def test_integer_arange_truncates_bounds(check) -> None:
    check(lambda: torch.arange(2.1, -2.9, -1.0, dtype=torch.int64))
    check(lambda: torch.arange(0.1, -7.9, -4.0, dtype=torch.int32))


def test_repeat_and_roll_of_empty_tensors(check) -> None:
    x = torch.zeros(0, 3)
    program = check(lambda x: (x.repeat(2, 2), x.repeat(1, 0, 3), x.roll(1), x.roll(1, 0)), x)
    assert not any(isinstance(op, Extern) for op in program.operations)


CALLS = {
    "unique": (lambda x, i: x.unique(), "values decide the sizes of its results"),
    "written": (lambda x, i: x.index_put((i > 0,), x[:1]), "the host counts the places of a mask"),
    "places": (lambda x, i: x.put(i, x[0, :3]), ""),
    "product": (lambda x, i: x @ x.t(), ""),
}


def test_masks_of_other_sizes_are_left_to_aten(check) -> None:
    """It raises, where the sizes turn out to differ."""

    def fn(x, m):
        return x.index_put((m,), torch.tensor(2.0))

    for mask_of, targets in [
        (lambda x: x[..., 0] > 0, []),
        (lambda x: x > 0, []),
        (lambda x: x[:, 0, : x.shape[0]] > 0, ["aten.index_put.default"]),
        (lambda x: x[:, :1, 0] > 0, ["aten.index_put.default"]),
    ]:
        program = check.lower(
            lambda x, mask_of=mask_of: fn(x, mask_of(x)), (torch.randn(3, 4, 5),), dynamic=True
        )
        assert [o.target for o in program.operations if isinstance(o, Extern)] == targets
    square = torch.randn(3, 3, 7), torch.rand(3, 3) > 0.5
    check(fn, *square, externs=())


@pytest.mark.parametrize("name", CALLS)
def test_calls_know_whether_device_graphs_can_capture_them(check, name: str) -> None:
    function, why = CALLS[name]
    program = check.lower(function, (torch.randn(3, 4), torch.tensor([2, 0, 1])), dynamic=True)
    assert {o.uncaptured for o in program.operations if isinstance(o, Extern)} == {why}
