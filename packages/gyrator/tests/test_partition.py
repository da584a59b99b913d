"""What training saves beside the results of the function, which live anyway."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gyrator.engine import pipeline
from gyrator.session import Session
from gyrator_ir.loop.nodes import LoopProgram, TensorInput
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import schedule

CLASSES = 1 << 12


def _loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    logits = x @ w.T
    return F.cross_entropy(logits.flatten(0, 1), target.flatten()), logits


def _hidden(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = F.gelu(x @ w.T, approximate="tanh").transpose(0, 1)
    return (hidden.sigmoid() * 2).sin().sum(-1), hidden


def _twice(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x @ w.T
    return rows.exp().flatten(), rows, rows.flatten(0, 1), rows


def _inputs(n: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, w = torch.randn(n, 5, 24), torch.randn(CLASSES, 24) / 5
    target = torch.randint(0, CLASSES, (n, 5))
    return x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_(), target


def _run(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], trained: int = 2
) -> tuple[list[torch.Tensor], list[int]]:
    """Return results and gradients of the first `trained` inputs, and the elements of each saved
    tensor that shares its storage with no input and no result."""
    saved: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        saved[x.untyped_storage().data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        results = function(*inputs)
    total = torch.stack([r.double().square().mean() for r in results]).sum()
    gradients = torch.autograd.grad(total, inputs[:trained])
    live = {x.untyped_storage().data_ptr() for x in (*inputs, *results)}
    values = [*(r.detach() for r in results), *gradients]
    return values, [n for p, n in saved.items() if p not in live]


def _exact(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(
        x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs
    )


def assert_as_exact(
    results: list[torch.Tensor], eager: list[torch.Tensor], exact: list[torch.Tensor]
) -> None:
    """Check the dtypes and strides of results, and that they are about as near to the exact ones as
    eager's."""
    for result, by_eager, true in zip(results, eager, exact, strict=True):
        assert result.dtype is by_eager.dtype and result.stride() == by_eager.stride()
        bound = (by_eager.double() - true).abs().max()
        slack = 4 * torch.finfo(result.dtype).eps * true.abs().max()
        assert (result.double() - true).abs().max() <= 2 * bound + slack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_loss, _hidden, _twice])
def test_results_are_saved_rather_than_tensors_of_their_size(
    session: Session, function: Callable[..., Any], dynamic: bool, dtype: torch.dtype
) -> None:
    compiled = torch.compile(function, backend=session.backend, dynamic=dynamic)
    for n in (4, 6) if dynamic else (4,):
        inputs = _inputs(n, dtype)
        wanted, (got, saved) = _run(function, inputs)[0], _run(compiled, inputs)
        assert_as_exact(got, wanted, _run(function, _exact(inputs))[0])
        if function is _loss:
            assert max(saved) < n * 5 * CLASSES
        elif function is _twice:
            assert not saved


def test_writing_to_a_saved_result_is_an_error(session: Session) -> None:
    inputs = _inputs(4, torch.float32)
    loss, logits = torch.compile(_loss, backend=session.backend)(*inputs)
    with torch.no_grad():
        logits.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_with_gradients_are_saved_rather_than_tensors_of_their_size(
    session: Session, dynamic: bool, dtype: torch.dtype
) -> None:
    def function(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor]:
        return (F.cross_entropy(logits.flatten(0, 1), target.flatten()),)

    compiled = torch.compile(function, backend=session.backend, dynamic=dynamic)
    for n in (4, 6) if dynamic else (4,):
        logits = torch.randn(n, 5, CLASSES, dtype=dtype).requires_grad_()
        target = torch.randint(0, CLASSES, (n, 5))
        inputs = (logits, target)
        results, saved = _run(compiled, inputs, 1)
        expected = _run(function, inputs, 1)[0]
        assert_as_exact(results, expected, _run(function, _exact(inputs), 1)[0])
        assert max(saved, default=0) < logits.numel()


def test_inputs_without_gradients_may_be_written_before_the_backward_pass(
    session: Session,
) -> None:
    def function(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (x + c).sin()

    x, c = torch.randn(64, requires_grad=True), torch.randn(64)
    expected = torch.autograd.grad(function(x, c).sum(), x)
    result = torch.compile(function, backend=session.backend)(x, c)
    c.zero_()
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x), expected)


