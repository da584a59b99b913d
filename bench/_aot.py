"""Packages beside AOTInductor's: what a build costs, how large the file is, loads and calls."""

import io
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _clock import interleave, tree_cpu_seconds
from _peer_models import PEERS, Peer
from torch import Tensor, nn
from torch.export import ExportedProgram, export

SIDES = ("gyrator", "inductor")
_LOADS = 7


class Tiny(nn.Module):
    """Hardly any work."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a function of each of eight elements."""
        return torch.sin(x) * 2 + 1


def models() -> dict[str, Peer]:
    """Return the models by name: those of bench/cpu_peers.py, and small ones of other kinds."""
    layer = nn.TransformerEncoderLayer
    return {
        "tiny": Peer(Tiny, lambda: (torch.randn(8),)),
        "norms": Peer(
            lambda: nn.Sequential(nn.LayerNorm(768), nn.GELU(), nn.LayerNorm(768), nn.Softmax(-1)),
            lambda: (torch.randn(512, 768),),
        ),
        "encoder": Peer(
            lambda: layer(128, 4, 512, 0.0, batch_first=True), lambda: (torch.randn(4, 64, 128),)
        ),
        **PEERS,
    }


def exported(peer: Peer) -> tuple[ExportedProgram, int, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return a model as it is exported, the bytes of its weights, and the model with inputs."""
    torch.manual_seed(0)
    module, inputs = peer.build().eval(), peer.inputs()
    held = {t.data_ptr(): t.nbytes for t in (*module.parameters(), *module.buffers())}
    with torch.no_grad():
        return export(module, inputs), sum(held.values()), (module, inputs)


def build_package(arguments: dict[str, Any]) -> dict[str, Any]:
    """Build a model's package in a process with empty caches, after that of something trivial."""
    side, path = arguments["side"], Path(arguments["path"])
    torch.set_num_threads(arguments["threads"])
    warm, _, _ = exported(Peer(lambda: nn.Softmax(-1), lambda: (torch.randn(4, 4),)))
    _build(side, warm, path)
    path.unlink()
    program, weights, _ = exported(models()[arguments["model"]])
    wall, cpu = time.perf_counter(), tree_cpu_seconds()
    _build(side, program, path)
    wall, cpu = time.perf_counter() - wall, tree_cpu_seconds() - cpu
    size = path.stat().st_size
    return {"wall": wall, "cpu": cpu, "size": size, "weights": weights, "code": size - weights}


def use_packages(arguments: dict[str, Any]) -> dict[str, Any]:
    """Load both packages of a model and call them, in turns."""
    torch.set_num_threads(arguments["threads"])
    _, _, (module, inputs) = exported(models()[arguments["model"]])
    loads = {side: _loader(side, arguments["paths"][side]) for side in SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    walls: dict[str, list[float]] = {side: [] for side in SIDES}
    kept = []  # to unload is another matter
    for turn in range(_LOADS + 1):
        for side, load in loads.items():
            wall, thread = time.perf_counter(), time.thread_time()
            kept.append(load())
            if turn:  # the first imports and probes
                seconds[side].append(time.thread_time() - thread)
                walls[side].append(time.perf_counter() - wall)
    runs: dict[str, Callable[[], Any]] = {}
    with torch.no_grad():
        want = module(*inputs)
        for side, load in loads.items():
            call = load()
            torch.testing.assert_close(call(*inputs), want, rtol=1e-3, atol=1e-3)
            runs[side] = lambda call=call: call(*inputs)
        start = time.perf_counter()
        runs["inductor"]()
        batch = max(1, min(1000, int(0.01 / (time.perf_counter() - start))))
        times = interleave(runs, arguments["rounds"], batch=batch)
    return {
        "load": {side: min(found) for side, found in seconds.items()},
        "load_wall": {side: median(found) for side, found in walls.items()},
        "times": times,
        "batch": batch,
    }


def _build(side: str, program: ExportedProgram, path: Path) -> None:
    if side == "gyrator":
        from gyrator import aot

        aot.compile(program, package=path)
        return
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def _loader(side: str, path: str) -> Callable[[], Any]:
    if side == "gyrator":
        from gyrator_runtime.package import load

        return lambda: load(path)
    return lambda: torch._inductor.aoti_load_package(path)
