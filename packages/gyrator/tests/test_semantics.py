"""Compiled functions do to their inputs, outputs and gradients what eager mode does.

Every test runs twice: as the compiler calls simple graphs itself, and through AOTAutograd's
wrapper.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gyrator.frontend import aot as frontend
from gyrator.reports.records import GraphRecord
from gyrator.session import Session

Compile = Callable[..., Callable[..., Any]]


@pytest.fixture(params=["direct", "wrapped"])
def compiled(
    request: pytest.FixtureRequest, session: Session, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Compile]:
    if request.param == "wrapped":
        monkeypatch.setattr(frontend, "facts_of", lambda *_: None)
        monkeypatch.setattr(frontend, "traced_bytes", lambda *_: None)

    def compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        result: Callable[..., Any] = torch.compile(function, backend=session.backend, **options)
        return result

    yield compile
    torch._dynamo.reset()


def same(want: Any, got: Any) -> None:
    """Assert equal structure, types, forms and values."""
    if isinstance(want, torch.Tensor):
        assert (want.dtype, want.shape, want.requires_grad) == (
            got.dtype, got.shape, got.requires_grad,
        )  # fmt: skip
        assert want.numel() == 0 or want.stride() == got.stride()
        torch.testing.assert_close(got.detach(), want.detach(), equal_nan=True)
    elif isinstance(want, tuple | list):
        assert type(want) is type(got) and len(want) == len(got)
        for a, b in zip(want, got, strict=True):
            same(a, b)
    elif isinstance(want, dict):
        assert list(want) == list(got)
        for key in want:
            same(want[key], got[key])
    else:
        assert want == got


def leaf(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two equal leaves that require gradients."""
    x = torch.randn(*shape)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def test_mutated_inputs(compiled: Compile) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        x[1:].mul_(2)
        x.t()[0].zero_()
        return x.sum()

    a, b = torch.randn(6, 6), torch.randn(3, 4)
    c = a.clone()
    same(f(a.t()[1:4, 2:], b), compiled(f)(c.t()[1:4, 2:], b))
    same(a, c)