def test_a_function_may_write_to_an_input_that_has_a_gradient(session: Session) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sigmoid().sum(1)
        x[0].mul_(3)
        return y

    def run(function: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        x = leaf * 1.5
        result = function(x)
        return [result, x, *torch.autograd.grad(result.square().sum() + x.sin().sum(), leaf)]

    leaf = torch.randn(4, 7, requires_grad=True)
    compiled = torch.compile(function, backend=session.backend)
    torch.testing.assert_close(run(compiled), run(function))


@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_are_saved_rather_than_views_of_them(session: Session, dynamic: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().square()

    x, w = torch.randn(6, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    result = torch.compile(function, backend=session.backend, dynamic=dynamic)(x, w)
    node: Any = result.grad_fn
    others = [t for t in node.saved_tensors if t is not x and t is not w]
    storages = {t.untyped_storage().data_ptr() for t in (x, w)}
    assert storages.isdisjoint(t.untyped_storage().data_ptr() for t in others)
    actual = torch.autograd.grad(result.square().sum(), (x, w))
    expected = torch.autograd.grad(function(x, w).square().sum(), (x, w))
    torch.testing.assert_close(actual, expected)


def test_a_view_of_an_input_may_be_saved_and_returned(session: Session) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        view = x[::3]
        return view, view / (w.abs() + 1)

    x, w = torch.randn(16, requires_grad=True), torch.randn((), requires_grad=True)
    views, quotients = torch.compile(function, backend=session.backend)(x, w)
    actual = torch.autograd.grad((views.sin() + quotients.square()).sum(), (x, w))
    views, quotients = function(x, w)
    expected = torch.autograd.grad((views.sin() + quotients.square()).sum(), (x, w))
    torch.testing.assert_close(actual, expected)


def _nearest(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x.sin(), scale_factor=1.7, mode="nearest")


def _rows(x: torch.Tensor) -> torch.Tensor:
    positions = (torch.arange(x.shape[2]) * 3 + 1).remainder(x.shape[2])
    return x.exp()[:, :, positions // 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_nearest, _rows])
def test_positions_are_computed_again_rather_than_saved(
    session: Session, function: Callable[..., Any], dynamic: bool, dtype: torch.dtype
) -> None:
    compiled = torch.compile(function, backend=session.backend, dynamic=dynamic)
    for shape in ((2, 3, 8, 10), (1, 2, 5, 1), (3, 1, 1, 7)) if dynamic else ((2, 3, 8, 10),):
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        result = compiled(x)
        node: Any = result.grad_fn
        assert all(s.dtype is dtype for s in node.saved_tensors)
        weights = torch.randn_like(result)
        actual, expected = (
            torch.autograd.grad((r * weights).sum(), x)[0] for r in (result, function(x))
        )
        torch.testing.assert_close(result, function(x))
        torch.testing.assert_close(actual, expected)


def test_positions_that_are_also_returned_or_depend_on_tensors_are_saved(session: Session) -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        returned = torch.arange(6).flip(0)
        own = (torch.arange(6) + n).remainder(6)
        return x.exp()[returned] * x.sin()[own], returned

    x, n = torch.randn(6, requires_grad=True), torch.tensor(2)
    result, returned = torch.compile(function, backend=session.backend)(x, n)
    wanted = torch.autograd.grad(function(x, n)[0].sum(), x)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x), wanted)
    assert returned.equal(torch.arange(6).flip(0))


def test_a_backward_pass_is_planned_with_what_only_it_reads(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved activations are free after their last read. Weights, images and results are not."""
    counted: list[tuple[tuple[str, ...], list[str]]] = []

    def planned(program: LoopProgram, options: SchedulerOptions, *rest: Any) -> Any:
        tensors = [i.buffer.name for i in program.inputs if isinstance(i, TensorInput)]
        counted.append((options.released, tensors))
        return schedule(program, options, *rest)

    monkeypatch.setattr(pipeline, "schedule", planned)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).exp().square().sum()

    def rectified(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    x, w = torch.randn(8, 6), torch.randn(6, 5, requires_grad=True)
    for function, saved in ((loss, 1), (rectified, 0)):
        counted.clear()
        torch.compile(function, backend=session.backend)(x, w).sum().backward()
        (before, _), (released, tensors) = counted
        assert not before
        read = [n for n in tensors if not n.startswith(("primals", "tangents", "living"))]
        assert released == tuple(read) and len(read) == saved and len(tensors) == 3
