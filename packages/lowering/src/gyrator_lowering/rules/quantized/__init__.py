"""Quantisation: `quantized_decomposed`, and fake quantisation in training."""

from collections.abc import Callable
from typing import Any

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ZERO, contiguous_strides
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import Arg, operand
from gyrator_lowering.builder.trace import At, Index, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.reduction import reduced
from gyrator_lowering.table import FallbackToAten, TableBuilder
from gyrator_lowering.torch_bridge.dtypes import promote

EXACT = 1 << 22
"""Integers up to this magnitude and their differences are exact in `f32`."""


def number(ops: Tracer, arg: Arg, dtype: DType) -> Value:
    """Return a number, or the only element of a tensor, as `dtype`."""
    if isinstance(arg, TensorValue):
        return ops.cast(ops.load(arg, (ZERO,) * arg.ndim), dtype)
    return operand(ops, arg, (), dtype)


def rounded(ops: Tracer, op: str, dtype: DType, *args: Value) -> Value:
    """Apply a row of the op table to values as `dtype`, and round the result to `dtype`."""
    return ops.cast(ops.let(op, *[ops.cast(a, dtype.compute) for a in args]), dtype)


def promoted(ops: Tracer, op: str, x: Value, y: Value) -> Value:
    """Apply a row of the op table to elements of two tensors in their promoted dtype."""
    return rounded(ops, op, promote(x.dtype, y.dtype), x, y)


def inverse(ops: Tracer, scale: Value) -> Value:
    """Return `1 / scale`, rounded to the dtype of `scale`."""
    return rounded(ops, "div", scale.dtype, ops.const(1.0, scale.dtype.compute), scale)


def clamped(ops: Tracer, x: Value, low: Arg, high: Arg) -> Value:
    """Return `clamp(x, low, high)`; NaN is kept."""
    wide = ops.wide(x)
    wide = ops.maximum(wide, number(ops, low, wide.dtype))
    return ops.cast(ops.minimum(wide, number(ops, high, wide.dtype)), x.dtype)


# Quantisation and dequantisation ----------------------------------------------------------------


def quantize_per_tensor(
    b: LoopBuilder, x: TensorValue, scale: Arg, zero: Arg, low: Arg, high: Arg, *_: Any
) -> TensorValue:
    """`clamp(round(x * (1 / scale)) + zero, low, high)` in `f32`; the inverse is computed in
    `f64`."""
    if x.dtype.compute is not DType.F32:
        raise FallbackToAten

    def body(ops: Tracer, index: Index) -> Value:
        factor = ops.cast(1.0 / number(ops, scale, DType.F64), DType.F32)
        quotient = ops.round(ops.wide(ops.get(x, index)) * factor)
        return clamped(ops, quotient + number(ops, zero, DType.F32), low, high)

    return b.pointwise(body)


def dequantize_per_tensor(
    b: LoopBuilder, x: TensorValue, scale: Arg, zero: Arg, *_: Any, **__: Any
) -> TensorValue:
    """`(x - zero) * scale`, with each step rounded to the result's dtype."""
    dtype = b.out.dtype
    if not dtype.is_float:
        raise FallbackToAten

    def body(ops: Tracer, index: Index) -> Value:
        value = ops.cast(ops.get(x, index), dtype)
        shifted = rounded(ops, "sub", dtype, value, number(ops, zero, dtype))
        return ops.wide(shifted) * number(ops, scale, dtype.compute)

    return b.pointwise(body)


def per_axis(x: TensorValue, axis: int) -> Callable[[TensorValue], At]:
    """Return the reader of a vector with one element for each index along an axis of `x`."""
    d = axis % x.ndim

    def reader(vector: TensorValue) -> At:
        if vector.ndim != 1:
            raise FallbackToAten
        return lambda ops, index: ops.get(vector, (index[d],))

    return reader


def broadcast_reader(x: TensorValue) -> Callable[[TensorValue], At]:
    """Return the reader of a tensor that broadcasts to `x`."""

    def reader(tensor: TensorValue) -> At:
        if tensor.ndim != x.ndim:
            raise FallbackToAten
        return lambda ops, index: ops.get(tensor, index)

    return reader


def _dequantized(b: LoopBuilder, x: TensorValue, scales: At, zeros: At | None) -> TensorValue:
    def body(ops: Tracer, index: Index) -> Value:
        value = ops.get(x, index)
        if zeros is not None:
            value = promoted(ops, "sub", value, zeros(ops, index))
        return promoted(ops, "mul", value, scales(ops, index))

    return b.pointwise(body)


def quantize_per_channel(
    b: LoopBuilder,
    x: TensorValue,
    scales: TensorValue,
    zeros: TensorValue,
    axis: int,
    low: int,
    high: int,
    *_: Any,
) -> TensorValue:
    """`clamp(round(x * (1 / scale)) + zero, low, high)`, with a scale for each index along an
    axis."""
    if x.dtype.compute is not DType.F32 or not x.ndim:
        raise FallbackToAten
    read = per_axis(x, axis)
    scale, zero = read(scales), read(zeros)

    def body(ops: Tracer, index: Index) -> Value:
        value = ops.cast(ops.get(x, index), DType.F32)
        scaled = promoted(ops, "mul", value, inverse(ops, scale(ops, index)))
        quotient = rounded(ops, "round", scaled.dtype, scaled)
        return clamped(ops, promoted(ops, "add", quotient, zero(ops, index)), low, high)

    return b.pointwise(body)


