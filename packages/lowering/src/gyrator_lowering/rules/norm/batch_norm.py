"""Batch norm in its functional forms, and its gradient."""

from collections.abc import Callable, Sequence
from typing import Any

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ONE, Const, Expr, product_of
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue, contiguous_strides
from gyrator_lowering.rules.norm import affine, rounded
from gyrator_lowering.rules.reduction import full_index, reduce_into, split
from gyrator_lowering.table import FallbackToAten, TableBuilder


def _dims(x: TensorValue) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _channel(index: Sequence[Expr]) -> Sequence[Expr]:
    return index[1:2]


def _accumulator(x: TensorValue) -> DType:
    """Return the accumulator dtype: on the host, eager reduces `f32` in `f64`."""
    return DType.F64 if x.device.is_host and x.dtype is DType.F32 else x.dtype.compute


def _statistics(b: LoopBuilder, x: TensorValue, eps: float) -> tuple[TensorValue, ...]:
    """Return mean, sum of squared deviations and 1/sqrt(var + eps) of each channel."""
    dtype = _accumulator(x)
    channels = (x.shape[1],)
    mean, squares, rstd = (b.temp(channels, dtype, x) for _ in range(3))
    into = [mean, squares, None]
    reduce_into(
        b, ReduceKind.WELFORD, x, _dims(x), into, dtype, lambda ops, value: ops.cast(value, dtype)
    )
    n = _count(x)
    b.pointwise_into(
        rstd, lambda ops, i: ops.rsqrt(ops.load(squares, i) / operand(ops, n, (), dtype) + eps)
    )
    return mean, squares, rstd


def _count(x: TensorValue) -> Expr:
    return product_of(x.shape[d] for d in _dims(x))


def _normalized(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mean: TensorValue,
    rstd: TensorValue,
    out: Spec,
) -> TensorValue:
    dtype = x.dtype.compute

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        at = _channel(index)
        value = ops.cast(ops.load(x, index), dtype) - ops.cast(ops.load(mean, at), dtype)
        return affine(ops, value * ops.cast(ops.load(rstd, at), dtype), weight, bias, at)

    return b.pointwise(body, out)


def _updated(
    b: LoopBuilder, running: TensorValue, momentum: float, new: Any, into: TensorValue | Spec
) -> TensorValue:
    """Return `(1 - momentum) * running + momentum * new`, in a new buffer or in place."""

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        value: Value = new(ops, index)
        old = ops.cast(ops.load(running, index), value.dtype)
        return old * (1.0 - momentum) + value * momentum

    if isinstance(into, Spec):
        return b.pointwise(body, into)
    b.pointwise_into(into, body)
    return into


def _unbiased(x: TensorValue, squares: TensorValue) -> Any:
    n = _count(x)

    def variance(ops: Tracer, index: Sequence[Expr]) -> Value:
        total = ops.load(squares, index)
        return total / (operand(ops, n, (), total.dtype) - 1.0)

    return variance


