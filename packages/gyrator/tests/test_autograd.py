"""What autograd sees of compiled graphs: gradients of any order, or none, as in eager mode."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gyrator.config import Config
from gyrator.frontend.double_backward import DoubleBackwardError
from gyrator.session import Session

Compile = Callable[..., Callable[..., Any]]


@pytest.fixture(params=[False, True], ids=["static", "dynamic"])
def compiled(request: pytest.FixtureRequest, session: Session) -> Compile:
    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        result: Callable[..., Any] = torch.compile(
            function, backend=session.backend, dynamic=request.param
        )
        return result

    return compile


def leaves(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


def assert_like_eager(
    run: Callable[[Callable[..., Any]], Any], function: Callable[..., Any], compiled: Compile
) -> None:
    """Assert that `run` gives the same with a function and with the compiled one."""
    torch.testing.assert_close(run(compiled(function)), run(function))


def test_gradients_of_gradients(compiled: Compile) -> None:
    start = torch.randn(4, 3), torch.randn(3, 2)

    def penalty(f: Callable[..., Any]) -> list[Any]:
        x, w = leaves(*start)
        out = f(x, w)
        (g,) = torch.autograd.grad(out, x, create_graph=True)
        (out + 10 * g.square().sum()).backward()
        return [g.detach(), x.grad, w.grad]

    def third(f: Callable[..., Any]) -> Any:
        x, w = leaves(*start)
        actual = f(x, w)
        for _ in range(3):
            (actual,) = torch.autograd.grad(actual.sum(), x, create_graph=True)
        return actual.detach()

    def hessian(f: Callable[..., Any]) -> Any:
        return torch.autograd.functional.hessian(lambda x: f(x, start[1]), start[0])

    for run in (penalty, third, hessian):
        assert_like_eager(run, lambda x, w: (x @ w).tanh().sum(), compiled)


def _views_of_inputs(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.t(), w[1], (x * w.exp()).sin()


def _views_of_one_another(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h, k = (x * w).sin(), w.exp()
    return k[1:].t(), h.view(-1), h.t(), x, k.view(-1), x.t() @ k


def _a_view_and_its_base(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = (x * w).sin()
    return h, h[0], w.exp()


@pytest.mark.parametrize("f", [_views_of_inputs, _views_of_one_another, _a_view_and_its_base])
@pytest.mark.parametrize("used", [(0,), (1, 2), (0, 1, 2)])
def test_gradients_of_gradients_of_views(
    compiled: Compile, f: Callable[..., Any], used: tuple[int, ...]
) -> None:
    start = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)

    def run(f: Callable[..., Any]) -> Any:
        inputs = leaves(*start)
        results = f(*inputs)
        loss = sum(results[k].pow(2 + k).sum() for k in used)
        first = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
        penalty = sum(g.cos().sum() for g in first if g is not None)
        second = torch.autograd.grad(penalty, inputs, allow_unused=True)
        return [None if g is None else g.detach() for g in (*first, *second)]

    torch.testing.assert_close(run(compiled(f)), run(f))


def test_gradients_of_gradients_whose_inputs_nobody_else_holds(compiled: Compile) -> None:
    start = torch.randn(4, 3), torch.randn(3, 2)

    def run(f: Callable[..., Any]) -> Any:
        x, w = leaves(*start)
        y = f(x * 2, w.exp())
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (g.square().sum() + y.sum()).backward()
        return [g.detach(), x.grad, w.grad]

    assert_like_eager(run, lambda x, w: (x @ w).tanh(), compiled)


def test_an_input_that_depends_on_another(compiled: Compile) -> None:
    start = torch.randn(4, 3)

    def run(f: Callable[..., Any]) -> Any:
        (x,) = leaves(start)
        y, z = f(x, x.sin())
        (g,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        g.square().sum().backward()
        return [g.detach(), x.grad, z.detach()]

    assert_like_eager(run, lambda x, h: (x * h.exp() * x, h * 2), compiled)


def test_gradients_of_gradients_under_autocast(compiled: Compile) -> None:
    start = torch.randn(4, 3), torch.randn(3, 2)

    def run(f: Callable[..., Any]) -> Any:
        x, w = leaves(*start)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = f(x, w)
        (g,) = torch.autograd.grad(out.float().sum(), x, create_graph=True)
        g.square().sum().backward()
        return [out.detach(), w.grad]

    assert_like_eager(run, lambda x, w: (x @ w).sin(), compiled)


def test_gradients_of_gradients_of_stored_programs(session: Session, config: Config) -> None:
    x = torch.randn(5, requires_grad=True)

    def second(session: Session) -> torch.Tensor:
        torch._dynamo.reset()
        y = torch.compile(lambda x: x.sin().square().sum(), backend=session.backend)(x)
        (g,) = torch.autograd.grad(y, x, retain_graph=True)
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(g.sum(), x)[0]

    want = 2 * (2 * x).cos().detach()
    torch.testing.assert_close(second(session), want)
    with Session(options=session.options, config=config) as other:
        torch.testing.assert_close(second(other), want)


def test_gradients_of_gradients_that_cannot_be_had(compiled: Compile) -> None:
    def first(y: torch.Tensor, x: torch.Tensor, line: str = "") -> None:
        with pytest.raises(DoubleBackwardError, match=f"(?s)GY-COMPILE-010.*{line}"):
            torch.autograd.grad(y.sum(), x, create_graph=True)

    x = torch.randn(5, requires_grad=True)
    first(compiled(lambda x: F.dropout(x.sin()))(x), x)

    def count(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        n.add_(1)
        return x.sin()

    first(compiled(count)(x, torch.zeros(())), x, r"test_autograd.py:\d+ in count: return x.sin")
    first(compiled(lambda x, c: (x + c).sin())(x, torch.randn(5)), x)  # the constant is gone
    scale = torch.randn(5)
    y = compiled(lambda x, c: (x + c).sin())(x, scale)
    scale.mul_(2)
    first(y, x)


class Cubed(torch.autograd.Function):
    """Cubes, by a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.pow(3)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x.square()


