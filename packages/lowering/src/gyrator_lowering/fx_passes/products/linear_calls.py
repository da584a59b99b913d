"""`linear-calls`: products of `float32` matrices go to oneDNN where it is the quicker library.

ATen sends them to the library that it was built with, which on some processors reaches half of what
oneDNN does. `mkldnn::_linear_pointwise` computes `x @ w.T + bias` and is reached like any op.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from attrs import field, frozen
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.insert import insert, replace
from gyrator_lowering.torch_bridge.symbols import hints_of

aten = torch.ops.aten

LIBRARIES = frozenset({"mkl", "onednn"})
"""What a target must have for there to be a choice."""
_LEAST_CHANGING = 1 << 30
"""Products of sizes that change must have so many multiplications: oneDNN takes 1 ms to prepare for
sizes that it has not met."""


@frozen
class Product:
    """A product of matrices, as a library sees it. Sizes that change count as in the
    example that was traced."""

    device: str
    rows: int
    depth: int
    columns: int
    copied: bool = False
    """The left matrix's elements are not in the order that oneDNN takes: it makes a copy."""
    turned: bool = False
    """In memory, the right matrix is one of `columns` rows."""
    dtype: torch.dtype = torch.float32


Quicker = Callable[[Product], bool]
"""Whether a product is quicker in oneDNN."""


def none_quicker(product: Product) -> bool:
    """Say that ATen's library is as quick."""
    return False


@frozen
class LinearCalls:
    """Let oneDNN compute products that it computes quicker."""

    name: ClassVar[str] = "linear-calls"
    devices: frozenset[str] = frozenset()
    """Types of devices that have both libraries."""
    quicker: Quicker = field(default=none_quicker, repr=False)

    @classmethod
    def of(cls, targets: Mapping[str, Target], quicker: Quicker) -> "LinearCalls":
        """Return the pass for some targets, by device type."""
        able = (d for d, t in targets.items() if t.capabilities.libraries >= LIBRARIES)
        return cls(frozenset(able), quicker)

    def run(self, gm: GraphModule) -> bool:
        """Change a graph in place; return whether anything was."""
        changed = False
        for node in list(gm.graph.nodes):
            found = product_of(node, self.devices)
            if found is not None and self.quicker(found):
                *bias, x, y = node.args
                turned = insert(gm, node, aten.permute.default, y, [1, 0])
                op = torch.ops.mkldnn._linear_pointwise.default
                added = bias[0] if bias else None
                replace(gm, node, insert(gm, node, op, x, turned, added, "none", [], ""))
                changed = True
        return changed


def product_of(
    node: Node,
    devices: frozenset[str],
    dtypes: Collection[torch.dtype] = (torch.float32,),
    least_changing: int = _LEAST_CHANGING,
) -> Product | None:
    """Return what a node computes, if oneDNN can: not with factors beside the matrices, nor of a
    right matrix with gaps in memory. Products of sizes that change have `least_changing`
    multiplications."""
    if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default):
        return None
    if any(factor != 1 for factor in node.kwargs.values()):
        return None
    tensors: list[torch.Tensor] = [n.meta["val"] for n in node.args if isinstance(n, Node)]
    *bias, x, y = tensors
    if x.device.type not in devices:
        return None
    if x.dtype not in dtypes:
        return None
    if any(t.dtype != x.dtype or t.layout != torch.strided for t in tensors):
        return None
    rows, depth, columns = *x.shape, y.shape[1]
    if bias and not _known_equal((*bias[0].shape, *bias[0].stride()), (columns, 1)):
        return None
    if not statically_known_true(depth > 0):  # oneDNN has no sums of nothing
        return None
    straight = _known_equal(y.stride(), (columns, 1))
    turned = not straight and _known_equal(y.stride(), (1, depth))
    if not straight and not turned:
        return None
    copied = not _known_equal(x.stride(), (depth, 1))
    found = Product(
        x.device.type, hint_of(rows), hint_of(depth), hint_of(columns), copied, turned, x.dtype
    )
    changing = not all(isinstance(n, int) for n in (rows, depth, columns))
    if changing and found.rows * found.depth * found.columns < least_changing:
        return None
    return found


def _known_equal(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether sizes are equal for all inputs; adds no guard."""
    pairs = zip(sizes, others, strict=False)
    return len(sizes) == len(others) and all(statically_known_true(a == b) for a, b in pairs)


def hint_of(size: Any) -> int:
    """Return a size, or what it is in the example; 0 where that is not known."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    found = expression.xreplace(hints_of(size.node.shape_env))
    return int(found) if found.is_Integer else 0
