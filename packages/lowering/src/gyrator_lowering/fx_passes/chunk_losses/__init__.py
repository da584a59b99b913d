"""`chunk-losses`: a product of many columns, and a loss on its rows, in chunks of rows.

    logits = x @ w^T;  loss = f(logits);  dx = g @ w;  dw = g^T @ x    with g = dloss/dlogits

As whole tensors the logits and their gradient are the largest of a language model's training. Where
all between them works row by row, and `g` is linear in the gradient of one scalar, `dx` and `dw`
are computed for a gradient of 1 as soon as the logits of a chunk are there, and are scaled in the
backward pass: three products, as before, and what is saved is as large as `x` and `w`.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from attrs import define, field, frozen
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from gyrator_lowering.fx_passes.chunk_losses.rows import (
    CASTS,
    SAME,
    VIEWS,
    Kind,
    Region,
    dependents,
    dims_of,
    is_pointwise,
    linear,
    region_of,
    shape_of,
)
from gyrator_lowering.fx_passes.insert import Insert, computing, converted, insert

aten, prims = torch.ops.aten, torch.ops.prims
_TYPES = (torch.bfloat16, torch.float32, torch.float64)
"""Of logits. Those of float16 need the scale of the loss before they are rounded."""
_Part = Callable[[Node, int], Node]
"""Gives the present chunk of a tensor, whose rows are a dimension."""


@frozen
class ChunkLosses:
    """Compute logits, losses on them and the gradients of both factors by chunks of rows."""

    name: ClassVar[str] = "chunk-losses"
    least: int = 1 << 27
    """Elements of logits below which they are computed at once."""
    rows: int = 1024
    """Rows of a chunk, about: with few, adding up `dw` takes longer than its products."""

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        changed = False
        for node in list(gm.graph.nodes):
            changed |= self._fits(node) and _chunk(gm, node, self.rows)
        if changed:
            gm.graph.eliminate_dead_code()
        return changed

    def _fits(self, node: Any) -> bool:
        """Whether a node gives logits, more of them than the gradient of `w` has elements."""
        if node.target not in (aten.mm.default, aten.addmm.default) or not node.users:
            return False
        fake = node.meta["val"]
        rows, columns = map(_hint, fake.shape)
        inner = _hint(node.args[-2].meta["val"].shape[1])
        return (
            fake.dtype in _TYPES
            and not isinstance(fake.shape[1], torch.SymInt)
            and rows * columns >= self.least
            and rows >= 2 * self.rows
            and 2 * rows >= 3 * inner
        )


def _hint(size: Any) -> int:
    """Return a size, for the shapes that were traced; 0 if it depends on values."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 0


