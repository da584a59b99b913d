"""Binary search for the positions of values in sorted sequences."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_lowering.decompositions import default_decompositions


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


def test_search_with_another_dtype(check) -> None:
    ordered = torch.linspace(-3, 3, 9)
    for values in (torch.randn(4, 5).bfloat16(), torch.randint(-4, 5, (7,)), torch.tensor(0.75)):
        check(torch.bucketize, values, ordered)
        check(torch.bucketize, values, ordered.double())
    check(torch.bucketize, torch.randn(6), torch.tensor([-1, 0, 0, 2]))


@pytest.mark.parametrize(
    ("dtype", "other"), [(torch.float16, torch.float32), (torch.uint8, torch.int64)], ids=str
)
def test_a_value_without_axes_takes_the_dtype_of_the_sequence(check, dtype, other) -> None:
    """Values between 3 and 4 whose nearest narrow float is greater or less; 259 wraps."""
    ordered = torch.tensor([1, 3, 3.1, 3.2, 3.3, 3.4, 5]).to(dtype)
    for value in (3.1, 3.2, 3.3, 3.4, 259.0):
        for right in (False, True):
            check(
                lambda o, v, r=right: (torch.searchsorted(o, v, right=r), torch.bucketize(v, o)),
                ordered, torch.tensor(value).to(other),
            )  # fmt: skip
            check(lambda o, v=value, r=right: torch.searchsorted(o, v, right=r), ordered)


def test_search_in_rows(check) -> None:
    ordered, values = torch.randn(3, 4, 7).sort().values, torch.randn(3, 4, 5)
    check(lambda o, v: torch.searchsorted(o, v, side="right"), ordered, values)
    mixed = ordered[:, :, torch.randperm(7)]
    check(lambda o, s, v: torch.searchsorted(o, v, sorter=s), mixed, mixed.argsort(), values)
    check(
        lambda o, s, v: torch.searchsorted(o, v, sorter=s),
        mixed[0, 0],
        mixed[0, 0].argsort(),
        values,
    )


def test_search_of_a_number(check) -> None:
    for ordered in (torch.randn(7).sort().values, torch.tensor([1, 3, 3, 5])):
        for number in (3, 0.5, -9.0):
            check(lambda o, n=number: torch.searchsorted(o, n, right=True), ordered)
            check(lambda o, n=number: torch.bucketize(n, o), ordered)


@pytest.mark.parametrize("right", [False, True])
def test_search_in_unsorted_sequences(check, right: bool) -> None:
    for count in (3, 8, 17, 100):
        ordered, values = torch.randn(2, count), torch.randn(2, 40)
        ordered[1, count // 2 :] = torch.nan
        values[:, 0] = torch.nan
        check(lambda o, v: torch.searchsorted(o, v, right=right), ordered, values)
        check(lambda o, v: torch.bucketize(v, o[0], right=right), ordered, values)


def test_search_in_symbolic_sizes_is_left_to_aten(check) -> None:
    first, second = (torch.randn(4), torch.arange(5.0)), (torch.randn(6), torch.arange(9.0))
    check(torch.bucketize, *first, other=second, externs=("aten.bucketize.Tensor",))


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(("dtype", "other"), [(torch.float32, None), (torch.int32, torch.float32)])
def test_isin_of_many_values_with_nan(dtype: torch.dtype, other: torch.dtype, invert: bool) -> None:
    def f(x, tests):
        return torch.isin(x, tests, invert=invert)

    decomposed = make_fx(f, default_decompositions())
    for count in (1, 40, 300):
        x = torch.randint(-20, 20, (3, 30)).to(dtype)
        tests = torch.randint(-9, 9, (count,)).to(other or dtype)
        if not other:
            x[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        tests[: count // 2] = torch.nan
        for inputs in (tests, torch.cat([tests, tests.new_tensor([torch.inf])])):
            assert torch.equal(decomposed(x, inputs)(x, inputs), f(x, inputs))


def _isin_of(number):
    return lambda tests: torch.isin(number, tests)


@pytest.mark.parametrize("count", [2, 9, 10, 40])
def test_isin_promotes_as_eager_does(count: int) -> None:
    """Among few numbers one without axes does not widen the others; among many it does."""
    table = default_decompositions()
    for x, dtype in [
        (torch.tensor(0.1, dtype=torch.float64), torch.float32), (torch.tensor(257), torch.uint8),
        (0.1, torch.float32), (0.1, torch.float16), (257, torch.uint8), (1, torch.uint8),
        (0.5, torch.int64), (1, torch.int8), (0.1, torch.float64), (1, torch.float16),
    ]:  # fmt: skip
        tests = torch.full((count,), 0.1 if dtype.is_floating_point else 1).to(dtype)
        if isinstance(x, torch.Tensor):
            decomposed = make_fx(torch.isin, table)(x, tests)(x, tests)
            back = make_fx(torch.isin, table)(tests, x)(tests, x)
            assert torch.equal(back, torch.isin(tests, x))
        else:
            decomposed = make_fx(_isin_of(x), table)(tests)(tests)
        assert torch.equal(decomposed, torch.isin(x, tests)), (x, dtype)


def test_isin_of_an_unsigned_number_without_axes() -> None:
    for tests in (torch.tensor(7, dtype=torch.uint64), torch.tensor(7, dtype=torch.uint16)):
        x = torch.arange(20, dtype=torch.int32)
        decomposed = make_fx(torch.isin, default_decompositions())(x, tests)
        assert torch.equal(decomposed(x, tests), torch.isin(x, tests))
