"""Flexible attention on a GPU: right against float64, and its device time beside TorchInductor's.

`python conformance/gpu_flex_attention.py [word of a case's name ...]`
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = "cuda"
PARTS = torch.arange(8192, device=DEVICE) // 700


def causal(b: Any, h: Any, m: Any, n: Any) -> Any:
    """Look at no later columns."""
    return m >= n


def window(b: Any, h: Any, m: Any, n: Any) -> Any:
    """Look at the last 256 columns."""
    return (m >= n) & (m - n < 256)


def document(b: Any, h: Any, m: Any, n: Any) -> Any:
    """Look at earlier columns of the same part."""
    return (m >= n) & (PARTS[m] == PARTS[n])


def softcap(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    """Bend scores towards 20."""
    return 20 * torch.tanh(s / 20)


def earlier(b: Any, h: Any, m: Any, n: Any) -> Any:
    """Look at the first 2,000 columns: those before a token that is decoded."""
    return n < 2000


def slopes(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    """Lower scores by their distance, in each head by another slope."""
    return s + torch.exp2(-(h + 1) / 2.0) * (n - 2047)


CASES: dict[str, tuple[tuple[int, ...], Any, Any]] = {
    "causal 64": ((4, 16, 16, 4096, 4096, 64), None, causal),
    "causal 128": ((4, 16, 16, 4096, 4096, 128), None, causal),
    "window": ((2, 16, 16, 8192, 8192, 64), None, window),
    "softcap": ((4, 16, 16, 4096, 4096, 64), softcap, None),
    "document": ((4, 16, 4, 4096, 4096, 128), None, document),
    "decoding": ((16, 32, 8, 1, 8192, 128), None, None),
    "decoding, causal": ((8, 16, 4, 1, 2048, 64), None, earlier),
    "decoding, slopes": ((8, 16, 4, 1, 2048, 64), slopes, earlier),
    "decoding, softcap": ((8, 16, 4, 1, 2048, 64), softcap, None),
    "decoding, alone": ((1, 32, 8, 1, 16384, 128), None, None),
}
"""Batches, heads, groups, rows, columns and numbers of a vector; then score and mask."""


def definition(q: Any, k: Any, v: Any, score: Any, mask: Any) -> Any:
    """Return attention in float64, of the first batch and head."""
    q, k, v = (t[:1, :1].double() for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    places = [
        torch.arange(n, device=DEVICE).view([-1 if d == k else 1 for k in range(4)])
        for d, n in enumerate(scores.shape)
    ]
    if score is not None:
        scores = score(scores, *places)
    if mask is not None:
        scores = scores.masked_fill(~mask(*places), -torch.inf)
    return torch.softmax(scores, -1) @ v


def times(calls: list[Callable[[], Any]], rounds: int = 7, each: int = 10) -> list[float]:
    """Return the median device milliseconds of each call, measured in turn."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times_of in zip(calls, found, strict=True):
            call()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(each):
                call()
            end.record()
            end.synchronize()
            times_of.append(start.elapsed_time(end) / each)
    return [sorted(t)[rounds // 2] for t in found]


def measure(name: str) -> None:
    """Print the errors and the times of one case."""
    (batch, heads, groups, rows, columns, length), score, mask = CASES[name]
    shapes = ((batch, heads, rows, length), *((batch, groups, columns, length),) * 2)
    given = [torch.randn(s, device=DEVICE, dtype=torch.bfloat16) for s in shapes]
    given = [t.requires_grad_(rows > 1) for t in given]
    blocks = None
    if mask is not None:
        blocks = create_block_mask(mask, None, None, rows, columns, device=DEVICE)

    def call(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, score, blocks, enable_gqa=heads != groups)

    forward: list[Callable[[], Any]] = []
    steps: list[Callable[[], Any]] = []
    grads: list[Any] = []
    grad = torch.randn(shapes[0], device=DEVICE, dtype=torch.bfloat16)
    for backend in ("gyrator", "inductor"):
        torch._dynamo.reset()
        compiled = torch.compile(call, backend=backend, dynamic=False)
        out = compiled(*given)
        want = definition(*given, score, mask)
        error = (out[:1, :1].double() - want).abs().max().item()
        if rows > 1:
            grads.append(torch.autograd.grad(out, given, grad))
        print(f"{name}: {backend}: largest error {error:.1e}", flush=True)

        def run(compiled: Any = compiled) -> Any:
            with torch.no_grad():
                return compiled(*given)

        def step(compiled: Any = compiled) -> Any:
            return torch.autograd.grad(compiled(*given), given, grad)

        run()
        forward.append(run)
        steps.append(step)
    for mine, theirs in zip(*grads, strict=True) if grads else ():
        apart = (mine - theirs).float().norm() / theirs.float().norm()
        print(f"{name}: gradients are {apart:.1e} apart", flush=True)
    for what, calls in (("forward", forward), ("both ways", steps))[: 1 + (rows > 1)]:
        ours, peer = times(calls)
        print(f"{name}: {what} {ours:.3f} ms, inductor {peer:.3f}: {peer / ours:.2f} of its speed")


if __name__ == "__main__":
    torch.manual_seed(0)
    for case in CASES:
        if len(sys.argv) < 2 or any(word in case for word in sys.argv[1:]):
            try:
                measure(case)
            except Exception as error:  # the other cases are worth their time on the device
                print(f"{case}: {type(error).__name__}: {error}", flush=True)
