"""`hold-numbers`: symbolic scalars become 0-d tensors where programs support only tensors: in
assertions and loops, and as inputs and results of graphs."""

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.insert import insert, without_view
from gyrator_lowering.torch_bridge.graphs import graph_results

aten = torch.ops.aten

_TYPES = ((torch.SymBool, torch.bool), (torch.SymFloat, torch.float64), (torch.SymInt, torch.int64))
_LOOPS = ("cond", "while_loop")


def hold_results(gm: GraphModule, indices: Iterable[int]) -> None:
    """Make a graph return the symbolic scalars at these indices as 0-d tensors, in place.

    The caller must read the values back.
    """
    _hold_numbers(gm, indices)
    gm.recompile()


def hold_inputs(gm: GraphModule, indices: Sequence[int]) -> None:
    """Make a graph take 0-d tensors instead of the symbolic scalars at these indices, in place.

    The caller must create the tensors.
    """
    _read_inputs(gm, indices)
    gm.recompile()


def resolve_results(gm: GraphModule, finished: Iterable[tuple[int, Callable[[Any], Any]]]) -> None:
    """Make a graph return views of its results at these indices, in place: `torch._conj` or
    `torch._neg_view`, which are their own inverses.

    The caller must apply the function again.
    """
    output = gm.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    for index, view in finished:
        node: Any = results[index]
        op = getattr(aten, view.__name__).default
        resolved = without_view(gm, node, op)
        if resolved is None:
            resolved = insert(gm, output, op, node)
        results[index] = resolved
    output.args = (tuple(results),)
    gm.recompile()


@frozen
class HoldNumbers:
    """Pass symbolic scalars through loops and branches as 0-d tensors, and assert conditions on
    floats on such tensors."""

    name: ClassVar[str] = "hold-numbers"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in list(gm.graph.nodes):
            if node.target is aten._assert_scalar.default:
                changed |= _hold_assertion(gm.graph, node)
            elif node.op == "call_function" and getattr(node.target, "__name__", "") in _LOOPS:
                changed |= _hold_loop(gm, node)
        return changed


def _hold_assertion(graph: Graph, node: Node) -> bool:
    condition, message = node.args[:2]
    fake = condition.meta.get("val") if isinstance(condition, Node) else None
    if not isinstance(fake, torch.SymBool) or _on_integers(fake.node.expr):
        return False
    with graph.inserting_before(node):
        assertion = graph.call_function(aten._assert_async.msg, (_hold(graph, condition), message))
    assertion.meta["val"] = None
    graph.erase_node(node)
    return True


def _on_integers(condition: Any) -> bool:
    """Return whether a condition compares integers only, such as sizes and integers read from
    tensors."""
    return all(
        side.is_integer
        for relation in condition.atoms(sympy.core.relational.Relational)
        for side in relation.args
    )


def _hold_loop(gm: GraphModule, node: Node) -> bool:
    """Rewrite one `while_loop` or `cond`, and those nested in it."""
    loop = node.target.__name__ == "while_loop"  # type: ignore[union-attr]
    regions = [_module(gm, place) for place in node.args[0 if loop else 1 : 2 if loop else 3]]
    if not all(isinstance(region, GraphModule) for region in regions):
        return False
    changed = sum(HoldNumbers().run(region) for region in regions) > 0  # all of them
    if loop:
        carried: Any = node.args[2]
        numbers = [k for k, v in enumerate(carried) if _dtype(v) is not None]
        if numbers:
            with gm.graph.inserting_before(node):
                tensors = [_hold(gm.graph, v) if k in numbers else v for k, v in enumerate(carried)]
            node.update_arg(2, tuple(tensors))
            for region in regions:
                _read_inputs(region, numbers)
    results = {k for region in regions for k in _numbers(region)}
    if loop:  # the condition's result is not a result of the loop
        _hold_numbers(regions[0], _numbers(regions[0]))
        results = set(numbers)
    _hold_numbers(regions[1], results)
    if not loop:
        _hold_numbers(regions[0], results)
    _read_results(node, results)
    if changed or results or loop:
        for region in regions:
            region.recompile()
    return changed or bool(results)


def _module(gm: GraphModule, node: Any) -> Any:
    return getattr(gm, str(node.target), None) if isinstance(node, Node) else None


def _dtype(value: Any) -> torch.dtype | None:
    """Return the dtype of a tensor that holds a scalar, or None for a tensor."""
    return _kind(value.meta.get("val") if isinstance(value, Node) else value)


def _kind(fake: Any) -> torch.dtype | None:
    if isinstance(fake, bool):
        return torch.bool
    if isinstance(fake, int):
        return torch.int64
    if isinstance(fake, float):
        return torch.float64
    return next((dtype for kind, dtype in _TYPES if isinstance(fake, kind)), None)


def _numbers(region: GraphModule) -> tuple[int, ...]:
    return tuple(k for k, item in enumerate(graph_results(region)) if _dtype(item) is not None)


def _hold_numbers(region: GraphModule, indices: Iterable[int]) -> None:
    output, items = region.graph.output_node(), list(graph_results(region))
    with region.graph.inserting_before(output):
        for index in indices:
            items[index] = _hold(region.graph, items[index])
    output.args = (tuple(items) if isinstance(output.args[0], (tuple, list)) else items[0],)


def _hold(graph: Graph, value: Any) -> Node:
    """Insert a 0-d tensor that holds a scalar."""
    dtype = _dtype(value)
    tensor = graph.call_function(aten.scalar_tensor.default, (value,), {"dtype": dtype})
    tensor.meta["val"] = _fake(dtype)
    return tensor


def _fake(dtype: torch.dtype | None) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty((), dtype=dtype)


def _read_inputs(region: GraphModule, indices: Sequence[int]) -> None:
    """Make a region take tensors instead of scalars."""
    inputs = region.graph.find_nodes(op="placeholder")
    for index in indices:
        _read(region.graph, inputs[index], inputs[-1])


def _read_results(node: Node, indices: Collection[int]) -> None:
    """Make users of a loop's scalars read the tensors that hold them."""
    fakes = node.meta["val"]
    node.meta["val"] = tuple(
        _fake(_kind(fake)) if index in indices else fake for index, fake in enumerate(fakes)
    )
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] in indices:
            _read(node.graph, user, user)


def _read(graph: Graph, node: Node, after: Node) -> None:
    """Insert a read of the scalar in a node's tensor, for all users of the node."""
    number = node.meta["val"]
    dtype = _dtype(node)
    users = list(node.users)
    with graph.inserting_after(after):
        read = graph.call_function(aten._local_scalar_dense.default, (node,))
    read.meta["val"] = number
    for user in users:
        user.replace_input_with(node, read)
    node.meta["val"] = _fake(dtype)