def dequantize_per_channel(
    b: LoopBuilder,
    x: TensorValue,
    scales: TensorValue,
    zeros: TensorValue | None,
    axis: int,
    *_: Any,
    **__: Any,
) -> TensorValue:
    """`(x - zero) * scale`, with a scale for each index along an axis."""
    if not x.ndim:
        raise FallbackToAten
    read = per_axis(x, axis)
    return _dequantized(b, x, read(scales), None if zeros is None else read(zeros))


def quantize_per_token(
    b: LoopBuilder,
    x: TensorValue,
    scales: TensorValue,
    zeros: TensorValue,
    low: int,
    high: int,
    *_: Any,
) -> TensorValue:
    """`clamp(round(x * (1 / scale) + zero), low, high)`, with a scale for each row."""
    read = broadcast_reader(x)
    scale, zero = read(scales), read(zeros)

    def body(ops: Tracer, index: Index) -> Value:
        scaled = promoted(ops, "mul", ops.get(x, index), inverse(ops, scale(ops, index)))
        shifted = promoted(ops, "add", scaled, zero(ops, index))
        return clamped(ops, rounded(ops, "round", shifted.dtype, shifted), low, high)

    return b.pointwise(body)


def dequantize_per_token(
    b: LoopBuilder, x: TensorValue, scales: TensorValue, zeros: TensorValue, *_: Any
) -> TensorValue:
    """`(x - zero) * scale`, with a scale for each row."""
    read = broadcast_reader(x)
    return _dequantized(b, x, read(scales), read(zeros))


