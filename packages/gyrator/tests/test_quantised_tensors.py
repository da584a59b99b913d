"""Tensors that are quantised and turned into floats again: a call of ATen's in a program."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gyrator.config import Config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session


def _method(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor((x + 1) * 9, 0.05, 3, torch.quint8).dequantize() * 2


def _named(x: Tensor) -> Tensor:
    q = torch.quantize_per_tensor(
        input=x.abs(), dtype=torch.qint8, zero_point=-7, scale=0.1 + x.dim()
    )
    return torch.dequantize(q).neg()


def _wide(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 1e-5, 0, torch.qint32).dequantize()


def _halves(x: Tensor) -> Tensor:
    # Halfway between two steps, an odd zero point decides which is even.
    return torch.quantize_per_tensor((x * 8).round() / 4, 0.5, 7, torch.quint8).dequantize() + 1


def _several(x: Tensor) -> Tensor:
    q = torch.quantize_per_tensor(x, 0.05, 3, torch.quint8)
    first, second = q.dequantize(), q.dequantize()
    first.add_(1)
    return first * second


def _changed_between(x: Tensor) -> Tensor:
    y = x * 2
    q = torch.quantize_per_tensor(y, 0.05, 3, torch.quint8)
    y.add_(5)
    first = q.dequantize()
    y.mul_(3)
    return first.sub_(1) * q.dequantize() + y


_LAYOUTS = {
    "plain": lambda: torch.randn(9, 7),
    "turned": lambda: torch.randn(7, 9).t(),
    "channels_last": lambda: torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last),
    "empty": lambda: torch.randn(0, 3),
    "one": lambda: torch.randn(1, 1),
    "scalar": lambda: torch.randn(()),
    "steps": lambda: torch.randn(6, 8)[::2, 1::3],
}


_CASES = [(_method, layout) for layout in _LAYOUTS]
_CASES += [
    (function, "turned") for function in (_named, _wide, _halves, _several, _changed_between)
]


@pytest.mark.parametrize(("function", "layout"), _CASES)
def test_quantised_and_back(
    config: Config, function: Callable[[Tensor], Tensor], layout: str
) -> None:
    records: list[GraphRecord] = []
    with Session(options={"progress": False}, config=config, observer=records.append) as session:
        compiled = torch.compile(function, backend=session.backend, dynamic=False)
        for _ in range(2):
            x = _LAYOUTS[layout]()
            ours, expected = compiled(x), function(x)
            torch.testing.assert_close(ours, expected)
            assert ours.stride() == expected.stride()
    assert [r.fallback for r in records] == [""]
    assert "quantize_dequantize" in str(records[0].externs)


def test_no_gradient_passes(config: Config) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return torch.quantize_per_tensor(y, 0.05, 3, torch.quint8).dequantize() * y

    with Session(options={"progress": False, "strict": True}, config=config) as session:
        compiled = torch.compile(function, backend=session.backend)
        x, w = torch.randn(5, 6), torch.randn(6, 4)
        grads = []
        calls: list[Callable[[Tensor, Tensor], Tensor]] = [function, compiled]
        for call in calls:
            leaf = w.clone().requires_grad_()
            call(x, leaf).sum().backward()
            grads.append(leaf.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_eager_errors(config: Config) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, 0.05, 300, torch.quint8).dequantize()

    with Session(options={"progress": False}, config=config) as session:
        compiled = torch.compile(function, backend=session.backend)
        with pytest.raises(RuntimeError, match="zero_point 300"):
            compiled(torch.randn(3))
        with pytest.raises(RuntimeError, match="Float Tensor"):
            compiled(torch.randn(3, dtype=torch.float64))
