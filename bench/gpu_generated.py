"""Models on a GPU without a library: products, convolutions and attention in generated kernels.

    python bench/gpu_generated.py --out FOLDER [--seconds 200] [--only NAME]

Each model runs in bfloat16, inference first, with `extern_kernels` `library` and `none`, both by
Gyrator, in one interleaved run with eager. `relative` is the library's time over that of generated
kernels; `calls` counts the calls of ATen that are left.
"""

import argparse
import json
import sys
import time
from copy import deepcopy
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch
import triton
from gpu import DEVICE, MODELS, device_events, step_of

from gyrator import Session
from gyrator.records import GraphRecord

ROUNDS = 8
WAYS = ("library", "none")


def compare(name: str, training: bool) -> dict[str, object]:
    """Compile one model both ways, and time it."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.to(torch.bfloat16).to(DEVICE).train(training)
    inputs = {k: v.bfloat16() if v.is_floating_point() else v for k, v in inputs.items()}
    row: dict[str, Any] = {"model": name, "step": "training" if training else "inference"}
    runs = {"eager": step_of(model, model, training)}
    results = {"eager": runs["eager"](inputs).double()}
    sessions = []
    for way in WAYS:
        torch._dynamo.reset()
        records: list[GraphRecord] = []
        session = Session(
            options={"strict": True, "progress": False, "extern_kernels": way},
            observer=records.append,
        )
        sessions.append(session)
        twin = deepcopy(model)
        runs[way] = step_of(twin, torch.compile(twin, backend=session.backend), training)
        start = time.perf_counter()
        results[way] = runs[way](inputs).double()
        torch.cuda.synchronize()
        row[f"{way}_compile_s"] = round(time.perf_counter() - start, 2)
        row[f"{way}_calls"] = sorted({c.target for r in records for c in r.externs})
        off = (results[way] - results["eager"]).norm() / results["eager"].norm()
        row[f"{way}_difference"] = float(off)
    times: dict[str, list[float]] = {way: [] for way in runs}
    for turn in range(ROUNDS + 2):
        for way, run in runs.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            run(inputs)
            torch.cuda.synchronize()
            if turn > 1:
                times[way].append(1e3 * (time.perf_counter() - start))
    for way, taken in times.items():
        row[f"{way}_ms"] = round(median(taken), 3)
        if way != "eager":
            events = device_events(runs[way], inputs)
            row[f"{way}_kernels_ms"] = round(sum(us for _, _, us in events) / 1e3, 3)
            row[f"{way}_longest"] = [[key[:60], count, round(us)] for key, count, us in events[:12]]
    row["relative"] = round(row["library_ms"] / row["none_ms"], 3)
    row["relative_kernels"] = round(row["library_kernels_ms"] / row["none_kernels_ms"], 3)
    for session in sessions:
        session.close()
    return row


def main() -> int:
    """Measure every model; print and store a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    rows: list[dict[str, Any]] = []
    for training in (False, True):
        for name in MODELS:
            if args.only not in name or time.monotonic() > end - 25:
                continue
            try:
                row = compare(name, training)
            except Exception as error:
                row = {"model": name, "wrong": f"{type(error).__name__}: {str(error)[:600]}"}
            rows.append(row)
            shown = {k: v for k, v in row.items() if not k.endswith("longest")}
            print(json.dumps(shown), flush=True)
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            text = json.dumps({"facts": facts, "rows": rows}, indent=1)
            (args.out / "bench_gpu_generated.json").write_text(text)
    good = [r for r in rows if "wrong" not in r]
    for what in ("relative", "relative_kernels"):
        if good:
            mean = geometric_mean(r[what] for r in good)
            print(f"{what}: geometric mean {mean:.2f}")
    return int(len(good) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
