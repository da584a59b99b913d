"""`restride-outputs`: results of a graph get the strides that eager mode gives them.

A decomposition lays its result out as it likes, and the caller would see that. The result is copied
into eager's order of axes; the kernel that computes it can write that order itself.
"""

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map
from torch.utils._sympy.functions import Max

from gyrator_lowering.fx_passes.insert import insert_after
from gyrator_lowering.torch_bridge.schema import info_of

aten = torch.ops.aten

Strides = Sequence[Any]
"""Numbers, or `SymInt`s."""
_AXES = 5
"""Of tensors whose orders of axes are tried out."""
_PENDING = frozenset({aten._conj.default, aten._neg_view.default})
"""Views that a result may be: the elements are conjugated or negated when they are read."""
NO_STRIDES: Mapping[int, Strides] = MappingProxyType({})


@frozen
class RestrideOutputs:
    """Copy results of a joint graph, or one of inference, into the order of axes that eager has.

    Of a result whose elements overlap, or have gaps between them, in eager mode, what it is a view
    of is copied. Results that share memory with an argument or with another result stay as they
    are.
    """

    name: ClassVar[str] = "restride-outputs"
    strides: Mapping[int, Strides] = NO_STRIDES
    """Eager's strides of some results, by place."""

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        results: Any = gm.graph.output_node().args[0]
        owners = Counter(_owner(n) for n in dict.fromkeys(results) if isinstance(n, Node))
        changed = False
        for node, strides in {results[k]: s for k, s in self.strides.items()}.items():
            if not isinstance(node, Node) or node.op != "call_function":
                continue
            if node.target in _PENDING and isinstance(node.args[0], Node):
                node = node.args[0]
            owner = _owner(node)
            if owners[owner] > 1 or owner.op != "call_function":
                continue
            order = _order(node.meta.get("val"), strides)
            if order is not None:
                _restride(gm, node, order)
                changed = True
            elif node is not owner and _differ(node.meta.get("val"), strides):
                changed |= _restride_owner(gm, node, owner, strides)
        return changed


def _owner(node: Node) -> Node:
    """Return the node that makes the memory of a node's value."""
    while node.op == "call_function":
        source = node.args[0] if node.target is operator.getitem else node
        if not isinstance(source, Node) or not isinstance(source.target, torch._ops.OpOverload):
            break
        views = [p for p in info_of(source.target).views if p is not None]
        if not views or not isinstance(base := source.args[views[0]], Node):
            break
        node = base
    return node


def _restride(gm: GraphModule, node: Node, order: Sequence[int]) -> None:
    """Let the output, and what is indifferent to strides, read a copy in that order of axes."""
    readers = [
        n for n in node.users if n.op == "output" or n.target in _PENDING or _pointwise(n.target)
    ]
    result = _copied(gm, node, order)
    for reader in readers:
        reader.replace_input_with(node, result)


def _copied(gm: GraphModule, node: Node, order: Sequence[int]) -> Node:
    """Return a dense copy of a value, whose axes lie in that order."""
    turned = insert_after(gm, node, aten.permute.default, node, order)
    dense = torch.contiguous_format
    copy = insert_after(gm, turned, aten.clone.default, turned, memory_format=dense)
    back = [order.index(axis) for axis in range(len(order))]
    return insert_after(gm, copy, aten.permute.default, copy, back)


def _restride_owner(gm: GraphModule, node: Node, owner: Node, strides: Strides) -> bool:
    """Let the output read a view of a copy of what makes its memory, if it has the strides then;
    return whether it has."""
    chain: list[Node] = []
    view = node
    while view is not owner:
        chain.insert(0, view)
        view = view.args[0]  # type: ignore[assignment]  # a view's first argument
    order = _order_of_owner(chain, owner.meta.get("val"), strides)
    if order is None:
        return False
    readers = [n for n in node.users if n.op == "output" or n.target in _PENDING]
    made = _copied(gm, owner, order)
    for view in chain:
        target: Any = view.target
        made = insert_after(gm, view, target, made, *view.args[1:], **view.kwargs)
    for reader in readers:
        reader.replace_input_with(node, made)
    return True


def _order_of_owner(chain: Sequence[Node], val: Any, strides: Strides) -> tuple[int, ...] | None:
    """Return in which order of its axes a dense tensor has views with these strides, going by the
    hints of sizes; None where there is none, or there are many to try."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided or val.dim() > _AXES:
        return None
    shape = [n for n in map(_hint, val.shape) if n is not None]
    want = [_hint(n) for n in strides]
    if len(shape) < val.dim() or None in want or 0 in shape:
        return None
    for order in permutations(range(val.dim())):
        turned = torch.empty([shape[d] for d in order], dtype=val.dtype, device="meta")
        laid = turned.permute([order.index(d) for d in range(val.dim())])
        try:
            seen = _viewed(chain, laid)
        except RuntimeError:  # this order has no such view
            continue
        if all(
            size == 1 or mine == theirs
            for size, mine, theirs in zip(seen.shape, seen.stride(), want, strict=True)
        ):
            return order
    return None


def _viewed(chain: Sequence[Node], value: Any) -> torch.Tensor:
    for view in chain:
        args, kwargs = tree_map(_number, (view.args[1:], view.kwargs))
        value = view.target(value, *args, **kwargs)  # type: ignore[operator]
    return value  # type: ignore[no-any-return]


def _number(given: Any) -> Any:
    value = given.meta["val"] if isinstance(given, Node) else given
    return _hint(value) if isinstance(value, torch.SymInt) else value


def _pointwise(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


def _order(val: Any, strides: Strides) -> list[int] | None:
    """Return the axes, outermost first, if a dense copy in that order gets the strides, and no
    copy is laid out otherwise."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
        return None
    if len(strides) != val.dim() or val.is_conj() or val.is_neg():
        return None
    shape = [_expr(n) for n in val.shape]
    want = [_not_empty(_expr(n)) for n in strides]
    if not _differ(val, strides):
        return None
    hints = [_hint(n) for n in strides]
    if None in hints:
        return None
    # Of two axes with one stride the inner one has a single element.
    inner_first = sorted(range(len(want)), key=lambda d: (hints[d], shape[d] != 1, -d))
    step: Any = 1
    for axis in inner_first:
        if shape[axis] != 1 and want[axis] != step:
            return None
        step = step * shape[axis]
    return inner_first[::-1]


def _differ(val: Any, strides: Strides) -> bool:
    """Whether a tensor has elements, and axes with other strides than these."""
    if not isinstance(val, torch.Tensor) or len(strides) != val.dim():
        return False
    sizes = [_expr(n) for n in val.shape]
    return 0 not in sizes and any(
        size != 1 and _not_empty(_expr(mine)) != _not_empty(_expr(theirs))
        for size, mine, theirs in zip(sizes, val.stride(), strides, strict=True)
    )


def _expr(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt) else value


def _not_empty(step: Any) -> Any:
    """Return a stride as it is where no size is 0: torch's are products of `Max(1, size)`."""
    if isinstance(step, int):
        return step
    larger: Any = Max
    return step.replace(larger, lambda *args: larger(*(a for a in args if a != 1)))


def _hint(value: Any) -> int | None:
    hint: int | None = value.node.hint if isinstance(value, torch.SymInt) else value
    return hint
