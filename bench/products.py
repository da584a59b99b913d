"""Generated matrix products on a CPU against the libraries behind ATen: `nox -s bench -- products`.

Linear layers `x @ w.T`, plain and with bias and GELU, in `float32`. ATen and oneDNN are called in
eager mode; `generated` is compiled with `extern_kernels="none"`, so that it pays the call of a
compiled program, which the others do not. All take turns in one process; with one thread the
measure is the least thread time, else the least wall time. GFLOP/s count the products alone.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from _clock import geomean, interleave
from _environment import environment
from _tables import Sheet
from rich.console import Console
from torch import Tensor

SHAPES = (
    (8, 8, 8), (8, 1024, 1024), (4, 4096, 1024), (16, 1024, 1024), (32, 32, 32),
    (32, 4096, 1024), (64, 64, 64), (64, 1024, 1024), (100, 100, 100), (128, 128, 128),
    (128, 4096, 1024), (256, 256, 256), (301, 299, 303), (384, 384, 384), (512, 256, 1024),
    (512, 512, 512), (1024, 1024, 1024), (1024, 4096, 1024), (2048, 2048, 2048),
    (4096, 256, 4096),
)  # fmt: skip
"""Rows, columns and depth."""
TURN_SECONDS = 0.02


def plain(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """Multiply."""
    return F.linear(x, w)


def activated(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """Multiply, add the bias, and apply GELU."""
    return F.gelu(F.linear(x, w, bias))


def onednn_plain(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """Multiply by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")


def onednn_activated(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """Multiply, add the bias, and apply GELU, by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(x, w, bias, "gelu", [], "none")


CASES = {"plain": (plain, onednn_plain), "bias and GELU": (activated, onednn_activated)}


def generated(layer: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """Compile a layer without library calls, from code of its own."""
    own = FunctionType(layer.__code__.replace(co_name=name), layer.__globals__)
    options = {"extern_kernels": "none"}
    return torch.compile(own, backend="gyrator", options=options, dynamic=False)


def measure(case: str, shape: tuple[int, int, int], rounds: int) -> Mapping[str, float]:
    """Return the GFLOP/s of each subject, and the largest difference from float64 as `error`."""
    rows, columns, depth = shape
    x, w, bias = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)
    layer, onednn = CASES[case]
    ours = generated(layer, f"{layer.__name__}_{rows}_{columns}_{depth}")
    exact = layer(x.double(), w.double(), bias.double())
    error = (ours(x, w, bias) - exact).abs().max().item()
    runs = {
        "ATen": lambda: layer(x, w, bias),
        "oneDNN": lambda: onednn(x, w, bias),
        "generated": lambda: ours(x, w, bias),
    }
    flops = 2.0 * rows * columns * depth
    calls = max(1, round(TURN_SECONDS / (flops / 30e9 + 1e-5)))
    times = interleave(runs, rounds, calls)
    clock = "thread_min" if torch.get_num_threads() == 1 else "wall_min"
    return {name: flops / t[clock] / 1e9 for name, t in times.items()} | {"error": error}


def main() -> None:
    """Measure, print the tables, and write a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    results: list[dict[str, Any]] = []
    with torch.no_grad():
        for case in CASES:
            sheet = Sheet(
                f"Products, {case}, GFLOP/s, {args.threads} thread(s)",
                ("rows, columns, depth", "ATen", "oneDNN", "generated", "generated/best library"),
            )
            ratios = []
            for shape in SHAPES:
                speeds = measure(case, shape, args.rounds)
                libraries = max(speeds["ATen"], speeds["oneDNN"])
                ratios.append(speeds["generated"] / libraries)
                name = ", ".join(map(str, shape))
                sheet.rows.append(
                    (name, speeds["ATen"], speeds["oneDNN"], speeds["generated"], ratios[-1])
                )
                results.append({"case": case, "shape": shape, **speeds})
            sheet.summary.append(f"Geometric mean of the ratios: {geomean(ratios):.2f}")
            sheet.print(Console())
            print(sheet.markdown())
    if args.json:
        data = {"environment": environment(), "threads": args.threads, "products": results}
        args.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