@pytest.mark.parametrize("again", [False, True], ids=["once", "recomputed"])
def test_custom_gradients_are_differentiated_once(compiled: Compile, again: bool) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        cubed = checkpoint(Cubed.apply, x, use_reentrant=False) if again else Cubed.apply(x)
        return cubed * y.sin()

    x, y = leaves(torch.randn(5), torch.randn(5))
    (g,) = torch.autograd.grad(compiled(f)(x, y).sum(), x, create_graph=True)
    torch.testing.assert_close(g, 3 * x.square() * y.sin())
    with pytest.raises(DoubleBackwardError, match=r"GY-COMPILE-010.*`torch\.autograd\.Function"):
        torch.autograd.grad(g.sum(), x)


def test_gradients_of_gradients_of_what_checks_matrices(compiled: Compile) -> None:
    start = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)

    def second(f: Callable[..., Any]) -> Any:
        x, w = leaves(*start)
        (g,) = torch.autograd.grad(f(x, w).sum(), w, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (x, w))

    def solve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(w @ w.mT + torch.eye(3, dtype=torch.float64), x)

    assert_like_eager(second, solve, compiled)


def test_inputs_live_no_longer_than_in_eager_mode(compiled: Compile) -> None:
    x = torch.randn(64, requires_grad=True) * 2
    seen = weakref.ref(x)
    y = compiled(lambda x: x + 1)(x)
    del x
    gc.collect()
    assert seen() is None and y.requires_grad


def test_graphs_are_retained(compiled: Compile) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    y = compiled(lambda x: x.sin().exp().tanh().sum())(x)
    y.backward(retain_graph=True)
    once = x.grad.clone()  # type: ignore[union-attr]
    y.backward()
    torch.testing.assert_close(x.grad, 2 * once)


class Recorded(torch.autograd.Function):
    """An identity that tells when its backward pass runs."""

    runs: list[Any] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        Recorded.runs.append(g)
        return g


