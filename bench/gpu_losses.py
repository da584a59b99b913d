"""A linear layer and cross entropy on a GPU, forward and backward: time and memory.

    python bench/gpu_losses.py --out FOLDER [--only NAME]

4096 rows of width 2048, 131072 classes. `whole` is Gyrator without `chunk-losses`, `rows N` with
chunks of about so many rows. `ms` are medians of rounds in which all take turns; `peak_mb` is the
most memory of a step beyond its inputs, results and gradients included, `forward_mb` that of the
forward pass; `off` is how far loss and gradients are from eager's, relative to these.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from _clock import interleave
from torch import Tensor

from gyrator import PassEdits, Session

ROWS, WIDTH, CLASSES = 4096, 2048, 131072
DEVICE = "cuda"
CHUNKS = (2048, 1024, 512)
ROUNDS = 12
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """As it is."""
    return F.cross_entropy(F.linear(x, w), target)


def widened(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """The loss in `float32`, as models of language have it."""
    return F.cross_entropy(F.linear(x, w).float(), target)


def auto(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """Under autocast."""
    with torch.autocast(DEVICE, torch.bfloat16):
        return F.cross_entropy(F.linear(x, w), target)


CASES: Mapping[str, tuple[Loss, torch.dtype]] = {
    "bfloat16": (plain, torch.bfloat16),
    "bfloat16, loss in float32": (widened, torch.bfloat16),
    "float32, autocast": (auto, torch.float32),
}


def ways(loss: Loss) -> dict[str, Loss]:
    """Return what takes turns. Each compiles code of its own, which no other's replaces."""

    def own(way: str) -> Loss:
        return FunctionType(loss.__code__.replace(co_name=way), loss.__globals__)

    passes = {f"rows {n}": PassEdits().configured("chunk-losses", rows=n) for n in CHUNKS}
    passes["whole"] = PassEdits().without("chunk-losses")
    sessions = {k: Session(options={"strict": True}, passes=p) for k, p in passes.items()}
    ours = {k: torch.compile(own(k), backend=s.backend) for k, s in sessions.items()}
    return {"eager": loss, "inductor": torch.compile(own("inductor")), **ours}


def measure(name: str) -> dict[str, Any]:
    """Measure one case."""
    loss, dtype = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH, device=DEVICE, dtype=dtype, requires_grad=True)
    w = torch.randn(CLASSES, WIDTH, device=DEVICE, dtype=dtype) / WIDTH**0.5
    w.requires_grad_()
    target = torch.randint(0, CLASSES, (ROWS,), device=DEVICE)

    def clear() -> None:
        x.grad = w.grad = None

    def step(call: Loss) -> Tensor:
        clear()
        result = call(x, w, target)
        result.backward()  # type: ignore[no-untyped-call]
        return result.detach()

    def once(call: Loss) -> None:
        step(call)
        torch.cuda.synchronize()

    row: dict[str, Any] = {"case": name}
    calls = ways(loss)
    exact: list[Tensor] = []
    for way, call in calls.items():
        found = [step(call), x.grad, w.grad]
        exact = exact or [t.double() for t in found if t is not None]
        off = (a.double() - b for a, b in zip(found, exact, strict=True) if a is not None)
        row[f"{way}_off"] = [float(d.norm() / b.norm()) for d, b in zip(off, exact, strict=True)]
    exact.clear()
    for way, call in calls.items():
        clear()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call(x, w, target)
        row[f"{way}_forward_mb"] = (torch.cuda.max_memory_allocated() - before) // 1000000
        result.backward()  # type: ignore[no-untyped-call]
        row[f"{way}_peak_mb"] = (torch.cuda.max_memory_allocated() - before) // 1000000
        del result
    times = interleave({way: lambda call=call: once(call) for way, call in calls.items()}, ROUNDS)
    row |= {f"{way}_ms": round(1e3 * t["wall_median"], 3) for way, t in times.items()}
    return row


def main() -> int:
    """Measure all cases, print a line of each, and store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in CASES:
        if args.only in name:
            rows.append(measure(name))
            print(json.dumps(rows[-1]), flush=True)
    head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    text = json.dumps({"facts": head, "rows": rows}, indent=1)
    (args.out / "gpu_losses.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
