"""Steps of optimisers against eager mode: lists of tensors, few launches."""

import copy
from typing import Any

import pytest
import torch

from gyrator.reports.records import GraphRecord
from gyrator.session import Session

SHAPES = ((), (3,), (0, 4), (16, 8), (16, 8), (5, 1, 7), (300, 40))

OPTIMISERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}),
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
}


def parameters() -> list[torch.nn.Parameter]:
    result = [torch.nn.Parameter(torch.randn(s)) for s in SHAPES]
    result.append(torch.nn.Parameter(torch.randn(6, 9).t()))
    for p in result:
        p.grad = torch.randn_like(p)
    return result


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps(session: Session, records: list[GraphRecord], name: str, foreach: bool) -> None:
    cls, more = OPTIMISERS[name]
    actual = parameters()
    expected = copy.deepcopy(actual)
    for p, q in zip(actual, expected, strict=True):
        assert p.grad is not None
        q.grad = p.grad.clone()
    compiled, plain = (cls(inputs, foreach=foreach, **more) for inputs in (actual, expected))
    step = torch.compile(compiled.step, backend=session.backend)
    for _ in range(3):
        step()
        plain.step()
    for p, q in zip(actual, expected, strict=True):
        torch.testing.assert_close(p, q)
        assert p.stride() == q.stride()
    assert records
    assert not records[-1].externs
    assert records[-1].launches <= 3
