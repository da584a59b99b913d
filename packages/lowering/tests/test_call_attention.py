"""Attention written as separate ops becomes a call: which patterns match, and that results are the
same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gyrator_ir.target import Capabilities, Target
from gyrator_lowering.fx_passes import CallAttention, RemoveNoop

aten = torch.ops.aten
CALL = aten._scaled_dot_product_flash_attention_for_cpu.default
Tensor = torch.Tensor


def pass_for(*libraries: str, **options: int) -> CallAttention:
    can = Capabilities(dtypes=frozenset(), libraries=frozenset(libraries))
    bound = Target(device="cpu", arch="plain", kernel_backend="interpreter", capabilities=can)
    return CallAttention.of({"cpu": bound}, **options)


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype)


def traced(check: Any, run: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Any:
    gm = check.trace(run, inputs)
    RemoveNoop().run(gm)
    return gm


def calls(gm: Any) -> int:
    return sum(node.target is CALL for node in gm.graph.nodes)


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def _scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2) * 0.5).float().softmax(-1)
    return scores.to(v.dtype) @ v


def _divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.bmm(q, k.transpose(1, 2)).float() / 3 * 0.7
    return torch.bmm(scores.softmax(2).to(v.dtype), v) + 1


def _split_heads(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (y.view(2, -1, 4, 16).transpose(1, 2) for y in (x, k, v))
    return _scaled(q, k, v).transpose(1, 2).reshape(2, -1, 64)


HEADS = (2, 4, 70, 16)
PATTERNS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "plain": (_plain, (drawn(*HEADS), drawn(*HEADS), drawn(*HEADS))),
    "halves": (_plain, tuple(drawn(*HEADS, dtype=torch.float16) for _ in range(3))),
    "scaled": (_scaled, (drawn(*HEADS), drawn(2, 4, 80, 16), drawn(2, 4, 80, 16))),
    "shared keys": (_scaled, (drawn(*HEADS), drawn(2, 1, 80, 16), drawn(2, 1, 80, 16))),
    "divided": (_divided, (drawn(3, 64, 24), drawn(3, 90, 24), drawn(3, 90, 24))),
    "split heads": (_split_heads, (drawn(2, 70, 64), drawn(2, 70, 64), drawn(2, 70, 64))),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_separate_ops_become_a_call(check: Any, name: str) -> None:
    run, inputs = PATTERNS[name]
    gm = traced(check, run, inputs)
    assert pass_for("flash_attention").run(gm)
    gm.graph.lint()
    gm.recompile()
    assert calls(gm) == 1
    assert not any(node.target is aten.bmm.default for node in gm.graph.nodes)
    (got,) = gm(*inputs)
    eager = run(*inputs)
    want = run(*(x.double() for x in inputs))
    assert (got.stride(), got.dtype) == (eager.stride(), eager.dtype)
    off, rounded = ((x.double() - want).norm() / want.norm() for x in (got, eager))
    assert off < 1.5 * rounded < 0.02


def _masked(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) + m).softmax(-1) @ v


def _with_probabilities(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    return weights @ v, weights


def _by_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-2) @ v


def _regrouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2)
    return scores.reshape(2, 4, 35, 140).softmax(-1).reshape(2, 4, 70, 70) @ v


def _by_tensor(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v


SAME = (drawn(*HEADS), drawn(*HEADS), drawn(*HEADS))
WIDE = tuple(x.float() for x in SAME)
OTHERS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "masked": (_masked, (*SAME, drawn(70, 70))),
    "probabilities returned": (_with_probabilities, SAME),
    "by queries": (_by_queries, SAME),
    "regrouped": (_regrouped, SAME),
    "scaled by a tensor": (_by_tensor, (*SAME, drawn(4, 1, 1))),
    "float32": (_plain, WIDE),
    "other width": (_plain, (*SAME[:2], drawn(2, 4, 70, 24))),
    "odd width": (_plain, tuple(drawn(2, 4, 70, 15) for _ in range(3))),
    "few keys": (_plain, (SAME[0], drawn(2, 4, 63, 16), drawn(2, 4, 63, 16))),
    "empty": (_plain, tuple(drawn(0, 4, 70, 16) for _ in range(3))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay(check: Any, name: str) -> None:
    run, inputs = OTHERS[name]
    gm = traced(check, run, inputs)
    assert not pass_for("flash_attention").run(gm)
    assert not calls(gm)


def test_a_device_without_the_call(check: Any) -> None:
    run, inputs = PATTERNS["plain"]
    assert not pass_for("mkl").run(traced(check, run, inputs))


def test_gradients_keep_the_probabilities(check: Any) -> None:
    run, inputs = PATTERNS["plain"]

    trained = torch.func.grad(lambda *tensors: run(*tensors).sum(), argnums=(0, 1, 2))
    gm = traced(check, trained, inputs)
    assert not pass_for("flash_attention").run(gm)
