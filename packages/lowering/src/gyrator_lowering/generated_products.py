"""The products of a graph that generated kernels compute instead of a library, by their factors.

Some products are better left to kernels, which also fuse what follows:

- Products with a vector. Libraries tune their kernels for products that keep the matrix units busy;
  those with a vector take the time of reading the matrix, which generated kernels read as fast as a
  copy does. Other products of the same vector may share the launch.
- Batches of products of small matrices. CPU libraries prepare each product of a batch, which takes
  longer than its sums if the matrices are small.
- Products of integers, for which CPU libraries have no blocked or vectorised kernels. ATen
  multiplies matrices of `int64`, and bytes into `int32`, by plain loops; its `int32` products use
  vectors, but no tiles. Integer sums are exact in any order: kernels return the same bits.
- Depthwise convolutions of planes, with their gradients. GPU libraries have kernels for channels
  that are consecutive in memory; for planes, ATen's take twice to three times as long as a loop
  over the window. Of channels-last images, the library convolves 16-bit floats faster where windows
  overlap, unless its kernel is short; and it takes tenths of a second to prepare its first call.
- The gradients of the weights of depthwise convolutions with large windows. CPU libraries take ten
  times as long for these as for the gradients of the images, which they compute well.
- Convolutions of single channels-last pixels with few outputs, as at the end of a segmentation
  network. CPU libraries compute a whole register of outputs, most of which are padding; kernels
  compute those that exist, and fuse what comes before and after, which takes longer than the sums.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gyrator_ir.target import Target

aten = torch.ops.aten
_BYTES = aten._int_mm.default
_VECTOR_OPS = (aten.mm.default, aten.addmm.default, aten.mv.default, aten.addmv.default)
_BATCH_OPS = (aten.bmm.default, aten.baddbmm.default)
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_OPS = frozenset((*_VECTOR_OPS, *_BATCH_OPS, *_CONVOLUTIONS, aten.dot.default, _BYTES))
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_MAX_WORK = 1 << 12
"""The maximum number of multiplications of a small product. Up to twice as many, kernels still
win."""
_BYTE_LIBRARY = "onednn-int8"
"""The library of `Capabilities.libraries` that multiplies bytes by dot-product instructions."""
_DEPTH = 8
"""The minimum depth of products of integers, where the depth matters."""
_WINDOW = 64
"""The maximum number of elements of a depthwise convolution's window."""
_LEAST_WINDOW = 10
"""The minimum number of elements of a window for whose weights kernels sum the gradient faster than
CPU libraries: these are as fast with windows of 3 by 3."""
_LEAST_CHANNELS = 16
"""The minimum number of channels, which are the lanes of vectors, in that case."""
_MAX_OUTPUTS = 4
"""The maximum number of outputs of a convolution of single pixels. With twice as many, libraries
are as fast unless something is fused."""
_ROWS, _COLUMNS = 4, 8
"""The minimum size of products that kernels tile for vector registers."""


def generated_products(gm: GraphModule, targets: Mapping[str, Target]) -> frozenset[str]:
    """Return the names of a graph's products that kernels on these targets should compute."""
    calls = (n for n in gm.graph.nodes if n.op == "call_function" and n.target in _OPS)
    return frozenset(n.name for n in calls if _chosen(n, targets))


def _chosen(node: Node, targets: Mapping[str, Target]) -> bool:
    target = targets.get(node.args[0].meta["val"].device.type)  # type: ignore[union-attr]
    if target is None:
        return False
    can = target.heuristics
    if node.target in _CONVOLUTIONS:
        return (
            (can.plane_convolutions and _of_planes(node))
            or (can.register_tiles and narrow_convolution(node))
            or (can.depthwise_gradients and sums_windows(node, with_image=False))
            or _of_channels_last(node, can.depthwise_elements)
        )
    x, y = (a.meta["val"] for a in node.args[-2:])  # type: ignore[union-attr]
    return (
        (can.thin_products and node.target in _VECTOR_OPS and _thin(x, y))
        or (can.register_tiles and node.target in _BATCH_OPS and _small(x, y))
        or (can.integer_products and _of_integers(node, x, y, target))
    )


def _thin(x: Tensor, y: Tensor) -> bool:
    """Return whether a product has a single row or column, constant sizes, and a matrix that is
    contiguous along the reduced axis."""
    if not all(isinstance(n, int) for n in (*x.shape, *y.shape)):
        return False
    if y.ndim == 1 or y.shape[1] == 1:
        return bool(x.stride(1) == 1)
    return bool(x.shape[0] == 1 and y.stride(0) == 1)


def _small(x: Tensor, y: Tensor) -> bool:
    """Return whether the matrices of a batch of floats have constant, small sizes. The number of
    products may change."""
    if x.dtype not in _FLOATS or not _strided(x, y):
        return False
    sizes = (x.shape[1], x.shape[2], y.shape[2])
    return all(isinstance(n, int) for n in sizes) and math.prod(sizes) <= _MAX_WORK


