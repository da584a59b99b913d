"""Ops with data-dependent sizes."""

import pytest
import torch

from gyrator_ir.loop.nodes import Extern
from gyrator_ir.modes import StoreMode
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.types import DType
from gyrator_lowering import LoweringOptions, lower
from gyrator_lowering.fx_text import parse

A = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_histc(check, dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(60), torch.tensor([-2.0, 2.0, 3.0, torch.inf, torch.nan])])
    for f in (lambda x: torch.histc(x, 7, -2, 2), lambda x: torch.histc(x, 1, 0, 1.5)):
        check(f, x.to(dtype))
        check(f, x[:60].to(dtype).view(5, 12)[:, ::2].t())
        check(f, x[:0].to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_histc_of_the_range_of_the_elements(check, dtype: torch.dtype) -> None:
    x = torch.randn(60).to(dtype)
    for f in (lambda x: torch.histc(x, 7), lambda x: torch.histc(x, 3, 2, 2)):
        check(f, x)
        check(f, x.view(5, 12)[:, ::2].t())
        check(f, x[:1])
        for equal in (-2.5, 1e9, 1e18):  # some farther than 1 from the next number
            check(f, torch.full((4, 3), equal, dtype=dtype))
        check(f, x[0])
    check(lambda x: torch.histc(x, 7), x[:0], externs={"aten.histc.default"})


def test_histc_of_an_infinite_range_raises(check) -> None:
    x = torch.randn(60)
    program = check.lower(lambda x: torch.histc(x, 7), (x,))
    for wrong in (torch.inf, -torch.inf, torch.nan):
        x[7] = wrong
        with pytest.raises(RuntimeError):
            check._run(program, lambda *_: [], (x,), True, None, None)


def test_bincount(check) -> None:
    first, second = torch.randint(0, 9, (20,)), torch.randint(0, 30, (11,))
    weights = torch.randn(20), torch.randn(11)
    none = torch.zeros(0, dtype=torch.int64)
    for least in (0, 14):
        check(lambda x, n=least: torch.bincount(x, minlength=n), first, other=(second,))
        check(lambda x, n=least: torch.bincount(x, minlength=n), first.int(), other=(none.int(),))
        for dtype in (torch.float32, torch.int32):
            check(
                lambda x, w, n=least: torch.bincount(x, w, n),
                first, weights[0].to(dtype), other=(second, weights[1].to(dtype)),
            )  # fmt: skip


def test_repetition(check) -> None:
    times, rows = torch.tensor([2, 0, 3, 1]), torch.randn(4, 5)
    other = torch.tensor([0, 4, 0, 0, 0, 2]), torch.randn(6, 3)

    def f(times, rows):
        return torch.repeat_interleave(times), rows.repeat_interleave(times, dim=0)

    check(f, times, rows, other=other)
    check(f, times.int(), rows[:, ::2], other=(other[0].int(), other[1][:, ::2]))
    check(f, times, rows, other=(torch.zeros(6, dtype=torch.int64), other[1]))
    check(lambda t: torch.repeat_interleave(t, output_size=6), times)


def test_invalid_repetition_raises(check) -> None:
    for wrong in ([2, -1, 5, 0], [2, 1, 1, 1], [2, 3, 1, 1]):
        times = torch.tensor([2, 0, 3, 1])
        program = check.lower(lambda t: torch.repeat_interleave(t, output_size=6), (times,))
        with pytest.raises(RuntimeError):
            check._run(program, lambda *_: [], (torch.tensor(wrong),), True, None, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_nonzero(check, dtype: torch.dtype) -> None:
    def f(x):
        return torch.nonzero(x), torch.where(x)[-1]

    first, second = (torch.randint(0, 2, shape).to(dtype) for shape in ((4, 6), (3, 10)))
    check(f, first, other=(second,))
    check(f, first.t(), other=(second.t(),))
    check(f, first, other=(torch.zeros_like(second),))
    check(f, first[0], other=(second[0],))


def test_boolean_masks(check) -> None:
    first = torch.randn(4, 6, 3), torch.rand(4, 6) > 0.4
    second = torch.randn(2, 5, 7), torch.rand(2, 5) > 0.4
    check(lambda x, m: x[m] * 2, *first, other=second)
    check(lambda x, m: x[m], *first, other=(second[0], torch.zeros_like(second[1])))
    check(lambda x: x[x > 0], first[0].transpose(0, 1), other=(second[0].transpose(0, 1),))
    check(lambda x, m: x[:, m], first[0].permute(2, 0, 1), first[1], other=(
        second[0].permute(2, 0, 1), second[1],
    ))  # fmt: skip


def test_empty_inputs_are_left_to_aten(check) -> None:
    x = torch.zeros(0, 3)
    program = check.lower(lambda x: (x.nonzero(), x[x > 0]), (x,), dynamic=True)
    check._run(program, lambda x: (x.nonzero(), x[x > 0]), (x,), True, None, None)


def test_rows_of_any_length(check) -> None:
    offsets, values = torch.tensor([0, 3, 3, 8]), torch.randn(8, 5)
    other = torch.tensor([0, 1, 5]), torch.randn(5, 2)

    def side_by_side(offsets, values):
        return A._jagged_to_padded_dense_forward(values, [offsets], [6], -1.5)

    check(side_by_side, offsets, values, other=other)
    check(side_by_side, offsets.int(), values.bfloat16()[:, ::2])

    def one_after_another(offsets, dense):
        known = A._padded_dense_to_jagged_forward(dense, [offsets], 8)
        return known, A._padded_dense_to_jagged_forward(dense, [offsets])

    check(one_after_another, offsets, torch.randn(3, 6, 5), other=(offsets, torch.randn(3, 5, 2)))


@pytest.mark.parametrize(("size", "calls"), [(1 << 20, 0), (1 << 24, 1)])
def test_large_device_inputs_are_left_to_aten(size: int, calls: int) -> None:
    gm = parse(f"""fx.graph 1 @main
  in x: f32[{size}] on cuda:0
  k = aten.nonzero.default (x)
  return k
""")
    adds = frozenset({(DType.I64, StoreMode.ADD)})
    capabilities = Capabilities(dtypes=frozenset(DType), atomics=adds)
    target = Target(
        device="cuda", arch="plain", kernel_backend="interpreter", capabilities=capabilities
    )
    program = lower(gm, LoweringOptions(), {"cuda": target})
    assert sum(isinstance(o, Extern) for o in program.operations) == calls
