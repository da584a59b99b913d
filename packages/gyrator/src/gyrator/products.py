"""`max_autotune`: which dense products of a graph run quicker in kernels than in the library."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from attrs import evolve, field, frozen
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.autotune import Budget
from gyrator.compiled import GraphCompiler
from gyrator.records import ignore_record
from gyrator.setting import Setting
from gyrator_lowering.rules.conv import CONVOLUTIONS
from gyrator_lowering.rules.matmul import PRODUCTS
from gyrator_runtime.cache import CacheKey, make_key
from gyrator_runtime.tuning import choose

_FILE = "choice.json"
_SAMPLES = 9
_SAMPLE_SECONDS = 2e-4
_DENSE = frozenset((*PRODUCTS, *CONVOLUTIONS))


def quicker_in_kernels(gm: GraphModule, setting: Setting, budget: Budget) -> frozenset[str]:
    """Return the names of the products of a graph that generated kernels compute quicker. `setting`
    is a `GraphCompiler`.

    Each different product is measured alone, on data of its sizes, and the choice is stored. What
    the budget leaves unmeasured is the library's, and is measured the next time.
    """
    alike: dict[str, list[Node]] = {}
    for node in gm.graph.nodes:
        if _measurable(node, setting):
            alike.setdefault(_signature(node), []).append(node)
    chosen: set[str] = set()
    unknown: list[tuple[str, CacheKey]] = []
    for signature, nodes in alike.items():
        key = make_key("products", {"product": signature.encode(), "by": setting.identity})
        entry = setting.cache.get(key)
        if entry is None:
            unknown.append((signature, key))
        elif json.loads(entry.read(_FILE))["best"] == "none":
            chosen.update(n.name for n in nodes)
    for signature, key in budget.each(unknown):
        best = _measured(alike[signature][0], setting)
        setting.cache.put(key, {_FILE: json.dumps({"best": best}).encode()})
        if best == "none":
            chosen.update(n.name for n in alike[signature])
    return frozenset(chosen)


def _measurable(node: Node, setting: Setting) -> bool:
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


def _signature(node: Node) -> str:
    """Return text that two nodes share if they compute the same on tensors of the same form."""

    def shown(value: Any) -> Any:
        if isinstance(value, Node):
            t = value.meta["val"]
            return t.dtype, tuple(t.shape), tuple(t.stride()), str(t.device)
        if isinstance(value, (list, tuple)):
            return [shown(v) for v in value]
        return value

    kwargs = {k: shown(v) for k, v in node.kwargs.items()}
    return repr((str(node.target), shown(node.args), kwargs, _places(node)))


def _places(node: Node) -> tuple[int, ...]:
    """Return which of several results are read."""
    if not isinstance(node.meta.get("val"), (list, tuple)):
        return ()
    users = (u for u in node.users if u.target is operator.getitem)
    return tuple(sorted({int(u.args[1]) for u in users}))  # type: ignore[arg-type]


def _alone(node: Node) -> GraphModule:
    """Return a graph of this node alone; its inputs are the node's, in order."""
    graph = Graph()
    inputs: dict[Node, Node] = {}
    for k, given in enumerate(node.all_input_nodes):
        inputs[given] = graph.placeholder(f"given{k}")
        inputs[given].meta = dict(given.meta)
    made = graph.node_copy(node, inputs.__getitem__)
    results: Sequence[Node] = [made]
    if places := _places(node):
        results = []
        for place in places:
            one = graph.call_function(operator.getitem, (made, place))
            one.meta["val"] = node.meta["val"][place]
            results.append(one)
    graph.output(tuple(results))
    return GraphModule(torch.nn.Module(), graph)


def _measured(node: Node, setting: Setting) -> str:
    """Time a product in the library and in kernels; return which is quicker."""
    device = node.all_input_nodes[0].meta["val"].device.type
    definition, target = setting.targets[device]
    # Compilers are called while torch traces with fake tensors; kernels need real ones.
    with _disable_current_modes():
        tensors = [_like(n.meta["val"]) for n in node.all_input_nodes]
        runs: dict[str, Any] = {}
        for way in ("library", "none"):
            options = evolve(
                setting.options, extern_kernels=way, max_autotune=way == "none", strict=True,
                wrapper="python", device_graphs=False, progress=False, autotune_seconds=0,
            )  # fmt: skip
            one = evolve(setting, options=options, observer=ignore_record)
            runs[way] = _Run(cast(GraphCompiler, one), node, tensors)
        return choose(
            runs, definition.device(target), samples=_SAMPLES, sample_seconds=_SAMPLE_SECONDS
        ).best


@frozen(eq=False)
class _Run:
    """One way to compute a product, compiled when it first runs."""

    compiler: GraphCompiler
    node: Node
    tensors: list[torch.Tensor]
    _compiled: list[Any] = field(factory=list)

    def __call__(self) -> Any:
        if not self._compiled:
            self._compiled.append(self.compiler.compile(_alone(self.node), "inference").call)
        return self._compiled[0](list(self.tensors))


def _like(fake: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this form, of random floats or of small integers."""
    made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    return made.uniform_(-1, 1) if fake.is_floating_point() else made.random_(0, 2)
