"""Sections of `gpu.py` about measuring: `max_autotune` within its seconds, and TF32."""

import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from attrs import evolve
from gpu_runtime import Clock
from transformers import GPT2Config, GPT2LMHeadModel

from gyrator.config import read_config
from gyrator.session import Session
from gyrator.targets.gpu import NVIDIA_GPU
from gyrator_runtime.accelerator import AcceleratorDevice
from gyrator_runtime.profile import compare

Row = dict[str, Any]
D = "cuda"
_SLOWER = 1.05
"""How much slower than without measuring a run may look: times differ by as much."""


def _gpt2_block() -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """The products of a block of GPT-2, four texts of 512."""
    x = torch.randn(2048, 768, device=D, dtype=torch.bfloat16)
    shapes = ((768, 2304), (768, 768), (768, 3072), (3072, 768))
    weights = tuple(torch.randn(s, device=D, dtype=torch.bfloat16) / 28 for s in shapes)

    def run(x: torch.Tensor, qkv: Any, out: Any, up: Any, down: Any) -> torch.Tensor:
        y = x + (x @ qkv)[:, :768] @ out
        return y + torch.nn.functional.gelu(y @ up) @ down

    return run, (x, *weights)


def _llama_mlp() -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """The products of a Llama's MLP of width 2048."""
    x = torch.randn(2048, 2048, device=D, dtype=torch.bfloat16)
    up, gate = (torch.randn(5632, 2048, device=D, dtype=torch.bfloat16) / 45 for _ in range(2))
    down = torch.randn(2048, 5632, device=D, dtype=torch.bfloat16) / 75

    def run(x: torch.Tensor, up: Any, gate: Any, down: Any) -> torch.Tensor:
        return (torch.nn.functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()

    return run, (x, up, gate, down)


def _resnet_blocks() -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Convolutions of a block of ResNet-50, 32 images."""
    last = torch.channels_last
    x = torch.randn(32, 256, 56, 56, device=D, dtype=torch.bfloat16).to(memory_format=last)
    shapes = ((64, 256, 1, 1), (64, 64, 3, 3), (256, 64, 1, 1))
    weights = (torch.randn(s, device=D, dtype=torch.bfloat16) / 16 for s in shapes)

    def run(x: torch.Tensor, a: Any, b: Any, c: Any) -> torch.Tensor:
        y = torch.relu(torch.nn.functional.conv2d(x, a))
        y = torch.relu(torch.nn.functional.conv2d(y, b, padding=1))
        return x + torch.nn.functional.conv2d(y, c)

    return run, (x, *(w.to(memory_format=last) for w in weights))


def _gpt2() -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """All of GPT-2, four texts of 512."""
    config = GPT2Config(use_cache=False)
    model = GPT2LMHeadModel(config).to(D, torch.bfloat16).eval()
    ids = torch.randint(0, config.vocab_size, (4, 512), device=D)
    return lambda ids: model(ids).logits, (ids,)


_LIMITS = ((_gpt2_block, 3), (_llama_mlp, 3), (_resnet_blocks, 3), (_gpt2, 5))
"""What is measured, and the seconds that it may take: for the last, less than everything takes."""


def tuning(clock: Clock, only: str) -> Iterator[Row]:
    """`max_autotune` on real shapes: right results, how long it took, and how fast its choice is.

    `seconds` are of a whole compile with an empty cache, `plain_seconds` of one that measures
    nothing; `ms` of replayed graphs.
    """
    for make, limit in _LIMITS:
        if clock.left < 40 or only not in make.__name__:
            continue
        row: Row = {"case": make.__name__.strip("_"), "limit": limit}
        try:
            _tuned(row, *make())
        except Exception as error:
            row["wrong"] = f"{type(error).__name__}: {str(error)[:900]}"
            row["trace"] = traceback.format_exc()[-1500:]
        yield row


def _tuned(row: Row, run: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    runs: dict[str, Callable[[], object]] = {"eager": lambda: run(*inputs)}
    tuned = {"max_autotune": True}
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("plain", {}),
        ("limited", tuned | {"autotune_seconds": row["limit"]}),
        ("tuned", tuned),
    )
    with torch.no_grad(), TemporaryDirectory() as folder:
        wanted = run(*inputs).float()
        base = Path(folder, "base")
        _compiled(lambda *x: x[0] + 1, inputs, base, {})  # builds what calls any program
        _compiled(run, inputs, Path(folder, "first"), {})  # loads what any compile needs
        for name, options in ways:
            cache = Path(shutil.copytree(base, Path(folder, name)))
            row[f"{name}_seconds"], call = _compiled(run, inputs, cache, options)
            off = float((call(*inputs).float() - wanted).norm() / wanted.norm())
            if off > 2e-2:
                row["wrong"] = f"{name}: differs from eager by {off:.1e}"
            runs[name] = lambda c=call: c(*inputs)  # type: ignore[misc]
        times = compare(runs, AcceleratorDevice(NVIDIA_GPU.facts), samples=20, seconds=2e-3)
    row |= {f"{name}_ms": round(1e3 * t.median, 4) for name, t in times.items()}
    if row["limited_seconds"] > 1.1 * row["limit"] + row["plain_seconds"]:
        row["wrong"] = "measuring took longer than it may"
    if max(row["limited_ms"], row["tuned_ms"]) > _SLOWER * row["plain_ms"]:
        row["wrong"] = "what was measured is slower than what was not"


def _compiled(
    run: Callable[..., Any], inputs: tuple[torch.Tensor, ...], cache: Path, options: dict[str, Any]
) -> tuple[float, Callable[..., Any]]:
    """Compile for these inputs; return the seconds until there is a result, and the function."""
    torch._dynamo.reset()
    chosen = {"strict": True, "device_graphs": True, **options}
    with Session(options=chosen, config=evolve(read_config(), cache_root=cache)) as session:
        call = torch.compile(run, backend=session.backend)
        start = time.monotonic()
        call(*inputs)
        torch.cuda.synchronize()
        return round(time.monotonic() - start, 2), call


def precision(clock: Clock, only: str) -> Iterator[Row]:
    """Products of float32: exact ones unless torch allows TF32, in kernels and in the library."""
    x, y = (torch.randn(2048, 2048, device=D) for _ in range(2))
    exact = x.double() @ y.double()
    before = torch.get_float32_matmul_precision()
    device = AcceleratorDevice(NVIDIA_GPU.facts)
    try:
        for allowed in ("highest", "high"):
            row: Row = {"case": f"float32 products, {allowed}"}
            torch.set_float32_matmul_precision(allowed)
            runs: dict[str, Callable[[], object]] = {}
            for way in ("library", "none"):
                torch._dynamo.reset()
                with Session(options={"strict": True, "extern_kernels": way}) as session:
                    call = torch.compile(lambda a, b: a @ b, backend=session.backend)
                    off = float((call(x, y).double() - exact).norm() / exact.norm())
                row[f"{way}_error"] = off
                if (off > 1e-5) != (allowed == "high") or off > 2e-3:
                    row["wrong"] = f"{way}: an error of {off:.1e}"
                runs[way] = lambda c=call: c(x, y)  # type: ignore[misc]
            times = compare(runs, device, samples=20, seconds=2e-3)
            row |= {f"{way}_ms": round(1e3 * t.median, 4) for way, t in times.items()}
            yield row
    finally:
        torch.set_float32_matmul_precision(before)
