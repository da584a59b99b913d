"""`chunk-losses`: a product with many columns, and a loss on its rows, in chunks of rows.

    logits = x @ w^T;  loss = f(logits);  dx = g @ w;  dw = g^T @ x    with g = dloss/dlogits

The logits and their gradient are the largest tensors in the training of a language model. If
everything between them is computed row by row, and `g` is linear in the gradient of a single
scalar, `dx` and `dw` are computed for a gradient of 1 as soon as a chunk of logits is available,
and are scaled in the backward pass. This takes three products, as before, and the saved tensors are
as large as `x` and `w`.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from attrs import field
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from gyrator_ir.define import define, frozen
from gyrator_lowering.fx_passes.chunk_losses.rows import (
    CASTS,
    SAME,
    VIEWS,
    Kind,
    Region,
    dims_of,
    is_pointwise,
    linear,
    region_of,
    shape_of,
    tangent_dependences,
)
from gyrator_lowering.fx_passes.insert import Insert, compute_dtype, contiguous, converted, insert

aten, prims = torch.ops.aten, torch.ops.prims
_TYPES = (torch.bfloat16, torch.float32, torch.float64)
"""The dtypes of logits. Those of float16 need the scale of the loss before they are rounded."""
_Part = Callable[[Node, int], Node]
"""Returns the current chunk of a tensor, given the dimension of its rows."""


@frozen
class ChunkLosses:
    """Compute logits, losses on them and the gradients of both factors in chunks of rows."""

    name: ClassVar[str] = "chunk-losses"
    least: int = 1 << 27
    """The minimum number of elements of logits."""
    rows: int = 1024
    """The approximate number of rows in a chunk: with few, accumulating `dw` takes longer than its
    products."""

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in list(gm.graph.nodes):
            changed |= self._fits(node) and _chunk(gm, node, self.rows)
        if changed:
            gm.graph.eliminate_dead_code()
        return changed

    def _fits(self, node: Any) -> bool:
        """Return whether a node computes logits with more elements than the gradient of `w`."""
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
    """Return a size in the traced shapes; 0 if it is data-dependent."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 0


