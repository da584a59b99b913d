"""Gradients defined by a `torch.autograd.Function`, in Dynamo's graphs.

Dynamo traces its backward pass without gradients. Autograd could not differentiate the results
again, and would take the derivatives that are missing for zeros.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from gyrator.frontend.dynamo.graph import name_of, nodes_of

_APPLY = "autograd_function_apply"


def differentiated_once(function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Return a Dynamo graph in which differentiating the backward pass of a
    `torch.autograd.Function` raises the error; return a function without such a pass unchanged."""
    if isinstance(function, GraphModule) and any(name_of(n) == _APPLY for n in nodes_of(function)):
        return _copy(function, error)
    return function


def _copy(gm: GraphModule, error: Exception) -> GraphModule:
    """Copy a graph and the bodies of its higher-order ops, but not its other attributes."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copied = GraphModule(gm, graph)
    applied = [node for node in graph.nodes if name_of(node) == _APPLY]
    backward = {node.args[1].target for node in applied}
    for name in {node.target for node in graph.find_nodes(op="get_attr")}:
        body = getattr(copied, name)
        if isinstance(body, GraphModule):
            body = _copy(body, error)
            setattr(copied, name, _final(body, error) if name in backward else body)
    return copied


def _final(backward: GraphModule, error: Exception) -> GraphModule:
    """Return a backward pass that cannot be differentiated."""
    root, graph = nn.Module(), Graph()
    root.backward = backward
    inputs = [graph.placeholder(n.name) for n in backward.graph.find_nodes(op="placeholder")]

    def guard(gradients: Sequence[Any], *inputs: Any) -> Sequence[Any]:
        sources = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        if not sources:
            return gradients
        return _Final.apply(error, gradients, *sources)  # type: ignore[no-any-return, no-untyped-call]  # untyped in torch

    graph.output(graph.call_function(guard, (graph.call_module("backward", (*inputs,)), *inputs)))
    return GraphModule(root, graph)


class _Final(torch.autograd.Function):
    """Returns gradients as if they depended on some tensors, and raises an error if that counts."""

    @staticmethod
    def forward(ctx: Any, error: Exception, gradients: Sequence[Any], *_: torch.Tensor) -> Any:
        """Return the gradients."""
        ctx.error = error
        return tuple(gradients)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        """Raise the error."""
        raise ctx.error
