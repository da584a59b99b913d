"""Numbers and indices of the host in GPU graphs, generated products, recurrent networks: on a GPU.

`python conformance/gpu_mixed_devices.py [word of a case's name ...]` prints a line a case, against
eager, and how many are wrong.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from gyrator.reports.records import GraphRecord
from gyrator.session import Session

DEVICE = "cuda"
X = torch.randn(64, 96, device=DEVICE)
NUMBER, COUNT = torch.tensor(0.3), torch.tensor(2)
PLACES = torch.tensor([5, 1, 63, 1])
ROW = torch.randn(96, dtype=torch.float64)
Mixed = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def put(x: torch.Tensor, i: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Write numbers of the host at places that it names."""
    y = x.clone()
    y[i] = t
    y[i, i] += 1
    return y


def across(x: torch.Tensor, t: torch.Tensor, row: torch.Tensor) -> Any:
    """Copy both ways, and read a number before and after it changes."""
    y, back = x.clone(), row.clone()
    y[1].copy_(row)
    back.copy_(x[0])
    t = t.clone()
    first = x * t
    t.add_(1)
    return y * 2, back * 2, first, x * t


MIXED: Mixed = {
    "number": (lambda x, s: x * s + torch.exp(x).sum(), (X, 0.5)),
    "formula": (lambda x, s: (x * (s * s + 1)).softmax(-1) * s, (X, 0.5)),
    "item": (lambda x, t: x * t.item() + t.item(), (X, NUMBER)),
    "item of the device": (lambda x: x * x.sum().item() + 1, (X,)),
    "filled": (
        lambda x, t: (
            torch.full((3,), t.item(), device=DEVICE) + 1,
            torch.full_like(x, t.item()),
            torch.linspace(0, t.item(), 96, device=DEVICE) + x,
        ),
        (X, NUMBER),
    ),
    "bent": (
        lambda x, t: (
            F.elu(x, t.item()),
            F.softplus(x, t.item()),
            x.clamp(max=t.item()),
            x.add(x, alpha=t.item()),
            x % t.item(),
        ),
        (X, NUMBER),
    ),
    "whole": (lambda x, t: x * int(t.item() * 10), (X, NUMBER)),
    "returned": (lambda x, t: (x * t, t * 2, t.item() * 2), (X, NUMBER)),
    "scalars": (
        lambda x, t: (torch.where(x > t, t, x), x.masked_fill(x > 0, t)),
        (X, NUMBER),
    ),
    "integers": (lambda x, n: (x * n.item(), x + n, n + 1), (X, COUNT)),
    "indices": (lambda x, i: (x[i] * 2, x[i + 1 - 1], x[:, i], i * 2), (X, PLACES)),
    "put": (put, (X, PLACES, NUMBER)),
    "constants": (lambda x: (x * torch.tensor(2.5), x[[1, 2]], x[torch.tensor([0, 2])]), (X,)),
    "across": (across, (X, NUMBER, ROW)),
    "products": (lambda x, t: (x @ x.t()) * t, (X, NUMBER)),
}
"""Functions, and what they take of both devices."""


def narrow(*shape: int) -> torch.Tensor:
    """Return numbers of 16 bits."""
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)


def generated() -> Mixed:
    """Return functions whose products are to be kernels."""
    kind = torch.float8_e4m3fn
    x, y = narrow(64, 128).to(kind), narrow(96, 128).to(kind).t()
    one, ends = torch.rand((), device=DEVICE), torch.tensor([16, 40, 40, 64], dtype=torch.int32)
    weight = torch.randint(-128, 128, (96, 128), dtype=torch.int8, device=DEVICE)

    def scaled(x: Any, y: Any, p: Any, q: Any) -> Any:
        return torch._scaled_mm(x, y, p, q, out_dtype=torch.bfloat16)

    rows = torch.rand(64, 1, device=DEVICE), torch.rand(1, 96, device=DEVICE)
    grouped = torch._grouped_mm
    given = narrow(64, 128), narrow(4, 128, 96), ends.to(DEVICE)
    cut = narrow(4, 32, 128), narrow(128, 64), ends.to(DEVICE)
    sums = narrow(32, 64), narrow(64, 96), ends.to(DEVICE)
    return {
        "scaled": (scaled, (x, y, one, one)),
        "scaled rows": (scaled, (x, y, *rows)),
        "scaled bytes": (
            torch._weight_int8pack_mm, (narrow(64, 128), weight, narrow(96) / 64),
        ),
        "grouped rows": (lambda *a: grouped(*a), given),
        "grouped columns": (lambda *a: grouped(*a), cut),
        "grouped sums": (lambda *a: grouped(*a), sums),
    }  # fmt: skip


def difference(got: Any, want: Any, loose: float) -> str:
    """Return what is other than eager's; empty where nothing is."""
    for mine, theirs in zip(tree_leaves(got), tree_leaves(want), strict=True):
        if not isinstance(theirs, torch.Tensor):
            if abs(mine - theirs) > 1e-6 * abs(theirs):
                return f"the number {mine} for {theirs}"
            continue
        if (mine.device, mine.dtype, mine.shape) != (theirs.device, theirs.dtype, theirs.shape):
            return f"{mine.device} {mine.dtype} {tuple(mine.shape)} for {theirs.device}"
        if theirs.numel() > 1 and mine.stride() != theirs.stride():
            return f"strides {mine.stride()} for {theirs.stride()}"
        off = (mine.double() - theirs.double()).abs().max().item()
        if not off <= loose * (1 + theirs.double().abs().max().item()):
            return f"off by {off:.1e}"
    return ""


