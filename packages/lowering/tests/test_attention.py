"""Attention as templates and as loops, against eager, with gradients."""

from functools import partial

import pytest
import torch
from attrs import evolve
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from gyrator_ir.loop.nodes import Extern, Template, TemplateKind
from gyrator_ir.loop.verify import verify
from gyrator_ir.target import Target
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.stage import lower
from gyrator_testing.interp.loop import run_loop

attend = F.scaled_dot_product_attention
NONE = LoweringOptions(extern_kernels="none")


def offers(
    target: Target, device: str = "cpu", kinds: frozenset[str] = frozenset(TemplateKind)
) -> Target:
    """Return the target with templates."""
    capabilities = evolve(target.capabilities, templates=kinds)
    return evolve(target, device=device, capabilities=capabilities)


@pytest.fixture
def offering(check, monkeypatch) -> None:
    """Let the target offer the template."""
    monkeypatch.setitem(check.targets, "cpu", offers(check.targets["cpu"]))


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(s).to(dtype) for s in shapes]


def boolean(rows: int, columns: int) -> torch.Tensor:
    mask = torch.rand(rows, columns) < 0.6
    mask[1] = False
    return mask


CASES = {
    "plain": (attend, ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))),
    "causal": (partial(attend, is_causal=True), ((2, 3, 6, 4),) * 3),
    "wider": (partial(attend, is_causal=True), ((1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8))),
    "scaled": (partial(attend, scale=-0.3), ((1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8))),
    "turned": (
        lambda q, k, v: attend(*(t.transpose(1, 2) for t in (q, k, v))),
        ((2, 5, 3, 4), (2, 6, 3, 4), (2, 6, 3, 4)),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("template", [False, True], ids=["loops", "template"])
def test_attention(name: str, template: bool, check_loops, request) -> None:
    if template:
        request.getfixturevalue("offering")
    fn, shapes = CASES[name]
    programs = check_loops.gradients(fn, *tensors(*shapes))
    results = [op for p in programs for op in p.operations if isinstance(op, Template)]
    assert bool(results) == template
    assert all(op.fallback.reason == "library" for op in results)


@pytest.mark.parametrize("template", [False, True], ids=["loops", "template"])
@pytest.mark.parametrize("kind", ["boolean", "added", "broadcast"])
def test_masks(kind: str, template: bool, check_loops, request) -> None:
    if template:
        request.getfixturevalue("offering")
    masks = {
        "boolean": boolean(5, 7),
        "added": torch.randn(2, 3, 5, 7),
        "broadcast": torch.randn(2, 1, 1, 7),
    }
    tensors_ = tensors((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))
    program = check_loops(lambda q, k, v, m: attend(q, k, v, attn_mask=m), *tensors_, masks[kind])
    assert any(isinstance(op, Template) for op in program.operations) == template
    if kind == "boolean":
        check_loops.gradients(
            lambda q, k, v, m: attend(q, k, v, attn_mask=m), *tensors_, masks[kind]
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(dtype: torch.dtype, check_loops) -> None:
    inputs = tensors((1, 2, 6, 8), (1, 2, 9, 8), (1, 2, 9, 8), dtype=dtype)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {}
    check_loops.gradients(attend, *inputs, **close)


def test_dynamic_sizes(check_loops, offering) -> None:
    def fn(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(1.0, 5.0)
        q, k = (t.unsqueeze(-1) * positions for t in (q, k))
        return attend(q, k, k.cos(), is_causal=True)

    inputs, other = tensors((2, 3, 5), (2, 3, 7)), tensors((3, 4, 9), (3, 4, 2))
    program = check_loops(fn, *inputs, other=tuple(other))
    assert any(isinstance(op, Template) for op in program.operations)


def test_options_of_the_library_alone(check_loops, offering) -> None:
    op = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    inputs = tensors(*[(1, 2, 4, 8)] * 3)
    program = check_loops.lower(partial(attend, dropout_p=0.5), tuple(inputs))
    calls = [o for o in program.operations if isinstance(o, Extern)]
    assert not any(isinstance(o, Template) for o in program.operations)
    assert all("no rule for these arguments" in c.reason for c in calls if c.target == op)


def test_libraries_are_called_by_default(check, offering) -> None:
    program = check.lower(attend, tuple(tensors(*[(1, 2, 4, 8)] * 3)))
    (call,) = [o for o in program.operations if isinstance(o, Extern)]
    assert call.reason == "library"


@pytest.fixture
def quick_with_few_keys(check, monkeypatch) -> None:
    """Let the target compute attention to at most 12 keys sooner than its library, and remove what
    graphs do not use, as AOTAutograd does."""
    trace = check.trace

    def live(*args, **kwargs):
        gm = trace(*args, **kwargs)
        gm.graph.eliminate_dead_code()
        return gm

    monkeypatch.setattr(check, "trace", live)
    target = check.targets["cpu"]
    target = offers(target, kinds=frozenset({TemplateKind.FLEX_ATTENTION}))
    few = evolve(target, heuristics=evolve(target.heuristics, attention_keys=12))
    monkeypatch.setitem(check.targets, "cpu", few)


@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "added", "broadcast"])
def test_few_keys(kind: str, check, quick_with_few_keys) -> None:
    masks = {
        "none": None,
        "causal": None,
        "boolean": boolean(9, 12),
        "added": torch.randn(2, 4, 9, 12).where(boolean(9, 12), -torch.inf),
        "broadcast": torch.randn(1, 12),
    }
    more = [m for m in (masks[kind],) if m is not None]

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return attend(q, k, v, *mask, is_causal=kind == "causal", scale=0.3)

    inputs = tensors((2, 9, 4, 8), (2, 12, 4, 8), (2, 12, 4, 8))
    program = check(fn, *inputs, *more)
    (template,) = [op for op in program.operations if isinstance(op, Template)]
    assert template.kind is TemplateKind.FLEX_ATTENTION
    assert not any(isinstance(op, Extern) for op in program.operations)


def test_few_keys_of_dynamic_sizes(check, quick_with_few_keys) -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(1.0, 5.0)
        q, k = (t.unsqueeze(-1) * positions for t in (q, k))
        return attend(q, k, k.cos(), mask)

    inputs = tensors((2, 3, 8), (2, 3, 10), (8, 10))
    other = tensors((3, 4, 5), (3, 4, 70), (5, 70))
    program = check(fn, *inputs, other=tuple(other))
    assert any(isinstance(op, Template) for op in program.operations)


@pytest.mark.parametrize(
    ("shape", "keys", "options", "dtype"),
    [
        ((2, 4, 9, 8), 13, {}, torch.float32),
        ((2, 4, 7, 8), 12, {}, torch.float32),
        ((2, 4, 9, 136), 12, {}, torch.float32),
        ((2, 4, 9, 8), 12, {"scale": -0.5}, torch.float32),
        ((2, 4, 9, 8), 12, {}, torch.bfloat16),
    ],
    ids=["keys", "rows", "length", "scale", "dtype"],
)
def test_other_attention_stays_a_call(
    shape, keys, options, dtype, check, quick_with_few_keys
) -> None:
    q, k = tensors(shape, (*shape[:2], keys, shape[3]), dtype=dtype)
    program = check.lower(lambda q, k: attend(q, k, k, **options), (q, k))
    assert not any(isinstance(op, Template) for op in program.operations)
    assert any(isinstance(op, Extern) for op in program.operations)


def test_gradients_read_what_the_library_saves(check, quick_with_few_keys) -> None:
    op = "aten._scaled_dot_product_flash_attention_for_cpu"
    calls = (f"{op}.default", f"{op}_backward.default")
    programs = check.gradients(attend, *tensors(*[(2, 4, 9, 8)] * 3), externs=calls)
    assert not any(isinstance(op, Template) for p in programs for op in p.operations)


def reference(q, k, v, mask, causal, scale):
    """Attention with grouped key heads, and the logarithms of the sums."""
    ratio = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(ratio, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else scores + mask
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


FLASH = torch.ops.aten._scaled_dot_product_flash_attention
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention
CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention
OTHER = torch.ops.aten._scaled_dot_product_fused_attention_overrideable


def flash(q, k, v, mask, causal):
    return FLASH(q, k, v, 0.0, causal)


def flash_backward(g, q, k, v, mask, causal, saved):
    out, sums, first, second, rows, columns, seed, offset, _ = saved
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        g, q, k, v, out, sums, first, second, rows, columns, 0.0, causal, seed, offset
    )


def efficient(q, k, v, mask, causal):
    return EFFICIENT(q, k, v, mask, True, 0.0, causal, scale=0.7)


def efficient_backward(g, q, k, v, mask, causal, saved):
    needs_gradient = [True, True, True, mask is not None]
    return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        g,
        q,
        k,
        v,
        mask,
        saved[0],
        saved[1],
        saved[2],
        saved[3],
        0.0,
        needs_gradient,
        causal,
        scale=0.7,
    )