def _chunk(gm: GraphModule, root: Any, rows: int) -> bool:
    """Compute what follows from logits by chunks; return whether that can be."""
    region = region_of(gm, root)
    if region is None:
        return False
    given = dependents(gm)
    nodes = (*region.lead, *region.sinks)
    scales = {t for n in nodes for t in given[n]}
    if len(scales) > 1 or any(t.meta["val"].dim() for t in scales):
        return False
    scaled = [n for n in _above(nodes) if given[n] and n.op != "placeholder"]
    if any(given[n] for n in region.exits) or not all(
        linear(n, lambda a: bool(given[a])) for n in scaled
    ):
        return False
    build = _Build(gm, region, next(iter(scales), None), frozenset(scaled))
    build.run(-(-_hint(shape_of(root)[0]) // rows))
    return True


def _above(nodes: Any) -> list[Node]:
    """Return nodes and all that they depend on."""
    found: dict[Node, None] = {}
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found[node] = None
            left += node.all_input_nodes
    return list(found)


@define(eq=False)
class _Build:
    """Writes the nodes that compute by chunks, before the first reader of what they give."""

    gm: GraphModule
    region: Region
    scale: Node | None
    """The gradient of a scalar that all gradients are linear in."""
    scaled: frozenset[Node]
    """The nodes that depend on it."""
    call: Insert = field(init=False)
    _early: set[Node] = field(init=False)
    _known: dict[tuple[Node, int], Node] = field(factory=dict)
    """Tensors from outside with one dimension of rows, by how many they had."""
    _ones: dict[Node, Node] = field(factory=dict)
    """Nodes that depend on the scale, for a scale of 1."""

    def __attrs_post_init__(self) -> None:
        place = self.region.first
        assert place is not None
        self.call = partial(insert, self.gm, place)
        nodes = list(self.gm.graph.nodes)
        self._early = set(nodes[: nodes.index(place)])

    def run(self, count: int) -> None:
        """Compute `count` chunks, and let readers read what they give together."""
        region, call = self.region, self.call
        height = shape_of(region.root)[0]
        if not isinstance(height, int):
            height = call(aten.sym_size.int, self._outside(region.root.args[-2]), 0)
        some = self._of(operator.floordiv, height, count)
        parts: dict[Node, list[Node]] = {n: [] for n in (*region.exits, *region.sinks)}
        for k in range(count):
            first = self._of(operator.mul, some, k)
            end = height if k == count - 1 else self._of(operator.mul, some, k + 1)

            def part(x: Node, dim: int, first: Any = first, end: Any = end) -> Node:
                return call(aten.slice.Tensor, x, dim, first, end)

            env: dict[Node, Node] = {}
            for node in region.lead:
                env[node] = self._row(node, env, part)
            for node in region.exits:
                parts[node].append(env[node])
            for node, kind in region.sinks.items():
                self._sink(node, kind, env, part, parts[node])
        for node, found in parts.items():
            self._hand_on(node, found)

    def _of(self, op: Callable[..., Any], a: Any, b: int) -> Any:
        return op(a, b) if isinstance(a, int) else self.call(op, a, b)

    def _hand_on(self, node: Node, parts: list[Node]) -> None:
        """Let readers outside the chunks read a node's parts together."""
        call = self.call
        whole = parts[0] if len(parts) == 1 else call(aten.cat.default, parts)
        whole = converted(call, whole, node.meta["val"].dtype)
        if self.region.lead.get(node, 1) > 1:
            whole = call(aten.view.default, whole, _loose(shape_of(node)))
        if node in self.scaled and self.scale is not None:
            wide = computing(node.meta["val"].dtype)
            by = converted(call, self.scale, wide)
            whole = call(aten.mul.Tensor, converted(call, whole, wide), by)
            whole = converted(call, whole, node.meta["val"].dtype)
        node.replace_all_uses_with(
            whole, lambda user: user not in self.region.lead and user not in self.region.turned
        )

    def _sink(
        self, node: Any, kind: Kind, env: dict[Node, Node], part: _Part, parts: list[Node]
    ) -> None:
        """Compute a product or a sum over a chunk; add it to what is there, or append it."""
        call, region = self.call, self.region
        if node.target is aten.sum.dim_IntList:
            one = call(node.target, env[node.args[0]], *node.args[1:], **node.kwargs)
            one = converted(call, one, computing(one.meta["val"].dtype))
            parts[:] = [call(aten.add.Tensor, parts[0], one)] if parts else [one]
            return
        x, y = node.args
        if kind is Kind.ROWS:
            parts.append(call(node.target, env[x], self._outside(y)))
            return
        if x in region.turned:
            left = call(aten.t.default, env[region.turned[x]])
            factors = left, part(self._outside(y), 0)
        else:
            factors = part(self._outside(x), 1), env[y]
        one = call(aten.addmm.default, parts[0], *factors) if parts else call(node.target, *factors)
        parts[:] = [one]

    def _row(self, node: Any, env: dict[Node, Node], part: _Part) -> Node:
        """Compute a node of the region for a chunk."""
        call, target, lead = self.call, node.target, self.region.lead[node]
        if node is self.region.root:
            *bias, x, y = node.args
            factors = part(self._outside(x), 0), self._outside(y)
            return call(target, *map(self._outside, bias), *factors, **node.kwargs)
        source = node.args[0]
        if target in VIEWS or target in SAME:
            return env[source]
        if target in CASTS:
            return converted(call, env[source], node.meta["val"].dtype)
        if target is operator.getitem:
            return call(target, env[source], node.args[1])
        if target is aten.expand.default:
            return call(target, env[source], [-1, *shape_of(node)[lead:]])
        if target is aten.t.default or target in (aten.permute.default, aten.transpose.int):
            return env[self.region.turned[source]]
        if is_pointwise(node):
            return self._over(node, len(shape_of(node)) - lead, env, part)

        def value(a: Node) -> Node:
            # Of losses and gathers: classes and gradients go by rows, weights do not.
            if a in env:
                return env[a]
            out = self._outside(a)
            return out if a is _weight(node) or not shape_of(a) else part(out, 0)

        args = [map_arg(a, value) for a in node.args]
        if lead != 1 or target is aten.unsqueeze.default:
            args = self._shifted(node, args, lead)
        return call(target, *args, **node.kwargs)

    def _over(self, node: Any, rest: int, env: dict[Node, Node], part: _Part) -> Node:
        """Compute a pointwise op, whose last `rest` dimensions are no rows, for a chunk."""

        def value(a: Node) -> Node:
            if a not in env:
                lead = len(shape_of(a)) - rest
                wide = lead > 0 and rest > 0 and not all(_is_one(s) for s in shape_of(a)[lead:])
                wide = wide and not all(_is_one(s) for s in shape_of(a)[:lead])
                if wide and a.op == "call_function" and is_pointwise(a):
                    env[a] = self._over(a, rest, env, part)
                else:
                    return self._aligned(a, self._outside(a), lead, part)
            return env[a]

        return self.call(node.target, *(map_arg(a, value) for a in node.args), **node.kwargs)

    def _shifted(self, node: Any, args: list[Any], lead: int) -> list[Any]:
        """Return arguments with the dimensions that they have in a chunk."""
        dims = len(shape_of(node.args[0])) + (node.target is aten.unsqueeze.default)
        place = next(k for k, a in enumerate(node.args) if k and not isinstance(a, Node))
        moved = [d % dims - lead + 1 for d in dims_of(node)]
        args[place] = moved if isinstance(node.args[place], (list, tuple)) else moved[0]
        return args

    def _aligned(self, a: Node, out: Node, lead: int, part: _Part) -> Node:
        """Return the present chunk of an operand with `lead` dimensions of rows, or all of one that
        is the same for all rows."""
        if lead <= 0:
            return out
        shape = shape_of(a)
        if all(map(_is_one, shape[:lead])):
            return out if lead == 1 else self.call(aten.squeeze.dims, out, list(range(lead - 1)))
        if lead > 1:
            if (a, lead) not in self._known:
                flat = self.call(aten.clone.default, out, memory_format=torch.contiguous_format)
                self._known[a, lead] = self.call(aten.view.default, flat, [-1, *shape[lead:]])
            out = self._known[a, lead]
        return part(out, 0)

    def _outside(self, node: Any) -> Any:
        """Return a value that is computed before all chunks, for a scale of 1."""
        if not isinstance(node, Node):
            return node
        if node is self.scale or node in self.scaled:
            return self._one(node)
        if node not in self._early:
            place = self.region.first
            assert place is not None
            for n in node.all_input_nodes:
                self._outside(n)
            place.prepend(node)
            self._early.add(node)
        return node

    def _one(self, node: Any) -> Node:
        if node not in self._ones:
            fake = node.meta["val"]
            if node is self.scale:
                made = self.call(
                    aten.full.default, [], 1, dtype=fake.dtype, device=fake.device, pin_memory=False
                )
            else:
                args = map_arg(node.args, self._outside)
                made = self.call(node.target, *args, **node.kwargs)
            self._ones[node] = made
        return self._ones[node]


def _weight(node: Any) -> Any:
    """Return the weights of classes that a loss takes."""
    if node.target is aten.nll_loss_forward.default:
        return node.args[2]
    return node.args[3] if node.target is aten.nll_loss_backward.default else None


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _loose(shape: Any) -> list[int]:
    return [s if isinstance(s, int) else -1 for s in shape]
