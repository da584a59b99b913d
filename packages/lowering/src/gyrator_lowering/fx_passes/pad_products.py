"""`pad-products`: matrix products whose rows are not whole vectors get zeros to fill them.

Libraries have their fastest kernels for matrices whose rows start at multiples of 16 bytes and
whose sides are such multiples too. The head of a language model with 50257 words is seven times
slower without (H100, bf16). The zeros go where an operand is written, and the result is read
without them.

Where only the rows of the result are not whole vectors, padding copies a factor and the result. A
generated kernel needs no copies, and a library's product is not so much quicker: short products are
left to kernels (`kernel_products`).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from gyrator_ir.target import Target
from gyrator_lowering.dtypes import FROM_TORCH
from gyrator_lowering.fx_passes.insert import insert, replace

aten = torch.ops.aten

_LEAST = 1 << 30
"""Products of fewer multiplications take less time than the copies."""
_SHORT = 64
"""Padding a side below this adds too much."""
_COPIED = 1900
"""Kernels compute products of `rows * depth * columns` multiplications if `rows * depth` is below
this times `rows + depth`: copies then take longer than a quarter of the library's product, which is
what kernels need more (H100: 690 TFLOP/s, copies of 2.9 TB/s)."""


def pad_products(gm: GraphModule, targets: Mapping[str, Target], least: int = _LEAST) -> bool:
    """Fill up the operands of large products, in place; return whether any was.

    `targets` says for each device type to how many bytes; products of fewer than `least`
    multiplications stay.
    """
    changed = False
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in (aten.mm.default, aten.addmm.default):
            changed |= _padded(gm, node, targets, least)
    if changed:
        gm.graph.eliminate_dead_code()
    return changed


def kernel_products(
    gm: GraphModule, targets: Mapping[str, Target], least: int = _LEAST
) -> frozenset[str]:
    """Return the names of the products that `pad_products` leaves to generated kernels."""
    return frozenset(
        node.name
        for node in gm.graph.nodes
        if node.op == "call_function"
        and node.target in (aten.mm.default, aten.addmm.default)
        and (lacks := _lacks(node, targets, least)) is not None
        and _for_kernels(node, targets, *lacks)
    )


def _lacks(node: Any, targets: Mapping[str, Target], least: int) -> tuple[int, int, int] | None:
    """Return how many rows, elements of the inner dimension, and columns a product lacks; None for
    one that stays as it is."""
    *_, x, y = node.args
    a, b, out = (n.meta["val"] for n in (x, y, node))
    target = targets.get(out.device.type)
    if target is None or out.element_size() > 2 or not target.heuristics.product_bytes:
        return None
    sides = (*a.shape, b.shape[1])
    if not all(isinstance(n, int) for n in (*sides, *a.stride(), *b.stride())):
        return None
    rows, depth, columns = sides
    if rows * depth * columns < least or min(sides) < _SHORT:
        return None
    multiple = target.heuristics.product_bytes // out.element_size()
    deep, wide = -depth % multiple, -columns % multiple
    # Rows of the result need no whole vectors, but those of an operand that lies on its side do.
    high = -rows % multiple if a.stride(0) == 1 else 0
    return (high, deep, wide) if deep or wide or high else None


def _for_kernels(node: Any, targets: Mapping[str, Target], high: int, deep: int, wide: int) -> bool:
    """Whether only the result's rows are not whole vectors, and a kernel is quicker than copies."""
    *_, x, y = node.args
    a, b, out = (n.meta["val"] for n in (x, y, node))
    rows, depth = a.shape
    units = targets[out.device.type].capabilities.matrix_units
    whole = not high and not deep and b.stride(0) == 1
    short = rows * depth < _COPIED * (rows + depth)
    return bool(wide) and whole and short and FROM_TORCH[out.dtype] in units


def _padded(gm: GraphModule, node: Any, targets: Mapping[str, Target], least: int) -> bool:
    lacks = _lacks(node, targets, least)
    if lacks is None or _for_kernels(node, targets, *lacks):
        return False
    high, deep, wide = lacks
    *bias, x, y = node.args
    rows, columns = node.meta["val"].shape
    if bias and bias[0].meta["val"].shape != (columns,):
        return False
    arguments = [_filled(gm, node, x, high, deep), _filled(gm, node, y, deep, wide)]
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
        result = _like(gm, node, result)
    replace(gm, node, result)
    return True


def _like(gm: GraphModule, node: Any, result: Any) -> Any:
    """Give a copy the strides that eager gives the result: those of a dense matrix."""
    result.kwargs = {"memory_format": torch.contiguous_format}
    result.meta["val"] = node.meta["val"]
    return result


def _filled(gm: GraphModule, node: Any, x: Any, high: int, wide: int) -> Any:
    """Return a matrix with that many more rows and columns of zeros."""
    if not high and not wide:
        return x
    fake = x.meta["val"]
    if fake.stride(0) != 1 or fake.stride(1) == 1:
        return insert(gm, node, aten.constant_pad_nd.default, _source(x), _padding(high, wide))
    lying = _turned(x)
    if lying is None:
        lying = insert(gm, node, aten.permute.default, x, [1, 0])
    padding = _padding(wide, high)
    more = insert(gm, node, aten.constant_pad_nd.default, _source(lying), padding)
    return insert(gm, node, aten.permute.default, more, [1, 0])


def _padding(high: int, wide: int) -> list[int]:
    return [0, wide, 0, high] if high else [0, wide]


def _turned(x: Any) -> Any:
    """Return the matrix that `x` transposes, or None."""
    if x.target is aten.t.default or (
        x.target is aten.permute.default and list(x.args[1]) == [1, 0]
    ):
        return x.args[0]
    return None


def _source(x: Any) -> Any:
    """Return the matrix that `x` transposes twice, or itself: equal copies are made once."""
    once = _turned(x)
    twice = None if once is None else _turned(once)
    return x if twice is None else _source(twice)
