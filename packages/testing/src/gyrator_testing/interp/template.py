"""What templates compute, before their epilogues: by definition, in `f32`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyrator_ir.loop.nodes import TemplateKind
from gyrator_testing.interp.dtypes import Array


def compute(kind: TemplateKind, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """Return the `f32` result of a template at every point of its output."""
    wide = [a if a.dtype == np.bool_ else a.astype(np.float32) for a in inputs]
    match kind:
        case TemplateKind.GEMM:
            product = np.matmul(wide[0], wide[1])
            return np.asarray(product + wide[2] if len(wide) > 2 else product)
        case TemplateKind.CONVOLUTION:
            return _convolution(wide, attributes)
        case TemplateKind.ATTENTION:
            return _attention(wide, attributes)


def _convolution(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """x [N, C, *S], w [O, C / groups, *K], bias [O]; lists `stride`, `padding`, `dilation`."""
    x, w = inputs[:2]
    rank, groups = x.ndim - 2, attributes.get("groups", 1)
    stride = attributes.get("stride", [1] * rank)
    padding = attributes.get("padding", [0] * rank)
    dilation = attributes.get("dilation", [1] * rank)
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    kernel = w.shape[2:]
    extent = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    n, channels = x.shape[0], x.shape[1] // groups
    result = np.zeros((n, groups, w.shape[0] // groups, *extent), np.float32)
    grouped = w.reshape(groups, w.shape[0] // groups, channels, *kernel)
    for tap in np.ndindex(*kernel):
        window = tuple(
            slice(t * d, t * d + (e - 1) * s + 1, s)
            for t, d, e, s in zip(tap, dilation, extent, stride, strict=True)
        )
        part = x[(slice(None), slice(None), *window)].reshape(n, groups, channels, *extent)
        taps = grouped[(slice(None), slice(None), slice(None), *tap)]
        result += np.einsum("ngc...,goc->ngo...", part, taps)
    out = result.reshape(n, w.shape[0], *extent)
    return out + inputs[2].reshape(-1, *[1] * rank) if len(inputs) > 2 else out


def _attention(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """Q [.., L, E], K [.., S, E], V [.., S, F], mask [.., L, S]; `scale`, `causal`."""
    q, k, v = inputs[:3]
    scale = attributes.get("scale")
    scores = np.matmul(q, np.swapaxes(k, -1, -2))
    scores = scores * np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    if len(inputs) > 3:
        mask = inputs[3]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if attributes.get("causal", False):
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.asarray(np.matmul(weights, v), np.float32)