def compared(
    fn: Callable[..., Any], args: Sequence[Any], loose: float, training: bool, **options: Any
) -> tuple[str, str]:
    """Compile a function, run it some times, and compare; return what is wrong, and what it is.

    What torch's own trace gives as well (`aot_eager`) is not counted as wrong, and told.
    """
    torch._dynamo.reset()
    records: list[GraphRecord] = []
    pairs = [
        [a.detach().clone().requires_grad_(training and a.is_floating_point() and a.is_cuda)
         if isinstance(a, torch.Tensor) else a for a in args]
        for _ in range(2)
    ]  # fmt: skip
    mine, theirs = pairs
    with Session(options={"strict": True, **options}, observer=records.append) as session:
        compiled = torch.compile(fn, backend=session.backend, fullgraph=True)
        with torch.set_grad_enabled(training):
            for _ in range(4):
                got = compiled(*mine)
            want, note = fn(*theirs), ""
            wrong = difference(got, want, loose)
            if wrong:
                want = torch.compile(fn, backend="aot_eager")(*theirs)
                if not difference(got, want, loose):
                    wrong, note = "", f", as torch's own trace: {wrong}"
        if training and not wrong:
            for results, given in ((got, mine), (want, theirs)):
                parts = [r for r in tree_leaves(results) if getattr(r, "requires_grad", False)]
                sum(p.float().sum() for p in parts).backward()  # type: ignore[union-attr]
                given[:] = [getattr(a, "grad", None) for a in given]
            wrong = difference(*([g for g in gs if g is not None] for gs in pairs), loose * 10)
        calls = sorted({e.target for r in records for e in r.externs})
        graphs = session.recorded_graphs
    kernels = sum(len(r.kernels) for r in records)
    return wrong, f"{kernels} kernels, {graphs} recorded, calls {calls}{note}"


def recurrent() -> Mixed:
    """Return networks of torch that keep a state."""
    x = torch.randn(7, 4, 32, device=DEVICE)
    found: Mixed = {}
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        made = kind(32, 48, bidirectional=True).to(DEVICE)
        found[kind.__name__] = (lambda x, made=made: made(x), (x,))
    made = torch.nn.LSTM(32, 48, num_layers=2, proj_size=16, batch_first=True).to(DEVICE)
    found["LSTM projected"] = (lambda x: made(x), (x,))
    return found


def beyond() -> str:
    """Select out of range by a number of the device, in every host language: eager's exception."""
    i = torch.tensor(70, device=DEVICE)
    for wrapper in ("python", "cpp", "fx"):
        torch._dynamo.reset()
        with Session(options={"strict": True, "wrapper": wrapper}) as session:
            fn = lambda x, i: x.select(0, i.item()) + 1  # noqa: E731
            try:
                torch.compile(fn, backend=session.backend)(X, i)
            except IndexError:
                continue
            except Exception as error:
                return f"{wrapper}: {type(error).__name__}: {error}".partition("\n")[0]
            return f"{wrapper}: nothing is raised"
    return ""


def main(words: Sequence[str]) -> int:
    """Run the cases whose names have one of the words; return how many are wrong."""
    torch._dynamo.config.capture_scalar_outputs = True
    torch._dynamo.config.specialize_float = False
    torch._dynamo.config.allow_rnn = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    cases: list[tuple[str, Any, Any, float, bool, dict[str, Any]]] = []
    trained = ("number", "formula", "item", "indices", "products")
    for name, (fn, args) in MIXED.items():
        cases.append((name, fn, args, 1e-5, False, {}))
        if name in trained:
            cases.append((f"{name}, trained", fn, args, 1e-5, True, {}))
        if name in ("item", "scalars", "put", "across"):
            for wrapper in ("cpp", "fx"):
                cases.append((f"{name}, {wrapper}", fn, args, 1e-5, False, {"wrapper": wrapper}))
        if name in ("scalars", "item", "indices"):
            cases.append((f"{name}, captured", fn, args, 1e-5, False, {"device_graphs": True}))
    for name, (fn, args) in generated().items():
        cases.append((name, fn, args, 2e-2, False, {"extern_kernels": "none"}))
    for name, (fn, args) in recurrent().items():
        for training in (False, True):
            cases.append((f"{name} {training=}", fn, args, 1e-4, training, {}))
    bad = ran = 0
    for name, fn, args, loose, training, options in cases:
        if words and not any(word in name for word in words):
            continue
        start = time.perf_counter()
        try:
            wrong, said = compared(fn, args, loose, training, **options)
        except Exception as error:  # the other cases are worth their time on the device
            wrong, said = f"{type(error).__name__}: {error}"[:600], ""
        ran, bad = ran + 1, bad + bool(wrong)
        took = time.perf_counter() - start
        print(f"{'WRONG' if wrong else 'right'} {name}: {wrong or said} ({took:.1f} s)", flush=True)
    if not words or "beyond" in words:
        wrong = beyond()
        ran, bad = ran + 1, bad + bool(wrong)
        print(f"{'WRONG' if wrong else 'right'} beyond: {wrong or 'IndexError'}", flush=True)
    print(f"{bad} of {ran} wrong")
    return bad


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(main(sys.argv[1:]))
