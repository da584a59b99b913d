"""`restride-outputs`: results of a graph get eager's strides.

A decomposition may return any layout, which would be visible to the caller. The result is copied to
eager's order of axes; the kernel that computes it can write that order directly.
"""

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map
from torch.utils._sympy.functions import Max

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.insert import insert_after
from gyrator_lowering.torch_bridge.graphs import fake_of, graph_results
from gyrator_lowering.torch_bridge.schema import info_of
from gyrator_lowering.torch_bridge.symbols import expression_of, hint_of

aten = torch.ops.aten

Strides = Sequence[Any]
"""Integers, or `SymInt`s."""
_AXES = 5
"""The maximum rank of tensors whose axis orders are tried."""
_PENDING = frozenset({aten._conj.default, aten._neg_view.default})
"""Lazy views: elements are conjugated or negated when they are read."""
NO_STRIDES: Mapping[int, Strides] = MappingProxyType({})


@frozen
class RestrideOutputs:
    """Copy results of a joint or inference graph to eager's order of axes.

    If a result overlaps or has gaps in eager mode, the tensor that it is a view of is copied
    instead. Results that share memory with an argument or another result are left unchanged.
    """

    name: ClassVar[str] = "restride-outputs"
    strides: Mapping[int, Strides] = NO_STRIDES
    """Eager's strides of some results, by index."""

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        results = graph_results(gm)
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
    """Return the node that allocates the memory of a node's value."""
    return view_chain(node)[0]


def view_chain(node: Node) -> list[Node]:
    """Return the node that allocates the memory of a node's value, and the views that lead from it
    to the node."""
    chain = [node]
    while node.op == "call_function":
        source = node.args[0] if node.target is operator.getitem else node
        if not isinstance(source, Node) or not isinstance(source.target, torch._ops.OpOverload):
            break
        views = [p for p in info_of(source.target).views if p is not None]
        if not views or not isinstance(base := source.args[views[0]], Node):
            break
        chain += [base] if source is node else [source, base]
        node = base
    return chain[::-1]


def _restride(gm: GraphModule, node: Node, order: Sequence[int]) -> None:
    """Make the output, and readers that do not depend on strides, read a copy in an order of
    axes."""
    readers = [
        n for n in node.users if n.op == "output" or n.target in _PENDING or _pointwise(n.target)
    ]
    result = _copied(gm, node, order)
    for reader in readers:
        reader.replace_input_with(node, result)


def _copied(gm: GraphModule, node: Node, order: Sequence[int]) -> Node:
    """Return a dense copy of a value, in an order of axes."""
    permuted = insert_after(gm, node, aten.permute.default, node, order)
    dense = torch.contiguous_format
    copy = insert_after(gm, permuted, aten.clone.default, permuted, memory_format=dense)
    back = [order.index(axis) for axis in range(len(order))]
    return insert_after(gm, copy, aten.permute.default, copy, back)


def _restride_owner(gm: GraphModule, node: Node, owner: Node, strides: Strides) -> bool:
    """Make the output read a view of a copy of its owner, if that gives the view these strides;
    return whether it does."""
    chain: list[Node] = []
    view = node
    while view is not owner:
        chain.insert(0, view)
        view = view.args[0]  # type: ignore[assignment]  # a view's first argument
    order = _order_of_owner(chain, owner.meta.get("val"), strides)
    if order is None:
        return False
    readers = [n for n in node.users if n.op == "output" or n.target in _PENDING]
    result = _copied(gm, owner, order)
    for view in chain:
        target: Any = view.target
        result = insert_after(gm, view, target, result, *view.args[1:], **view.kwargs)
    for reader in readers:
        reader.replace_input_with(node, result)
    return True


def _order_of_owner(chain: Sequence[Node], val: Any, strides: Strides) -> tuple[int, ...] | None:
    """Return the order of axes in which a dense tensor has a view with these strides, according to
    the hints of its sizes; None if there is none, or too many axes to try."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided or val.dim() > _AXES:
        return None
    shape = [n for n in map(hint_of, val.shape) if n is not None]
    want = [hint_of(n) for n in strides]
    if len(shape) < val.dim() or None in want or 0 in shape:
        return None
    for order in permutations(range(val.dim())):
        permuted = torch.empty([shape[d] for d in order], dtype=val.dtype, device="meta")
        candidate = permuted.permute([order.index(d) for d in range(val.dim())])
        try:
            view = _viewed(chain, candidate)
        except RuntimeError:  # the view is impossible in this order
            continue
        if all(
            size == 1 or stride == eager_stride
            for size, stride, eager_stride in zip(view.shape, view.stride(), want, strict=True)
        ):
            return order
    return None


def _viewed(chain: Sequence[Node], value: Any) -> torch.Tensor:
    for view in chain:
        args, kwargs = tree_map(_number, (view.args[1:], view.kwargs))
        value = view.target(value, *args, **kwargs)  # type: ignore[operator]
    return value  # type: ignore[no-any-return]


def _number(argument: Any) -> Any:
    value = fake_of(argument)
    return hint_of(value) if isinstance(value, torch.SymInt) else value


def _pointwise(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


def _order(val: Any, strides: Strides) -> list[int] | None:
    """Return the axes, outermost first, if a dense copy in that order has the strides; None if it
    does not, or if no copy is needed."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
        return None
    if len(strides) != val.dim() or val.is_conj() or val.is_neg():
        return None
    shape = [expression_of(n) for n in val.shape]
    want = [_not_empty(expression_of(n)) for n in strides]
    if not _differ(val, strides):
        return None
    hints = [hint_of(n) for n in strides]
    if None in hints:
        return None
    # Of two axes with equal strides, the inner one has a single element.
    inner_first = sorted(range(len(want)), key=lambda d: (hints[d], shape[d] != 1, -d))
    step: Any = 1
    for axis in inner_first:
        if shape[axis] != 1 and want[axis] != step:
            return None
        step = step * shape[axis]
    return inner_first[::-1]


def _differ(val: Any, strides: Strides) -> bool:
    """Return whether a tensor has elements, and axes with other strides than these."""
    if not isinstance(val, torch.Tensor) or len(strides) != val.dim():
        return False
    sizes = [expression_of(n) for n in val.shape]
    return 0 not in sizes and any(
        size != 1 and _not_empty(expression_of(stride)) != _not_empty(expression_of(eager_stride))
        for size, stride, eager_stride in zip(sizes, val.stride(), strides, strict=True)
    )


def _not_empty(step: Any) -> Any:
    """Return a stride under the assumption that no size is 0: torch's are products of `Max(1,
    size)`."""
    if isinstance(step, int):
        return step
    larger: Any = Max
    return step.replace(larger, lambda *args: larger(*(a for a in args if a != 1)))
