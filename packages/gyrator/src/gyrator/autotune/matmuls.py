"""`max_autotune`: which dense products of a graph are faster in generated kernels than in the
library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.host.outside import empty_like

_GAIN = 1.03
"""The minimum speedup of kernels, to exclude measurement noise."""
_EXPECTED = 2.0
"""Expected seconds for compiling and measuring one region both ways."""
Tensors = list[torch.Tensor]
_DENSE = frozenset((*PRODUCTS, *CONVOLUTIONS))


def faster_in_kernels(gm: GraphModule, context: CompilerContext, budget: Budget) -> frozenset[str]:
    """Return the names of the products of a graph that are faster in generated kernels.

    Products are measured with the ops after them (`regions`), both ways as they will run. Products
    that exceed the budget use the library, and are measured by the next compile.
    """
    candidates = regions(gm.graph, lambda n: _measurable(n, context), _is_dense)

    def faster(region: Region, tensors: Tensors, device: DeviceInterface) -> bool:
        seconds = 0 if math.isinf(budget.left) else max(int(budget.left), 1)
        library = context.trial(extern_kernels="library")
        kernels = context.trial(extern_kernels="none", max_autotune=True, autotune_seconds=seconds)
        runs = {
            "library": CompiledRegion(library, region, tensors),
            "none": CompiledRegion(kernels, region, tensors),
        }
        try:
            return quickest(runs, device, _GAIN) == "none"
        except UnsupportedError:  # generated kernels do not support all of the region
            return False

    chosen = chosen_regions("products", candidates, faster, context, budget, _EXPECTED)
    return frozenset(n.name for region in chosen for n in region.products)


def chosen_regions(
    kind: str,
    candidates: Iterable[Region],
    faster: Callable[[Region, Tensors, DeviceInterface], bool],
    context: CompilerContext,
    budget: Budget,
    expected: float,
) -> list[Region]:
    """Return the regions for which `faster` returns true.

    It measures one of those that are equal on data of its sizes, in about `expected` seconds, as
    far as the budget allows. The answers are stored for this machine and number of threads.
    """
    groups: dict[str, list[Region]] = {}
    for region in candidates:
        groups.setdefault(region.signature(), []).append(region)
    answers: dict[str, bool | None] = {}
    unknown: list[tuple[str, CacheKey]] = []
    for signature, group in groups.items():
        definition, _ = context.targets[group[0].device.type]
        machine = f"{definition.machine()} {torch.get_num_threads()}".encode()
        parts = {"region": signature.encode(), "machine": machine, **context.identity}
        key = make_key(kind, parts)
        answers[signature] = remembered(context.cache, key)
        if answers[signature] is None:
            unknown.append((signature, key))
    for signature, key in budget.each(unknown, expected):
        region = groups[signature][0]
        definition, target = context.targets[region.device.type]
        device = definition.device(target)
        # The compiler runs while torch traces with fake tensors; kernels need real ones.
        with _disable_current_modes(), device.guard(region.device.index or 0):
            tensors = [tensor_like(n.meta["val"]) for n in region.inputs]
            answers[signature] = best = faster(region, tensors, device)
        remember(context.cache, key, best)
    return [region for signature, group in groups.items() if answers[signature] for region in group]


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


@frozen(eq=False)
class CompiledRegion:
    """One way to compute a region, compiled on its first run."""

    compiler: GraphCompiler
    region: Region
    tensors: Tensors
    _compiled: list[Any] = field(factory=list)

    def __call__(self) -> Any:
        """Run it on the tensors."""
        if not self._compiled:
            self._compiled.append(
                self.compiler.compile(self.region.graph_module(), "inference").call
            )
        return self._compiled[0](list(self.tensors))


def tensor_like(fake: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this layout, whose elements may share memory, of random numbers: floats
    and complex numbers from -1 to 1, or 0 and 1."""
    tensor = empty_like(fake)
    memory = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,))
    numbers = torch.rand(memory.shape, device=tensor.device)
    inexact = fake.is_floating_point() or fake.is_complex()
    memory.copy_(numbers.mul_(2).sub_(1) if inexact else numbers.round_())
    return tensor
