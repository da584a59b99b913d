"""Bags of embedding rows, and their gradients."""

import pytest
import torch
from torch.nn import functional as F

FORWARD = "aten._embedding_bag.default"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_bags_of_one_length(check, dtype: torch.dtype) -> None:
    table = torch.randn(9, 4).to(dtype)
    strided = torch.randn(4, 18).to(dtype)[:, ::2].t()
    close = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {}
    for mode in ("sum", "mean", "max") if dtype is torch.float64 else ("mean", "max"):

        def f(ids, table, mode=mode):
            return F.embedding_bag(ids, table, mode=mode)

        for ids in (torch.randint(0, 9, (3, 5)), torch.randint(0, 9, (4, 1), dtype=torch.int32)):
            check.gradients(f, ids, table, **close)
            check(f, ids, strided, **close)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_with_padding(check, mode: str) -> None:
    ids = torch.tensor([[1, 0, 2], [1, 1, 1], [3, 1, 1]])
    check.gradients(
        lambda i, t: F.embedding_bag(i, t, mode=mode, padding_idx=1), ids, torch.randn(4, 5)
    )


def test_bags_with_factors(check) -> None:
    ids, table, factors = torch.randint(0, 6, (3, 4)), torch.randn(6, 5), torch.randn(3, 4)

    def f(i, t, w):
        return F.embedding_bag(i, t, mode="sum", per_sample_weights=w, padding_idx=2)

    check.gradients(f, ids, table, factors)
    check.gradients(
        lambda i, o, t, w: F.embedding_bag(i, t, o, mode="sum", per_sample_weights=w),
        ids[0], torch.tensor([0, 3]), table, factors[0], externs=(FORWARD,),
    )  # fmt: skip


def test_bags_of_any_length_have_generated_gradients(check) -> None:
    ids, table = torch.randint(0, 6, (7,)), torch.randn(6, 5)
    for starts, last in (([0, 2, 2, 5], False), ([0, 3, 3, 7], True)):
        offsets = torch.tensor(starts)
        for mode in ("sum", "mean", "max"):
            check.gradients(
                lambda i, o, t, mode=mode, last=last: F.embedding_bag(
                    i, t, o, mode=mode, include_last_offset=last
                ),
                ids, offsets, table, externs=(FORWARD,),
            )  # fmt: skip


def test_symbolic_and_empty_bags(check) -> None:
    def f(i, t):
        return F.embedding_bag(i, t, mode="max"), F.embedding_bag(i, t, mode="mean")

    table = torch.randn(9, 4)
    first, second = torch.randint(0, 9, (3, 5)), torch.randint(0, 9, (6, 2))
    check(f, first, table, other=(second, table))
    check(f, torch.zeros(0, 3, dtype=torch.int64), table)
    check(
        lambda i, t: F.embedding_bag(i, t, torch.arange(0, 7, 3), mode="max"),
        first[0, :].repeat(2)[:7],
        table,
    )


def test_nan_counts_in_the_first_row(check) -> None:
    table = torch.randn(4, 3)
    table[2] = torch.nan
    ids = torch.tensor([[2, 0, 1], [0, 2, 1], [2, 2, 2]])
    check(lambda i, t: F.embedding_bag(i, t, mode="max"), ids, table)


def test_out_of_range_rows_raise(check) -> None:
    args = torch.tensor([[7]]), torch.ones(3, 2)
    program = check.lower(lambda i, t: F.embedding_bag(i, t), args)
    with pytest.raises(RuntimeError):
        check._run(program, lambda *_: [], args, True, None, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_sums_on_the_host_and_their_gradients(check, dtype: torch.dtype) -> None:
    ids, table = torch.randint(0, 6, (7,)), torch.randn(6, 5).to(dtype)
    close = {"rtol": 3e-2, "atol": 3e-2}
    for starts, last in (([0, 2, 2, 5], False), ([0, 3, 3, 7], True)):
        check.gradients(
            lambda i, o, t, last=last: F.embedding_bag(
                i, t, o, mode="sum", include_last_offset=last
            ),
            ids, torch.tensor(starts), table, externs=(FORWARD,), **close,
        )  # fmt: skip
    known = () if dtype is torch.bfloat16 else (FORWARD,)
    rows = torch.randint(0, 6, (3, 5))
    check.gradients(
        lambda i, t: F.embedding_bag(i, t, mode="sum"), rows, table, externs=known, **close
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_last_offset_may_leave_indices_over(check, dtype: torch.dtype) -> None:
    ids, table = torch.randint(0, 6, (7,)), torch.randn(6, 5, dtype=dtype)
    factors = torch.randn(7, dtype=dtype)

    def f(i, o, t, mode="mean"):
        return F.embedding_bag(i, t, o, mode=mode, include_last_offset=True)

    def weighted(i, o, t, w):
        return F.embedding_bag(i, t, o, mode="sum", per_sample_weights=w, include_last_offset=True)

    for ends in ([0, 2, 4], [0, 0, 3], [0, 3, 7]):
        offsets = torch.tensor(ends)
        check.gradients(f, ids, offsets, table, externs=(FORWARD,))
        check.gradients(lambda i, o, t: f(i, o, t, "max"), ids, offsets, table, externs=(FORWARD,))
        if dtype is torch.float64:
            check.gradients(
                lambda i, o, t: f(i, o, t, "sum"), ids, offsets, table, externs=(FORWARD,)
            )
            check.gradients(weighted, ids, offsets, table, factors, externs=(FORWARD,))


def test_sums_on_the_host_omit_indices_after_the_last_offset(check) -> None:
    # Eager's gradients are undefined there: they read behind the memory of the incoming one.
    ids, table, factors = torch.randint(0, 6, (7,)), torch.randn(6, 5), torch.randn(7)
    offsets, grad = torch.tensor([0, 2, 4]), torch.randn(2, 5)
    aten, rest = torch.ops.aten, (torch.zeros(7).long(), torch.ones(2).long(), torch.ones(2).long())

    def of_table(g, i, o, w, *rest):
        return aten._embedding_bag_backward(g, i, o, *rest, 6, False, 0, False, w)

    def of_factors(g, i, o, t, bag_of):
        return aten._embedding_bag_per_sample_weights_backward(g, t, i, o, bag_of, 0)

    got = (
        *check.results(of_table, grad, ids, offsets, factors, *rest),
        *check.results(of_factors, grad, ids, offsets, table, rest[0]),
    )
    table.requires_grad_()
    factors.requires_grad_()
    sums = F.embedding_bag(
        ids[:4],
        table,
        offsets,
        mode="sum",
        per_sample_weights=factors[:4],
        include_last_offset=True,
    )
    for ours, want in zip(got, torch.autograd.grad(sums, (table, factors), grad), strict=True):
        torch.testing.assert_close(ours, want)
