"""`linear-calls`: products of `float32` matrices call oneDNN where that is the faster library.

ATen calls the library that it was built with, which on some processors is half as fast as oneDNN.
`mkldnn::_linear_pointwise` computes `x @ w.T + bias` and is called like any op.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from attrs import field
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_lowering.fx_passes.insert import insert, replace
from gyrator_lowering.torch_bridge.symbols import hint_of

aten = torch.ops.aten

LIBRARIES = frozenset({"mkl", "onednn"})
"""The libraries that a target must have for there to be a choice."""
BFLOAT16_LIBRARIES = LIBRARIES | {"onednn-bfloat16"}
"""Those of a target whose processor has the instructions that oneDNN needs for `bfloat16`."""
_LEAST_CHANGING = 1 << 30
"""The minimum number of multiplications of products with symbolic sizes: oneDNN takes 1 ms to
prepare for new sizes."""


def devices_with(libraries: frozenset[str], targets: Mapping[str, Target]) -> frozenset[str]:
    """Return the device types whose targets have all of these libraries."""
    return frozenset(d for d, t in targets.items() if t.capabilities.libraries >= libraries)


@frozen
class Product:
    """A matrix product, as a library sees it. Symbolic sizes count as in the traced example."""

    device: str
    rows: int
    depth: int
    columns: int
    copied: bool = False
    """The left matrix is not row-major, so that oneDNN copies it."""
    turned: bool = False
    """The right matrix is stored transposed, with `columns` rows."""
    dtype: torch.dtype = torch.float32


Quicker = Callable[[Product], bool]
"""Returns whether a product is faster in oneDNN."""


@frozen
class LinearCalls:
    """Call oneDNN for products that it computes faster."""

    name: ClassVar[str] = "linear-calls"
    devices: frozenset[str] = frozenset()
    """Device types that have both libraries."""
    quicker: Quicker | None = field(default=None, repr=False)

    @classmethod
    def of(cls, targets: Mapping[str, Target], quicker: Quicker | None) -> "LinearCalls":
        """Return the pass for some targets, by device type."""
        return cls(devices_with(LIBRARIES, targets), quicker)

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        if self.quicker is None:
            return False
        changed = False
        for node in list(gm.graph.nodes):
            product = product_of(node, self.devices)
            if product is not None and self.quicker(product):
                *bias, x, y = node.args
                transposed = insert(gm, node, aten.permute.default, y, [1, 0])
                op = torch.ops.mkldnn._linear_pointwise.default
                added = bias[0] if bias else None
                replace(gm, node, insert(gm, node, op, x, transposed, added, "none", [], ""))
                changed = True
        return changed


def product_of(
    node: Node,
    devices: frozenset[str],
    dtypes: Collection[torch.dtype] = (torch.float32,),
    least_changing: int = _LEAST_CHANGING,
) -> Product | None:
    """Return the product that a node computes, if oneDNN supports it: without scale factors, and
    with a dense right matrix. Products with symbolic sizes must have at least `least_changing`
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
    if not statically_known_true(depth > 0):  # oneDNN does not support empty sums
        return None
    is_row_major = _known_equal(y.stride(), (columns, 1))
    transposed = not is_row_major and _known_equal(y.stride(), (1, depth))
    if not is_row_major and not transposed:
        return None
    copied = not _known_equal(x.stride(), (depth, 1))
    product = Product(
        x.device.type,
        hint_of(rows) or 0,
        hint_of(depth) or 0,
        hint_of(columns) or 0,
        copied,
        transposed,
        x.dtype,
    )
    is_dynamic = not all(isinstance(n, int) for n in (rows, depth, columns))
    if is_dynamic and product.rows * product.depth * product.columns < least_changing:
        return None
    return product


def _known_equal(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether sizes are statically equal; adds no guard."""
    pairs = zip(sizes, others, strict=False)
    return len(sizes) == len(others) and all(statically_known_true(a == b) for a, b in pairs)
