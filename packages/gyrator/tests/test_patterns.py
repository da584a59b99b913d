"""`gyrator.patterns`: what is found, what is left alone, and what comes of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gyrator import GraphRecord, PassEdits, Session
from gyrator.config import Config
from gyrator.patterns import Match, PatternError, Rewrite


@torch.library.custom_op("patterns_test::silu_and_mul", mutates_args=())
def silu_and_mul(x: Tensor, y: Tensor) -> Tensor:
    """Count the call, and compute it."""
    calls.append(tuple(x.shape))
    return F.silu(x) * y


@silu_and_mul.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("patterns_test::norm_and_quantise", mutates_args=())
def norm_and_quantise(
    x: Tensor, weight: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Count the call, and compute both results."""
    calls.append(eps)
    return quantised_norm(x, weight, scale, eps)


@norm_and_quantise.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=torch.int8), torch.empty_like(x)


calls: list[Any] = []
SAMPLE = torch.empty(4, 8)


def product(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def quantised_norm(x: Tensor, weight: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
    return (normed / scale).round().clamp(-128, 127).to(torch.int8), normed


SILU = Rewrite("silu-and-mul", product, silu_and_mul, (SAMPLE, SAMPLE))
NORM = Rewrite(
    "norm-and-quantise",
    quantised_norm,
    norm_and_quantise,
    (SAMPLE, torch.empty(8), torch.empty(()), 1.25e-5),
)

Compile = Callable[..., Any]


@pytest.fixture
def compiled(config: Config, records: list[GraphRecord]) -> Compile:
    def make(function: Callable[..., Any], *passes: Rewrite, level: str = "fx", **more: Any) -> Any:
        torch._dynamo.reset()
        calls.clear()
        options = {"strict": True, "progress": False, "cache": False}
        edits = PassEdits().first(level, *passes)
        session = Session(options=options, config=config, passes=edits, observer=records.append)
        return torch.compile(function, backend=session.backend, fullgraph=True, **more)

    return make


def agree(function: Callable[..., Any], run: Callable[..., Any], *args: Any) -> None:
    torch.testing.assert_close(run(*args), function(*args))


@pytest.mark.parametrize("level", ["fx", "joint"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_pattern_becomes_a_custom_op(compiled: Compile, dynamic: bool, level: str) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (y + 1) * F.silu(x * 2) - x

    run = compiled(f, SILU, level=level, dynamic=dynamic)
    for shape in ((3, 5), (7, 2), (6, 6)):
        x, y = torch.randn(shape), torch.randn(shape)
        agree(f, run, x, y)
    assert calls == [(3, 5), (7, 2), (6, 6)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_several_results_and_a_number(compiled: Compile, dynamic: bool) -> None:
    def f(x: Tensor, w: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        q, normed = quantised_norm(x.sin(), w, s, 1e-6)
        return q, normed + x

    run = compiled(f, NORM, dynamic=dynamic)
    for rows, width in ((3, 16), (9, 8)):
        agree(f, run, torch.randn(rows, width), torch.randn(width), torch.tensor(0.05))
    assert calls == [1e-6, 1e-6]


def test_each_place_is_replaced_and_none_is_lost(compiled: Compile) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(3):
            x = F.silu(x) * y + x
        return x

    agree(f, compiled(f, SILU), torch.randn(5, 4), torch.randn(5, 4))
    assert len(calls) == 3


UNLIKE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "another user": lambda x, y: ((s := F.silu(x)) * y, s.exp()),
    "returned": lambda x, y: ((s := F.silu(x)) * y, s),
    "another op": lambda x, y: F.gelu(x) * y,
    "another dtype": lambda x, y: F.silu(x.double()) * y.double(),
    "another rank": lambda x, y: F.silu(x[0]) * y[0],
    "sizes that differ": lambda x, y: F.silu(x) * y[:1],
}


@pytest.mark.parametrize("what", UNLIKE)
def test_what_is_not_the_pattern_stays(compiled: Compile, what: str) -> None:
    agree(UNLIKE[what], compiled(UNLIKE[what], SILU), torch.randn(3, 4), torch.randn(3, 4))
    assert not calls


def test_where_decides_by_shape(compiled: Compile) -> None:
    def wide(match: Match) -> bool:
        assert match["y"].dtype == torch.float32 and len(match.nodes) == 2
        return bool(match["x"].shape[1] % 8 == 0)

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.silu(x) * y, F.silu(x[:, :3]) * y[:, :3]

    one = Rewrite("wide", product, silu_and_mul, (SAMPLE, SAMPLE), where=wide)
    agree(f, compiled(f, one), torch.randn(3, 16), torch.randn(3, 16))
    assert calls == [(3, 16)]


def test_an_op_is_replaced_by_a_formula(compiled: Compile) -> None:
    def taken_apart(x: Tensor) -> Tensor:
        return torch.exp(x) * 0 + 3

    one = Rewrite("erf", _erf, taken_apart, (SAMPLE,))
    run = compiled(lambda x: torch.erf(x) + 1, one)
    assert torch.equal(run(torch.randn(3, 4)), torch.full((3, 4), 4.0))


def _erf(x: Tensor) -> Tensor:
    return torch.erf(x)


def test_a_result_that_is_needed_before_an_argument_is_there(compiled: Compile) -> None:
    def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(x), torch.sin(y)

    def replaced(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cos(x), torch.cos(y)

    def chained(x: Tensor) -> Tensor:
        return torch.sin(torch.exp(x) * 2)

    def apart(x: Tensor) -> Tensor:
        return torch.sin(x) - torch.exp(x)

    one = Rewrite("pair", pair, replaced, (SAMPLE, SAMPLE))
    agree(chained, compiled(chained, one), x := torch.randn(3, 4))
    torch.testing.assert_close(compiled(apart, one)(x), x.cos() - x.cos())


def test_training_sees_patterns_of_the_forward_pass(compiled: Compile) -> None:
    def f(x: Tensor) -> Tensor:
        return (torch.sin(x) + 1).sum()

    def shifted(x: Tensor) -> Tensor:
        return torch.sin(x) + 1

    def other(x: Tensor) -> Tensor:
        return torch.sin(x) + 2

    run = compiled(f, Rewrite("shift", shifted, other, (SAMPLE,)), level="joint")
    x = torch.randn(3, 4, requires_grad=True)
    got = run(x)
    got.backward()
    torch.testing.assert_close(got, f(x) + 12)
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_bad_patterns_are_refused() -> None:
    def refused(code: str, search: Any, examples: Any, message: str) -> None:
        with pytest.raises(PatternError, match=message) as raised:
            Rewrite("bad", search, silu_and_mul, examples)
        assert raised.value.diagnostic.code == code

    refused("GY-PATTERN-001", lambda x, y: x + 1, (SAMPLE, SAMPLE), "does not use its argument 'y'")
    refused("GY-PATTERN-001", lambda x, e: x + 1, (SAMPLE, 0.25), "does not use its argument 'e'")
    refused("GY-PATTERN-001", lambda x: x, (SAMPLE,), "something other than tensors")
    refused("GY-PATTERN-001", lambda x: torch.rand_like(x) + x, (SAMPLE,), "random numbers")
    refused("GY-PATTERN-001", lambda x: x.add_(1), (SAMPLE,), "writes")
    refused("GY-PATTERN-001", lambda x, y: x + y, (SAMPLE,), "2 arguments")


@pytest.mark.parametrize(
    ("replace", "code", "message"),
    [
        (lambda x, y: x.double(), "GY-PATTERN-002", "float64"),
        (lambda x, y: (x, y), "GY-PATTERN-002", "but the pattern returns"),
        (lambda x, y: x.new_empty(x.shape[1], x.shape[0]).t(), "GY-PATTERN-002", "strides"),
        (lambda x, y: x + torch.tensor([1.0]), "GY-PATTERN-003", "literal numbers"),
        (lambda x, y: (x + 1).add_(y), "GY-PATTERN-003", "writes"),
    ],
)
def test_bad_replacements_are_refused(
    compiled: Compile, replace: Callable[..., Any], code: str, message: str
) -> None:
    run = compiled(product, Rewrite("bad", product, replace, (SAMPLE, SAMPLE)))
    with pytest.raises(Exception, match=code) as raised:
        run(torch.randn(3, 4), torch.randn(3, 4))
    assert message in str(raised.value)


def test_a_replacement_takes_the_arguments_of_its_pattern() -> None:
    for replace in (lambda x, y, z: x * y, lambda x: x, lambda x, y, *, scale: x * y):
        with pytest.raises(
            PatternError, match=r"GY-PATTERN-003.* takes \(.*the pattern takes \(x,"
        ):
            Rewrite("bad", product, replace, (SAMPLE, SAMPLE))
    Rewrite("good", product, lambda a, b, scale=2: a * b * scale, (SAMPLE, SAMPLE))
    Rewrite("op", product, torch.ops.aten.mul.Tensor, (SAMPLE, SAMPLE))


def _raising(*arguments: Any) -> Any:
    raise LookupError("of mine")


@pytest.mark.parametrize("role", ["where", "replace"])
def test_functions_of_a_pattern_that_raise_are_blamed(compiled: Compile, role: str) -> None:
    functions: dict[str, Any] = {"replace": product, "where": lambda match: True, role: _raising}
    run = compiled(product, Rewrite("bad", product, examples=(SAMPLE, SAMPLE), **functions))
    with pytest.raises(Exception, match="GY-PATTERN-004") as caught:
        run(torch.randn(8, 5), torch.randn(8, 5))
    line = _raising.__code__.co_firstlineno + 1
    raised = f"raised LookupError: of mine, at {__file__}:{line} in _raising"
    assert f"`{role}` of the pattern 'bad' {raised}" in str(caught.value)


def test_what_a_rewrite_does_is_in_its_digest() -> None:
    def made(factor: float) -> Rewrite:
        def replace(x: Tensor, y: Tensor) -> Tensor:
            return x * y * factor

        return Rewrite("scaled", product, replace, (SAMPLE, SAMPLE))

    assert made(2.0).content_hash == made(2.0).content_hash != made(3.0).content_hash
    assert SILU.content_hash != NORM.content_hash
    with pytest.raises(PatternError, match="cache key"):
        made(object())  # type: ignore[arg-type]
