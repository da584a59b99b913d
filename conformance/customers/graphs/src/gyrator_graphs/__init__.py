"""A back end that takes host programs as FX graphs: it meters every node.

It is named `metered` under the entry-point group `gyrator.fx_compilers`:
`torch.compile(model, backend="gyrator", options={"wrapper": "fx", "fx_compiler": "metered"})`.
It knows torch, and nothing of Gyrator.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["Metered", "compile_graph"]


class Metered(torch.fx.Interpreter):
    """Runs a graph node by node, and keeps the nanoseconds of each."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.nanoseconds: dict[str, int] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node and take its time."""
        start = time.perf_counter_ns()
        result = super().run_node(n)
        spent = time.perf_counter_ns() - start
        self.nanoseconds[n.name] = self.nanoseconds.get(n.name, 0) + spent
        return result


def compile_graph(module: torch.fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """Return what runs a host program; its attribute `metered` has the times."""
    metered = Metered(module)

    def run(*args: Any) -> Sequence[Any]:
        results: Sequence[Any] = metered.run(*args)
        return results

    run.metered = metered  # type: ignore[attr-defined]
    return run
