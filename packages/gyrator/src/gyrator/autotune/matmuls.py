"""`max_autotune`: which dense products of a graph run quicker in kernels than in the library."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from attrs import evolve, field, frozen
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.autotune.kernels import Budget, quickest, remember, remembered
from gyrator.autotune.regions import Region, regions
from gyrator.engine.compiled import GraphCompiler
from gyrator.engine.context import CompilerContext
from gyrator.reports.records import ignore_record
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_lowering.rules.conv import CONVOLUTIONS
from gyrator_lowering.rules.matmul import PRODUCTS
from gyrator_runtime.cache import CacheKey, make_key

_GAIN = 1.03
"""How much quicker kernels must be to be taken: measurements differ by as much."""
_EXPECTED = 2.0
"""Seconds that compiling and measuring one region both ways may take."""
_DENSE = frozenset((*PRODUCTS, *CONVOLUTIONS))


def faster_in_kernels(gm: GraphModule, setting: CompilerContext, budget: Budget) -> frozenset[str]:
    """Return the names of the products of a graph that generated kernels compute quicker. `setting`
    is a `GraphCompiler`.

    Products are measured with what follows them (`regions`), both ways as they will run, on data of
    their sizes, and the choice is stored. What the budget leaves unmeasured is the library's, and
    is measured the next time.
    """
    alike: dict[str, list[Region]] = {}
    for region in regions(gm.graph, lambda n: _measurable(n, setting), _is_dense):
        alike.setdefault(region.signature(), []).append(region)
    chosen: set[str] = set()
    unknown: list[tuple[str, CacheKey]] = []
    for signature, found in alike.items():
        key = make_key("products", {"product": signature.encode(), **setting.identity})
        best = remembered(setting.cache, key)
        if best is None:
            unknown.append((signature, key))
        elif best == "none":
            chosen.update(n.name for region in found for n in region.products)
    for signature, key in budget.each(unknown, _EXPECTED):
        best = _measured(alike[signature][0], setting, budget)
        remember(setting.cache, key, best)
        if best == "none":
            chosen.update(n.name for region in alike[signature] for n in region.products)
    return frozenset(chosen)


def _is_dense(node: Node) -> bool:
    """Whether a node is a product, or attention, which libraries compute too."""
    name = str(node.target)
    return node.op == "call_function" and (name in _DENSE or "scaled_dot_product" in name)


def _measurable(node: Node, setting: CompilerContext) -> bool:
    """Whether a node is a dense product of constant sizes on a device with matrix units."""
    if node.op != "call_function" or str(node.target) not in _DENSE:
        return False
    tensors = [n.meta.get("val") for n in node.all_input_nodes]
    for t in tensors:
        if not isinstance(t, torch.Tensor) or t.device.type not in setting.targets:
            return False
        _, target = setting.targets[t.device.type]
        if not target.capabilities.matrix_units:
            return False
        if any(not isinstance(n, int) for n in (*t.shape, *t.stride())):
            return False
    return bool(tensors)


def _measured(region: Region, setting: CompilerContext, budget: Budget) -> str:
    """Time a region with the library's products and with kernels; return which is quicker."""
    device = region.inputs[0].meta["val"].device
    definition, target = setting.targets[device.type]
    interface = definition.device(target)
    # Compilers are called while torch traces with fake tensors; kernels need real ones.
    with _disable_current_modes(), interface.guard(device.index or 0):
        tensors = [_like(n.meta["val"]) for n in region.inputs]
        runs: dict[str, Any] = {}
        for way in ("library", "none"):
            options = evolve(
                setting.options, extern_kernels=way, max_autotune=way == "none", strict=True,
                wrapper="python", device_graphs=False, progress=False,
                verify="",
                autotune_seconds=0 if math.isinf(budget.left) else max(int(budget.left), 1),
            )  # fmt: skip
            one = evolve(setting, options=options, observer=ignore_record)
            runs[way] = _Run(cast(GraphCompiler, one), region, tensors)
        try:
            return quickest(runs, interface, _GAIN)
        except UnsupportedError:  # no kernels compute all of the region
            return "library"


@frozen(eq=False)
class _Run:
    """One way to compute a region, compiled when it first runs."""

    compiler: GraphCompiler
    region: Region
    tensors: list[torch.Tensor]
    _compiled: list[Any] = field(factory=list)

    def __call__(self) -> Any:
        if not self._compiled:
            self._compiled.append(self.compiler.compile(self.region.alone(), "inference").call)
        return self._compiled[0](list(self.tensors))


def _like(fake: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this form, of random floats or of small integers."""
    made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    return made.uniform_(-1, 1) if fake.is_floating_point() else made.random_(0, 2)
