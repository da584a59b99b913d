"""Reference implementations of templates, in `f32`."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from attrs import evolve, frozen

from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.formulas import SCORE_INDICES
from gyrator_ir.loop.nodes import Arg, Buffer, Formula, Literal, TemplateKind
from gyrator_ir.loop.templates import ENDLESS, convolution_images, piece_of
from gyrator_testing.interp.body import Cell, Frame
from gyrator_testing.interp.dtypes import Array
from gyrator_testing.interp.index import Number
from gyrator_testing.interp.memory import layout, span, view

Evaluate = Callable[..., Array]
"""`evaluate(space, *operands)`: the values of a formula for all scores of a space of that shape."""


@frozen
class _Call:
    """What a template works on."""

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    numbers: Mapping[str, Any]
    """The values of its attributes."""
    formulas: Mapping[str, Evaluate]
    """An evaluator for each of its formulas."""


def compute(
    kind: TemplateKind,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    attributes: Sequence[tuple[str, Arg]],
    formulas: Mapping[str, Evaluate] = MappingProxyType({}),
) -> None:
    """Fill the outputs of a template; `formulas` has an evaluator for each of its formulas."""
    numbers = {name: a.value for name, a in attributes if isinstance(a, Literal)}
    _MEANINGS[kind](_Call(inputs, outputs, numbers, formulas))


def run_template(
    kernel: TemplateKernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]
) -> None:
    """Run a template kernel on flat arrays, like `run_kernel`."""
    known: dict[Sym, Number] = {s: sizes[s.name] for s in kernel.sizes}
    tensors = [
        view(buffers[t.buffer], layout(t, known), t.buffer)
        for t in (*kernel.inputs, *kernel.outputs)
    ]
    count = len(kernel.inputs)
    formulas = evaluators(kernel.formulas, kernel.parameters, buffers, known)
    compute(kernel.kind, tensors[:count], tensors[count:], kernel.attributes, formulas)


def evaluators(
    formulas: Sequence[Formula],
    declared: Sequence[Buffer],
    buffers: Mapping[str, Array],
    sizes: Mapping[Sym, Number],
) -> dict[str, Evaluate]:
    """Return an evaluator of each formula, on flat arrays."""
    memory = {b.name: Cell(buffers[b.name], span(b, sizes)) for b in declared if b.name in buffers}

    def evaluator(formula: Formula) -> Evaluate:
        def evaluate(space: tuple[int, ...], *operands: Array) -> Array:
            positions = np.ix_(*(np.arange(n) for n in space))
            symbols: dict[Sym, Number] = {
                **sizes,
                **dict(zip(SCORE_INDICES, positions, strict=True)),
            }
            frame = Frame(
                space, memory, symbols, dict(zip(formula.parameters, operands, strict=True))
            )
            frame.run(formula.body)
            return frame.full(formula.result)

        return evaluate

    return {f.name: evaluator(f) for f in formulas}


def _scores(q: Array, k: Array, mask: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """Return the scores of all heads; masked ones are minus infinity."""
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * np.float32(attributes["scale"])
    for m in mask:
        seen = m.dtype == np.bool_
        scores = np.where(m, scores, -np.inf) if seen else scores + m.astype(np.float32)
    if attributes["causal"]:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    return np.asarray(scores, np.float32)


def _heads(inputs: Sequence[Array]) -> tuple[Array, Array, Array, int]:
    """Return q, k and v in `f32`, with k and v repeated for each head of a group, and the number of
    heads in a group."""
    q, k, v = (x.astype(np.float32) for x in inputs[:3])
    group = q.shape[1] // max(k.shape[1], 1)
    return q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1), group


def _averaged(scores: Array, v: Array, times: Array | int = 1) -> tuple[Array, Array, Array]:
    """Return the average of the values weighted by the softmax of scores, each of which counts
    `times`, and for each row the maximum and the sum of `exp(score - maximum)`."""
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = times * np.exp(scores - _finite(top))
    total = weights.sum(axis=-1, keepdims=True)
    return np.matmul(weights, v) / np.where(total == 0, 1, total), top, total


def _finite(top: Array) -> Array:
    """Return maxima, with 0 for rows without scores."""
    return np.where(top == -np.inf, np.float32(0), top)


def _store_gradients(outputs: Sequence[Array], gradients: Sequence[Array], group: int) -> None:
    """Store the gradients of q, k and v; k and v are shared by the heads of a group."""
    for out, gradient, shared in zip(outputs, gradients, (1, group, group), strict=True):
        parts = gradient.reshape(out.shape[0], out.shape[1], shared, *out.shape[2:])
        out[...] = parts.sum(axis=2).astype(out.dtype)


def _attention(call: _Call) -> None:
    q, k, v, _ = _heads(call.inputs)
    scores = _scores(q, k, call.inputs[3:], call.numbers)
    mean, top, total = _averaged(scores, v)
    out, *log_sums = call.outputs
    out[...] = mean.astype(out.dtype)
    for sums in log_sums:
        sums[...] = np.inf
        with np.errstate(divide="ignore"):
            sums[:, :, : q.shape[2]] = (np.log(total) + _finite(top))[..., 0]


def _gradients(call: _Call) -> None:
    q, k, v, group = _heads(call.inputs)
    grad, sums, mean = (x.astype(np.float32) for x in call.inputs[3:6])
    sums = np.where(sums == -np.inf, np.inf, sums)[:, :, : q.shape[2], None]
    weights = np.exp(_scores(q, k, call.inputs[6:], call.numbers) - sums)
    slopes = weights * (np.matmul(grad, np.swapaxes(v, -1, -2)) - mean[..., None])
    slopes = slopes * np.float32(call.numbers["scale"])
    turned = np.swapaxes(slopes, -1, -2), np.swapaxes(weights, -1, -2)
    gradients = (np.matmul(slopes, k), np.matmul(turned[0], q), np.matmul(turned[1], grad))
    _store_gradients(call.outputs, gradients, group)


@frozen
class _Part:
    """Part `number` of the pieces of columns that are listed for a block of rows."""

    number: int
    count: int

    def of(self, pieces: list[range]) -> list[range]:
        """Return the pieces of the part."""
        first, end = (len(pieces) * n // self.count for n in (self.number, self.number + 1))
        return pieces[first:end]


def _pieces(positions: Array, block: int, columns: int) -> list[range]:
    """Return the ranges of columns of the pieces of the listed blocks."""
    length = piece_of(block)
    return [
        range(first, min(first + length, columns))
        for begin in (int(place) * block for place in positions)
        for first in range(begin, columns if block >= ENDLESS else begin + block, length)
    ]


def _listed(
    counts: Array,
    positions: Array,
    blocks: tuple[int, int],
    space: tuple[int, ...],
    part: _Part = _Part(0, 1),
) -> Array:
    """Return how often each score lies in a block of columns that its block of rows lists."""
    times = np.zeros(space, np.float32)
    rows, columns = blocks
    for b, h, x in np.ndindex(counts.shape):
        row = slice(x * rows, (x + 1) * rows)
        for piece in part.of(_pieces(positions[b, h, x, : counts[b, h, x]], columns, space[3])):
            times[b, h, row, piece.start : max(piece.start, piece.stop)] += 1
    return times


def _multiplicity(
    blocks: Sequence[Array],
    attributes: Mapping[str, Any],
    seen: Array,
    turned: bool = False,
    part: _Part = _Part(0, 1),
) -> Array:
    """Return how often each score counts: 0 or 1, unless a block is listed twice."""
    lengths = attributes["row_block"], attributes["column_block"]
    space = seen.shape
    if turned:
        lengths, space = lengths[::-1], (*space[:2], *space[:1:-1])
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    listed = [_listed(counts, positions, lengths, space, part) for counts, positions in pairs]
    if turned:
        listed = [np.swapaxes(times, -1, -2) for times in listed]
    return listed[0] * seen + (listed[1] if len(listed) > 1 else np.float32(0))


def _every_block(attributes: Mapping[str, Any], space: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the list of all blocks of columns, for each block of rows."""
    rows, columns = space[2:]
    lengths = attributes["row_block"], attributes["column_block"]
    grid = (*space[:2], -(-rows // lengths[0]))
    count = 1 if lengths[1] >= ENDLESS else -(-columns // lengths[1])
    return np.full(grid, count), np.broadcast_to(np.arange(count), (*grid, count))


def _flex_scores(q: Array, k: Array, call: _Call) -> tuple[Array, Array, Array]:
    """Return the products, the scores that the formulas compute from them, and the mask."""
    products = np.matmul(q, np.swapaxes(k, -1, -2)) * np.float32(call.numbers["scale"])
    space = products.shape
    return products, call.formulas["score"](space, products), call.formulas["mask"](space)


def _flex_parts(call: _Call) -> None:
    for number, outputs in enumerate(zip(*call.outputs, strict=True)):
        _flex(evolve(call, outputs=outputs), _Part(number, call.numbers["parts"]))


def _flex(call: _Call, part: _Part = _Part(0, 1)) -> None:
    q, k, v, _ = _heads(call.inputs)
    _, scores, seen = _flex_scores(q, k, call)
    blocks = call.inputs[3 : 3 + 2 * call.numbers["lists"]]
    blocks = blocks or _every_block(call.numbers, seen.shape)
    times = _multiplicity(blocks, call.numbers, seen, part=part)
    scores = np.where(times > 0, scores, -np.inf)
    mean, top, total = _averaged(scores, v, times)
    out, *rows = call.outputs
    out[...] = mean.astype(out.dtype)
    with np.errstate(divide="ignore"):
        sums = np.log2(total) + _finite(top) / np.log(np.float32(2))
    for row, values in zip(rows, (sums, top / np.log(np.float32(2))), strict=False):
        row[...] = values[..., 0]


def _flex_gradients(call: _Call) -> None:
    inputs, numbers = call.inputs, call.numbers
    q, k, v, group = _heads(inputs)
    grad, sums, mean = (x.astype(np.float32) for x in inputs[3:6])
    products, scores, seen = _flex_scores(q, k, call)
    count = 2 * numbers["lists"]
    by_rows = _multiplicity(inputs[6 : 6 + count], numbers, seen)
    by_columns = _multiplicity(inputs[6 + count : 6 + 2 * count], numbers, seen, turned=True)
    sums = np.where(sums == -np.inf, np.inf, sums)[..., None]
    once = np.exp2(scores / np.log(np.float32(2)) - sums)
    difference = np.matmul(grad, np.swapaxes(v, -1, -2)) - mean[..., None]
    slopes = call.formulas["slope"](products.shape, products, once * difference)
    slopes = slopes * np.float32(numbers["scale"])
    of_rows = np.where(by_rows > 0, by_rows * slopes, 0)
    of_columns = np.where(by_columns > 0, by_columns * slopes, 0)
    weights = np.where(by_columns > 0, by_columns * once, 0)
    gradients = (
        np.matmul(of_rows, k),
        np.matmul(np.swapaxes(of_columns, -1, -2), q),
        np.matmul(np.swapaxes(weights, -1, -2), grad),
    )
    _store_gradients(call.outputs, gradients, group)


def _convolution(call: _Call) -> None:
    numbers, (out,) = call.numbers, call.outputs
    panels, bias = call.inputs[1:3]
    images, more = convolution_images(call.inputs)
    x = np.concatenate(images, axis=3)
    _, tall, wide, channels, _ = panels.shape
    features = out.shape[3]
    weight = np.moveaxis(panels, 0, -2).reshape(tall, wide, channels, -1)[..., :features]
    down, right = numbers["down"], numbers["right"]
    sizes = (out.shape[1] - 1) * down + tall, (out.shape[2] - 1) * right + wide
    padded = np.zeros((x.shape[0], *sizes, channels), np.float32)
    top, left = numbers["top"], numbers["left"]
    inside = padded[:, top : top + x.shape[1], left : left + x.shape[2]]
    inside[...] = x[:, : inside.shape[1], : inside.shape[2]]
    total = np.zeros(out.shape, np.float32)
    for i, j in np.ndindex(tall, wide):
        total += padded[:, i::down, j::right][:, : out.shape[1], : out.shape[2]] @ weight[i, j]
    total += bias[:features]
    for m in more:
        total += m
    out[...] = call.formulas["after"](total.shape, total)


def _depthwise(call: _Call) -> None:
    numbers, (x, weight, *bias), (out,) = call.numbers, call.inputs, call.outputs
    total = np.zeros(out.shape, np.float32)
    rows, columns = np.arange(out.shape[1])[:, None], np.arange(out.shape[2])
    for down, right in np.ndindex(*weight.shape[:2]):
        i = rows * numbers["down"] - numbers["top"] + down * numbers["below"]
        j = columns * numbers["right"] - numbers["left"] + right * numbers["beside"]
        inside = (i >= 0) & (i < x.shape[1]) & (j >= 0) & (j < x.shape[2])
        i, j = np.broadcast_arrays(i, j)
        total[:, inside] += x[:, i[inside], j[inside]] * weight[down, right]
    for b in bias:
        total += b
    out[...] = call.formulas["after"](total.shape, total)


_MEANINGS: Mapping[TemplateKind, Callable[[_Call], None]] = MappingProxyType(
    {
        TemplateKind.ATTENTION: _attention,
        TemplateKind.ATTENTION_GRADIENTS: _gradients,
        TemplateKind.FLEX_ATTENTION: _flex,
        TemplateKind.FLEX_ATTENTION_PARTS: _flex_parts,
        TemplateKind.FLEX_ATTENTION_GRADIENTS: _flex_gradients,
        TemplateKind.CONVOLUTION: _convolution,
        TemplateKind.DEPTHWISE: _depthwise,
    }
)
"""The templates, by kind."""
