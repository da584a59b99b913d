"""What is measured: a model as it is, compiled by Gyrator, and compiled by TorchInductor."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

BACKENDS = ("eager", "gyrator", "inductor")
STEPS = ("inference", "training")


def load_models() -> ModuleType:
    """Return the module `gyrator.demo.models` without importing the package `gyrator`.

    The package is part of what a warm start pays, so it must not be loaded before the clock runs.
    """
    spec = importlib.util.find_spec("gyrator")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("gyrator is not installed")
    path = Path(spec.origin).parent / "demo" / "models.py"
    found = importlib.util.spec_from_file_location("benchmark_models", path)
    if found is None or found.loader is None:
        raise ModuleNotFoundError(str(path))
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


def build(arguments: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Build the model of `arguments` with dropout, and inputs for it.

    The model runs once without compiler: some write into their configuration on the first call,
    and the guards on what they write would make every compiler compile twice.
    """
    torch.set_num_threads(arguments["threads"])
    torch.manual_seed(0)
    workload = load_models().WORKLOADS[arguments["model"]]
    dtype = getattr(torch, arguments["dtype"])
    model = workload.build(0.1).to(dtype).train(arguments["step"] == "training")
    inputs = {
        k: v.to(dtype) if v.is_floating_point() else v
        for k, v in workload.inputs(torch.Generator().manual_seed(1)).items()
    }
    with torch.no_grad():
        model(**inputs)
    return model, inputs


def stepper(model: torch.nn.Module, step: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of the inputs that does one `step` of `call`, the compiled model."""
    models = load_models()
    make = models.inference if step == "inference" else models.training_step
    result: Callable[..., Any] = make(model, call)
    return result


def compiled(function: Any, backend: str, records: list[Any]) -> Callable[..., Any]:
    """Return `function` behind a backend; Gyrator's records are appended to `records`.

    Gyrator is strict here: a benchmark of its eager fallback would be worth nothing.
    """
    if backend == "eager":
        run: Callable[..., Any] = function
        return run
    if backend in ("inductor", "aot_eager"):
        return torch.compile(function, backend=backend)
    from gyrator import Session

    session = Session(options={"strict": True, "progress": False}, observer=records.append)
    return torch.compile(function, backend=session.backend)


def warm_up(backend: str) -> None:
    """Compile something trivial: pays imports, header precompiles, ISA probes, lazy tables."""

    def trivial(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) @ w).sum()

    run = compiled(trivial, backend, [])
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    run(x, w.clone().requires_grad_()).backward()
    with torch.no_grad():
        run(x, w)
    torch._dynamo.reset()


def launches(records: Sequence[Any]) -> int:
    """Return the kernel launches of one run of all recorded graphs."""
    return sum(r.launches for r in records)