def _train(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[TensorValue, ...]:
    """Return the output, the saved mean and 1/sqrt, and the mean and squares before rounding."""
    outs = b.outs
    assert outs[0] is not None
    mean, squares, rstd = _statistics(b, x, eps)
    result = _normalized(b, x, weight, bias, mean, rstd, outs[0])
    saved_mean, saved_rstd = rounded(b, mean, outs[1]), rounded(b, rstd, outs[2])
    assert saved_mean is not None and saved_rstd is not None
    return result, saved_mean, saved_rstd, mean, squares


def _infer(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    eps: float,
) -> TensorValue:
    out = b.outs[0]
    assert out is not None
    dtype = x.dtype.compute

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        at = _channel(index)
        value = ops.cast(ops.load(x, index), dtype) - ops.cast(ops.load(running_mean, at), dtype)
        scale = 1.0 / ops.sqrt(ops.cast(ops.load(running_var, at), dtype) + eps)
        return affine(ops, value * scale, weight, bias, at)

    return b.pointwise(body, out)


def _empties(b: LoopBuilder, indices: Sequence[int]) -> list[TensorValue]:
    """Return the empty tensors that eager returns if there is nothing to save."""
    outs = b.outs
    return [
        b.pointwise(lambda ops, _: ops.const(0, DType.F32), out)
        for out in (outs[p] for p in indices)
        if out is not None
    ]


def no_training(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """Normalise by running statistics."""
    result = _infer(b, x, weight, bias, running_mean, running_var, eps)
    return (result, *_empties(b, (1, 2)))


def exact_no_training(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """`no_training` of `f32` with the bits of ATen's CPU kernel for contiguous images, which
    multiplies by one number for each channel and adds another.

    Raises:
        FallbackToAten: for other dtypes and layouts.
    """
    parameters = [t for t in (weight, bias, running_mean, running_var) if t is not None]
    if any(t.dtype is not DType.F32 for t in (x, *parameters)):
        raise FallbackToAten
    if any(t.strides != (ONE,) for t in parameters):
        raise FallbackToAten
    last = (0, *range(2, x.ndim), 1)
    views = (x, x.permuted(last)) if x.ndim in (4, 5) else (x,)
    if all(v.strides != contiguous_strides(v.shape) for v in views):
        raise FallbackToAten
    channels = Spec(DType.F32, x.device, (x.shape[1],), (ONE,))

    def linear(ops: Tracer, index: Sequence[Expr]) -> tuple[Value, Value]:
        inverse = 1.0 / ops.sqrt(ops.load(running_var, index) + float(eps))
        factor = inverse if weight is None else inverse * ops.load(weight, index)
        added = 0.0 if bias is None else ops.load(bias, index)
        return factor, ops.fma(-ops.load(running_mean, index), factor, added)

    factor, added = b.pointwise_many(linear, (channels, channels))

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        channel = index[1:2]
        return ops.fma(ops.load(x, index), ops.load(factor, channel), ops.load(added, channel))

    out = b.outs[0]
    return (b.pointwise(body, out), *_empties(b, (1, 2)))


def functional(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """Normalise, and return the updated running statistics."""
    outs = b.outs
    if not training:
        result = _infer(b, x, weight, bias, running_mean, running_var, eps)
        unchanged = [b.copy(r, o) for r, o in ((running_mean, outs[3]), (running_var, outs[4]))]
        return (result, *_empties(b, (1, 2)), *unchanged)
    result, saved_mean, saved_rstd, mean, squares = _train(b, x, weight, bias, eps)
    assert outs[3] is not None and outs[4] is not None
    new_mean = _updated(b, running_mean, momentum, lambda ops, i: ops.load(mean, i), outs[3])
    new_var = _updated(b, running_var, momentum, _unbiased(x, squares), outs[4])
    return result, saved_mean, saved_rstd, new_mean, new_var


def with_update(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """`_batch_norm_with_update_functional`: like `functional` in training, with a reserve."""
    outs = b.outs
    result, saved_mean, saved_rstd, mean, squares = _train(b, x, weight, bias, eps)
    assert outs[3] is not None and outs[4] is not None and outs[5] is not None
    empty = outs[3]
    reserve = b.pointwise(lambda ops, _: ops.const(0, empty.dtype.compute), empty)
    new_mean = _updated(b, running_mean, momentum, lambda ops, i: ops.load(mean, i), outs[4])
    new_var = _updated(b, running_var, momentum, _unbiased(x, squares), outs[5])
    return result, saved_mean, saved_rstd, reserve, new_mean, new_var


def no_stats(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """Normalise by the statistics of the batch only."""
    return _train(b, x, weight, bias, eps)[:3]


def native(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """Normalise; in training, the running statistics are updated in place."""
    if not training:
        if running_mean is None or running_var is None:
            raise FallbackToAten
        result = _infer(b, x, weight, bias, running_mean, running_var, eps)
        return (result, *_empties(b, (1, 2)))
    result, saved_mean, saved_rstd, mean, squares = _train(b, x, weight, bias, eps)
    if running_mean is not None:
        _updated(b, running_mean, momentum, lambda ops, i: ops.load(mean, i), running_mean)
    if running_var is not None:
        _updated(b, running_var, momentum, _unbiased(x, squares), running_var)
    return result, saved_mean, saved_rstd


def _total(
    b: LoopBuilder,
    kind: ReduceKind,
    x: TensorValue,
    dtype: DType,
    term: Callable[[Tracer, Sequence[Expr]], Any],
) -> TensorValue:
    """Reduce `term`, a function of an index into `x`, over all dimensions but the channels."""
    dims = _dims(x)
    channels, inner = split(x, dims)
    result = b.temp(channels, dtype, x)

    def body(ops: Tracer, i: Sequence[Expr], r: Sequence[Expr]) -> Any:
        return term(ops, full_index(x.ndim, dims, i, r))

    b.reduction(kind, body, channels, inner, [result], dtype)
    return result


def _mean(ops: Tracer, total: Value, count: Expr, grad: TensorValue) -> Value:
    """Return a total divided by a count, as ATen computes it: except on the host, it multiplies by
    the reciprocal."""
    if isinstance(count, Const) and count.value and not grad.device.is_host:
        return total * (1.0 / count.value)
    return total / operand(ops, count, (), total.dtype)


def backward(
    b: LoopBuilder,
    grad: TensorValue,
    x: TensorValue,
    weight: TensorValue | None,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    saved_mean: TensorValue | None,
    saved_rstd: TensorValue | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    """Gradients with respect to input, weight and bias."""
    outs = b.outs
    dtype, wide = x.dtype.compute, _accumulator(x)
    mean = saved_mean if train else running_mean
    if mean is None or (saved_rstd if train else running_var) is None:
        raise FallbackToAten

    def scale(ops: Tracer, at: Sequence[Expr]) -> Value:
        if train:
            assert saved_rstd is not None
            return ops.cast(ops.load(saved_rstd, at), dtype)
        assert running_var is not None
        return 1.0 / ops.sqrt(ops.cast(ops.load(running_var, at), dtype) + eps)

    def gradient(ops: Tracer, index: Sequence[Expr]) -> Value:
        return ops.cast(ops.load(grad, index), dtype)

    def centred(ops: Tracer, index: Sequence[Expr]) -> Value:
        return ops.cast(ops.load(x, index), dtype) - ops.cast(
            ops.load(mean, _channel(index)), dtype
        )

    def total(pair: bool) -> TensorValue:
        def term(ops: Tracer, index: Sequence[Expr]) -> Any:
            g = ops.cast(gradient(ops, index), wide)
            return (g, ops.cast(centred(ops, index), wide)) if pair else g

        return _total(b, ReduceKind.DOT if pair else ReduceKind.SUM, x, wide, term)

    used = b.used_results
    needed = [
        m and o is not None and k in used for k, (m, o) in enumerate(zip(mask, outs, strict=True))
    ]
    plain = total(pair=False) if (needed[0] and train) or needed[2] else None
    along = total(pair=True) if (needed[0] and train) or needed[1] else None
    results: list[TensorValue | None] = [None, None, None]
    n = _count(x)

    def input_gradient(ops: Tracer, index: Sequence[Expr]) -> Value:
        at = _channel(index)
        rstd = scale(ops, at)
        value = gradient(ops, index)
        if train:
            assert plain is not None and along is not None
            slope = ops.cast(_mean(ops, ops.load(along, at), n, grad), dtype) * (rstd * rstd)
            shift = ops.cast(_mean(ops, ops.load(plain, at), n, grad), dtype)
            value = value - shift - centred(ops, index) * slope
        value = value * rstd
        return value if weight is None else value * ops.cast(ops.load(weight, at), dtype)

    if needed[0]:
        results[0] = b.pointwise(input_gradient, outs[0])
    if needed[1] and along is not None:
        source = along
        results[1] = b.pointwise(
            lambda ops, i: ops.load(source, i) * ops.cast(scale(ops, i), wide), outs[1]
        )
    if needed[2] and plain is not None:
        results[2] = rounded(b, plain, outs[2])
    return tuple(results)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten._native_batch_norm_legit_no_training.default")(no_training)
    table.rule("aten._native_batch_norm_legit_functional.default")(functional)
    table.rule("aten._native_batch_norm_legit.no_stats")(no_stats)
    table.rule("aten._batch_norm_with_update_functional.default")(with_update)
    table.rule("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default")(native)
    table.rule("aten.native_batch_norm_backward.default")(backward)