def test_mutation_that_autograd_sees(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sin()

    w, v = leaf(5)
    a, b = w.clone(), v.clone()
    same(f(a), compiled(f)(b))
    same(a, b)
    (f(a) + a).sum().backward()
    (compiled(f)(b) + b).sum().backward()
    same(w.grad, v.grad)
    with pytest.raises(RuntimeError, match="leaf"):
        compiled(f)(v)


@pytest.mark.parametrize("grad", [True, False])
def test_versions_of_mutated_inputs_rise(compiled: Compile, grad: bool) -> None:
    w, a = torch.randn(5, requires_grad=True), torch.randn(5)
    y = w * a
    with torch.set_grad_enabled(grad):
        compiled(lambda x: x.mul_(2) + 1)(a)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        y.sum().backward()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("view", [True, False])  # AOTAutograd makes views of inputs
def test_inference_tensors_are_written_in_inference_mode_only(
    compiled: Compile, view: bool, grad: bool
) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.view(-1) if view else x @ w

    w = torch.randn(5, 5, requires_grad=grad)
    with torch.inference_mode():
        x = torch.randn(5, 5)
    c = compiled(f)
    for _ in range(2):
        for g in (f, c):
            with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
                g(x, w)
        before = x.clone()
        with torch.inference_mode():
            c(x, w)
        assert torch.equal(x, before * 2)
    y = x.clone()
    same(f(y.clone(), w), c(y, w))
    assert torch.equal(y, x * 2)


@pytest.mark.parametrize("which", ["input", "output"])
def test_saved_tensors_that_were_modified_are_noticed(compiled: Compile, which: str) -> None:
    x = torch.randn(5, requires_grad=True) * 1
    y = compiled(lambda x: x.sin().exp())(x)
    with torch.no_grad():
        (x if which == "input" else y).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        y.sum().backward()


def test_batch_norm_updates_its_buffers(compiled: Compile) -> None:
    m = nn.BatchNorm2d(3)
    n = copy.deepcopy(m)
    c = compiled(n)
    for _ in range(2):
        x = torch.randn(4, 3, 5, 5)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, z = m(a), c(b)
        same(y, z)
        y.square().sum().backward()
        z.square().sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    same(dict(m.state_dict()), dict(n.state_dict()))
    same(m.eval()(x), c.eval()(x) if isinstance(c, nn.Module) else compiled(n.eval())(x))


def test_outputs_that_alias(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x.view(-1), x[1:], x.t(), x, x.detach(), y, y.view(-1), y[1:]

    for grad in (False, True):
        x = torch.randn(4, 3, requires_grad=grad)
        want, got = f(x), compiled(f)(x)
        same(want, got)
        assert got[3] is x
        for a, b in zip(want[:5], got[:5], strict=True):
            assert a.data_ptr() == b.data_ptr()
        assert got[5].data_ptr() == got[6].data_ptr()
        with torch.no_grad():
            got[6].add_(1)
        torch.testing.assert_close(got[5].detach(), x.detach() * 2 + 1)


def test_views_mutated_by_the_caller(compiled: Compile) -> None:
    x, y = leaf(4, 3)
    a, b = x * 1, y * 1
    for base, view in ((a, a.view(-1)[2:]), (b, compiled(lambda t: t.view(-1)[2:])(b))):
        view.mul_(3)
        base.sum().backward()
    same(a, b)
    same(x.grad, y.grad)


def test_the_same_tensor_twice(compiled: Compile) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * y
        return z, z, x

    g = compiled(f)
    a = torch.randn(3, requires_grad=True)
    z, again, x = g(a, a)
    assert z is again and x is a
    (z + again).sum().backward()
    same(a.grad, 4 * a.detach())
    b, c = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    g(b, c)[0].sum().backward()
    same(b.grad, c.detach())
    same(c.grad, b.detach())


def test_overlapping_inputs_after_others(compiled: Compile) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    g = compiled(f)
    same(torch.full((4,), 2.0), g(torch.zeros(4), torch.ones(4)))
    for start in (2, 0):
        s = torch.randn(8)
        t = s.clone()
        same(f(s[:4], s[start : start + 4]), g(t[:4], t[start : start + 4]))
        same(s, t)


def test_containers_and_constants(compiled: Compile) -> None:
    table = torch.arange(3.0)

    def f(d: dict[str, Any], items: list[torch.Tensor], n: None = None) -> Any:
        result = torch.tensor([1.0, 2.0, 3.0])
        return {"a": d["x"] + items[0] + table + result, "n": n, "t": (items[1], 3, "s")}, None

    x = torch.randn(3)
    g = compiled(f)
    same(f({"x": x}, [x, x * 2]), g({"x": x}, [x, x * 2]))
    table.add_(7)
    same(f({"x": x}, [x, x * 2]), g({"x": x}, [x, x * 2]))


def test_floats_and_sizes_that_change_compile_no_storm(
    compiled: Compile, records: list[GraphRecord]
) -> None:
    g = compiled(lambda x, s: (x * s + s).sum(-1))
    for k in range(8):
        x = torch.randn(3 + k, 5)
        same((x * (k * 0.37) + k * 0.37).sum(-1), g(x, k * 0.37))
    assert len(records) <= 4


def test_modes_of_grad_and_autocast(compiled: Compile) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    g = compiled(f)
    x, w = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    with torch.no_grad():
        same(f(x, w), g(x, w))
    with torch.inference_mode():
        y = g(x, w)
        assert y.is_inference()
        torch.testing.assert_close(y, f(x, w))
    same(f(x, w), g(x, w))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = g(x, w)
        same(f(x, w), y)
    y.float().sum().backward()
    assert w.grad is not None and w.grad.dtype is torch.float32


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_that_a_function_enables(compiled: Compile, shared: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        with torch.enable_grad():
            z = x * x.exp()
        return y, z, z[1:] if shared else z + 1

    g = compiled(f)
    x = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        actual, expected = g(x), f(x)
    for a, b in zip(actual, expected, strict=True):
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(a, b)
    gradients = [torch.autograd.grad(r[1].sum() + r[2].sum(), x) for r in (actual, expected)]
    torch.testing.assert_close(*gradients)


def test_several_losses_and_retained_graphs(compiled: Compile) -> None:
    m = nn.Linear(4, 4)
    n = copy.deepcopy(m)

    def step(m: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = m(x)
        return y.sum(), y.square().mean(), y.detach().abs().max()

    g = compiled(step)
    for _ in range(2):  # gradients accumulate
        x = torch.randn(3, 4)
        a, b = step(m, x), g(n, x)
        same(a, b)
        for one in (a, b):
            one[0].backward(retain_graph=True)
            one[1].backward()
    for p, q in zip(m.parameters(), n.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    with pytest.raises(RuntimeError, match="second time"):
        b[0].backward()


def test_hooks_and_partial_gradients(compiled: Compile) -> None:
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    seen: list[torch.Tensor] = []
    w.register_hook(lambda g: g * 2)
    y, z, d = compiled(lambda x, w: ((x * w).exp(), w * 3, (x * w).detach()))(x, w)
    assert not d.requires_grad
    y.register_hook(seen.append)
    y.sum().backward()
    torch.testing.assert_close(w.grad, (2 * x * (x * w).exp()).detach())
    assert len(seen) == 1 and z.requires_grad


def test_tied_weights(compiled: Compile) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inward = nn.Embedding(10, 4)
            self.outward = nn.Linear(4, 10, bias=False)
            self.outward.weight = self.inward.weight

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return self.outward(self.inward(i).tanh())  # type: ignore[no-any-return]

    m = Tied()
    n = copy.deepcopy(m)
    i = torch.randint(0, 10, (5,))
    m(i).square().sum().backward()
    compiled(n)(i).square().sum().backward()
    torch.testing.assert_close(m.inward.weight.grad, n.inward.weight.grad)


def test_gradients_of_any_layout(compiled: Compile) -> None:
    g = compiled(lambda x: x * 2)
    for gradient in (
        torch.randn(3, 4).t(),
        torch.randn(()).expand(4, 3),
        torch.randn(4, 6)[:, ::2],
    ):
        x = torch.randn(4, 3, requires_grad=True)
        g(x).backward(gradient)
        torch.testing.assert_close(x.grad, 2 * gradient)


def test_results_of_integers_in_training(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [*x.max(1), x.argmax(), *x.topk(2), x > 0]

    x, y = leaf(3, 4)
    want, got = f(x), compiled(f)(y)
    same(want, got)
    (want[0].sum() + want[3].sum()).backward()
    (got[0].sum() + got[3].sum()).backward()
    same(x.grad, y.grad)


def test_backward_inside_a_compiled_function(compiled: Compile) -> None:
    m = nn.Linear(4, 1)
    n = copy.deepcopy(m)

    def step(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = m(x).square().mean()
        loss.backward()
        return loss.detach()

    x = torch.randn(3, 4)
    same(step(m, x), compiled(step)(n, x))
    for p, q in zip(m.parameters(), n.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_control_flow(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))
        return y.sin() if y.sum() > 0 else y * 3

    g = compiled(f)
    for x in (torch.ones(4), -torch.ones(4)):
        same(f(x), g(x))


def test_deterministic_algorithms(compiled: Compile) -> None:
    """Sums of many terms at few places have eager's bits, whatever the threads do."""
    x, indices = torch.randn(200_000), torch.randint(0, 50, (200_000,))

    def sums(x: torch.Tensor, indices: torch.Tensor) -> Any:
        zeros = x.new_zeros(50)
        put = zeros.index_put((indices,), x * 2, accumulate=True)
        return put, zeros.scatter_add(0, indices, x), zeros.index_put((indices,), x)

    f = compiled(sums)
    f(x, indices)
    torch.use_deterministic_algorithms(True)
    try:
        want = sums(x, indices)
        for _ in range(3):
            got = f(x, indices)
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_random_numbers(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), torch.randn_like(x), x.bernoulli(0.3), torch.randint(9, x.shape)

    g = compiled(f)
    x = torch.zeros(4000)
    torch.manual_seed(5)
    first, second = g(x), g(x)
    torch.manual_seed(5)
    same(first, g(x))
    for a, b in zip(first, second, strict=True):
        assert not torch.equal(a, b)
    uniform, normal, coin, dice = first
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.03
    assert abs(normal.mean()) < 0.08 and abs(normal.std() - 1) < 0.06
    assert abs(coin.mean() - 0.3) < 0.04 and set(dice.unique().tolist()) == set(range(9))


def test_dropout_draws_one_mask_for_both_passes(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.exp().log(), 0.4) * 2

    x = torch.ones(20000, requires_grad=True)
    y = compiled(f)(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(y.detach(), x.grad)
    assert abs((y == 0).float().mean() - 0.4) < 0.02


def test_eager_random_numbers_on_demand(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x) + F.dropout(x, 0.3), torch.randn(4)

    x = torch.randn(50)
    torch.manual_seed(3)
    want = f(x)
    torch.manual_seed(3)
    same(want, compiled(f, options={"fallback_random": True})(x))


def test_optimisers(compiled: Compile) -> None:
    for make in (
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    ):
        m = nn.Linear(4, 3)
        n = copy.deepcopy(m)
        a, b = make(m.parameters()), make(n.parameters())
        steps = (a.step, compiled(b.step))
        for _ in range(3):
            x = torch.randn(5, 4)
            for model, optimiser, step in zip((m, n), (a, b), steps, strict=True):
                optimiser.zero_grad()
                model(x).square().sum().backward()
                step()
        for p, q in zip(m.parameters(), n.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_a_cache_of_keys_and_values(compiled: Compile, records: list[GraphRecord]) -> None:
    def f(cache: torch.Tensor, k: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, place, k)
        return cache.sum(1)

    g = compiled(f)
    a = torch.zeros(2, 8, 3)
    b = a.clone()
    for p in range(4):
        k = torch.randn(2, 1, 3)
        same(f(a, k, torch.tensor([p])), g(b, k, torch.tensor([p])))
        same(a, b)
    assert len(records) == 1


def test_every_size_with_one_program(compiled: Compile, records: list[GraphRecord]) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.softmax(-1) @ y).relu().sum(0), x.mean(1), x[::2].flatten(), F.gelu(x) @ y

    g = compiled(f, dynamic=True)
    for a, b, c in ((3, 5, 7), (4, 9, 6), (8, 33, 17), (6, 2, 3)):
        x, (y, z) = torch.randn(a, b), leaf(b, c)
        want, got = f(x, y), g(x, z)
        same(want, got)
        (want[0].sum() + want[3].square().sum()).backward()
        (got[0].sum() + got[3].square().sum()).backward()
        torch.testing.assert_close(y.grad, z.grad, rtol=1e-4, atol=1e-4)
    assert len(records) == 2


def test_equal_sizes_on_both_sides_of_a_break(
    compiled: Compile, records: list[GraphRecord]
) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x.sin()
        torch._dynamo.graph_break()
        return z.cos(), y.exp()

    g = compiled(f, dynamic=True)
    for a, b in ((4, 4), (6, 6), (7, 3)):
        x, y = torch.randn(a), torch.randn(b)
        same(f(x, y), g(x, y))
    assert len(records) == 2


def test_empty_and_single_axes(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0), x * 2, torch.cat([x, x]), x.softmax(-1), x.cumsum(0), x.t().clone()

    for shape in ((4, 3), (0, 3), (1, 3), (5, 0)):
        x = torch.randn(shape)
        same(f(x), compiled(f, dynamic=False)(x))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float16])
def test_softmax_of_no_elements_has_any_dtype(compiled: Compile, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(0), x.log_softmax(-1), F.softmin(x, 1) + 1

    for shape in ((0, 3), (3, 0)):
        x = torch.ones(shape, dtype=dtype)
        same(f(x), compiled(f, dynamic=False)(x))
    x = torch.ones(2, 3, dtype=dtype)
    if not dtype.is_floating_point:
        for g in (f, compiled(f, dynamic=False)):
            with pytest.raises(NotImplementedError, match="not implemented for"):
                g(x)


def test_bad_indices_raise(compiled: Compile) -> None:
    x = torch.randn(3, 4)
    with pytest.raises(IndexError):
        compiled(lambda x, i: x[i])(x, torch.tensor([5]))
    with pytest.raises(IndexError):
        compiled(lambda w, i: F.embedding(i, w))(x, torch.tensor([-4]))
    with pytest.raises(IndexError):
        compiled(lambda x, t: F.cross_entropy(x, t))(x, torch.tensor([0, 1, 4]))
    i = torch.tensor([[7]])
    for f in (lambda x, i: x.gather(1, i), lambda x, i: x.index_select(1, i[0])):
        with pytest.raises(RuntimeError):
            compiled(f)(x, i)


def test_building_blocks_of_other_models(compiled: Compile) -> None:
    """Messages along edges, bags, spectra, and derivatives inside, in one graph."""
    edges, bags = torch.randint(0, 5, (2, 12)), torch.randint(0, 5, (2, 3))

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        source, goal = edges
        messages = torch.zeros(5, 6).index_add(0, goal, x[source])
        spectrum = torch.fft.irfft(torch.fft.rfft(x) * 2, n=6)
        slopes = torch.func.vmap(torch.func.grad(lambda row: row.sin().square().sum()))(x)
        return messages, F.embedding_bag(bags, x), spectrum, slopes, torch.linalg.inv(x[:, :5])

    x = torch.randn(5, 6)
    same(f(x), compiled(f)(x))


def test_values_used_twice_compile_in_linear_time(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = (x * x - x).sin()
        return x

    x = torch.rand(7)
    same(f(x), compiled(f)(x))
