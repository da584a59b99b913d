"""Models from torch.compile to Metal kernels, which run as C++ on this machine."""

import pytest
import torch
from torch.nn import functional as F

from gyrator import explain

OPTIONS = {"strict": True, "cache": False}


@pytest.fixture(autouse=True)
def shim(monkeypatch) -> None:
    monkeypatch.setenv("GYRATOR_TARGETS", "metal-shim")
    torch.manual_seed(0)


def norm(x, w):
    return F.layer_norm(x.float(), (x.shape[1],), w.float()).to(x.dtype)


def attention(x, w):
    scores = torch.softmax((x @ x.T).float(), -1)
    return (scores @ (x * w).float()).to(x.dtype)


def searched(x, w):
    values, at = torch.sort(x, dim=1, descending=True, stable=True)
    return values * w, at, x.argmax(1), x.cumsum(1), x.cummin(1)[1]


def scattered(x, w):
    at = torch.arange(x.numel()).view_as(x) % 7
    return torch.zeros(7).index_add(0, at.flatten(), x.float().flatten()), w[at % w.numel()]


def columns(x, w):
    return x.amax(0), x.float().sum(0), (x > 0).any(0), (x.float() * w.float()).prod(0)


MODELS = [norm, attention, searched, scattered, columns]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_model(model, dtype) -> None:
    x, w = torch.randn(37, 45).to(dtype), torch.randn(45).to(dtype)
    if model is searched:
        x = torch.randperm(37 * 45).view(37, 45).remainder(191).to(dtype)  # with equals

    found = explain(model, x, w, options=OPTIONS)

    assert {k.language for g in found.graphs for k in g.kernels} == {"metal"}
    if model is not attention:  # whose products are the library's
        assert not found.extern_calls
    torch.testing.assert_close(found.result, model(x, w))


def test_rows_of_any_length() -> None:
    """Folds of dynamic extent, at sizes on both sides of a SIMD group and of a group of threads."""

    def model(x):
        return x.sum(1), x.amax(1), torch.softmax(x, 1), x.argmin(1), x.logsumexp(1)

    compiled = torch.compile(model, backend="gyrator", dynamic=True, options=OPTIONS)
    for m, n in ((3, 40), (33, 31), (2, 1), (5, 5000), (0, 6)):
        x = torch.randn(m, n)
        torch.testing.assert_close(compiled(x), model(x))


def test_float64_is_left_to_aten() -> None:
    found = explain(
        lambda x: torch.sin(x) + 1, torch.randn(5, dtype=torch.float64), options=OPTIONS
    )
    assert "do not compute on torch.float64" in str(found.unlowered)


def test_an_index_outside_raises() -> None:
    def model(x, at):
        return x[at] * 2

    compiled = torch.compile(model, backend="gyrator", options=OPTIONS)
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.randn(5), torch.tensor([0, 5]))


def test_gradients() -> None:
    x, w = torch.randn(20, 33, requires_grad=True), torch.randn(33, requires_grad=True)
    torch.compile(norm, backend="gyrator", options=OPTIONS)(x, w).square().sum().backward()
    got = x.grad, w.grad
    x.grad = w.grad = None
    norm(x, w).square().sum().backward()
    torch.testing.assert_close(got, (x.grad, w.grad))
