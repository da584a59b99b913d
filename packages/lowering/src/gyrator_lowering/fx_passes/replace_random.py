"""`replace-random`: random ops become Philox, each with its own seed, sampled in every call."""

from typing import Any, ClassVar

import torch
from torch.fx import Graph, GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.torch_bridge.graphs import fake_of
from gyrator_lowering.torch_bridge.random_ops import register_ops

aten = torch.ops.aten


@frozen
class ReplaceRandom:
    """Replace ATen's random ops by `gyrator::philox`.

    All seeds of a device come from one `gyrator::philox_seed`. Ops with a generator argument, and
    distributions that the Philox rows do not cover, keep ATen's random stream.
    """

    name: ClassVar[str] = "replace-random"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        random_ops = [n for n in gm.graph.nodes if n.op == "call_function" and _is_random(n)]
        if not random_ops:
            return False
        register_ops()
        counts: dict[torch.device, int] = {}
        seeds: dict[torch.device, Node] = {}
        for node in random_ops:
            device = _device(node)
            counts[device] = counts.get(device, 0) + 1
        first = next(n for n in gm.graph.nodes if n.op != "placeholder")
        for device, count in counts.items():
            with gm.graph.inserting_before(first):
                op = torch.ops.gyrator.philox_seed.default
                seeds[device] = _emit(gm.graph, op, (count,), {"device": device}, first)
        used = dict.fromkeys(counts, 0)
        for node in random_ops:
            device = _device(node)
            _replace(gm.graph, node, seeds[device], used[device])
            used[device] += 1
        return True


_SUPPORTED = frozenset(
    {
        aten.rand.default, aten.randn.default, aten.rand_like.default, aten.randn_like.default,
        aten.randint.default, aten.randint.low, aten.randint_like.default,
        aten.randint_like.low_dtype, aten.native_dropout.default, aten.bernoulli.default,
        aten.bernoulli.p,
    }
)  # fmt: skip


def _is_random(node: Node) -> bool:
    if node.target not in _SUPPORTED or node.kwargs.get("generator") is not None:
        return False
    val = _value(node)
    if node.target is aten.native_dropout.default:
        _, probability, train = node.args
        if train is False or (isinstance(probability, float) and not 0.0 <= probability <= 1.0):
            return False  # nothing is random, or ATen raises
    return not val.dtype.is_complex and val.dtype is not torch.float64


def _value(node: Node) -> torch.Tensor:
    val = node.meta["val"]
    return val[0] if isinstance(val, (tuple, list)) else val  # type: ignore[no-any-return]


def _device(node: Node) -> torch.device:
    return _value(node).device


def _emit(
    graph: Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], like: Node
) -> Node:
    """Insert a call with its fake result and the origin of the node that it replaces."""
    node = graph.call_function(target, args, kwargs)
    for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "partitioner_tag"):
        if key in like.meta:
            node.meta[key] = like.meta[key]

    mode = _mode(graph)
    values = fake_of(args)
    if mode is None:
        node.meta["val"] = target(*values, **kwargs)
    else:
        with mode:
            node.meta["val"] = target(*values, **kwargs)
    return node


def _mode(graph: Graph) -> Any:
    """Return the fake mode of the graph's tensors."""
    for node in graph.nodes:
        val = node.meta.get("val")
        val = val[0] if isinstance(val, (tuple, list)) and val else val
        if isinstance(val, torch._subclasses.FakeTensor):
            return val.fake_mode
    return None


