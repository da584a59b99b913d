"""Random ops of regions that the backward pass computes again, as `torch.utils.checkpoint` asks.

PyTorch's partitioner replaces every such op that has the tag of random ops by higher-order ops that
save and restore the generator's state. Compiled graphs save what is drawn instead. Attention
without dropout has the tag too: it draws nothing, and is computed again.
"""

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from gyrator_lowering.torch_bridge.schema import named_arguments


def draws(graph: GraphModule) -> bool:
    """Return whether an ATen graph generates random numbers."""
    return any(_draws(node) for node in graph.graph.nodes)


def save_draws(joint: GraphModule) -> None:
    """Make the partitioner save what random ops of recomputed regions return, in place."""
    from torch._functorch.partitioners import must_recompute
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.nodes:
        if not must_recompute(node) or not _draws(node):
            continue
        parts = [user for user in node.users if user.target is operator.getitem]
        for value in (node, *parts):
            value.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def repeat_without_states(forward: GraphModule, backward: GraphModule) -> None:
    """Replace, in place, the higher-order ops of a partitioner by the ops that they call, none of
    which draws, and remove the states that they pass from one graph to the other."""
    higher_order = torch.ops.higher_order
    saved: list[Node] = []
    for node in _calls(forward.graph, higher_order.run_and_save_rng_state):
        op, *args = node.args
        parts = {user.args[1]: user for user in node.users}
        _replace(forward.graph, parts[1], op, args, node.kwargs, parts[1].meta)
        saved.append(parts[0])
    passed: list[Any] = []
    for node in _calls(backward.graph, higher_order.run_with_rng_state):
        called: Any = node.args
        state, op, *args = called
        values, named = torch.fx.map_arg((args, dict(node.kwargs)), lambda n: n.meta["val"])
        with state.meta["val"].fake_mode:
            value = op(*values, **named)
        _replace(backward.graph, node, op, args, node.kwargs, {"val": value})
        passed.append(state)
    if not saved:
        return
    output = forward.graph.output_node()
    results: Any = output.args[0]
    output.args = (tuple(r for r in results if r not in saved),)
    for state in saved:
        (call,) = state.all_input_nodes
        forward.graph.erase_node(state)
        forward.graph.erase_node(call)
    for state in passed:
        backward.graph.erase_node(state)
    forward.recompile()
    backward.recompile()


def _draws(node: Node) -> bool:
    """Return whether a call generates random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags and named_arguments(node).get("dropout_p") != 0


def _calls(graph: Graph, op: Any) -> list[Node]:
    return list(graph.find_nodes(op="call_function", target=op))


def _replace(graph: Graph, node: Node, op: Any, args: Any, kwargs: Any, meta: Any) -> None:
    with graph.inserting_before(node):
        call = graph.call_function(op, tuple(args), dict(kwargs))
    call.meta = dict(meta)
    node.replace_all_uses_with(call)
    graph.erase_node(node)
