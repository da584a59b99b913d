"""`max_autotune`: which ops that have a kernel of their own are faster in ATen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.autotune.kernels import Budget, quickest, remember, remembered
from gyrator.autotune.matmuls import CompiledRegion, tensor_like
from gyrator.autotune.regions import Region, is_pure, region_of
from gyrator.engine.context import CompilerContext
from gyrator.graphs.fallback import eager_graph
from gyrator_ir.host.nodes import HostProgram
from gyrator_runtime.cache import make_key

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

    Each op is measured on data of its sizes, and the choice is stored for this machine. Ops that
    exceed the budget stay kernels, and are measured by the next compile.
    """
    groups: dict[str, list[Region]] = {}
    for node in _alone(host, gm):
        if _measurable(node, context):
            region = region_of([node], [node])
            groups.setdefault(region.signature(), []).append(region)
    answers = {}
    unknown = []
    for signature, group in groups.items():
        definition, _ = context.targets[group[0].nodes[0].meta["val"].device.type]
        machine = f"{definition.machine()} {torch.get_num_threads()}".encode()
        parts = {"op": signature.encode(), "machine": machine, **context.identity}
        key = make_key("single ops", parts)
        answers[signature] = remembered(context.cache, key)
        if answers[signature] is None:
            unknown.append((signature, key))
    for signature, key in budget.each(unknown, _EXPECTED):
        answers[signature] = _measured(groups[signature][0], context)
        remember(context.cache, key, answers[signature])
    chosen = (group for signature, group in groups.items() if answers[signature] == "aten")
    return {node.name: _REASON for group in chosen for region in group for node in region.nodes}


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


def _measured(region: Region, context: CompilerContext) -> str:
    """Return `aten` if an op is faster there, else `kernel`."""
    device = region.nodes[0].meta["val"].device
    definition, target = context.targets[device.type]
    interface = definition.device(target)
    # The compiler runs while torch traces with fake tensors; kernels need real ones.
    with _disable_current_modes(), interface.guard(device.index or 0):
        tensors = [tensor_like(n.meta["val"]) for n in region.inputs]
        eager = eager_graph(region.graph_module())
        kernel = CompiledRegion(context.trial(), region, tensors)
        runs: dict[str, Callable[[], object]] = {
            "kernel": kernel,
            "aten": lambda: eager(list(tensors)),
        }
        try:
            kernel()
            return quickest(runs, interface, _GAIN)
        except Exception:  # on such data it cannot be measured
            return "kernel"
