"""`inline-higher-order`: scans, maps and flexible attention as the ops that they stand for."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.utils._pytree as pytree
from attrs import frozen
from torch._higher_order_ops.scan import generic_scan
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_lowering.decompositions import Decompositions, default_decompositions

_LOOPS: Mapping[str, int] = {"scan": 2, "map_impl": 1, "associative_scan": 1}
"""Higher-order ops that run a graph for each slice of tensors: the place of those tensors."""
_NAMES = frozenset({"flex_attention", "flex_attention_backward", *_LOOPS})


@frozen
class InlineHigherOrder:
    """Replace calls of some higher-order ops by the ops that eager mode runs for them."""

    name: ClassVar[str] = "inline-higher-order"
    longest: int = 64
    """A scan or map over more steps stays: it would be written out step by step."""
    whole: bool = False
    """No op is taken apart; else those are that have no rule."""

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        found = [
            n for n in gm.graph.nodes if n.op == "call_function" and _is_inlined(n, self.longest)
        ]
        table = {} if self.whole else default_decompositions()
        for node in found:
            _inline(gm, node, table)
        return bool(found)


def _is_inlined(node: Node, longest: int) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.__name__ not in _NAMES:
        return False
    values = [_value(n) for n in node.all_input_nodes]
    if any(isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)) for v in values):
        return False
    place = _LOOPS.get(target.__name__)
    if place is None:
        return True
    sliced = pytree.tree_leaves(node.args[place])
    lengths = [_value(n).shape[0] for n in sliced if isinstance(n, Node)]
    return all(isinstance(n, int) and n <= longest for n in lengths)


def _value(node: Node) -> Any:
    return node.meta.get("val")


def _inline(gm: GraphModule, node: Node, decompositions: Decompositions) -> None:
    """Trace eager's implementation of a call on its fake tensors, and put the ops in its place."""
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    leaves = [_attribute(gm, v) for v in leaves]
    places = [k for k, v in enumerate(leaves) if isinstance(v, Node)]
    dense = _implementation(node.target)

    def call(*tensors: Any) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        args, kwargs = pytree.tree_unflatten(given, spec)
        return dense(*args, **kwargs)

    functional = torch.func.functionalize(call)
    inner = make_fx(functional, decompositions, tracing_mode="fake")(
        *[_value(leaves[place]) for place in places]
    )
    env: dict[Node, Any] = {}
    inputs = iter(leaves[place] for place in places)
    results: Any = ()
    with gm.graph.inserting_before(node):
        for one in inner.graph.nodes:
            if one.op == "placeholder":
                env[one] = next(inputs)
            elif one.op == "output":
                results = pytree.tree_map_only(Node, env.__getitem__, one.args[0])
            else:
                env[one] = _copied(gm, inner, node, one, env)
    _replace(gm, node, results)


def _implementation(op: Any) -> Callable[..., Any]:
    """Return what eager mode runs for a higher-order op."""
    if op.__name__ == "scan":  # its kernel refuses to be traced
        return _scan
    kernel: Callable[..., Any] = op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
    return kernel


def _scan(function: Any, init: Any, slices: Any, more: Any) -> Any:
    return generic_scan(  # type: ignore[no-untyped-call]
        function, init, slices, additional_inputs=more
    )


def _copied(
    gm: GraphModule, inner: GraphModule, around: Node, node: Node, env: Mapping[Node, Any]
) -> Node:
    copy = gm.graph.node_copy(node, env.__getitem__)
    copy.meta |= {k: v for k, v in around.meta.items() if k in ("stack_trace", "nn_module_stack")}
    if node.op == "get_attr":
        name = f"_inlined_{len(gm._buffers)}_{node.target}"
        gm.register_buffer(name, getattr(inner, str(node.target)))
        copy.target = name
    return copy


def _attribute(gm: GraphModule, value: Any) -> Any:
    """Return the graph that a node stands for; any other value as it is."""
    if isinstance(value, Node) and value.op == "get_attr":
        held: Any = gm
        for part in str(value.target).split("."):
            held = getattr(held, part)
        return held if isinstance(held, GraphModule) else value
    return value


def _replace(gm: GraphModule, node: Node, result: Any) -> None:
    """Let readers of a node read a new result, or where that is a tuple, its items."""
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            _replace(gm, user, result[user.args[1]])
    gm.graph.erase_node(node)
