"""Tensors from numbers, copies, and dtype conversions."""

from collections.abc import Sequence
from math import nan
from typing import Any

from gyrator_ir.expr import Const, Expr, contiguous_strides
from gyrator_ir.loop.nodes import DeviceCopy
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import ScalarValue, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.extern import left_to_aten
from gyrator_lowering.rules.pointwise import as_bool
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder

_ENDS = "the ends are in memory, and may be complex"


def filled(b: LoopBuilder, value: Any) -> TensorValue:
    """Return a tensor of one value with the spec of the node's result."""
    out = b.out
    return b.pointwise(lambda ops, _: operand(ops, value, (), out.dtype.compute), out)


def full(b: LoopBuilder, size: Any, value: Any, **_: Any) -> TensorValue:
    """A tensor of one value; the first argument gives only the sizes."""
    return filled(b, value)


def full_like(b: LoopBuilder, x: TensorValue, value: Any, **_: Any) -> TensorValue:
    """A tensor of one value with the spec of `x`."""
    return full(b, x.shape, value)


def new_full(b: LoopBuilder, x: TensorValue, size: Any, value: Any, **_: Any) -> TensorValue:
    """A tensor of one value, by default of the dtype of `x`."""
    return full(b, size, value)


def constant(value: int) -> Rule:
    """Return the rule of `zeros`, `ones` and their `_like` and `new_` forms."""

    def rule(b: LoopBuilder, *_: Any, **__: Any) -> TensorValue:
        return filled(b, value)

    return rule


def scalar_tensor(b: LoopBuilder, value: Any, **_: Any) -> TensorValue:
    """A 0-d tensor."""
    return full(b, (), value)


def fill(b: LoopBuilder, x: TensorValue, value: Any) -> TensorValue:
    """A tensor with the spec of `x` and one value, a number or a 0-d tensor."""
    out = b.out
    return b.pointwise(lambda ops, index: operand(ops, value, index, out.dtype.compute), out)


def empty_value(b: LoopBuilder) -> bool | int | float | complex:
    """Return the value of `empty`: 0, since nothing may rely on uninitialised memory. In
    deterministic mode eager fills it with conspicuous values: NaN, the largest integer, True."""
    dtype = b.out.dtype
    if not b.options.fills_empty:
        return 0
    if dtype.is_complex:
        return complex(nan, 0.0)
    return nan if dtype.is_float else dtype.limits[1]


def uninitialized(b: LoopBuilder, *_: Any, **__: Any) -> TensorValue:
    """A tensor of uninitialised memory."""
    return filled(b, empty_value(b))


def arange(b: LoopBuilder, *bounds: Any, **_: Any) -> TensorValue:
    """`start + step * i`, in `i64` for integers and otherwise in `f64`, as in eager mode.

    For an integer result, eager truncates the bounds first.
    """
    start, step = (0, 1) if len(bounds) == 1 else (bounds[0], bounds[2] if len(bounds) > 2 else 1)
    out = b.out
    if not out.dtype.is_float:
        if any(isinstance(v, ScalarValue) for v in (start, step)):
            raise FallbackToAten
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    if all(isinstance(v, (int, Expr)) for v in (start, step)):
        first, stride = b.symbols.size(start), b.symbols.size(step)
        return b.pointwise(
            lambda ops, index: ops.cast(ops.index(first + index[0] * stride), out.dtype.compute),
            out,
        )

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        position = ops.cast(ops.index(index[0]), DType.F64)
        value = operand(ops, start, (), DType.F64) + position * operand(ops, step, (), DType.F64)
        return ops.cast(value, out.dtype.compute)

    return b.pointwise(body, out)


