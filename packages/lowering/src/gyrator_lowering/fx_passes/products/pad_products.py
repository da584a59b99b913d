"""`pad-products`: matrix products whose rows are not whole vectors are padded with zeros.

Libraries have their fastest kernels for matrices whose rows start at multiples of 16 bytes and
whose sizes are such multiples too. The head of a language model with 50257 words is seven times
slower without padding (H100, bf16). Operands are padded where they are written, and the result is
sliced.

If only the rows of the result are not whole vectors, padding copies an operand and the result. A
generated kernel needs no copies, and the library is not faster by as much: short products are left
to kernels (`left_to_kernels`).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_ir.target import Target
from gyrator_ir.types import DType
from gyrator_lowering.fx_passes.insert import insert, replace
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH

aten = torch.ops.aten


@frozen
class PadProducts:
    """Pad the operands of large products."""

    name: ClassVar[str] = "pad-products"
    vectors: tuple[tuple[str, int], ...] = ()
    """Device types whose library prefers rows of whole vectors, with the bytes of a vector."""
    units: frozenset[tuple[str, DType]] = frozenset()
    """The dtypes that generated kernels multiply with matrix units, by device type."""
    least: int = 1 << 30
    """Products with fewer multiplications take less time than the copies."""
    short: int = 64
    """Padding a size below this adds too much work."""
    copied: int = 1900
    """Kernels compute products of `rows * depth * columns` multiplications if `rows * depth` is
    below this times `rows + depth`: the copies then take longer than a quarter of the library's
    product, which is the additional time of the kernel (H100: 690 TFLOP/s, copies at 2.9 TB/s)."""

    @classmethod
    def of(cls, targets: Mapping[str, Target], **options: int) -> "PadProducts":
        """Return the pass for some targets, by device type."""
        vectors = {d: t.heuristics.product_bytes for d, t in targets.items()}
        units = {(d, t) for d, target in targets.items() for t in target.capabilities.matrix_units}
        padded = tuple((d, n) for d, n in sorted(vectors.items()) if n)
        return cls(padded, frozenset(units), **options)

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        changed = False
        for node in _products(gm):
            lacks = self._lacks(node)
            if lacks is not None and not self._for_kernels(node, *lacks):
                changed |= _padded(gm, node, *lacks)
        if changed:
            gm.graph.eliminate_dead_code()
        return changed

    def left_to_kernels(self, gm: GraphModule) -> frozenset[str]:
        """Return the names of the products that the pass leaves to generated kernels."""
        return frozenset(
            node.name
            for node in _products(gm)
            if (lacks := self._lacks(node)) is not None and self._for_kernels(node, *lacks)
        )

    def _lacks(self, node: Any) -> tuple[int, int, int] | None:
        """Return by how many rows, elements of the inner dimension, and columns to pad a product;
        None to leave it unchanged."""
        *_, x, y = node.args
        a, b, out = (n.meta["val"] for n in (x, y, node))
        vector = dict(self.vectors).get(out.device.type)
        if vector is None or out.element_size() > 2:
            return None
        sides = (*a.shape, b.shape[1])
        if not all(isinstance(n, int) for n in (*sides, *a.stride(), *b.stride())):
            return None
        rows, depth, columns = sides
        if rows * depth * columns < self.least or min(sides) < self.short:
            return None
        multiple = vector // out.element_size()
        deep, wide = -depth % multiple, -columns % multiple
        # The result need not have a multiple of rows, but a transposed left operand must.
        high = -rows % multiple if a.stride(0) == 1 else 0
        return (high, deep, wide) if deep or wide or high else None

    def _for_kernels(self, node: Any, high: int, deep: int, wide: int) -> bool:
        """Return whether only the result's rows are not whole vectors, and a kernel is faster than
        copies."""
        *_, x, y = node.args
        a, b, out = (n.meta["val"] for n in (x, y, node))
        rows, depth = a.shape
        has_whole_operands = not high and not deep and b.stride(0) == 1
        short = rows * depth < self.copied * (rows + depth)
        able = (out.device.type, FROM_TORCH[out.dtype]) in self.units
        return bool(wide) and has_whole_operands and short and able


def _products(gm: GraphModule) -> list[Node]:
    called = (n for n in gm.graph.nodes if n.op == "call_function")
    return [n for n in called if n.target in (aten.mm.default, aten.addmm.default)]


def _padded(gm: GraphModule, node: Any, high: int, deep: int, wide: int) -> bool:
    *bias, x, y = node.args
    rows, columns = node.meta["val"].shape
    if bias and bias[0].meta["val"].shape != (columns,):
        return False
    arguments = [_pad(gm, node, x, high, deep), _pad(gm, node, y, deep, wide)]
    if bias:
        padding = [0, wide]
        more = insert(gm, node, aten.constant_pad_nd.default, bias[0], padding) if wide else bias[0]
        arguments.insert(0, more)
    result = insert(gm, node, node.target, *arguments)
    result.kwargs = node.kwargs
    if high:
        result = insert(gm, node, aten.slice.Tensor, result, 0, 0, rows)
    if wide:
        result = insert(gm, node, aten.slice.Tensor, result, 1, 0, columns)
        result = insert(gm, node, aten.clone.default, result)
        result = _like(node, result)
    replace(gm, node, result)
    return True


def _like(node: Any, result: Any) -> Any:
    """Give a copy the strides of eager's result, a dense matrix."""
    result.kwargs = {"memory_format": torch.contiguous_format}
    result.meta["val"] = node.meta["val"]
    return result


def _pad(gm: GraphModule, node: Any, x: Any, high: int, wide: int) -> Any:
    """Return a matrix padded with rows and columns of zeros."""
    if not high and not wide:
        return x
    fake = x.meta["val"]
    if fake.stride(0) != 1 or fake.stride(1) == 1:
        return insert(gm, node, aten.constant_pad_nd.default, _source(x), _padding(high, wide))
    transposed = _transposed(x)
    if transposed is None:
        transposed = insert(gm, node, aten.permute.default, x, [1, 0])
    padding = _padding(wide, high)
    more = insert(gm, node, aten.constant_pad_nd.default, _source(transposed), padding)
    return insert(gm, node, aten.permute.default, more, [1, 0])


def _padding(high: int, wide: int) -> list[int]:
    return [0, wide, 0, high] if high else [0, wide]


def _transposed(x: Any) -> Any:
    """Return the matrix that `x` is the transpose of, or None."""
    if x.target is aten.t.default or (
        x.target is aten.permute.default and list(x.args[1]) == [1, 0]
    ):
        return x.args[0]
    return None


def _source(x: Any) -> Any:
    """Return the matrix that `x` transposes twice, or `x`, so that CSE merges equal copies."""
    once = _transposed(x)
    twice = None if once is None else _transposed(once)
    return x if twice is None else _source(twice)
