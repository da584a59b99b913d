"""The process that runs packages: it answers one request per line and imports no compiler.

It runs as a file because its own package imports the compiler.
"""

import json
import os
import sys
from typing import Any

import torch

from gyrator_ir.types import HOST
from gyrator_runtime.package import Model, load

ALLOWED = frozenset({"gyrator_ir", "gyrator_runtime"})


def random_states(device: str) -> dict[str, torch.Tensor]:
    """Return the states of torch's generators of the CPU and of a device, by device type."""
    return {kind: _module(kind).get_rng_state() for kind in (HOST, device)}


def _module(kind: str) -> Any:
    return torch if kind == HOST else torch.get_device_module(kind)


def run(model: Model, source: str, to: str) -> None:
    """Run a model on saved inputs; save its results and modified buffers."""
    saved = torch.load(source)
    for kind, state in saved["random"].items():
        _module(kind).set_rng_state(state)
    results = model(*saved["inputs"])
    ours = {m.partition(".")[0] for m in sys.modules if m.startswith("gyrator")}
    if not ours <= ALLOWED:
        raise ImportError(f"a package imports {', '.join(sorted(ours - ALLOWED))}")
    written = {w.name: model.weights[w.name] for w in model.manifest.weights if w.written}
    torch.save({"results": results, "written": written}, to)


def serve() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    model: Model | None = None
    for line in sys.stdin:
        request, error = json.loads(line), ""
        try:
            if "load" in request:
                model = load(request["load"], verify=True)
            elif model is not None:
                run(model, request["run"], request["to"])
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
