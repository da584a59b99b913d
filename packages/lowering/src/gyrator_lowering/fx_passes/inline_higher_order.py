"""`inline-higher-order`: short scans and maps, associative scans and flexible attention become the
ops that they stand for."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.scan import generic_scan
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.target import Target
from gyrator_lowering.decompositions import Decompositions, default_decompositions
from gyrator_lowering.fx_passes.insert import insert_graph
from gyrator_lowering.higher_order.flex_attention import NAMES
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.stage import lower

_LOOPS: Mapping[str, int] = {"scan": 2, "map_impl": 1, "associative_scan": 1}
"""Higher-order ops that run a graph for each slice of tensors, with the position of these
tensors."""
_NAMES = frozenset({*NAMES, *_LOOPS})
_DATA_DEPENDENT = (
    GuardOnDataDependentSymNode,
    DataDependentOutputException,
    DynamicOutputShapeException,
)
NO_TARGETS: Mapping[str, Target] = MappingProxyType({})


@frozen
class InlineHigherOrder:
    """Replace calls of some higher-order ops by the ops that eager mode runs for them."""

    name: ClassVar[str] = "inline-higher-order"
    longest: int = 4
    """A scan or map with more steps becomes a loop, which compiles faster than unrolled steps. The
    number of ops of an associative scan grows with the logarithm of its steps."""
    whole: bool = False
    """Do not decompose ops that have no rule."""
    targets: Mapping[str, Target] = NO_TARGETS
    """By device type: flexible attention is kept if its target has a template for it."""

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        calls = [
            n
            for n in gm.graph.nodes
            if n.op == "call_function"
            and _is_inlined(n, self.longest)
            and not (n.target.__name__ in NAMES and self.targets and _lowers(gm, n, self.targets))
        ]
        table = {} if self.whole else default_decompositions()
        return sum(_inline(gm, node, table) for node in calls) > 0


def _is_inlined(node: Node, longest: int) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.__name__ not in _NAMES:
        return False
    inputs = pytree.tree_leaves((_masked(node.args), node.kwargs))
    values = [_value(n) for n in inputs if isinstance(n, Node)]
    if any(isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)) for v in values):
        return False
    position = _LOOPS.get(target.__name__)
    if position is None:
        return True
    sliced = pytree.tree_leaves(node.args[position])
    lengths = [_value(n).shape[0] for n in sliced if isinstance(n, Node)]
    if target.__name__ == "associative_scan":
        return all(isinstance(n, int) for n in lengths)
    return all(isinstance(n, int) and n <= longest for n in lengths)


def _lowers(gm: GraphModule, node: Node, targets: Mapping[str, Target]) -> bool:
    """Return whether a call becomes a template of its device's target."""
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for source in node.all_input_nodes:
        if source.op == "get_attr" and not isinstance(source.meta.get("val"), torch.Tensor):
            copies[source] = graph.node_copy(source)
        else:
            copies[source] = graph.placeholder(source.name)
            copies[source].meta = dict(source.meta)
    graph.node_copy(node, copies.__getitem__)
    graph.output(())
    try:
        lower(GraphModule(gm, graph), LoweringOptions(), targets)
    except UnsupportedError:
        return False
    return True


def _masked(args: Any) -> Any:
    """Return the arguments of an op without the numbers in a block mask, the only tuple that ends
    in a graph: eager's flexible attention ignores them."""

    def without(value: Any) -> Any:
        if not isinstance(value, tuple) or not value or not _is_graph(value[-1]):
            return value
        return tuple(0 if _is_number(v) else v for v in value)

    return tuple(map(without, args))


def _is_graph(value: Any) -> bool:
    return isinstance(value, Node) and value.op == "get_attr" and "val" not in value.meta


def _is_number(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(_value(value), torch.SymInt)


def _value(node: Node) -> Any:
    return node.meta.get("val")


def _inline(gm: GraphModule, node: Node, decompositions: Decompositions) -> bool:
    """Trace eager's implementation of a call on its fake tensors, and replace the call by the
    ops; return False for a call that cannot be traced, because values decide its sizes."""
    leaves, spec = pytree.tree_flatten((_masked(node.args), node.kwargs))
    leaves = [_attribute(gm, v) for v in leaves]
    positions = [k for k, v in enumerate(leaves) if isinstance(v, Node)]
    dense = _implementation(node.target)

    def call(*tensors: Any) -> Any:
        arguments = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            arguments[position] = tensor
        args, kwargs = pytree.tree_unflatten(arguments, spec)
        return dense(*args, **kwargs)

    functional = torch.func.functionalize(call)
    traced = make_fx(functional, decompositions, tracing_mode="fake")
    try:
        inner = traced(*[_value(leaves[position]) for position in positions])
    except _DATA_DEPENDENT:
        return False
    results = insert_graph(gm, node, inner, [leaves[position] for position in positions])
    _replace(gm, node, results)
    return True


def _implementation(op: Any) -> Callable[..., Any]:
    """Return the function that eager mode runs for a higher-order op."""
    if op.__name__ == "scan":  # its kernel cannot be traced
        return _scan
    kernel: Callable[..., Any] = op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
    return kernel


def _scan(function: Any, init: Any, slices: Any, more: Any) -> Any:
    return generic_scan(  # type: ignore[no-untyped-call]
        function, init, slices, additional_inputs=more
    )


def _attribute(gm: GraphModule, value: Any) -> Any:
    """Return the graph that a node refers to; any other value unchanged."""
    if isinstance(value, Node) and value.op == "get_attr":
        attribute = attrgetter(str(value.target))(gm)
        return attribute if isinstance(attribute, GraphModule) else value
    return value


def _replace(gm: GraphModule, node: Node, result: Any) -> None:
    """Replace a node by a new result, or its items by those of a tuple."""
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            _replace(gm, user, result[user.args[1]])
    gm.graph.erase_node(node)