def cudnn(q, k, v, mask, causal):
    return CUDNN(q, k, v, mask, True, 0.0, causal)


def cudnn_backward(g, q, k, v, mask, causal, saved):
    out, sums, first, second, rows, columns, seed, offset, _ = saved
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, out, sums, seed, offset, mask, first, second, rows, columns, 0.0, causal
    )


GPU = {
    "flash": (flash, flash_backward, None, False, None, 2),
    "flash causal": (flash, flash_backward, None, True, None, 3),
    "efficient": (efficient, efficient_backward, (2, 4, 6, 6), True, 0.7, 4),
    "efficient broadcast": (efficient, efficient_backward, (1, 4, 1, 6), False, 0.7, 4),
    "cudnn": (cudnn, cudnn_backward, None, False, None, 4),
}


@pytest.mark.parametrize("gradients", [False, True], ids=["loops", "template"])
@pytest.mark.parametrize("name", GPU)
def test_ops_of_gpus(name: str, gradients: bool, check) -> None:
    """Each op with the arguments that it has on a GPU, traced for the CPU and interpreted."""
    forward, backward, masked, causal, scale, groups = GPU[name]
    groups = 2 if groups == 2 else 4
    shapes = [(2, 4, 6, 8), (2, groups, 6, 8), (2, groups, 6, 8)]
    shapes += [] if masked is None else [masked]
    inputs = tensors(*shapes)
    grad = torch.randn(2, 4, 6, 8)

    def step(g, q, k, v, *rest):
        mask = rest[0] if rest else None
        saved = forward(q, k, v, mask, causal)
        grads = backward(g, q, k, v, mask, causal, saved)
        return saved[0], saved[1], *(t for t in grads if t is not None)

    with FakeTensorMode() as mode:
        fakes = [torch.empty(t.shape, device="cuda") for t in (grad, *inputs)]
    with mode:
        gm = make_fx(step)(*fakes)
    kinds = frozenset(TemplateKind) if gradients else frozenset({TemplateKind.ATTENTION})
    program = verify(lower(gm, NONE, {"cuda": offers(check.targets["cpu"], "cuda", kinds)}))
    assert not [o.target for o in program.operations if isinstance(o, Extern)]
    results = [o for o in program.operations if isinstance(o, Template)]
    # A mask's gradient is a sum of scores' gradients, which the template never stores.
    assert len(results) == (2 if gradients and masked is None else 1)
    called = [o.fallback.target.partition(".")[2] for o in results]
    assert all(c.startswith("_scaled_dot_product") for c in called)
    results = run_loop(program, [t.numpy() for t in (grad, *inputs)])
    out, sums, *grads = map(torch.from_numpy, results)

    leaves = [t.clone().requires_grad_() for t in inputs]
    mask = leaves[3] if masked else None
    want, total = reference(*leaves[:3], mask, causal, scale)
    torch.testing.assert_close(out, want.detach(), rtol=1e-5, atol=1e-5)
    sums = sums.reshape(2, 4, -1)
    torch.testing.assert_close(sums[:, :, :6], total.detach(), rtol=1e-5, atol=1e-5)
    assert (sums[:, :, 6:] == torch.inf).all()
    expected = torch.autograd.grad(want, leaves, grad)
    assert len(grads) == len(expected)
    for a, b in zip(grads, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_bottom_right_causal_masks_stay_library_calls(check) -> None:
    with FakeTensorMode() as mode:
        q, k = (torch.empty(1, 2, n, 8, device="cuda") for n in (4, 6))
    with mode:
        gm = make_fx(lambda q, k: FLASH(q, k, k, 0.0, True)[0])(q, k)
    program = verify(lower(gm, NONE, {"cuda": offers(check.targets["cpu"], "cuda")}))
    (call,) = program.operations
    assert isinstance(call, Extern) and "no kernels are generated" in call.reason
