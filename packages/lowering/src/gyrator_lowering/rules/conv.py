"""Convolutions: library calls, or sums of products if kernels are requested.

Each is a matrix product whose operands are gathered as they are read (an implicit GEMM). With `x`
the tensor over the smaller planes, `X` that over the larger ones, `w[o, c, k]` the weight of one
group, and `at(i, k) = i * stride - padding + k * dilation`:

    gathered:   x[n, o, i] = sum over c and k of X[n, c, at(i, k)] * w[o, c, k]
    scattered:  X[n, c, j] = sum over o, k and the i with at(i, k) = j of x[n, o, i] * w[o, c, k]
    weights:    w[o, c, k] = sum over n and i of x[n, o, i] * X[n, c, at(i, k)]

A convolution gathers, and the gradient of its input scatters; with `transposed`, vice versa.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import evolve

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Const, Expr, contiguous_strides, expr
from gyrator_ir.loop.nodes import Formula, Literal, Template, TemplateKind
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, Tracer, Value, conjunction
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules import activation
from gyrator_lowering.rules.extern import call_of
from gyrator_lowering.rules.index import inside
from gyrator_lowering.rules.matmul import (
    accumulated,
    accumulator_dtype,
    library_or_loops,
    sum_of_products,
)
from gyrator_lowering.rules.pool import per_dimension
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder


@frozen
class Window:
    """The relation between positions in the smaller planes, the window and the larger planes."""

    stride: Sequence[Any]
    padding: Sequence[Any]
    dilation: Sequence[Any]
    groups: Any

    @property
    def rank(self) -> int:
        """The number of dimensions of the planes."""
        return len(self.stride)

    def larger(self, i: Index, k: Index) -> tuple[Expr, ...]:
        """Return the position in the larger plane of position `k` of the window at `i`."""
        numbers = zip(i, k, self.stride, self.padding, self.dilation, strict=True)
        return tuple(a * s - p + c * d for a, c, s, p, d in numbers)

    def distances(self, j: Index, k: Index) -> tuple[Expr, ...]:
        """Return `i * stride` for the `i` whose window has `j` of the larger plane at `k`."""
        numbers = zip(j, k, self.padding, self.dilation, strict=True)
        return tuple(a + p - c * d for a, c, p, d in numbers)

    def grouped(self, x: TensorValue, dim: int) -> TensorValue:
        """Return the view of a tensor with the groups as an additional dimension before `dim`."""
        each = x.shape[dim] // self.groups
        shape = (*x.shape[:dim], expr(self.groups), each, *x.shape[dim + 1 :])
        step = x.strides[dim]
        strides = (*x.strides[:dim], step * each, step, *x.strides[dim + 1 :])
        return evolve(x, shape=shape, strides=strides)

    def filters(self, b: LoopBuilder, weight: TensorValue) -> TensorValue:
        """Return the weight as [group, out, in, window].

        In a depthwise convolution there is no matrix product: channels are contiguous in memory,
        and so are the weights of each position of the window, copied if necessary.
        """
        filters = self.grouped(weight, 0)
        if not self.depthwise(weight) or filters.strides[0] == ONE:
            return filters
        return b.copy(
            filters,
            Spec(weight.dtype, weight.device, filters.shape, channels_consecutive(filters.shape)),
        )

    def depthwise(self, weight: TensorValue | Spec) -> bool:
        """Return whether each channel is convolved separately."""
        return weight.shape[1] == ONE and weight.shape[0] == expr(self.groups) != ONE

    def read(self, ops: Tracer, x: TensorValue, lead: Index, at: Index) -> Value:
        """Read the larger plane, or 0 outside of it."""
        index = (*lead, *at)
        padded = [len(lead) + d for d, p in enumerate(self.padding) if p != 0]
        return ops.load(x, index, inside(ops, index, x.shape, padded))


def channels_consecutive(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return strides with the first dimension innermost, and the others in row-major order."""
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
    """Compute the smaller side from the larger one: a convolution."""
    large, filters = window.grouped(x, 1), window.filters(b, weight)

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        (n, g, o, *i), (c, *k) = index, rindex
        value = window.read(ops, large, (n, g, c), window.larger(i, k))
        return value, ops.load(filters, (g, o, c, *k))

    inner = (filters.shape[2], *filters.shape[3:])
    return _convolved(b, terms, window, inner, out, bias)