def dequantize_per_channel_group(
    b: LoopBuilder,
    x: TensorValue,
    scales: TensorValue,
    zeros: TensorValue | None,
    low: int,
    high: int,
    dtype: Any,
    group: int = 128,
    *_: Any,
) -> TensorValue:
    """`(x - zero) * scale`, with a scale for each group of elements in a row."""

    def reader(tensor: TensorValue) -> At:
        if tensor.ndim != 2 or tensor.shape[1] * group is not x.shape[1]:
            raise FallbackToAten
        return lambda ops, index: ops.get(tensor, (index[0], index[1] // group))

    return _dequantized(b, x, reader(scales), None if zeros is None else reader(zeros))


# Data-dependent scales --------------------------------------------------------------------------


def choose_asymmetric_per_token(
    b: LoopBuilder, x: TensorValue, *_: Any
) -> tuple[TensorValue, TensorValue]:
    """A scale and a zero point for each row that map its range to that of `int8`."""
    scales, zeros = b.outs
    assert scales is not None and zeros is not None
    if x.dtype is not DType.F32:
        raise FallbackToAten
    least = _extreme(b, ReduceKind.MIN, x, scales)
    most = _extreme(b, ReduceKind.MAX, x, scales)

    def parts(ops: Tracer, index: Index) -> tuple[Value, Value, Value]:
        low, high = (
            ops.minimum(ops.load(least, index), 0.0),
            ops.maximum(ops.load(most, index), 0.0),
        )
        return low, high, ops.maximum((high - low) / 255.0, 2.0**-23)

    def zero(ops: Tracer, index: Index) -> Value:
        low, high, scale = parts(ops, index)
        low, high = low / scale, high / scale
        nearer = ops.gt((low + -128.0) + (high + 127.0), 0.0)
        return ops.round(clamped(ops, ops.where(nearer, -128.0 - low, 127.0 - high), -128, 127))

    return b.pointwise(lambda ops, index: parts(ops, index)[2], scales), b.pointwise(zero, zeros)


def choose_qparams(
    b: LoopBuilder, x: TensorValue, low: int, high: int, epsilon: float, *_: Any
) -> tuple[TensorValue, TensorValue]:
    """A scale and a zero point that map the range of all elements and 0 to [low, high]."""
    scales, zeros = b.outs
    assert scales is not None and zeros is not None
    if x.dtype is not DType.F32 or ZERO in x.shape:
        raise FallbackToAten
    form = Spec(x.dtype, scales.device, (), ())
    dims = range(x.ndim)
    least = reduced(b, ReduceKind.MIN, x, dims, dtype=x.dtype, out=form)
    most = reduced(b, ReduceKind.MAX, x, dims, dtype=x.dtype, out=form)

    def scale(ops: Tracer, _: Index) -> Value:
        bottom = ops.minimum(ops.load(least, ()), 0.0)
        span = ops.maximum(ops.load(most, ()), 0.0) - bottom
        return ops.maximum(span / float(high - low), epsilon)

    def zero(ops: Tracer, index: Index) -> Value:
        bottom = ops.minimum(ops.load(least, ()), 0.0)
        shift = ops.cast(ops.round(bottom / scale(ops, index)), DType.I32)
        return clamped(ops, low - shift, low, high)

    return b.pointwise(scale, scales), b.pointwise(zero, zeros)


def _extreme(b: LoopBuilder, kind: ReduceKind, x: TensorValue, like: Spec) -> TensorValue:
    """Return an extremum of each row, in the compute dtype."""
    dtype = x.dtype.compute
    form = Spec(dtype, like.device, like.shape, contiguous_strides(like.shape))
    return reduced(b, kind, x, [x.ndim - 1], dtype=dtype, out=form)


# Fake quantisation ------------------------------------------------------------------------------


def _fake_quantized(
    b: LoopBuilder,
    x: TensorValue,
    low: int,
    high: int,
    parameters: Callable[[Tracer, Index], tuple[Value, Value]],
    enabled: TensorValue | None = None,
    whole_first: bool = False,
) -> tuple[TensorValue | None, ...]:
    """Return `x` after quantisation and dequantisation, and a mask of the elements in range.

    `parameters` returns a scale in `f32` and an integer zero point. With `whole_first`, values are
    converted to integers before they are clamped, as eager does for channels.
    """
    outs = b.outs
    if max(abs(low), abs(high)) > EXACT or any(o is None for o in outs):
        raise FallbackToAten
    kind = x.dtype.compute

    def body(ops: Tracer, index: Index) -> tuple[Value, Value]:
        scale, zero = parameters(ops, index)
        value = ops.wide(ops.get(x, index))
        quotient = ops.cast(zero, kind) + ops.round(value * ops.cast(1.0 / scale, kind))
        if whole_first:
            quotient = ops.cast(ops.cast(quotient, DType.I64), kind)
        inside = ops.le(ops.const(low, kind), quotient) & ops.le(quotient, ops.const(high, kind))
        limited = ops.cast(ops.fmin(ops.fmax(quotient, low), high), DType.I64) - zero
        form = kind if whole_first else DType.F32
        result = ops.cast(ops.cast(limited, form) * ops.cast(scale, form), x.dtype)
        if enabled is None:
            return result, inside
        on = ops.ne(number(ops, enabled, DType.I64), 0)
        return ops.where(on, result, ops.get(x, index)), inside | ~on

    return b.pointwise_many(body, [o for o in outs if o is not None])


def fake_per_tensor(
    b: LoopBuilder, x: TensorValue, scale: Arg, zero: Arg, low: int, high: int,
    enabled: TensorValue | None = None,
) -> Any:  # fmt: skip
    """`x` after quantisation and dequantisation, and a mask of where the gradient passes."""

    def parameters(ops: Tracer, _: Index) -> tuple[Value, Value]:
        return number(ops, scale, DType.F32), number(ops, zero, DType.I64)

    return _fake_quantized(b, x, low, high, parameters, enabled)


def fake_by_tensors(
    b: LoopBuilder, x: TensorValue, scale: TensorValue, zero: TensorValue, enabled: TensorValue,
    low: int, high: int,
) -> Any:  # fmt: skip
    """Like `fake_per_tensor` if the first element of `enabled` is set, otherwise `x` itself."""
    return fake_per_tensor(b, x, scale, zero, low, high, enabled)


def fake_per_channel(
    b: LoopBuilder,
    x: TensorValue,
    scales: TensorValue,
    zeros: TensorValue,
    axis: int,
    low: int,
    high: int,
) -> Any:
    """Like `fake_per_tensor`, with a scale for each index along an axis."""
    if not zeros.dtype.is_int or not x.ndim:
        raise FallbackToAten
    read = per_axis(x, axis)
    scale, zero = read(scales), read(zeros)

    def parameters(ops: Tracer, index: Index) -> tuple[Value, Value]:
        return ops.cast(scale(ops, index), DType.F32), ops.cast(zero(ops, index), DType.I64)

    return _fake_quantized(b, x, low, high, parameters, whole_first=True)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    own = "quantized_decomposed"
    forms = ("default", "tensor", "tensor2")
    table.rule(*(f"{own}.quantize_per_tensor.{f}" for f in forms))(quantize_per_tensor)
    table.rule(*(f"{own}.dequantize_per_tensor.{f}" for f in forms))(dequantize_per_tensor)
    table.rule(f"{own}.quantize_per_channel.default")(quantize_per_channel)
    table.rule(f"{own}.dequantize_per_channel.default")(dequantize_per_channel)
    table.rule(f"{own}.quantize_per_token.default")(quantize_per_token)
    table.rule(f"{own}.dequantize_per_token.default")(dequantize_per_token)
    table.rule(f"{own}.dequantize_per_channel_group.default")(dequantize_per_channel_group)
    table.rule(f"{own}.choose_qparams.tensor")(choose_qparams)
    table.rule(f"{own}.choose_qparams_per_token_asymmetric.default")(choose_asymmetric_per_token)
    table.rule("aten.fake_quantize_per_tensor_affine_cachemask.default")(fake_per_tensor)
    table.rule("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")(
        fake_by_tensors
    )
    table.rule("aten.fake_quantize_per_channel_affine_cachemask.default")(fake_per_channel)
