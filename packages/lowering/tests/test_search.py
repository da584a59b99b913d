"""Places of values among sorted ones."""

import pytest
import torch


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str
)
def test_search(check, dtype: torch.dtype, right: bool) -> None:
    def f(values, ordered):
        return (
            torch.bucketize(values, ordered, right=right),
            torch.searchsorted(ordered, values, right=right, out_int32=True),
        )

    for count in (1, 2, 5, 8, 31):
        ordered = torch.randint(0, 40, (count,)).to(dtype).sort().values
        values = torch.randint(0, 44, (3, 14)).to(dtype)
        if dtype.is_floating_point:
            values[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        check(f, values, ordered)
        check(f, values[:, ::2].t(), ordered)
        check(f, values[:0], ordered)
    check(f, values[0, 0], ordered)


def test_search_in_rows(check) -> None:
    ordered, values = torch.randn(3, 4, 7).sort().values, torch.randn(3, 4, 5)
    check(lambda o, v: torch.searchsorted(o, v, side="right"), ordered, values)
    check(
        lambda o, v: torch.searchsorted(o, v, sorter=o.argsort()),
        ordered[0, 0], values, externs=("aten.searchsorted.Tensor",),
    )  # fmt: skip


def test_search_among_any_number_is_atens(check) -> None:
    first, second = (torch.randn(4), torch.arange(5.0)), (torch.randn(6), torch.arange(9.0))
    check(torch.bucketize, *first, other=second, externs=("aten.bucketize.Tensor",))
