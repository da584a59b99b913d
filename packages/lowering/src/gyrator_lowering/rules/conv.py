"""Convolutions: calls of a library, or sums of products where kernels are wanted.

Each is a matrix product whose operands are gathered as they are read (an implicit GEMM). With `x`
the tensor over the smaller planes, `X` that over the larger ones, `w[o, c, k]` the weight of one
group, and `at(i, k) = i * stride - padding + k * dilation`:

    gathered:  x[n, o, i] = sum over c and k of X[n, c, at(i, k)] * w[o, c, k]
    spread:    X[n, c, j] = sum over o, k and the i with at(i, k) = j of x[n, o, i] * w[o, c, k]
    weights:   w[o, c, k] = sum over n and i of x[n, o, i] * X[n, c, at(i, k)]

A convolution gathers, and the gradient of its input spreads; with `transposed` it is the other way.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import evolve, frozen

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ONE, ZERO, Expr, expr
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue, contiguous_strides
from gyrator_lowering.rules.index import inside
from gyrator_lowering.rules.matmul import accumulated, either, summed
from gyrator_lowering.rules.pool import expanded
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder


@frozen
class Window:
    """How positions in the smaller planes, the window and the larger planes belong together."""

    stride: Sequence[Any]
    padding: Sequence[Any]
    dilation: Sequence[Any]
    groups: Any

    @property
    def rank(self) -> int:
        """Dimensions of the planes."""
        return len(self.stride)

    def larger(self, i: Index, k: Index) -> tuple[Expr, ...]:
        """Return where position `k` of the window at `i` lies in the larger plane."""
        numbers = zip(i, k, self.stride, self.padding, self.dilation, strict=True)
        return tuple(a * s - p + c * d for a, c, s, p, d in numbers)

    def grouped(self, x: TensorValue, dim: int) -> TensorValue:
        """Return the view of a tensor that has the groups as a dimension before `dim`."""
        each = x.shape[dim] // self.groups
        shape = (*x.shape[:dim], expr(self.groups), each, *x.shape[dim + 1 :])
        step = x.strides[dim]
        strides = (*x.strides[:dim], step * each, step, *x.strides[dim + 1 :])
        return evolve(x, shape=shape, strides=strides)

    def filters(self, b: LoopBuilder, weight: TensorValue) -> TensorValue:
        """Return the weight as [group, out, in, window].

        Where each channel is a group, nothing multiplies matrices: channels lie abreast then, and
        so does the weight of each place in the window, in a copy if need be.
        """
        found = self.grouped(weight, 0)
        if not self.depthwise(weight) or found.strides[0] == ONE:
            return found
        return b.copy(found, Spec(weight.dtype, weight.device, found.shape, abreast(found.shape)))

    def depthwise(self, weight: TensorValue | Spec) -> bool:
        """Whether each channel is convolved alone."""
        return weight.shape[1] == ONE and weight.shape[0] == expr(self.groups) != ONE

    def read(self, ops: Tracer, x: TensorValue, lead: Index, at: Index) -> Value:
        """Read the larger plane, which is 0 outside."""
        index = (*lead, *at)
        padded = [len(lead) + d for d, p in enumerate(self.padding) if p != 0]
        mask = inside(ops, index, x.shape, padded)
        return ops.load(x, index) if mask is None else ops.masked_load(x, index, mask)


def abreast(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return strides with the first dimension consecutive, and the others as usual."""
    rest = contiguous_strides((*shape[1:], shape[0]))
    return (rest[-1], *rest[:-1])


def gathered(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue,
    window: Window,
    out: Spec,
    bias: TensorValue | None = None,
) -> TensorValue:
    """Return the smaller side, from the larger one: a convolution."""
    large, filters = window.grouped(x, 1), window.filters(b, weight)

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        (n, g, o, *i), (c, *k) = index, rindex
        value = window.read(ops, large, (n, g, c), window.larger(i, k))
        return value, ops.load(filters, (g, o, c, *k))

    inner = (filters.shape[2], *filters.shape[3:])
    return _finished(b, terms, window, inner, out, bias)