def scattered(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue,
    window: Window,
    out: Spec,
    bias: TensorValue | None = None,
) -> TensorValue:
    """Compute the larger side from the smaller one: a transposed convolution."""
    small, filters = window.grouped(x, 1), window.filters(b, weight)

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        (n, g, c, *large), (o, *k) = index, rindex
        distances = window.distances(large, k)
        index = (n, g, o, *(d // step for d, step in zip(distances, window.stride, strict=True)))
        meets = (
            ops.eq(ops.index(d % step), 0)
            for d, step in zip(distances, window.stride, strict=True)
            if step != 1
        )
        mask = conjunction(None, meets)
        mask = conjunction(mask, [inside(ops, index, small.shape, range(3, 3 + window.rank))])
        return ops.load(small, index, mask), ops.load(filters, (g, o, c, *k))

    inner = (filters.shape[1], *filters.shape[3:])
    return _convolved(b, terms, window, inner, out, bias)


def weights(
    b: LoopBuilder, small: TensorValue, large: TensorValue, window: Window, out: Spec
) -> TensorValue:
    """Compute the gradient of the weight from both sides."""
    grouped_small, grouped_large = window.grouped(small, 1), window.grouped(large, 1)

    is_depthwise = window.depthwise(out)
    first = 3 if is_depthwise else 0

    def permuted(dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Move the channels of a depthwise convolution last, where they are contiguous."""
        return (*dims[first:], *dims[:first])

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        last = len(index) - first
        (g, o, c, *k), (n, *i) = (*index[last:], *index[:last]), rindex
        value = window.read(ops, grouped_large, (n, g, c), window.larger(i, k))
        return ops.load(grouped_small, (n, g, o, *i)), value

    def split(wide: TensorValue) -> TensorValue:
        grouped = window.grouped(wide, 0)
        return evolve(grouped, shape=permuted(grouped.shape), strides=permuted(grouped.strides))

    shape = permuted(_grouped_shape(out, window, 0))
    inner = (small.shape[0], *small.shape[2:])
    dtype = accumulator_dtype(out.dtype)
    sums = (
        evolve(out, dtype=dtype, strides=channels_consecutive(out.shape)) if is_depthwise else out
    )
    result = sum_of_products(b, terms, shape, inner, sums, dtype, None, split)
    return b.copy(result, out) if is_depthwise else result


def _grouped_shape(out: Spec, window: Window, dim: int) -> tuple[Expr, ...]:
    like = TensorValue("", out.dtype, out.device, out.shape, out.strides, ZERO, out.dtype)
    return window.grouped(like, dim).shape


def _convolved(
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
    dtype = accumulator_dtype(out.dtype)
    return sum_of_products(
        b, terms, shape, inner, out, dtype, None if bias is None else after, split
    )


def _window(weight: TensorValue, stride: Any, padding: Any, dilation: Any, groups: Any) -> Window:
    rank = weight.ndim - 2
    numbers = (
        per_dimension(stride, rank),
        per_dimension(padding, rank),
        per_dimension(dilation, rank),
    )
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
    """A convolution over any number of dimensions, or its transpose."""
    if x.ndim != weight.ndim:
        raise FallbackToAten
    window = _window(weight, stride, padding, dilation, groups)
    return (scattered if transposed else gathered)(b, x, weight, window, b.out, bias)


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
    to_input, to_weight, to_bias = b.wanted(output_mask)
    back = gathered if transposed else scattered
    small, large = (x, grad) if transposed else (grad, x)
    return (
        None if to_input is None else back(b, grad, weight, window, to_input),
        None if to_weight is None else weights(b, small, large, window, to_weight),
        None if to_bias is None else _channel_sums(b, grad, to_bias),
    )


def _channel_sums(b: LoopBuilder, grad: TensorValue, out: Spec) -> TensorValue:
    dtype = accumulator_dtype(out.dtype)
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

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        (t, n, o), (k, c) = index, rindex
        at = (t + k - pad, n, c)
        mask = inside(ops, at, x.shape, (0,) if pad != 0 else ())
        return ops.load(x, at, mask), ops.load(weight, (k, c, o))

    def after(ops: Tracer, index: Index, total: Value) -> Value:
        return total + ops.cast(ops.load(bias, index[2:]), total.dtype)

    return accumulated(b, terms, weight.shape[:2], after)


def panel_conv(
    b: LoopBuilder,
    images: Sequence[TensorValue],
    panels: TensorValue,
    bias: TensorValue,
    features: int,
    addend: TensorValue | None,
    stride: Any,
    padding: Any,
    after: str,
    scalars: Sequence[float],
) -> TensorValue:
    """`gyrator::panel_conv`: see `gyrator_lowering.torch_bridge.kernel_ops`.

    Raises:
        FallbackToAten: if kernels have no template for it.
    """
    target = b.targets.get(bias.device.type)
    if target is None or TemplateKind.CONVOLUTION.value not in target.capabilities.templates:
        raise FallbackToAten
    x, *others = (_fixed(b, t.permuted(_PIXELS)) for t in images)
    more = () if addend is None else (_in_rows(b, addend.permuted(_PIXELS)),)
    inputs = (x, _in_rows(b, panels), _in_rows(b, bias), *others, *more)
    # The sizes of the result say how many rows and columns follow the image.
    numbers = {
        "down": stride[0], "right": stride[1], "top": padding[0], "left": padding[1],
    }  # fmt: skip
    args = (images, panels, bias, features, addend, stride, padding, after, scalars)
    return _template(b, TemplateKind.CONVOLUTION, inputs, numbers, args)


def _template(
    b: LoopBuilder,
    kind: TemplateKind,
    inputs: Sequence[TensorValue],
    numbers: Mapping[str, int],
    args: Sequence[Any],
) -> TensorValue:
    """Return the result of a template of a convolution, for the op of these arguments; the last two
    name the function of its sums."""
    out = _pixels_last(b)
    call = call_of(b, args, {}, (out.buffer,))
    b.operations.append(
        Template(
            call.name,
            kind,
            tuple(t.ref for t in inputs),
            (out.permuted(_PIXELS).ref,),
            tuple((name, Literal(n)) for name, n in numbers.items()),
            call,
            b.origin,
            (_after(*args[-2:]),),
        )
    )
    return out


_FUNCTIONS: Mapping[str, Callable[..., Value]] = MappingProxyType(
    {
        "none": lambda ops, x: x,
        "relu": activation.relu,
        "hardtanh": activation.hardtanh,
        "leaky_relu": activation.leaky_relu,
        "swish": activation.silu,
        "sigmoid": lambda ops, x: ops.sigmoid(x),
        "hardswish": activation.hardswish,
        "hardsigmoid": activation.hardsigmoid,
        "tanh": lambda ops, x: ops.tanh(x),
    }
)


def _after(name: str, scalars: Sequence[float]) -> Formula:
    """Return the function of the sums of a convolution as a formula."""
    ops = Tracer()
    total = Value(ops, "sum", DType.F32)
    result = _FUNCTIONS[name](ops, total, *scalars)
    return Formula("after", (total.name,), tuple(ops.body), result.name)


def depthwise_conv(
    b: LoopBuilder,
    image: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    after: str,
    scalars: Sequence[float],
) -> TensorValue:
    """`gyrator::depthwise_conv`: see `gyrator_lowering.torch_bridge.kernel_ops`."""
    args = (image, weight, bias, stride, padding, dilation, after, scalars)
    target = b.targets.get(image.device.type)
    sizes = (*image.shape, *weight.shape)
    if (
        target is not None
        and TemplateKind.DEPTHWISE.value in target.capabilities.templates
        and all(isinstance(n, Const) for n in sizes)
        and b.out.dtype is DType.F32
    ):
        return _depthwise_template(b, args)
    top, left, bottom, right = padding
    padded = [d for d, p in ((2, top + bottom), (3, left + right)) if p]

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        numbers = zip(index[2:], rindex, stride, (top, left), dilation, strict=True)
        at = (*index[:2], *(i * s - p + k * d for i, k, s, p, d in numbers))
        mask = inside(ops, at, image.shape, padded)
        return ops.load(image, at, mask), ops.load(weight, (*rindex, index[1]))

    def finished(ops: Tracer, index: Index, total: Value) -> Value:
        biased = total if bias is None else total + ops.load(bias, index[1:2])
        return _FUNCTIONS[after](ops, biased, *scalars)

    return accumulated(b, terms, weight.shape[:2], finished)


def _depthwise_template(b: LoopBuilder, args: Sequence[Any]) -> TensorValue:
    image, weight, bias, stride, padding, dilation, *_ = args
    inputs = (image.permuted(_PIXELS), weight, *([] if bias is None else [bias]))
    numbers = {
        "down": stride[0], "right": stride[1], "top": padding[0], "left": padding[1],
        "below": dilation[0], "beside": dilation[1],
    }  # fmt: skip
    return _template(b, TemplateKind.DEPTHWISE, [_in_rows(b, t) for t in inputs], numbers, args)


_PIXELS = (0, 2, 3, 1)
"""The dimensions of images with the channels last."""


def _pixels_last(b: LoopBuilder) -> TensorValue:
    """Return a new buffer for the node's result, in channels-last order."""
    image, row, pixel, feature = contiguous_strides([b.out.shape[d] for d in _PIXELS])
    return b.buffer(evolve(b.out, strides=(image, feature, row, pixel)))


def _fixed(b: LoopBuilder, t: TensorValue) -> TensorValue:
    """Return a tensor with constant strides at the beginning of a buffer, copied if necessary."""
    is_fixed = t.offset is ZERO and all(isinstance(n, Const) for n in t.strides)
    return t if is_fixed and t.stored is t.dtype else b.copy(t)


def _in_rows(b: LoopBuilder, t: TensorValue) -> TensorValue:
    """Return a tensor in row-major order at the beginning of a buffer, copied if necessary."""
    is_plain = t.strides == contiguous_strides(t.shape) and t.offset is ZERO
    return t if is_plain and t.stored is t.dtype else b.copy(t)


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "convolution": convolution,
        "_convolution": convolution,
        "convolution_backward": convolution_backward,
        "conv_tbc": conv_tbc,
    }
)
CONVOLUTIONS = tuple(f"aten.{op}.default" for op in _RULES)
"""The ops of this family that kernels compute if requested."""


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for op, loops in _RULES.items():
        table.rule(f"aten.{op}.default")(library_or_loops(loops))
    table.rule("gyrator.panel_conv.default")(panel_conv)
    table.rule("gyrator.depthwise_conv.default")(depthwise_conv)
