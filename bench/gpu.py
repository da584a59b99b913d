"""Models on a GPU in bfloat16 against eager and TorchInductor, in one interleaved run.

    python bench/gpu.py --out FOLDER [--seconds 300] [--only NAME]

Models have their published sizes and random weights. Compile times are of the first call with empty
caches, in this order: TorchInductor, then Gyrator. Run times are medians of rounds in which all
take turns; `kernels` is the time that the profiler saw on the device. `gyrator_table` has a row for
each kernel that we wrote: launches, microseconds, share of the time on the device, and the bytes it
must move a second as a share of what a copy moves.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch
import transformers
import triton
from torch.profiler import ProfilerActivity, profile
from triton.testing import do_bench

from gyrator import Session
from gyrator.records import GraphRecord

Inputs = dict[str, torch.Tensor]
DEVICE = "cuda"
ROUNDS = 12


def tokens(vocabulary: int, batch: int, length: int) -> Inputs:
    """Return random token ids, which are their own labels."""
    ids = torch.randint(0, vocabulary, (batch, length), device=DEVICE)
    return {"input_ids": ids, "labels": ids}


def bert() -> tuple[torch.nn.Module, Inputs]:
    """BERT-base."""
    zero = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**zero))
    return model, tokens(30522, 16, 128)


def gpt2() -> tuple[torch.nn.Module, Inputs]:
    """GPT-2."""
    config = transformers.GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config), tokens(50257, 4, 512)


def llama() -> tuple[torch.nn.Module, Inputs]:
    """Four layers of a Llama of width 2048."""
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=4,
        num_attention_heads=16, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), tokens(32000, 4, 512)


def resnet50() -> tuple[torch.nn.Module, Inputs]:
    """ResNet-50."""
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    labels = torch.randint(0, 1000, (32,), device=DEVICE)
    return model, {"pixel_values": torch.randn(32, 3, 224, 224, device=DEVICE), "labels": labels}


def convnext() -> tuple[torch.nn.Module, Inputs]:
    """ConvNeXt-T."""
    config = transformers.ConvNextConfig(num_labels=1000)
    labels = torch.randint(0, 1000, (32,), device=DEVICE)
    pixels = torch.randn(32, 3, 224, 224, device=DEVICE)
    model = transformers.ConvNextForImageClassification(config)
    return model, {"pixel_values": pixels, "labels": labels}


MODELS: Mapping[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    "BERT-base": bert,
    "GPT-2": gpt2,
    "Llama-4x2048": llama,
    "ResNet-50": resnet50,
    "ConvNeXt-T": convnext,
}


def step_of(model: torch.nn.Module, call: Callable[..., Any], training: bool) -> Callable[..., Any]:
    """Return what is timed: a forward pass, or forward and backward."""

    def infer(inputs: Inputs) -> Any:
        with torch.no_grad():
            return call(**inputs).logits

    def train(inputs: Inputs) -> Any:
        model.zero_grad(set_to_none=True)
        result = call(**inputs)
        result.loss.backward()
        return result.logits

    return train if training else infer


Events = list[tuple[str, int, float]]
"""Of each kernel: name, launches, microseconds of all of them."""


def device_events(run: Callable[..., Any], inputs: Inputs) -> Events:
    """Return what one run did on the device, what took longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run(inputs)
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda e: -e.device_time_total)
    return [(e.key, e.count, e.device_time_total) for e in rows]


def copy_rate() -> float:
    """Return the bytes a second that a large copy reads and writes."""
    a = torch.empty(1 << 26, device=DEVICE)
    b = torch.empty_like(a)
    return 2e3 * a.numel() * a.element_size() / float(do_bench(lambda: b.copy_(a)))


def kernel_table(events: Events, records: list[GraphRecord], copied: float) -> list[list[object]]:
    """Return a row for each kernel of ours: name, launches, microseconds, share of the time on the
    device, and its bytes a second over `copied`."""
    moved = {k.name: k.bytes_moved for r in records for k in r.kernels}
    total = sum(us for _, _, us in events)
    return [
        [name, n, round(us, 1), round(us / total, 4), round(1e6 * moved[name] * n / us / copied, 3)]
        for name, n, us in events
        if name in moved and us
    ]


def measure(name: str, training: bool, copied: float) -> dict[str, object]:
    """Compile and time one model. `copied`: bytes a second of a copy."""
    records: list[GraphRecord] = []
    with Session(options={"strict": True}, observer=records.append) as session:
        row = _measure(name, training, session, copied, records)
    return row


def _measure(
    name: str, training: bool, session: Session, copied: float, records: list[GraphRecord]
) -> dict[str, object]:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    dtype = torch.bfloat16
    model = model.to(dtype).to(DEVICE).train(training)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    row: dict[str, object] = {"model": name, "step": "training" if training else "inference"}
    runs = {"eager": step_of(model, model, training)}
    results = {"eager": runs["eager"](inputs)}
    for backend in ("inductor", "gyrator"):
        torch._dynamo.reset()
        twin = deepcopy(model)
        chosen = session.backend if backend == "gyrator" else backend
        run = step_of(twin, torch.compile(twin, backend=chosen), training)
        start = time.perf_counter()
        results[backend] = run(inputs)
        torch.cuda.synchronize()
        row[f"{backend}_compile_s"] = round(time.perf_counter() - start, 2)
        runs[backend] = run
    times: dict[str, list[float]] = {n: [] for n in runs}
    for turn in range(ROUNDS + 3):
        for n, run in runs.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            run(inputs)
            torch.cuda.synchronize()
            if turn > 2:
                times[n].append(1e3 * (time.perf_counter() - start))
    for n, taken in times.items():
        row[f"{n}_ms"] = round(median(taken), 3)
        if n != "eager":
            events = device_events(runs[n], inputs)
            row[f"{n}_kernels_ms"] = round(sum(us for _, _, us in events) / 1e3, 3)
            row[f"{n}_longest"] = [[key[:60], count, round(us)] for key, count, us in events[:16]]
            if n == "gyrator":
                row["gyrator_table"] = kernel_table(events, records, copied)
            off = (results[n].double() - results["eager"].double()).norm()
            row[f"{n}_difference"] = float(off / results["eager"].double().norm())
    return row


def main() -> int:
    """Measure every model; print and store a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    rows: list[dict[str, object]] = []
    facts: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    copied = copy_rate()
    facts["copy_bytes_per_second"] = copied
    for name in MODELS:
        for training in (False, True):
            if args.only not in name or time.monotonic() > end - 30:
                continue
            try:
                row = measure(name, training, copied)
            except Exception as error:
                row = {"model": name, "wrong": f"{type(error).__name__}: {str(error)[:600]}"}
            rows.append(row)
            shown = {k: v for k, v in row.items() if not k.endswith(("longest", "table"))}
            print(json.dumps(shown), flush=True)
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            text = json.dumps({"facts": facts, "rows": rows}, indent=1)
            (args.out / "bench_gpu.json").write_text(text)
    good = [r for r in rows if "wrong" not in r]
    for what in ("ms", "kernels_ms", "compile_s"):
        pairs = [(r[f"inductor_{what}"], r[f"gyrator_{what}"]) for r in good]
        if pairs:
            ratio = geometric_mean(float(str(a)) / float(str(b)) for a, b in pairs)
            print(f"TorchInductor's {what} over Gyrator's, geometric mean: {ratio:.2f}")
    return int(len(good) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
