"""Matrix products and convolutions of quantised tensors by oneDNN: checks that this machine
computes them correctly, and calls to measure.

Processors without dot-product instructions for bytes add pairs of products in 16 bits, which large
values overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as pairs
from typing import Any

import torch

from gyrator_lowering.fx_passes import Convolution, Product

Call = Callable[[], torch.Tensor]

_OPS = ("qlinear_prepack", "qlinear_pointwise", "qconv_prepack", "qconv_pointwise")
_LAST = ("output_scale", "output_zero_point", "output_dtype")
_BOUNDS = ((torch.uint8, 0, 255), (torch.int8, -128, 127))
_ZERO = 3
_SIDE = 16
_DEPTH = 256
"""Sums of this many byte products are exactly representable in `float32`."""


def can_multiply_bytes() -> bool:
    """Return whether this torch has the ops, with the expected parameters."""
    ops = [getattr(torch.ops.onednn, name, None) for name in _OPS]
    if not all(ops) or not torch.backends.quantized.supported_engines.count("onednn"):
        return False
    return all(
        set(_LAST) <= {a.name for a in op.default._schema.arguments} for op in ops[1::2] if op
    )


def sums_are_right() -> bool:
    """Return whether sums of the largest and smallest byte products are exact."""
    for (dtype, *lefts), right in pairs(_BOUNDS, _BOUNDS[1][1:]):
        for left, zero in pairs(lefts, (0, _ZERO)):
            x = torch.full((_SIDE, _DEPTH), left, dtype=dtype)
            w = torch.full((_SIDE, _DEPTH), right, dtype=torch.int8)
            w[0], x[0, ::2] = ~right, zero
            exact = (x.double() - zero) @ w.double().t()
            results = [_product(x, zero, _packed(w, _SIDE))()]
            if dtype == torch.uint8:
                images, window = x[:, :, None, None], ((1, 1), (0, 0), (1, 1), 1)
                results.append(
                    _convolution(images, zero, w[:, :, None, None], window)()[:, :, 0, 0]
                )
            if not all(torch.equal(f.double(), exact) for f in results):
                return False
    return True


def product_call(product: Product, packed: torch.Tensor, generator: torch.Generator) -> Call:
    """Return a call of a byte product with a weight packed by `packed_bytes`."""
    x = _random((product.rows, product.depth), product.dtype, generator)
    return _product(x, _ZERO, packed)


def packed_bytes(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a packed byte matrix of the size of `weight`, with one row per output, for products
    with this many rows."""
    return _packed(weight.clamp(-1, 1).mul(127).to(torch.int8), rows)


def convolution_calls(convolution: Convolution, generator: torch.Generator) -> dict[str, Call]:
    """Return calls of a convolution of floats and of one of bytes, both with packed weights."""
    images = _random(convolution.images, torch.uint8, generator)
    weight = _random(convolution.weight, torch.int8, generator)
    stride, padding, dilation, groups = window = (
        convolution.stride, convolution.padding, convolution.dilation, convolution.groups
    )  # fmt: skip
    op: Any = torch.ops.mkldnn
    plain = weight.float()
    if images.dim() == 4:
        images = images.to(memory_format=torch.channels_last)
        plain = op._reorder_convolution_weight(
            plain, padding, stride, dilation, groups, list(images.shape)
        )
    floats = images.float()
    in_floats = op._convolution_pointwise.default
    return {
        "floats": lambda: in_floats(
            floats, plain, None, padding, stride, dilation, groups, "none", [], ""
        ),
        "integers": _convolution(images, _ZERO, weight, window),
    }


def _product(x: torch.Tensor, zero: int, packed: torch.Tensor) -> Call:
    op: Any = torch.ops.onednn.qlinear_pointwise.default
    scale, zeros = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    last: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
    return lambda: op(x, 1.0, zero, packed, scale, zeros, None, *last)


def _convolution(x: torch.Tensor, zero: int, weight: torch.Tensor, window: tuple[Any, ...]) -> Call:
    op: Any = torch.ops.onednn
    scale, zeros = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    packed = op.qconv_prepack(weight, scale, 1.0, zero, *window, list(x.shape))
    call = op.qconv_pointwise.default
    last = (*window, 1.0, 0, torch.float32, "none", [], "")
    return lambda: call(x, 1.0, zero, packed, scale, zeros, None, *last)


def _packed(weight: torch.Tensor, rows: int) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight, [rows, weight.shape[1]])
    return packed


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    low, high = next(b for d, *b in _BOUNDS if d == dtype)
    return torch.randint(low, high + 1, shape, generator=generator, dtype=dtype)
