"""`max_autotune`: which ops that have a kernel of their own are faster in ATen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.fx import GraphModule, Node

from gyrator.autotune.kernels import Budget, quickest
from gyrator.autotune.matmuls import CompiledRegion, Tensors, chosen_regions
from gyrator.autotune.regions import Region, is_pure, region_of
from gyrator.engine.context import CompilerContext
from gyrator.graphs.fallback import eager_graph
from gyrator_ir.host.nodes import HostProgram
from gyrator_runtime.device import DeviceInterface

_GAIN = 1.1
"""The minimum speedup of ATen over a kernel that is not tuned yet."""
_EXPECTED = 1.0
"""Expected seconds for compiling and measuring one op."""
_MIN_BYTES = 1 << 16
"""The minimum size of an op's result: the call itself dominates the time of smaller ops."""
_REASON = "measured to be faster than a kernel"


def faster_in_aten(
    host: HostProgram, gm: GraphModule, context: CompilerContext, budget: Budget
) -> dict[str, str]:
    """Return the nodes of a graph that are alone in their kernels and faster in ATen, with the
    reason for calling it.

    Ops that exceed the budget stay kernels, and are measured by the next compile.
    """
    candidates = [region_of([n], [n]) for n in _alone(host, gm) if _measurable(n, context)]

    def faster(region: Region, tensors: Tensors, device: DeviceInterface) -> bool:
        eager = eager_graph(region.graph_module())
        kernel = CompiledRegion(context.trial(), region, tensors)
        runs: dict[str, Callable[[], object]] = {
            "kernel": kernel,
            "aten": lambda: eager(list(tensors)),
        }
        try:
            kernel()
            return quickest(runs, device, _GAIN) == "aten"
        except Exception:  # on such data it cannot be measured
            return False

    chosen = chosen_regions("single ops", candidates, faster, context, budget, _EXPECTED)
    return {node.name: _REASON for region in chosen for node in region.nodes}


def _alone(host: HostProgram, gm: GraphModule) -> Iterator[Node]:
    """Yield the nodes whose kernels compute nothing else."""
    fused: dict[str, bool] = {}
    for kernel in host.kernels:
        names = {host.origins[o].node for o in kernel.origins}
        for name in names:
            fused[name] = fused.get(name, False) or len(names) > 1
    yield from (n for n in gm.graph.nodes if fused.get(n.name) is False)


def _measurable(node: Node, context: CompilerContext) -> bool:
    """Return whether a node is a pure op on tensors of constant sizes, with a large result."""
    val = node.meta.get("val")
    return (
        is_pure(node)
        and bool(node.all_input_nodes)
        and isinstance(val, torch.Tensor)
        and val.device.type in context.targets
        and val.numel() * val.element_size() >= _MIN_BYTES
    )
