"""`share-key-heads`: attention whose keys and values are repeated for groups of query heads reads
them as they are.

    attention(q, repeat(k), repeat(v)) -> attention(q, k, v)

The libraries and kernels of attention support groups of query heads (Ainslie et al. 2023), but
models repeat keys and values where they also pass a mask. The copies are as many times larger as a
group has heads.
"""

from collections.abc import Collection
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.chunk_losses.rows import same_size
from gyrator_lowering.torch_bridge.schema import writes

aten = torch.ops.aten

_CALLS = frozenset(
    {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""Ops whose implementations support groups."""
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})


@frozen
class ShareKeyHeads:
    """Pass keys and values to attention before they are repeated."""

    name: ClassVar[str] = "share-key-heads"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        copies: set[Node] = set()
        for node in gm.graph.nodes:
            if node.target is aten.clone.default:
                copies.add(node)
            elif writes(node):
                copies.clear()  # these have values that the sources may no longer have
            if node.target not in _CALLS or len(node.args) < 3:
                continue
            sources = [_before_repeating(a, copies) for a in node.args[1:3]]
            if all(s is not None for s in sources) and _heads(sources[0]) == _heads(sources[1]):
                node.args = (node.args[0], *sources, *node.args[3:])
                changed = True
        if changed:
            gm.graph.eliminate_dead_code()
        return changed


def _heads(node: Any) -> Any:
    return node.meta["val"].shape[1]


def _before_repeating(repeated: Any, copies: Collection[Node]) -> Node | None:
    """Return the tensor [B, G, S, E] whose heads were repeated, by one of `copies`, for this tensor
    [B, H, S, E] that only attention reads, or None."""
    chain = [repeated]
    for targets in (_VIEWS, {aten.clone.default}, {aten.expand.default}, {aten.unsqueeze.default}):
        if not isinstance(chain[-1], Node) or chain[-1].target not in targets:
            return None
        chain.append(chain[-1].args[0])
    if chain[1] not in copies:
        return None
    source, expanded, dim = chain[-1], chain[2], chain[3].args[1]
    old, wide, new = (n.meta["val"].shape for n in (source, expanded, repeated))
    if len(repeated.users) > 1 or (len(old), len(wide), len(new), dim) != (4, 5, 4, 2):
        return None
    heads = (old[1], wide[2], new[1])
    if not all(isinstance(n, int) for n in heads) or heads[0] * heads[1] != heads[2]:
        return None
    sizes = zip((*old, *old[2:]), (*wide[:2], *wide[3:], *new[2:]), strict=True)
    return source if all(same_size(a, b) for a, b in sizes) else None
