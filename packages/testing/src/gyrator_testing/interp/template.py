"""What templates compute, by definition, in `f32`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.nodes import Arg, Literal, TemplateKind
from gyrator_testing.interp.dtypes import Array
from gyrator_testing.interp.index import Number
from gyrator_testing.interp.memory import layout, view


def compute(
    kind: TemplateKind,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    attributes: Sequence[tuple[str, Arg]],
) -> None:
    """Fill the outputs of a template."""
    numbers = {name: a.value for name, a in attributes if isinstance(a, Literal)}
    match kind:
        case TemplateKind.ATTENTION:
            _attention(inputs, outputs, numbers)
        case TemplateKind.ATTENTION_GRADIENTS:
            _gradients(inputs, outputs, numbers)


def run_template(
    kernel: TemplateKernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]
) -> None:
    """Run a template's kernel on flat arrays, as `run_kernel` does one with stages."""
    known: dict[Sym, Number] = {s: sizes[s.name] for s in kernel.sizes}
    tensors = [
        view(buffers[t.buffer], layout(t, known), t.buffer)
        for t in (*kernel.inputs, *kernel.outputs)
    ]
    given = len(kernel.inputs)
    compute(kernel.kind, tensors[:given], tensors[given:], kernel.attributes)


def _scores(q: Array, k: Array, mask: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """Return the scores of all heads, minus infinity where a row does not look."""
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * np.float32(attributes["scale"])
    for m in mask:
        seen = m.dtype == np.bool_
        scores = np.where(m, scores, -np.inf) if seen else scores + m.astype(np.float32)
    if attributes["causal"]:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    return np.asarray(scores, np.float32)


def _heads(inputs: Sequence[Array]) -> tuple[Array, Array, Array, int]:
    """Return q, k and v in `f32`, k and v once for each head, and how many heads share them."""
    q, k, v = (x.astype(np.float32) for x in inputs[:3])
    group = q.shape[1] // max(k.shape[1], 1)
    return q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1), group


def _attention(
    inputs: Sequence[Array], outputs: Sequence[Array], attributes: Mapping[str, Any]
) -> None:
    q, k, v, _ = _heads(inputs)
    scores = _scores(q, k, inputs[3:], attributes)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    mean = np.matmul(weights, v) / np.where(total == 0, 1, total)
    outputs[0][...] = mean.astype(outputs[0].dtype)
    if len(outputs) > 1:
        with np.errstate(divide="ignore"):
            sums = (np.log(total) + np.where(top == -np.inf, 0, top))[..., 0]
        outputs[1][...] = np.inf
        outputs[1][:, :, : q.shape[2]] = sums


def _gradients(
    inputs: Sequence[Array], outputs: Sequence[Array], attributes: Mapping[str, Any]
) -> None:
    q, k, v, group = _heads(inputs)
    grad, sums, mean = (x.astype(np.float32) for x in inputs[3:6])
    sums = np.where(sums == -np.inf, np.inf, sums)[:, :, : q.shape[2], None]
    weights = np.exp(_scores(q, k, inputs[6:], attributes) - sums)
    slopes = weights * (np.matmul(grad, np.swapaxes(v, -1, -2)) - mean[..., None])
    slopes = slopes * np.float32(attributes["scale"])
    turned = np.swapaxes(slopes, -1, -2), np.swapaxes(weights, -1, -2)
    found = (np.matmul(slopes, k), np.matmul(turned[0], q), np.matmul(turned[1], grad))
    for out, gradient in zip(outputs, found, strict=True):
        shared = group if out is not outputs[0] else 1
        parts = gradient.reshape(out.shape[0], out.shape[1], shared, *out.shape[2:])
        out[...] = parts.sum(axis=2).astype(out.dtype)