def _of_integers(node: Node, x: Tensor, y: Tensor, target: Target) -> bool:
    """Return whether a product is one of integers that kernels compute faster."""
    if not _strided(x, y):
        return False
    if any(isinstance(a, float) for a in node.kwargs.values()):
        return False  # eager mode refuses factors that are not integers
    if node.target == _BYTES:
        return _BYTE_LIBRARY not in target.capabilities.libraries
    depth = x.shape[-1]
    if x.dtype == torch.int64:
        # Sums along short rows of vectors gain nothing.
        along = x.stride(-1) == 1 and y.stride(-2 if y.ndim > 1 else -1) == 1
        return not (along and isinstance(depth, int) and depth < _DEPTH)
    sizes = (depth, x.shape[-2], y.shape[-1]) if y.ndim > 1 else ()
    least = (_DEPTH, _ROWS, _COLUMNS)
    return (
        x.dtype == torch.int32
        and len(sizes) == len(least)
        and all(isinstance(n, int) and n >= few for n, few in zip(sizes, least, strict=True))
    )


def _of_planes(node: Node) -> bool:
    """Return whether a convolution, or its gradients, convolves each plane separately with a small
    window of constant size."""
    backward = node.target == aten.convolution_backward.default
    args: Any = node.args
    *images, weight = (a.meta["val"] for a in args[: 3 if backward else 2])
    transposed, groups = (args[7], args[9]) if backward else (args[6], args[8])
    return (
        not transposed
        and convolves_channels(images[-1], weight, groups)
        and all(isinstance(x.stride(-1), int) and x.stride(-1) == 1 for x in images)
    )


def sums_windows(node: Node, with_image: bool) -> bool:
    """Return whether a node computes the gradient of the weight of a depthwise convolution, with or
    without the image's, and the window is so large that kernels are faster at it than CPU
    libraries. The number and the size of the images may change."""
    if node.target != aten.convolution_backward.default:
        return False
    args: Any = node.args
    grad, x, weight = (a.meta["val"] for a in args[:3])
    transposed, groups, mask = args[7], args[9], args[10]
    return bool(
        mask[1]
        and mask[0] == with_image
        and not transposed
        and _strided(grad, x, weight)
        and x.ndim == weight.ndim
        and convolves_channels(x, weight, groups, math.inf)
        and math.prod(weight.shape[2:]) >= _LEAST_WINDOW
        and groups >= _LEAST_CHANNELS
    )


def _of_channels_last(node: Node, elements: int) -> bool:
    """Return whether kernels are faster at a depthwise convolution of channels-last images: see
    `Heuristics.depthwise_elements`."""
    if not elements or node.target != aten.convolution.default:
        return False
    args: Any = node.args
    x, weight = (a.meta["val"] for a in args[:2])
    stride, transposed, groups = args[3], args[6], args[8]
    if transposed or not convolves_channels(x, weight, groups):
        return False
    apart = all(n > 1 for n in stride)
    short = all(isinstance(n, int) for n in x.shape) and math.prod(x.shape) <= elements
    return (
        isinstance(x.stride(1), int)
        and x.stride(1) == 1
        and (x.dtype.itemsize > 2 or apart or short)
    )


def convolves_channels(x: Tensor, weight: Tensor, groups: int, window: float = _WINDOW) -> bool:
    """Return whether a convolution of floats convolves each channel separately with a window of
    constant size, of more than one element and at most `window`."""
    if x.dtype not in _FLOATS or not all(isinstance(n, int) for n in (*weight.shape, x.shape[1])):
        return False
    return 1 < groups == weight.shape[0] == x.shape[1] and 1 < math.prod(weight.shape[2:]) <= window


def narrow_convolution(node: Node) -> bool:
    """Return whether a node convolves single channels-last pixels of floats with few outputs. The
    number and the size of the images may change."""
    if node.target != aten.convolution.default:
        return False
    args: Any = node.args
    x, weight = (a.meta["val"] for a in args[:2])
    stride, padding, _, transposed, _, groups = args[3:]
    return (
        not transposed
        and groups == 1
        and x.dtype in _FLOATS
        and _strided(x, weight)
        and all(isinstance(n, int) for n in (*weight.shape, x.stride(1)))
        and x.stride(1) == 1
        and (0 < weight.shape[0] <= _MAX_OUTPUTS or _is_pixel(x))
        and all(n == 1 for n in (*weight.shape[2:], *stride))
        and all(p == 0 for p in padding)
    )


def _is_pixel(x: Tensor) -> bool:
    """Return whether a tensor has the channels of a single pixel."""
    return all(isinstance(n, int) and n == 1 for n in (x.shape[0], *x.shape[2:]))


def _strided(*factors: Tensor) -> bool:
    return all(t.layout is torch.strided for t in factors)
