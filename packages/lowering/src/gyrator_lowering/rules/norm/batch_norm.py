"""Batch norm in its functional forms, and its gradient."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Const, Expr, contiguous_strides, product_of
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import At, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.norm import affine, element, rounded
from gyrator_lowering.rules.reduction import reduce_at, reduce_into
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder


def _dims(x: TensorValue) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _channel(index: Sequence[Expr]) -> Sequence[Expr]:
    return index[1:2]


def _accumulator(x: TensorValue) -> DType:
    """Return the accumulator dtype: on the host, eager reduces `f32` in `f64`."""
    return DType.F64 if x.device.is_host and x.dtype is DType.F32 else x.dtype.compute


def _count(x: TensorValue) -> Expr:
    return product_of(x.shape[d] for d in _dims(x))


def _inverse(variance: TensorValue, eps: float, dtype: DType) -> At:
    """Return the function that computes `1 / sqrt(variance + eps)` of a channel."""
    return lambda ops, at: 1.0 / ops.sqrt(ops.cast(ops.load(variance, at), dtype) + eps)


@frozen
class _BatchNorm:
    """The operands of every form of the op."""

    b: LoopBuilder
    x: TensorValue
    weight: TensorValue | None
    bias: TensorValue | None
    running: tuple[TensorValue | None, TensorValue | None]
    """Running mean and variance."""
    momentum: float
    eps: float

    def normalized(self, mean: TensorValue, rstd: At) -> TensorValue:
        """Return `(x - mean) * rstd * weight + bias`; `rstd` is a function of a channel's index."""
        x, dtype = self.x, self.x.dtype.compute

        def body(ops: Tracer, index: Sequence[Expr]) -> Value:
            at = _channel(index)
            value = ops.cast(ops.load(x, index), dtype) - ops.cast(ops.load(mean, at), dtype)
            return affine(ops, value * rstd(ops, at), self.weight, self.bias, at)

        return self.b.pointwise(body, self.b.outs[0])

    def infer(self) -> TensorValue:
        """Return the output for the running statistics."""
        mean, variance = self.running
        if mean is None or variance is None:
            raise FallbackToAten
        return self.normalized(mean, _inverse(variance, self.eps, self.x.dtype.compute))

    def empties(self) -> Iterator[TensorValue]:
        """Yield the empty tensors that eager returns if there is nothing to save."""
        for out in self.b.outs[1:3]:
            if out is not None:
                yield self.b.pointwise(lambda ops, _: ops.const(0, DType.F32), out)

    def train(self) -> tuple[tuple[Any, ...], tuple[TensorValue, TensorValue]]:
        """Return the output with the saved mean and 1/sqrt(var + eps), and the mean and the sum of
        squared deviations of each channel before rounding."""
        b, x, dtype = self.b, self.x, _accumulator(self.x)
        mean, squares, rstd = (b.temp((x.shape[1],), dtype, x) for _ in range(3))
        reduce_into(
            b, ReduceKind.WELFORD, x, _dims(x), [mean, squares, None], dtype,
            lambda ops, value: ops.cast(value, dtype),
        )  # fmt: skip
        n = _count(x)
        b.pointwise_into(
            rstd,
            lambda ops, i: ops.rsqrt(ops.load(squares, i) / operand(ops, n, (), dtype) + self.eps),
        )
        result = self.normalized(mean, element(rstd, x.dtype.compute))
        saved = (rounded(b, v, out) for v, out in zip((mean, rstd), b.outs[1:3], strict=True))
        return (result, *saved), (mean, squares)

    def updated(
        self, batch: tuple[TensorValue, TensorValue], into: Sequence[TensorValue | Spec | None]
    ) -> list[TensorValue]:
        """Return `(1 - momentum) * running + momentum * new` for the mean and the unbiased
        variance, in new buffers or in place; `batch` has the mean and the squares."""
        momentum = self.momentum
        mean, squares = batch
        b, n = self.b, _count(self.x)

        def variance(ops: Tracer, index: Sequence[Expr]) -> Value:
            total = ops.load(squares, index)
            return total / (operand(ops, n, (), total.dtype) - 1.0)

        def updated(old: TensorValue, new: At, into: TensorValue | Spec) -> TensorValue:
            def body(ops: Tracer, index: Sequence[Expr]) -> Value:
                value = new(ops, index)
                before = ops.cast(ops.load(old, index), value.dtype)
                return before * (1.0 - momentum) + value * momentum

            result = b.buffer(into) if isinstance(into, Spec) else into
            b.pointwise_into(result, body)
            return result

        new = (lambda ops, i: ops.load(mean, i)), variance
        parts = zip(self.running, new, into, strict=True)
        return [updated(o, n, to) for o, n, to in parts if o is not None and to is not None]


