"""`max_autotune`: which dense products of a graph are faster in generated kernels than in the
library."""

from __future__ import annotations

import math
from typing import Any

import torch
from attrs import field
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.autotune.kernels import Budget, quickest, remember, remembered
from gyrator.autotune.regions import Region, regions
from gyrator.engine.context import CompilerContext, GraphCompiler
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_lowering.rules.conv import CONVOLUTIONS
from gyrator_lowering.rules.matmul import PRODUCTS
from gyrator_runtime.cache import CacheKey, make_key
from gyrator_runtime.host.outside import empty_like

_GAIN = 1.03
"""The minimum speedup of kernels, to exclude measurement noise."""
_EXPECTED = 2.0
"""Expected seconds for compiling and measuring one region both ways."""
_DENSE = frozenset((*PRODUCTS, *CONVOLUTIONS))


def faster_in_kernels(gm: GraphModule, context: CompilerContext, budget: Budget) -> frozenset[str]:
    """Return the names of the products of a graph that are faster in generated kernels.

    Products are measured with the ops after them (`regions`), both ways as they will run, on data
    of their sizes, and the choice is stored for this machine. Products that exceed the budget use
    the library, and are measured by the next compile.
    """
    groups: dict[str, list[Region]] = {}
    for region in regions(gm.graph, lambda n: _measurable(n, context), _is_dense):
        groups.setdefault(region.signature(), []).append(region)
    chosen: set[str] = set()
    unknown: list[tuple[str, CacheKey]] = []
    for signature, group in groups.items():
        definition, _ = context.targets[group[0].inputs[0].meta["val"].device.type]
        machine = definition.machine().encode()
        parts = {"product": signature.encode(), "machine": machine, **context.identity}
        key = make_key("products", parts)
        best = remembered(context.cache, key)
        if best is None:
            unknown.append((signature, key))
        elif best == "none":
            chosen.update(n.name for region in group for n in region.products)
    for signature, key in budget.each(unknown, _EXPECTED):
        best = _measured(groups[signature][0], context, budget)
        remember(context.cache, key, best)
        if best == "none":
            chosen.update(n.name for region in groups[signature] for n in region.products)
    return frozenset(chosen)


def _is_dense(node: Node) -> bool:
    """Return whether a node is a matrix product, a convolution or attention, which libraries
    compute too."""
    name = str(node.target)
    return node.op == "call_function" and (name in _DENSE or "scaled_dot_product" in name)


def _measurable(node: Node, context: CompilerContext) -> bool:
    """Return whether a node is a dense product of constant sizes, of plain tensors, on a device
    with matrix units, or a matrix product on one whose kernels have register tiles."""
    name = str(node.target)
    if node.op != "call_function" or name not in _DENSE:
        return False
    tensors = [n.meta.get("val") for n in node.all_input_nodes]
    for t in tensors:
        if not isinstance(t, torch.Tensor) or t.device.type not in context.targets:
            return False
        _, target = context.targets[t.device.type]
        tiles = target.heuristics.register_tiles and name in PRODUCTS
        if t.layout is not torch.strided or not (target.capabilities.matrix_units or tiles):
            return False
        if any(not isinstance(n, int) for n in (*t.shape, *t.stride())):
            return False
    return bool(tensors)


def _measured(region: Region, context: CompilerContext, budget: Budget) -> str:
    """Time a region with library products and with generated kernels; return the faster option."""
    device = region.inputs[0].meta["val"].device
    definition, target = context.targets[device.type]
    interface = definition.device(target)
    # The compiler runs while torch traces with fake tensors; kernels need real ones.
    with _disable_current_modes(), interface.guard(device.index or 0):
        tensors = [tensor_like(n.meta["val"]) for n in region.inputs]
        runs: dict[str, Any] = {}
        seconds = 0 if math.isinf(budget.left) else max(int(budget.left), 1)
        for extern_kernels in ("library", "none"):
            tunes = extern_kernels == "none"
            compiler = context.trial(
                extern_kernels=extern_kernels,
                max_autotune=tunes,
                autotune_seconds=seconds if tunes else 0,
            )
            runs[extern_kernels] = CompiledRegion(compiler, region, tensors)
        try:
            return quickest(runs, interface, _GAIN)
        except UnsupportedError:  # generated kernels do not support all of the region
            return "library"


@frozen(eq=False)
class CompiledRegion:
    """One way to compute a region, compiled on its first run."""

    compiler: GraphCompiler
    region: Region
    tensors: list[torch.Tensor]
    _compiled: list[Any] = field(factory=list)

    def __call__(self) -> Any:
        """Run it on the tensors."""
        if not self._compiled:
            self._compiled.append(
                self.compiler.compile(self.region.graph_module(), "inference").call
            )
        return self._compiled[0](list(self.tensors))


def tensor_like(fake: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this layout, of random floats or small integers."""
    tensor = empty_like(fake)
    return tensor.uniform_(-1, 1) if fake.is_floating_point() else tensor.random_(0, 2)