def _chunk(gm: GraphModule, root: Any, rows: int) -> bool:
    """Chunk the computations that follow from logits; return whether that was possible."""
    region = region_of(gm, root)
    if region is None:
        return False
    gradients_of = tangent_dependences(gm)
    nodes = (*region.lead, *region.sinks)
    scales = {t for n in nodes for t in gradients_of[n]}
    if len(scales) > 1 or any(t.meta["val"].dim() for t in scales):
        return False
    scaled = [n for n in _producers(nodes) if gradients_of[n] and n.op != "placeholder"]
    if any(gradients_of[n] for n in region.exits) or not all(
        linear(n, lambda a: bool(gradients_of[a])) for n in scaled
    ):
        return False
    build = _Build(gm, region, next(iter(scales), None), frozenset(scaled))
    build.run(-(-_hint(shape_of(root)[0]) // rows))
    return True


def _producers(nodes: Any) -> list[Node]:
    """Return nodes and everything that they depend on."""
    visited: dict[Node, None] = {}
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in visited:
            visited[node] = None
            left += node.all_input_nodes
    return list(visited)


@define(eq=False)
class _Build:
    """Inserts the nodes that compute by chunks, before the first reader of their results."""

    gm: GraphModule
    region: Region
    scale: Node | None
    """The gradient of the scalar in which all gradients are linear."""
    scaled: frozenset[Node]
    """The nodes that depend on it."""
    call: Insert = field(init=False)
    _early: set[Node] = field(init=False)
    _flattened: dict[tuple[Node, int], Node] = field(factory=dict)
    """Outside tensors flattened to a single dimension of rows, by the original number of these."""
    _unscaled: dict[Node, Node] = field(factory=dict)
    """Nodes that depend on the scale, recomputed for a scale of 1."""

    def __attrs_post_init__(self) -> None:
        first = self.region.first
        assert first is not None
        self.call = partial(insert, self.gm, first)
        nodes = list(self.gm.graph.nodes)
        self._early = set(nodes[: nodes.index(first)])

    def run(self, count: int) -> None:
        """Compute `count` chunks, and replace the region's results by the combined ones."""
        region, call = self.region, self.call
        height = shape_of(region.root)[0]
        if not isinstance(height, int):
            height = call(aten.sym_size.int, self._outside(region.root.args[-2]), 0)
        chunk_rows = self._arithmetic(operator.floordiv, height, count)
        parts: dict[Node, list[Node]] = {n: [] for n in (*region.exits, *region.sinks)}
        for k in range(count):
            first = self._arithmetic(operator.mul, chunk_rows, k)
            end = height if k == count - 1 else self._arithmetic(operator.mul, chunk_rows, k + 1)

            def part(x: Node, dim: int, first: Any = first, end: Any = end) -> Node:
                return call(aten.slice.Tensor, x, dim, first, end)

            env: dict[Node, Node] = {}
            for node in region.lead:
                env[node] = self._row(node, env, part)
            for node in region.exits:
                parts[node].append(env[node])
            for node, kind in region.sinks.items():
                self._sink(node, kind, env, part, parts[node])
        for node, chunks in parts.items():
            self._replace(node, chunks)

    def _arithmetic(self, op: Callable[..., Any], a: Any, b: int) -> Any:
        return op(a, b) if isinstance(a, int) else self.call(op, a, b)

    def _replace(self, node: Node, parts: list[Node]) -> None:
        """Replace the uses of a node outside of the chunks by its combined parts."""
        call = self.call
        combined = parts[0] if len(parts) == 1 else call(aten.cat.default, parts)
        combined = converted(call, combined, node.meta["val"].dtype)
        if self.region.lead.get(node, 1) > 1:
            shape = [n if isinstance(n, int) else -1 for n in shape_of(node)]
            combined = call(aten.view.default, combined, shape)
        if node in self.scaled and self.scale is not None:
            wide = compute_dtype(node.meta["val"].dtype)
            by = converted(call, self.scale, wide)
            combined = call(aten.mul.Tensor, converted(call, combined, wide), by)
            combined = converted(call, combined, node.meta["val"].dtype)
        node.replace_all_uses_with(
            combined,
            lambda user: user not in self.region.lead and user not in self.region.transposed,
        )

    def _sink(
        self, node: Any, kind: Kind, env: dict[Node, Node], part: _Part, parts: list[Node]
    ) -> None:
        """Compute a product or a sum over a chunk, and accumulate or append it."""
        call, region = self.call, self.region
        if node.target is aten.sum.dim_IntList:
            term = call(node.target, env[node.args[0]], *node.args[1:], **node.kwargs)
            term = converted(call, term, compute_dtype(term.meta["val"].dtype))
            parts[:] = [call(aten.add.Tensor, parts[0], term)] if parts else [term]
            return
        x, y = node.args
        if kind is Kind.ROWS:
            parts.append(call(node.target, env[x], self._outside(y)))
            return
        if x in region.transposed:
            left = call(aten.t.default, env[region.transposed[x]])
            factors = left, part(self._outside(y), 0)
        else:
            factors = part(self._outside(x), 1), env[y]
        term = (
            call(aten.addmm.default, parts[0], *factors) if parts else call(node.target, *factors)
        )
        parts[:] = [term]

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
            return env[self.region.transposed[source]]
        if is_pointwise(node):
            return self._over(node, len(shape_of(node)) - lead, env, part)

        def value(a: Node) -> Node:
            # In losses and gathers, classes and gradients are split by rows, weights are not.
            if a in env:
                return env[a]
            out = self._outside(a)
            return out if a is _weight(node) or not shape_of(a) else part(out, 0)

        args = [map_arg(a, value) for a in node.args]
        if lead != 1 or target is aten.unsqueeze.default:
            args = self._shifted(node, args, lead)
        return call(target, *args, **node.kwargs)

    def _over(self, node: Any, rest: int, env: dict[Node, Node], part: _Part) -> Node:
        """Compute a pointwise op, whose last `rest` dimensions are not rows, for a chunk."""

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
        """Return arguments with dimension numbers adjusted to the shape of a chunk."""
        dims = len(shape_of(node.args[0])) + (node.target is aten.unsqueeze.default)
        position = next(k for k, a in enumerate(node.args) if k and not isinstance(a, Node))
        shifted = [d % dims - lead + 1 for d in dims_of(node)]
        args[position] = shifted if isinstance(node.args[position], (list, tuple)) else shifted[0]
        return args

    def _aligned(self, a: Node, out: Node, lead: int, part: _Part) -> Node:
        """Return the current chunk of an operand with `lead` dimensions of rows, or all of it if it
        is the same for all rows."""
        if lead <= 0:
            return out
        shape = shape_of(a)
        if all(map(_is_one, shape[:lead])):
            return out if lead == 1 else self.call(aten.squeeze.dims, out, list(range(lead - 1)))
        if lead > 1:
            if (a, lead) not in self._flattened:
                flat = contiguous(self.call, out)
                self._flattened[a, lead] = self.call(aten.view.default, flat, [-1, *shape[lead:]])
            out = self._flattened[a, lead]
        return part(out, 0)

    def _outside(self, node: Any) -> Any:
        """Return a value computed before all chunks, for a scale of 1."""
        if not isinstance(node, Node):
            return node
        if node is self.scale or node in self.scaled:
            return self._for_unit_scale(node)
        if node not in self._early:
            first = self.region.first
            assert first is not None
            for n in node.all_input_nodes:
                self._outside(n)
            first.prepend(node)
            self._early.add(node)
        return node

    def _for_unit_scale(self, node: Any) -> Node:
        if node not in self._unscaled:
            fake = node.meta["val"]
            if node is self.scale:
                unscaled = self.call(
                    aten.full.default, [], 1, dtype=fake.dtype, device=fake.device, pin_memory=False
                )
            else:
                args = map_arg(node.args, self._outside)
                unscaled = self.call(node.target, *args, **node.kwargs)
            self._unscaled[node] = unscaled
        return self._unscaled[node]


def _weight(node: Any) -> Any:
    """Return the class weights of a loss."""
    if node.target is aten.nll_loss_forward.default:
        return node.args[2]
    return node.args[3] if node.target is aten.nll_loss_backward.default else None


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
