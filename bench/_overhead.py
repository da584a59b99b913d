"""Time of a compiled call that has next to nothing to compute."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

import torch
from _clock import interleave
from _subject import compiled, launches
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd


def separate(kernels: int) -> tuple[Callable[..., Any], list[Tensor]]:
    """Return a function of `kernels` unrelated tensors of 8, 9, 10 ... elements."""

    def function(*tensors: Tensor) -> list[Tensor]:
        return [torch.relu(t) + 1 for t in tensors]

    return function, [torch.randn(8 + k) for k in range(kernels)]


def between_products(kernels: int) -> tuple[Callable[..., Any], list[Tensor]]:
    """Return a chain of `kernels` pointwise ops with a 1-row matrix product before each."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(kernels):
            x = torch.relu(x @ w) + 1
        return x

    return function, [torch.randn(1, 8), torch.randn(8, 8) / 8]


SHAPES: Mapping[str, Callable[[int], tuple[Callable[..., Any], list[Tensor]]]] = MappingProxyType(
    {"separate": separate, "between products": between_products}
)


def prepared_outputs(gm: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph into a function that returns tensors made here, whatever its arguments."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    results = [torch.zeros(tuple(map(int, n.meta["val"].shape))) for n in output.args[0]]

    def run(args: list[Any]) -> list[Tensor]:
        args.clear()
        return results

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
    return run


def twin(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a code object of its own: Dynamo's guards hang on code objects."""
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def call_overhead(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return seconds a call of the baseline, Gyrator and TorchInductor, and Gyrator's launches."""
    torch.set_num_threads(1)
    function, inputs = SHAPES[arguments["shape"]](arguments["kernels"])
    records: list[Any] = []
    baseline = aot_autograd(fw_compiler=prepared_outputs)
    calls = {
        "baseline": torch.compile(twin(function), backend=baseline),
        "gyrator": compiled(twin(function), "gyrator", records),
        "inductor": compiled(twin(function), "inductor", records),
    }
    runs = {name: partial(call, *inputs) for name, call in calls.items()}
    with torch.no_grad():
        times = interleave(runs, arguments["rounds"], batch=arguments["batch"])
    return {"times": times, "launches": launches(records)}