def spread(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue,
    window: Window,
    out: Spec,
    bias: TensorValue | None = None,
) -> TensorValue:
    """Return the larger side, from the smaller one: a transposed convolution."""
    small, filters = window.grouped(x, 1), window.filters(b, weight)

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        (n, g, c, *large), (o, *k) = index, rindex
        at: list[Expr] = []
        mask: Value | None = None
        for d, (i, j) in enumerate(zip(large, k, strict=True)):
            far = i + window.padding[d] - j * window.dilation[d]
            step = window.stride[d]
            at.append(far // step)
            if step != 1:
                meets = ops.eq(ops.index(far % step), 0)
                mask = meets if mask is None else mask & meets
        within = inside(ops, (n, g, o, *at), small.shape, range(3, 3 + window.rank))
        if within is not None:
            mask = within if mask is None else mask & within
        index = (n, g, o, *at)
        value = ops.load(small, index) if mask is None else ops.masked_load(small, index, mask)
        return value, ops.load(filters, (g, o, c, *k))

    inner = (filters.shape[1], *filters.shape[3:])
    return _finished(b, terms, window, inner, out, bias)


def weights(
    b: LoopBuilder, small: TensorValue, large: TensorValue, window: Window, out: Spec
) -> TensorValue:
    """Return the gradient of the weight, from both sides."""
    mine, theirs = window.grouped(small, 1), window.grouped(large, 1)

    alone = window.depthwise(out)
    first = 3 if alone else 0

    def turned(dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Put channels that are convolved alone last: they lie abreast."""
        return (*dims[first:], *dims[:first])

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        last = len(index) - first
        (g, o, c, *k), (n, *i) = (*index[last:], *index[:last]), rindex
        value = window.read(ops, theirs, (n, g, c), window.larger(i, k))
        return ops.load(mine, (n, g, o, *i)), value

    def split(wide: TensorValue) -> TensorValue:
        found = window.grouped(wide, 0)
        return evolve(found, shape=turned(found.shape), strides=turned(found.strides))

    shape = turned(_grouped_shape(out, window, 0))
    inner = (small.shape[0], *small.shape[2:])
    dtype = accumulated(out.dtype)
    sums = evolve(out, dtype=dtype, strides=abreast(out.shape)) if alone else out
    made = summed(b, terms, shape, inner, sums, dtype, None, split)
    return b.copy(made, out) if alone else made


def _grouped_shape(out: Spec, window: Window, dim: int) -> tuple[Expr, ...]:
    like = TensorValue("", out.dtype, out.device, out.shape, out.strides, ZERO, out.dtype)
    return window.grouped(like, dim).shape


def _finished(
    b: LoopBuilder,
    terms: Any,
    window: Window,
    inner: tuple[Expr, ...],
    out: Spec,
    bias: TensorValue | None,
) -> TensorValue:
    def split(wide: TensorValue) -> TensorValue:
        return window.grouped(wide, 1)

    def after(ops: Tracer, index: Index, total: Value) -> Value:
        assert bias is not None
        return total + ops.cast(ops.load(bias, index[1:2]), total.dtype)

    shape = _grouped_shape(out, window, 1)
    dtype = accumulated(out.dtype)
    return summed(b, terms, shape, inner, out, dtype, None if bias is None else after, split)


def _window(weight: TensorValue, stride: Any, padding: Any, dilation: Any, groups: Any) -> Window:
    rank = weight.ndim - 2
    numbers = (expanded(stride, rank), expanded(padding, rank), expanded(dilation, rank))
    return Window(*numbers, groups)


def convolution(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    *_: Any,
) -> TensorValue:
    """A convolution over any number of dimensions, or a transposed one."""
    if x.ndim != weight.ndim:
        raise FallbackToAten
    window = _window(weight, stride, padding, dilation, groups)
    return (spread if transposed else gathered)(b, x, weight, window, b.out, bias)


def convolution_backward(
    b: LoopBuilder,
    grad: TensorValue,
    x: TensorValue,
    weight: TensorValue,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    """The gradients of the input, of the weight, and of the bias."""
    if x.ndim != weight.ndim:
        raise FallbackToAten
    window = _window(weight, stride, padding, dilation, groups)
    used = b.used_results
    outs = [out if k in used and output_mask[k] else None for k, out in enumerate(b.outs)]
    found: list[TensorValue | None] = [None, None, None]
    if outs[0] is not None:
        back = gathered if transposed else spread
        found[0] = back(b, grad, weight, window, outs[0])
    if outs[1] is not None:
        small, large = (x, grad) if transposed else (grad, x)
        found[1] = weights(b, small, large, window, outs[1])
    if outs[2] is not None:
        found[2] = _channel_sums(b, grad, outs[2])
    return tuple(found)


def _channel_sums(b: LoopBuilder, grad: TensorValue, out: Spec) -> TensorValue:
    dtype = accumulated(out.dtype)
    total = b.temp(out.shape, dtype, grad)

    def body(ops: Tracer, index: Index, rindex: Index) -> Value:
        (n, *i) = rindex
        return ops.load(grad, (n, *index, *i))

    inner = (grad.shape[0], *grad.shape[2:])
    b.reduction(ReduceKind.SUM, body, out.shape, inner, [total], dtype)
    return total if dtype is out.dtype else b.copy(total, out)


def conv_tbc(
    b: LoopBuilder, x: TensorValue, weight: TensorValue, bias: TensorValue, pad: Any = 0
) -> TensorValue:
    """A convolution along the first dimension of [time, batch, channel]."""
    out = b.out
    length = x.shape[0]

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        (t, n, o), (k, c) = index, rindex
        at = (t + k - pad, n, c)
        mask = inside(ops, at, (length, *x.shape[1:]), (0,) if pad != 0 else ())
        value = ops.load(x, at) if mask is None else ops.masked_load(x, at, mask)
        return value, ops.load(weight, (k, c, o))

    def after(ops: Tracer, index: Index, total: Value) -> Value:
        return total + ops.cast(ops.load(bias, index[2:]), total.dtype)

    return summed(b, terms, out.shape, weight.shape[:2], out, accumulated(out.dtype), after)


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "convolution": convolution,
        "_convolution": convolution,
        "convolution_backward": convolution_backward,
        "conv_tbc": conv_tbc,
    }
)
CONVOLUTIONS = tuple(f"aten.{op}.default" for op in _RULES)
"""The ops of this family that kernels compute where they are wanted."""


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for op, loops in _RULES.items():
        table.rule(f"aten.{op}.default")(either(loops))