def _replace(graph: Graph, node: Node, seeds: Node, index: int) -> None:
    with graph.inserting_before(node):
        if node.target is aten.native_dropout.default:
            _replace_dropout(graph, node, seeds, index)
            return
        if node.target in (aten.bernoulli.default, aten.bernoulli.p):
            new = _bernoulli(graph, node, seeds, index)
        else:
            new = _plain(graph, node, seeds, index)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _size(graph: Graph, node: Node, of: Any) -> Any:
    """Return the sizes of a result as arguments: symbolic ones are read from a tensor argument."""
    shape: list[Any] = list(_value(node).shape)
    sizes: list[Any] = []
    for d, n in enumerate(shape):
        if isinstance(n, int):
            sizes.append(n)
        elif isinstance(of, Node):
            sizes.append(_sym_size(graph, of, d, n))
        else:
            sizes.append(of[d])
    return sizes


def _sym_size(graph: Graph, tensor: Node, dim: int, value: Any) -> Node:
    size = graph.call_function(aten.sym_size.int, (tensor, dim))
    size.meta["val"] = value
    return size


def _philox(
    graph: Graph,
    node: Node,
    size: Any,
    seeds: Node,
    index: int,
    kind: str,
    low: Any,
    high: Any,
    dtype: torch.dtype,
) -> Node:
    args = (size, seeds, index, kind, low, high, dtype, _device(node))
    return _emit(graph, torch.ops.gyrator.philox.default, args, {}, node)


def _plain(graph: Graph, node: Node, seeds: Node, index: int) -> Node:
    target, args = node.target, node.args
    kind = str(target).split(".")[1].removesuffix("_like")
    like = str(target).split(".")[1].endswith("_like")
    low: Any = 0
    high: Any = 1
    if kind == "randint":
        if target in (aten.randint.low, aten.randint_like.low_dtype):
            low, high = args[1 if like else 0], args[2 if like else 1]
        else:
            high = args[1 if like else 0]
    size = _size(graph, node, args[0] if like or kind != "randint" else args[-1])
    new = _philox(graph, node, size, seeds, index, kind, low, high, _value(node).dtype)
    return _in_form(graph, new, node)


def _in_form(graph: Graph, new: Node, node: Node) -> Node:
    """Return a result with the strides of the one that it replaces, copied if they differ."""
    want, have = _value(node), _value(new)
    if want.stride() == have.stride():
        return new
    return _emit(graph, aten._to_copy.default, (new,), {"memory_format": _format_of(want)}, node)


def _format_of(value: torch.Tensor) -> torch.memory_format:
    for form in (torch.channels_last, torch.channels_last_3d):
        ranks = {torch.channels_last: 4, torch.channels_last_3d: 5}
        if value.dim() == ranks[form] and value.is_contiguous(memory_format=form):
            return form
    return torch.preserve_format


def _bernoulli(graph: Graph, node: Node, seeds: Node, index: int) -> Node:
    source: Any = node.args[0]
    size = _size(graph, node, source)
    uniform = _philox(graph, node, size, seeds, index, "rand", 0, 1, torch.float32)
    if node.target is aten.bernoulli.p:
        less = _emit(graph, aten.lt.Scalar, (uniform, node.args[1]), {}, node)
    else:
        less = _emit(graph, aten.lt.Tensor, (uniform, source), {}, node)
    return _emit(graph, aten._to_copy.default, (less,), {"dtype": _value(node).dtype}, node)


def _replace_dropout(graph: Graph, node: Node, seeds: Node, index: int) -> None:
    """Replace `native_dropout(x, p, True)` by a mask of uniform numbers below 1 - p."""
    x, p = node.args[0], float(node.args[1])  # type: ignore[arg-type]
    uniform = _philox(graph, node, _size(graph, node, x), seeds, index, "rand", 0, 1, torch.float32)
    mask = _emit(graph, aten.lt.Scalar, (uniform, 1.0 - p), {}, node)
    masked = _emit(graph, aten.mul.Tensor, (x, mask), {}, node)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    result = _emit(graph, aten.mul.Tensor, (masked, scale), {}, node)
    for user in list(node.users):
        result_index = user.args[1]
        user.replace_all_uses_with(result if result_index == 0 else mask)
        graph.erase_node(user)
    graph.erase_node(node)
