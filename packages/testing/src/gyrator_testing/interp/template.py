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


def _attention(
    inputs: Sequence[Array], outputs: Sequence[Array], attributes: Mapping[str, Any]
) -> None:
    q, k, v = (x.astype(np.float32) for x in inputs[:3])
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * np.float32(attributes["scale"])
    if len(inputs) > 3:
        mask = inputs[3]
        boolean = mask.dtype == np.bool_
        scores = np.where(mask, scores, -np.inf) if boolean else scores + mask.astype(np.float32)
    if attributes["causal"]:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
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
