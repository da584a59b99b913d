"""`expand-foreach`: an op on lists of tensors becomes one op for each element."""

import operator
from typing import Any, ClassVar

from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.foreach import Element, element_of


@frozen
class ExpandForeach:
    """Expand ops on lists of tensors."""

    name: ClassVar[str] = "expand-foreach"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in list(gm.graph.nodes):
            element = element_of(node.target) if isinstance(node.target, OpOverload) else None
            if element is not None and all(n.target is operator.getitem for n in node.users):
                _expand(gm, node, element)
                changed = True
        return changed


def _expand(gm: GraphModule, node: Node, element: Element) -> None:
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    list_arguments = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    keywords = {a.name for a in element.op._schema.arguments if a.kwarg_only}
    readers: dict[int, list[Node]] = {}
    for user in node.users:
        readers.setdefault(user.args[1], []).append(user)  # type: ignore[arg-type]
    for index in sorted(readers):
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, value in list_arguments.items():
            argument: Any = value[index] if name in element.listed else value
            keyword = element.renamed.get(name, name)
            if keyword not in keywords:
                args.append(argument)
            elif argument is not None:
                kwargs[keyword] = argument
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(element.op, tuple(args), kwargs)
        new.meta = {k: v for k, v in node.meta.items() if k not in ("val", "tensor_meta")}
        new.meta["val"] = node.meta["val"][index]
        for reader in readers[index]:
            reader.replace_all_uses_with(new)
            gm.graph.erase_node(reader)
    gm.graph.erase_node(node)
