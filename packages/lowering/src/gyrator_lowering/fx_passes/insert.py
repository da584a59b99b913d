"""Insertion of new calls into a graph, with the fake tensors of their results."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map_only

from gyrator_lowering.folding import PACKED
from gyrator_lowering.torch_bridge.graphs import fake_of
from gyrator_lowering.torch_bridge.schema import info_of

Insert = Callable[..., Node]
"""`insert` bound to a position in a graph: takes an op and its arguments."""


def insert(
    gm: GraphModule, before: Node, op: Callable[..., Any], *args: Any, **kwargs: Any
) -> Node:
    """Insert a call before a node, with that node's provenance."""
    with gm.graph.inserting_before(before):
        return _call(gm, before, op, args, kwargs)


def insert_after(
    gm: GraphModule, after: Node, op: Callable[..., Any], *args: Any, **kwargs: Any
) -> Node:
    """Insert a call after a node, with that node's provenance."""
    with gm.graph.inserting_after(after):
        return _call(gm, after, op, args, kwargs)


def _call(
    gm: GraphModule, like: Node, op: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Node:
    node = gm.graph.call_function(op, args, kwargs)
    node.meta = {k: v for k, v in like.meta.items() if k not in ("val", "tensor_meta")}
    fakes = [fake_of(a) for a in args]
    leaves = tree_leaves((fakes, like.meta.get("val")))
    mode = next(a.fake_mode for a in leaves if isinstance(a, FakeTensor))
    with mode:
        node.meta["val"] = op(*fakes, **kwargs)
    return node


def insert_like(gm: GraphModule, like: Node, op: Callable[..., Any], *args: Any) -> Node:
    """Insert a call before a node whose result has that node's fake tensor."""
    with gm.graph.inserting_before(like):
        node = gm.graph.call_function(op, args)
    node.meta = {k: v for k, v in like.meta.items() if k != "tensor_meta"}
    return node


def insert_packed(
    gm: GraphModule, before: Node, op: Callable[..., Any], weight: Node, *args: Any
) -> Node:
    """Insert a call that packs a weight. In the graph, its result looks like the weight."""
    packed = insert_like(gm, before, op, weight, *args)
    packed.meta["val"] = weight.meta["val"]
    packed.meta[PACKED] = True
    return packed


def insert_graph(gm: GraphModule, before: Node, inner: GraphModule, inputs: Sequence[Node]) -> Any:
    """Insert the nodes of a graph before a node, with its provenance; return the results."""
    env: dict[Node, Any] = {}
    left = iter(inputs)
    results: Any = ()
    with gm.graph.inserting_before(before):
        for node in inner.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(left)
            elif node.op == "output":
                results = tree_map_only(Node, env.__getitem__, node.args[0])
            else:
                env[node] = _copied(gm, inner, before, node, env)
    return results


def _copied(
    gm: GraphModule, inner: GraphModule, like: Node, node: Node, env: Mapping[Node, Any]
) -> Node:
    copy = gm.graph.node_copy(node, env.__getitem__)
    copy.meta |= {k: v for k, v in like.meta.items() if k in ("stack_trace", "nn_module_stack")}
    if node.op == "get_attr":
        name = f"_inlined_{len(gm._buffers) + len(gm._modules)}_{node.target}"
        value = getattr(inner, str(node.target))
        if isinstance(value, torch.nn.Module):
            gm.add_module(name, value)
        else:
            gm.register_buffer(name, value)
        copy.target = name
    return copy


def without_view(gm: GraphModule, node: Any, op: Callable[..., Any]) -> Any:
    """Return a view rebuilt without the `op` somewhere in its chain of views; None if there is
    none."""
    if not isinstance(node, Node) or not node.args or not isinstance(node.args[0], Node):
        return None
    source = node.args[0]
    if node.target is op:
        return source
    if node.target is not operator.getitem and not _is_view(node):
        return None
    inner = without_view(gm, source, op)
    return inner and insert_after(gm, node, node.target, inner, *node.args[1:], **node.kwargs)  # type: ignore[arg-type]


def _is_view(node: Node) -> bool:
    """Return whether a node is a view, or several, of its first argument with the same dtype."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if set(info_of(node.target).views) != {0}:
        return False
    return all(v.dtype is fake_of(node.args[0]).dtype for v in tree_leaves(node.meta["val"]))


def replace(gm: GraphModule, node: Node, value: Node) -> None:
    """Replace all uses of a node by another, and erase it."""
    node.replace_all_uses_with(value)
    gm.graph.erase_node(node)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which kernels compute."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def converted(call: Insert, value: Node, dtype: torch.dtype) -> Node:
    """Return a tensor converted to a dtype."""
    if value.meta["val"].dtype == dtype:
        return value
    return call(torch.ops.prims.convert_element_type.default, value, dtype)


def contiguous(call: Insert, x: Node) -> Node:
    """Return a row-major copy of a tensor."""
    return call(torch.ops.aten.clone.default, x, memory_format=torch.contiguous_format)


def other_view(call: Insert, x: Node) -> Node:
    """Return an alias of a tensor for readers that may be recomputed, inserted before all readers
    that may not: torch's partitioner considers everything after such a reader expensive to
    recompute, and saves it."""
    return call(torch.ops.aten.alias.default, x)


def size_parameters(gm: GraphModule) -> dict[Any, Node]:
    """Return the parameters of a graph that are symbolic sizes, by torch's expressions."""
    return {
        n.meta["val"].node.expr: n
        for n in gm.graph.find_nodes(op="placeholder")
        if isinstance(n.meta.get("val"), torch.SymInt)
    }


def sizes(call: Insert, x: Node, parameters: Mapping[Any, Node]) -> list[Any]:
    """Return the shape of a tensor: numbers, and nodes for symbolic sizes: the `parameters` of the
    graph (`size_parameters`) where possible, since a partitioner saves a tensor whose size the
    backward pass asks for."""
    result: list[Any] = []
    for d, size in enumerate(x.meta["val"].shape):
        known = size if isinstance(size, int) else parameters.get(size.node.expr)
        result.append(call(torch.ops.aten.sym_size.int, x, d) if known is None else known)
    return result