def _rule(form: Callable[..., tuple[TensorValue, ...]]) -> Rule:
    """Return the rule of an op with all operands; `form` takes the norm, and the flag that says
    whether it trains, if the op has one."""

    def rule(
        b: LoopBuilder, x: TensorValue, weight: TensorValue | None, bias: TensorValue | None,
        mean: TensorValue | None, variance: TensorValue | None, *rest: Any,
    ) -> tuple[TensorValue, ...]:  # fmt: skip
        *training, momentum, eps = rest
        return form(_BatchNorm(b, x, weight, bias, (mean, variance), momentum, eps), *training)

    return rule


def _no_training(norm: _BatchNorm) -> tuple[TensorValue, ...]:
    """Normalise by running statistics."""
    return (norm.infer(), *norm.empties())


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
    norm = _BatchNorm(b, x, weight, bias, (running_mean, running_var), momentum, eps)
    return (b.pointwise(body, out), *norm.empties())


def _functional(norm: _BatchNorm, training: bool) -> tuple[TensorValue, ...]:
    """Normalise, and return the updated running statistics."""
    into = norm.b.outs[3:]
    if not training:
        result = norm.infer()
        pairs = zip(norm.running, into, strict=True)
        unchanged = [norm.b.copy(r, out) for r, out in pairs if r is not None]
        return (result, *norm.empties(), *unchanged)
    results, batch = norm.train()
    return (*results, *norm.updated(batch, into))


def _with_update(norm: _BatchNorm) -> tuple[TensorValue, ...]:
    """Like `_functional` in training, with a reserve, which stays empty."""
    empty, *into = norm.b.outs[3:]
    assert empty is not None
    results, batch = norm.train()
    reserve = norm.b.pointwise(lambda ops, _: ops.const(0, empty.dtype.compute), empty)
    return (*results, reserve, *norm.updated(batch, into))


def _native(norm: _BatchNorm, training: bool) -> tuple[TensorValue, ...]:
    """Normalise; in training, the running statistics are updated in place."""
    if not training:
        return _no_training(norm)
    results, batch = norm.train()
    norm.updated(batch, norm.running)
    return results


def no_stats(
    b: LoopBuilder, x: TensorValue, weight: TensorValue | None, bias: TensorValue | None,
    training: bool, momentum: float, eps: float,
) -> tuple[TensorValue, ...]:  # fmt: skip
    """Normalise by the statistics of the batch only."""
    return _BatchNorm(b, x, weight, bias, (None, None), momentum, eps).train()[0]


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
    mean, spread = (saved_mean, saved_rstd) if train else (running_mean, running_var)
    if mean is None or spread is None:
        raise FallbackToAten
    dtype, wide = x.dtype.compute, _accumulator(x)
    rstd = element(spread, dtype) if train else _inverse(spread, eps, dtype)
    gradient, value_at, mean_at = (element(t, dtype) for t in (grad, x, mean))

    def centred(ops: Tracer, index: Sequence[Expr]) -> Value:
        return value_at(ops, index) - mean_at(ops, _channel(index))

    def wide_gradient(ops: Tracer, index: Sequence[Expr]) -> Value:
        return ops.cast(gradient(ops, index), wide)

    def factors(ops: Tracer, index: Sequence[Expr]) -> tuple[Value, Value]:
        return wide_gradient(ops, index), ops.cast(centred(ops, index), wide)

    def total(kind: ReduceKind, term: Any) -> TensorValue:
        """Reduce over all dimensions but the channels."""
        result = b.temp(x.shape[1:2], wide, x)
        reduce_at(b, kind, x, _dims(x), [result], wide, term)
        return result

    to_input, to_weight, to_bias = b.wanted(mask)
    centring = train and to_input is not None
    plain = total(ReduceKind.SUM, wide_gradient) if centring or to_bias is not None else None
    along = total(ReduceKind.DOT, factors) if centring or to_weight is not None else None
    n = _count(x)

    def input_gradient(ops: Tracer, index: Sequence[Expr]) -> Value:
        at = _channel(index)
        scale = rstd(ops, at)
        value = gradient(ops, index)
        if train:
            assert plain is not None and along is not None
            slope = ops.cast(_mean(ops, ops.load(along, at), n, grad), dtype) * (scale * scale)
            shift = ops.cast(_mean(ops, ops.load(plain, at), n, grad), dtype)
            value = value - shift - centred(ops, index) * slope
        return affine(ops, value * scale, weight, None, at)

    def weight_gradient(ops: Tracer, index: Sequence[Expr]) -> Value:
        assert along is not None
        return ops.load(along, index) * ops.cast(rstd(ops, index), wide)

    return (
        None if to_input is None else b.pointwise(input_gradient, to_input),
        None if to_weight is None else b.pointwise(weight_gradient, to_weight),
        None if plain is None else rounded(b, plain, to_bias),
    )


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten._native_batch_norm_legit_no_training.default")(_rule(_no_training))
    table.rule("aten._native_batch_norm_legit_functional.default")(_rule(_functional))
    table.rule("aten._native_batch_norm_legit.no_stats")(no_stats)
    table.rule("aten._batch_norm_with_update_functional.default")(_rule(_with_update))
    table.rule("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default")(
        _rule(_native)
    )
    table.rule("aten.native_batch_norm_backward.default")(backward)
