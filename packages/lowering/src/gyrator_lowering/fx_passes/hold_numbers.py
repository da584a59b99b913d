"""`hold-numbers`: run-time numbers where programs take tensors only: in assertions and loops, and
in what a graph takes and returns."""

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar

import sympy
import torch
from attrs import frozen
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from gyrator_lowering.fx_passes.insert import insert, without

aten = torch.ops.aten

_TYPES = (
    (torch.SymBool, torch.bool),
    (torch.SymFloat, torch.float64),
    (torch.SymInt, torch.int64),
)
_LOOPS = ("cond", "while_loop")


def hold_results(gm: GraphModule, places: Iterable[int]) -> None:
    """Let a graph return the run-time numbers at these places as 0-d tensors, in place.

    The caller has to read them.
    """
    _hold_numbers(gm, places)
    gm.recompile()


def hold_inputs(gm: GraphModule, places: Sequence[int]) -> None:
    """Let a graph take 0-d tensors where it took run-time numbers, in place.

    The caller has to make them.
    """
    _read_inputs(gm, places)
    gm.recompile()


def resolve_results(gm: GraphModule, finished: Iterable[tuple[int, Callable[[Any], Any]]]) -> None:
    """Let a graph return, for each of these places, the view of its result that the function gives,
    in place: `torch._conj` or `torch._neg_view`, which undo themselves.

    The caller has to apply the function again.
    """
    output = gm.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    for place, view in finished:
        node: Any = results[place]
        op = getattr(aten, view.__name__).default
        made = without(gm, node, op)
        if made is None:
            made = insert(gm, output, op, node)
        results[place] = made
    output.args = (tuple(results),)
    gm.recompile()


@frozen
class HoldNumbers:
    """Let loops and branches pass run-time numbers as 0-d tensors, and assert of such what is
    asserted about floats."""

    name: ClassVar[str] = "hold-numbers"

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
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
        held = graph.call_function(aten._assert_async.msg, (_held(graph, condition), message))
    held.meta["val"] = None
    graph.erase_node(node)
    return True


def _on_integers(condition: Any) -> bool:
    """Whether a condition compares integers, as sizes and integers read from tensors are."""
    return all(
        side.is_integer
        for relation in condition.atoms(sympy.core.relational.Relational)
        for side in relation.args
    )


def _hold_loop(gm: GraphModule, node: Node) -> bool:
    """Rewrite one `while_loop` or `cond`, and those inside of it."""
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
                held = [_held(gm.graph, v) if k in numbers else v for k, v in enumerate(carried)]
            node.update_arg(2, tuple(held))
            for region in regions:
                _read_inputs(region, numbers)
    results = {k for region in regions for k in _numbers(region)}
    if loop:  # the condition's own result is no result of the loop
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


def _module(gm: GraphModule, place: Any) -> Any:
    return getattr(gm, str(place.target), None) if isinstance(place, Node) else None


def _dtype(value: Any) -> torch.dtype | None:
    """Return the type of tensor that holds a number, or None for what is a tensor."""
    return _kind(value.meta.get("val") if isinstance(value, Node) else value)


def _kind(fake: Any) -> torch.dtype | None:
    if isinstance(fake, bool):
        return torch.bool
    if isinstance(fake, int):
        return torch.int64
    if isinstance(fake, float):
        return torch.float64
    return next((dtype for kind, dtype in _TYPES if isinstance(fake, kind)), None)


def _results(gm: GraphModule) -> list[Any]:
    (given,) = gm.graph.output_node().args
    return list(given) if isinstance(given, (tuple, list)) else [given]


def _numbers(region: GraphModule) -> tuple[int, ...]:
    return tuple(k for k, item in enumerate(_results(region)) if _dtype(item) is not None)


def _hold_numbers(region: GraphModule, places: Iterable[int]) -> None:
    output, items = region.graph.output_node(), _results(region)
    with region.graph.inserting_before(output):
        for place in places:
            items[place] = _held(region.graph, items[place])
    output.args = (tuple(items) if isinstance(output.args[0], (tuple, list)) else items[0],)


def _held(graph: Graph, value: Any) -> Node:
    """Insert a 0-d tensor that holds a number."""
    dtype = _dtype(value)
    held = graph.call_function(aten.scalar_tensor.default, (value,), {"dtype": dtype})
    held.meta["val"] = _fake(dtype)
    return held


def _fake(dtype: torch.dtype | None) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty((), dtype=dtype)


def _read_inputs(region: GraphModule, places: Sequence[int]) -> None:
    """Let a region take tensors where it took numbers."""
    inputs = region.graph.find_nodes(op="placeholder")
    for place in places:
        _read(region.graph, inputs[place], inputs[-1])


def _read_results(node: Node, places: Collection[int]) -> None:
    """Let readers of a loop's numbers read the tensors that hold them."""
    fakes = node.meta["val"]
    node.meta["val"] = tuple(
        _fake(_kind(fake)) if place in places else fake for place, fake in enumerate(fakes)
    )
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] in places:
            _read(node.graph, user, user)


def _read(graph: Graph, node: Node, after: Node) -> None:
    """Insert the number that a node's tensor holds, for all that read the node."""
    number = node.meta["val"]
    dtype = _dtype(node)
    users = list(node.users)
    with graph.inserting_after(after):
        read = graph.call_function(aten._local_scalar_dense.default, (node,))
    read.meta["val"] = number
    for user in users:
        user.replace_input_with(node, read)
    node.meta["val"] = _fake(dtype)
