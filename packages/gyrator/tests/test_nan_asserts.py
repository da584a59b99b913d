"""`nan_asserts` names the op that gives NaN, the user's line and the module."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.graphs.nan import naming_op
from gyrator_runtime.host import check_nan

WRAPPERS = ("python", "cpp", "fx")


def compiled(function: Any, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="gyrator", options={"nan_asserts": True, **options})


def told(run: Callable[[], Any]) -> str:
    """Return what an assertion says that fails."""
    with pytest.raises(AssertionError, match="GY-RUNTIME-003") as error:
        run()
    return str(error.value)


class Logs(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x - 2.0)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_op_within_a_kernel(wrapper: str) -> None:
    model = torch.nn.Sequential(torch.nn.Sigmoid(), torch.nn.ModuleDict({"logs": Logs()})["logs"])

    def step(x: torch.Tensor) -> torch.Tensor:
        y = model(x) * 3.0
        return y.sum(0)

    run = compiled(step, wrapper=wrapper)
    message = told(lambda: run(torch.ones(4, 2)))
    assert "from: %log = aten.log.default, the first op that produces NaN" in message
    assert "in forward: return torch.log(x - 2.0)" in message and "the module 1" in message


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_is_finite_passes(wrapper: str) -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x < 0, float("-inf")).softmax(-1)

    run = compiled(masked, wrapper=wrapper)
    x = torch.randn(5, 7).abs()
    x[:, 3] = -1  # infinite within the kernel, which is as it should be
    torch.testing.assert_close(run(x), masked(x))


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("function", [lambda z: z / (z - z), lambda z: torch.fft.fft(z / 0.0)])
def test_complex_numbers(function: Callable[..., Any], wrapper: str) -> None:
    z = torch.randn(3, dtype=torch.complex64)
    run = compiled(function, wrapper=wrapper)
    assert ", the first op that produces" in told(lambda: run(z))


def test_infinity_is_no_nan() -> None:
    message = told(lambda: compiled(lambda x: 1.0 / x.relu() + 1.0)(torch.zeros(3)))
    assert "0 NaN and 3 infinite" in message
    assert "%reciprocal = aten.reciprocal.default, the first op that produces infinity" in message


def test_the_backward_pass() -> None:
    run = compiled(lambda x: torch.sqrt(x).sum())
    x = torch.zeros(3, requires_grad=True)
    loss = run(x)
    assert "the first op that produces infinity" in told(lambda: loss.backward())


def test_what_the_graph_writes_to_is_as_it_was() -> None:
    def running(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.sub_(1.0)
        return x / count.sqrt()

    run = compiled(running)
    count = torch.tensor(2.0)
    assert run(torch.ones(3), count).tolist() == [1.0] * 3
    count.fill_(0.5)
    assert "%sqrt = aten.sqrt.default, the first op that produces NaN" in told(
        lambda: run(torch.ones(3), count)
    )


def test_a_wrong_kernel_is_told_from_a_wrong_model() -> None:
    gm = make_fx(lambda x: x.log().sqrt())(torch.ones(3))

    def wrong(args: list[Any]) -> None:
        check_nan(args[0] + float("nan"), "k0")

    message = told(lambda: naming_op(wrong, gm)([torch.full((3,), 2.0)]))
    assert "buffer k0 holds 3 NaN" in message
    assert "help: op by op the graph produces no NaN: `gyrator bisect`" in message


def test_a_stored_program_names_it_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRATOR_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        run = compiled(lambda x: torch.log(x).sum())
        assert "%log = aten.log.default" in told(lambda run=run: run(-torch.ones(3)))
