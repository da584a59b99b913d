"""Results that share memory are tensors of their own, as in eager mode."""

from collections.abc import Callable, Sequence

import pytest
import torch

from gyrator.config import Config
from gyrator.session import Session

pytestmark = pytest.mark.usefixtures("lightly_optimised")
Results = Sequence[torch.Tensor]


@pytest.fixture(scope="module", params=["python", "cpp", "fx"])
def session(request: pytest.FixtureRequest, config: Config) -> Session:
    return Session(options={"wrapper": request.param, "strict": True}, config=config)


def compiled(session: Session, function: Callable[..., Results], *args: torch.Tensor) -> Results:
    torch._dynamo.reset()
    return torch.compile(function, backend=session.backend)(*args)


def storage(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def whole(x: torch.Tensor) -> Results:
    base = x + 1
    return base, base.view(-1)


def repeated(x: torch.Tensor) -> Results:
    base = x + 1
    view = base.view(-1)
    return base, view, base, base.view(-1), view


def parts(x: torch.Tensor) -> Results:
    base = (x + 1).sin()
    return base[2:], base[2:], base


def beside_gradients(x: torch.Tensor, w: torch.Tensor) -> Results:
    base = x + 1
    return base, base.view(-1), (w * base).sin()


W = torch.randn(6, requires_grad=True)


@pytest.mark.parametrize("function", [whole, repeated, parts, beside_gradients])
def test_results_are_the_objects_that_eager_returns(
    session: Session, function: Callable[..., Results]
) -> None:
    inputs = (torch.randn(6), W)[: 2 if function is beside_gradients else 1]
    want, got = function(*inputs), compiled(session, function, *inputs)
    torch.testing.assert_close(got, want)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        for j in range(k):
            assert (a is got[j]) == (b is want[j])
            assert (storage(a) == storage(got[j])) == (storage(b) == storage(want[j]))


def test_resizing_one_result_leaves_the_other(session: Session) -> None:
    x = torch.randn(6)
    base, alias = compiled(session, whole, x)
    alias.resize_(2)
    assert base.shape == (6,)
    assert torch.equal(base, x + 1)


def halves(x: torch.Tensor) -> Results:
    base = x * 2
    return base[:3], base[3:], base.detach()


def detached_first(x: torch.Tensor) -> Results:
    base = x.sin().view(2, 3)
    return base.detach(), base.view(-1), base[0], base.t()


def beside_a_written_input(x: torch.Tensor) -> Results:
    x.mul_(2)
    return (x + 0).detach(), x.clone(), x[:3]


@pytest.mark.parametrize("function", [halves, detached_first, beside_a_written_input])
def test_results_are_differentiable_beside_a_detached_one(
    session: Session, function: Callable[..., Results]
) -> None:
    leaf = torch.randn(6, requires_grad=True)

    def gradient(results: Results) -> torch.Tensor:
        losses = [(r**k).sum() for k, r in enumerate(results, 2) if r.requires_grad]
        assert len(losses) == len(results) - 1
        return torch.autograd.grad(sum(losses), leaf)[0]

    want, got = function(leaf * 1), compiled(session, function, leaf * 1)
    torch.testing.assert_close(gradient(got), gradient(want))
