"""`expand-foreach`: an op on lists of tensors becomes the op on each of their elements."""

import operator
from typing import Any, ClassVar

from attrs import frozen
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from gyrator_lowering.foreach import Element, element_of


@frozen
class ExpandForeach:
    """Take ops on lists of tensors apart."""

    name: ClassVar[str] = "expand-foreach"

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        changed = False
        for node in list(gm.graph.nodes):
            found = element_of(node.target) if isinstance(node.target, OpOverload) else None
            if found is not None and all(n.target is operator.getitem for n in node.users):
                _expand(gm, node, found)
                changed = True
        return changed


def _expand(gm: GraphModule, node: Node, element: Element) -> None:
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    keywords = {a.name for a in element.op._schema.arguments if a.kwarg_only}
    readers: dict[int, list[Node]] = {}
    for user in node.users:
        readers.setdefault(user.args[1], []).append(user)  # type: ignore[arg-type]
    for place in sorted(readers):
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, value in given.items():
            mine: Any = value[place] if name in element.listed else value
            keyword = element.renamed.get(name, name)
            if keyword not in keywords:
                args.append(mine)
            elif mine is not None:
                kwargs[keyword] = mine
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(element.op, tuple(args), kwargs)
        new.meta = {k: v for k, v in node.meta.items() if k not in ("val", "tensor_meta")}
        new.meta["val"] = node.meta["val"][place]
        for reader in readers[place]:
            reader.replace_all_uses_with(new)
            gm.graph.erase_node(reader)
    gm.graph.erase_node(node)