def linspace(b: LoopBuilder, start: Any, end: Any, steps: Any, **_: Any) -> TensorValue:
    """Evenly spaced numbers, computed from the nearer end as in eager mode."""
    are_scalars = all(isinstance(v, (int, float, ScalarValue)) for v in (start, end))
    if not are_scalars or not isinstance(steps, int) or not b.out.dtype.is_float:
        raise FallbackToAten
    out = b.out
    dtype = out.dtype.compute
    step = (end - start) / (steps - 1) if steps > 1 else 0.0

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        position = ops.index(index[0])
        forward = start + ops.cast(position, dtype) * step
        backward = end - ops.cast(ops.index(Const(steps - 1) - index[0]), dtype) * step
        return ops.where(ops.lt(position, steps // 2), forward, backward) if steps > 1 else forward

    return b.pointwise(body, out)


def eye(b: LoopBuilder, *_: Any, **__: Any) -> TensorValue:
    """Ones on the diagonal."""
    out = b.out

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        same = ops.eq(ops.index(index[0]), ops.index(index[1]))
        return ops.cast(same, out.dtype.compute)

    return b.pointwise(body, out)


def to_copy(
    b: LoopBuilder, x: Any, device: Any = None, non_blocking: bool = False, **_: Any
) -> TensorValue:
    """A copy of another dtype, layout or device."""
    out = b.out
    if not isinstance(x, TensorValue):  # a number, which eager treats as a 0-d tensor
        return filled(b, x)
    if x.device == out.device:
        return convert(b, x, out)
    converted = Spec(out.dtype, x.device, out.shape, out.strides)
    source = x if (x.dtype, x.strides) == (out.dtype, out.strides) else convert(b, x, converted)
    return _move(b, source, out, non_blocking)


def convert_element_type(b: LoopBuilder, x: TensorValue, _: Any) -> TensorValue:
    """`prims.convert_element_type`, which some of torch's decompositions emit."""
    return convert(b, x, b.out)


def iota(b: LoopBuilder, length: Any, *, start: Any, step: Any, **_: Any) -> TensorValue:
    """`prims.iota`: `start + step * i`."""
    return arange(b, start, length, step)


def convert(b: LoopBuilder, x: TensorValue, out: Spec) -> TensorValue:
    """Copy `x` to a new buffer, converting each element as eager does."""

    return b.pointwise(lambda ops, index: _converted(ops, ops.get(x, index), out.dtype), out)


def copy_(b: LoopBuilder, into: TensorValue, value: Any, non_blocking: bool = False) -> TensorValue:
    """Write `value` to an existing tensor, after all earlier reads of it."""
    if not isinstance(value, TensorValue):
        b.pointwise_into(into, lambda ops, index: operand(ops, value, index, into.dtype.compute))
        return into
    if value.device != into.device:
        return _copy_across(b, into, value, non_blocking)
    if value.buffer == into.buffer:
        if value == into:
            return into
        value = b.copy(value)
    b.pointwise_into(into, lambda ops, index: _converted(ops, ops.get(value, index), into.dtype))
    return into


def _converted(ops: Tracer, value: Value, dtype: DType) -> Value:
    return as_bool(ops, value) if dtype is DType.BOOL else value


def _copy_across(
    b: LoopBuilder, into: TensorValue, value: TensorValue, non_blocking: bool
) -> TensorValue:
    """Copy to another device: convert on the source, move, then write on the destination."""
    form = Spec(into.dtype, value.device, into.shape, contiguous_strides(into.shape))
    source = convert(b, value, form)
    destination = Spec(into.dtype, into.device, form.shape, form.strides)
    moved = _move(b, source, destination, non_blocking)
    b.pointwise_into(into, lambda ops, index: ops.load(moved, index))
    return into


def _move(b: LoopBuilder, source: TensorValue, out: Spec, non_blocking: bool) -> TensorValue:
    """Copy to a buffer on another device.

    Buffers are not page-locked: the host waits for copies to it, whether `non_blocking` or not.
    """
    result = b.buffer(out)
    b.operations.append(
        DeviceCopy(b.op_name(), source.ref, result.buffer, non_blocking, origins=b.origin)
    )
    return result


def copy(b: LoopBuilder, x: TensorValue, source: Any, *_: Any) -> TensorValue:
    """A tensor with the spec of `x` and the elements of `source`, which may be on any device."""
    out = b.out
    if isinstance(source, TensorValue):
        source = b.to_device(source, out.device)
    dtype = out.dtype if isinstance(source, TensorValue) else out.dtype.compute
    return b.pointwise(lambda ops, index: operand(ops, source, index, dtype), out)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.full.default")(full)
    table.rule("aten.full_like.default")(full_like)
    table.rule("aten.new_full.default")(new_full)
    for op, value in (("zeros", 0), ("ones", 1)):
        table.rule(f"aten.{op}.default", f"aten.{op}_like.default", f"aten.new_{op}.default")(
            constant(value)
        )
    # PyTorch's has no memory, which no kernel and few calls could read.
    table.rule("aten._efficientzerotensor.default")(constant(0))
    table.rule(
        "aten.empty.memory_format",
        "aten.empty_like.default",
        "aten.empty_strided.default",
        "aten.new_empty.default",
        "aten.new_empty_strided.default",
        "aten.empty_permuted.default",
    )(uninitialized)
    table.rule("aten.scalar_tensor.default")(scalar_tensor)
    table.rule("aten.fill.Scalar", "aten.fill.Tensor")(fill)
    table.rule("aten.arange.default", "aten.arange.start", "aten.arange.start_step")(arange)
    table.rule("aten.linspace.default")(linspace)
    for ends in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        table.rule(f"aten.linspace.{ends}", f"aten.logspace.{ends}")(left_to_aten(_ENDS))
    table.rule("aten.eye.default", "aten.eye.m")(eye)
    table.rule("aten._to_copy.default")(to_copy)
    table.rule("prims.convert_element_type.default")(convert_element_type)
    table.rule("prims.iota.default")(iota)
    table.rule("prims.device_put.default")(to_copy)
    table.rule("aten.copy.default")(copy)
    table.rule("aten.copy_.default")(copy_)
