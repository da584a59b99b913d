"""`replay-views`: results that are views of an argument are views of that argument itself.

Where the user's function writes to an argument, AOTAutograd replaces its earlier views by views of
the new value, which is dense and begins at offset 0. It then gives the caller a view of the
argument with the sizes, strides and offset of the graph's result, unless it can replay the views
itself, for which it needs fixed sizes. Views of the argument have the strides and the offset of
eager mode, and nothing is copied for them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.insert import insert
from gyrator_lowering.fx_passes.layouts.restride_outputs import view_chain

NO_ALIASES: Mapping[int, int] = MappingProxyType({})


@frozen
class ReplayViews:
    """Return views of arguments in place of views of the values that are written to these."""

    name: ClassVar[str] = "replay-views"
    aliases: Mapping[int, int] = NO_ALIASES
    """The argument that a result is a view of, both by index."""

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        output = gm.graph.output_node()
        arguments = gm.graph.find_nodes(op="placeholder")
        (returned,) = output.args
        results: list[Any] = [*returned]  # type: ignore[misc]  # AOTAutograd returns a sequence
        changed = False
        for index, position in self.aliases.items():
            result, argument = results[index], arguments[position]
            if not isinstance(result, Node):
                continue
            value, *views = view_chain(result)
            if views and value.op == "call_function" and _same_sizes(value, argument):
                results[index] = _replayed(gm, output, views, value, argument)
                changed = True
        if changed:
            output.args = (tuple(results),)
        return changed


def _same_sizes(value: Node, argument: Node) -> bool:
    a, b = value.meta.get("val"), argument.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return [*map(str, a.shape)] == [*map(str, b.shape)]


def _replayed(
    gm: GraphModule, before: Node, views: list[Node], value: Node, argument: Node
) -> Node:
    """Apply views of a value to an argument instead, and return the last one."""
    copies = {value: argument}
    for view in views:
        args, kwargs = torch.fx.map_arg((view.args, view.kwargs), lambda n: copies.get(n, n))
        target: Any = view.target
        copies[view] = insert(gm, before, target, *args, **kwargs)
        copies[view].meta |= {k: v for k, v in view.meta.items() if k not in ("val", "tensor_meta")}
    return copies[views[-1]]