def test_inputs_without_gradient_have_none(compiled: Compile) -> None:
    def f(h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (h * 2).detach().sum() * 0 + y.sin() + h.detach()

    Recorded.runs.clear()
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    compiled(f)(Recorded.apply(x), y).sum().backward()
    assert x.grad is None and y.grad is not None and not Recorded.runs
    # The derivative of `unique` does not exist, and nothing asks for it.
    (compiled(lambda u, x: (u.detach() * 2, x.cos()))(x.unique(), x)[1]).sum().backward()


def _separate(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * z, y.cos(), (x * y).sum(), y.to(torch.float64)


def _sharing(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product, cosine = x * z, y.cos()
    return product[1:], cosine, product[None], z.view(3, 1), cosine[None]


def _drawing(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * z + torch.rand(3) * 0, y.cos(), x[1:], (y * 2)[None]


@pytest.mark.parametrize("f", [_separate, _sharing, _drawing])
def test_results_without_gradient_give_none(compiled: Compile, f: Callable[..., Any]) -> None:
    g = compiled(f)
    start = torch.randn(3), torch.randn(3), torch.randn(3)
    for used in ([0], [1], [2], [3], [-1], [0, 1], [1, 2], [0, 1, 2, 3]):
        a, b = leaves(*start), leaves(*start)
        for call, inputs in ((f, a), (g, b)):
            results = call(*inputs)
            sum(results[k].double().square().sum() for k in used).backward()
        for want, got in zip(a, b, strict=True):
            assert (want.grad is None) == (got.grad is None)
            torch.testing.assert_close(want.grad, got.grad)


def test_a_graph_that_no_gradient_reaches(compiled: Compile) -> None:
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> None:
            return None

    x = torch.randn(3, requires_grad=True)
    Cut.apply(compiled(lambda x: x.sin())(x)).sum().backward()
    assert x.grad is None


def test_gradients_that_are_not_plain_memory(compiled: Compile) -> None:
    f = compiled(lambda x: x * (1 + 2j))
    g = compiled(lambda x: x * 3)
    plain = torch.randn(4, 3, dtype=torch.complex64)
    for gradient in (plain.conj(), plain.t().contiguous().t().conj()):
        x = torch.randn(4, 3, dtype=torch.complex64, requires_grad=True)
        f(x).backward(gradient)
        torch.testing.assert_close(x.grad, gradient.resolve_conj() * (1 - 2j))
    real = torch.randn(4, 3)
    for gradient in (torch._neg_view(real), torch._efficientzerotensor(4, 3)):
        y = torch.randn(4, 3, requires_grad=True)
        g(y).backward(gradient)
        torch.testing.assert_close(y.grad, gradient.resolve_neg().clone() * 3)


def test_sparse_gradients(session: Session) -> None:
    f = torch.compile(lambda x: x.sin() * 2, backend=session.backend, dynamic=False)
    w, i = torch.randn(5, 2, requires_grad=True), torch.tensor([1, 3, 1])
    F.embedding(i, f(w), sparse=True).sum().backward()
    counts = torch.tensor([0.0, 2, 0, 1, 0])[:, None]
    torch.testing.assert_close(w.grad, counts * 2 * w.cos().detach())


def test_gradients_in_batches(compiled: Compile) -> None:
    f = compiled(lambda x: x.sin() * 2)
    x = torch.randn(3, requires_grad=True)
    (rows,) = torch.autograd.grad(f(x), x, torch.eye(3), is_grads_batched=True, create_graph=True)
    torch.testing.assert_close(rows, torch.diag(2 * x.cos().detach()))
    (second,) = torch.autograd.grad(rows.sum(), x)
    torch.testing.assert_close(second, -2 * x.detach().sin())


def test_gradients_in_batches_of_some_results(compiled: Compile) -> None:
    f = compiled(lambda x: ((x**3).t()[0].unsqueeze(0), x * 2))
    x = torch.randn(4, 3, requires_grad=True)
    tangents = torch.eye(4)[:, None], torch.zeros(4, 4, 3)
    (rows,) = torch.autograd.grad(f(x), x, tangents, is_grads_batched=True)
    expected = torch.zeros(4, 4, 3)
    expected[range(4), range(4), 0] = 3 * x.detach()[:, 0] ** 2
    torch.testing.assert_close(rows, expected)


def test_results_that_are_views_of_another_graph(compiled: Compile) -> None:
    first = compiled(lambda x: x.sin() * x)
    second = compiled(lambda y, w: (y.view(-1), w * 2))

    def run(f: Callable[..., Any], g: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x, w = leaves(torch.randn(4, 3), torch.randn(3))
        out, _ = g(f(x), w)
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        grad.square().sum().backward()
        return grad, x.grad

    eager = run(lambda x: x.sin() * x, lambda y, w: (y.view(-1), w * 2))
    torch.testing.assert_close(run(first, second), eager)


def test_writes_inside_transforms(compiled: Compile) -> None:
    x = torch.randn(5, 3)

    def written(a: torch.Tensor) -> torch.Tensor:
        return a.clone().add_(1).mul_(a).masked_fill_(a > 0, 0)

    for function in (
        lambda x: torch.func.vmap(written)(x),
        lambda x: torch.func.grad(lambda a: written(a).sum())(x),
        lambda x: torch.func.jvp(written, (x,), (x,)),
    ):
        assert_like_eager(lambda f: f(x), function, compiled)


@pytest.mark.parametrize("grad", [False, True])
def test_forward_mode(compiled: Compile, grad: bool) -> None:
    f = compiled(lambda x: x.sin())
    x, t = torch.randn(4, requires_grad=grad), torch.randn(4)
    f(x)
    with forward_ad.dual_level():
        actual = forward_ad.unpack_dual(f(forward_ad.make_dual(x, t)))
        assert forward_ad.unpack_dual(f(x)).tangent is None
    torch.testing.assert_close(actual.primal, x.sin())
    torch.testing.assert_close(actual.tangent, x.cos() * t)


def test_transforms_of_functions(compiled: Compile) -> None:
    x = torch.randn(4, 3)
    for run in (
        lambda f: torch.func.grad(f)(x),
        lambda f: torch.func.hessian(f)(x),
        lambda f: torch.func.vmap(f)(x),
        lambda f: torch.func.jvp(f, (x,), (torch.ones(4, 3),)),
        lambda f: torch.autograd.functional.jvp(f, x, torch.ones(4, 3)),
    ):
        assert_like_eager(run, lambda x: (x.sin() * x).sum(), compiled)


@pytest.mark.parametrize("before", [False, True])
def test_compiled_autograd(compiled: Compile, session: Session, before: bool) -> None:
    m = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    n = copy.deepcopy(m)
    c, x = compiled(n), torch.randn(5, 8)
    m(x).sum().backward()
    if before:  # compiled for the autograd engine, whose nodes fullgraph does not take
        c(x)
    compile = torch.compile(backend=session.backend, fullgraph=not before)
    with torch._dynamo.compiled_autograd._enable(compile):
        c(x).sum().backward()
    for p, q in zip(m.parameters(), n.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_negated_gradients_of_strided_results(compiled: Compile) -> None:
    def run(f: Callable[..., Any]) -> Any:
        x = torch.randn(2, 3, 4, dtype=torch.complex64, generator=torch.manual_seed(0))
        x.requires_grad_()
        result = f(x)
        return torch.autograd.grad(result, x, torch.arange(12.0).view(2, 3, 2))

    assert_like_eager(run, lambda x: torch._neg_view(x.real).chunk(2, 2)[-1], compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_tangents_that_are_zero_have_memory(session: Session, dtype: torch.dtype) -> None:
    w, x = torch.randn(4, dtype=dtype), torch.randn(5, 4, dtype=dtype)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return ((torch.tanh(x @ w) - x[:, 0]) ** 2).sum()

    def f(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        tangent = torch.func.jvp(lambda w: loss(w, x), (w,), (torch.ones_like(w),))
        vector = torch.func.jvp(lambda w: x[0].dot(w).tanh(), (w,), (torch.ones_like(w),))
        second = () if dtype.is_complex else (torch.func.hessian(lambda w: loss(w, x))(w),)
        return [*tangent, *vector, *second]

    got = torch.compile(f, backend=session.backend, fullgraph=True)(w, x)
    torch.testing.assert_close(got, f(w, x))


def test_graphs_under_no_grad_are_not_recorded(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            slopes = F.rrelu(x, training=True)
            return slopes, F.mse_loss(slopes, x), torch.polygamma(1, x), torch.fft.fft(x)

    run = compiled(f)
    for _ in range(2):
        results = run(torch.rand(6, requires_grad=True))
        assert not any(r.requires_grad for r in results)
        assert torch.is_grad_enabled()
    with torch.no_grad():
        run(torch.rand(6, requires_grad=True))
        assert not torch.is_grad_enabled()
