"""Functions of `f32` computed with the bits of ATen's CPU kernels (`numerics="bitwise"`).

ATen's compiler contracts products and sums to fused multiply-additions. Its exponential, within
other functions, is Sleef's where it uses vectors and the C library's elsewhere. The formulas hold
for ATen's kernels for AVX2 and, with vectors of twice as many lanes, for AVX-512; a target's
capability `aten_bits` names those that were found to hold on a machine.
"""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from math import prod
from typing import Any

from attrs import evolve

from gyrator_ir.expr import ONE, ZERO, Const, Expr
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import Arg, operand
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.bits.aten_sums import GRAIN, integers, iterated
from gyrator_lowering.rules.pointwise import Scalar, elementwise, polynomial, single
from gyrator_lowering.table import FallbackToAten, Rule

_VECTORS = 2
"""ATen computes blocks of so many vectors by vector functions, and what is left by the C library's.
"""
_MIXED = 1024
"""The most elements for which kernels compute both functions and select one."""

Exp = Callable[[Tracer, Value], Value]
"""An exponential."""


def tanh_backward(b: LoopBuilder, grad: TensorValue, y: TensorValue) -> TensorValue:
    """`aten.tanh_backward`."""
    if _is_repeated(y, b.out.shape):
        raise FallbackToAten  # whose compiler hoists the square, and rounds it
    return of_f32(b, lambda ops, g, v: g * ops.fma(-v, v, 1.0), grad, y)


def rsqrt(b: LoopBuilder, x: TensorValue) -> TensorValue:
    """`aten.rsqrt`."""
    return of_f32(b, lambda ops, v: 1.0 / ops.sqrt(v), x)


def addcmul(
    b: LoopBuilder, x: TensorValue, p: TensorValue, q: TensorValue, *, value: Arg = 1
) -> TensorValue:
    """`aten.addcmul`."""

    def fn(ops: Tracer, a: Value, v: Value, w: Value) -> Value:
        return ops.fma(operand(ops, value, (), DType.F32) * v, w, a)

    return of_f32(b, fn, x, p, q)


def power(b: LoopBuilder, x: TensorValue, exponent: Any) -> TensorValue:
    """`aten.pow` of `f32` or `f64` with the exponent 3 or -2."""
    if type(exponent) not in (int, float) or exponent not in (3, -2):
        raise FallbackToAten
    if b.out.dtype not in (DType.F32, DType.F64) or x.dtype is not b.out.dtype:
        raise FallbackToAten

    def fn(ops: Tracer, v: Value) -> Value:
        return v * v * v if exponent == 3 else 1.0 / (v * v)

    return elementwise(b, fn, (x,))


def scaled_sum(sign: int) -> Callable[..., TensorValue]:
    """Return the rule of `aten.add` or `aten.sub` with a factor."""

    def rule(b: LoopBuilder, x: TensorValue, other: Arg, *, alpha: Any = 1) -> TensorValue:
        if type(alpha) not in (int, float) or alpha == 1:
            raise FallbackToAten  # other rules compute it with eager's bits, or nobody does
        if _is_repeated(other, b.out.shape):
            raise FallbackToAten  # whose compiler hoists the product where it uses no vectors
        return of_f32(b, lambda ops, v, w: ops.fma(w, sign * float(alpha), v), x, other)

    return rule


def lerp(b: LoopBuilder, x: TensorValue, end: TensorValue, weight: Any) -> TensorValue:
    """`aten.lerp.Scalar` with a weight below a half."""
    if type(weight) not in (int, float) or not abs(weight) < 0.5:
        raise FallbackToAten
    return of_f32(b, lambda ops, v, w: ops.fma(w - v, float(weight), v), x, end)


def sigmoid(lanes: int) -> Rule:
    """Return the rule of `aten.sigmoid`, for vectors of so many elements."""
    return _by_vectors(lanes, lambda exp: lambda ops, v: _sigmoid(ops, v, exp))


def silu(lanes: int) -> Rule:
    """Return the rule of `aten.silu`."""
    return _by_vectors(lanes, lambda exp: lambda ops, v: v / (1.0 + exp(ops, -v)))


def silu_backward(lanes: int) -> Rule:
    """Return the rule of `aten.silu_backward`."""

    def gradient(exp: Exp) -> Scalar:
        def fn(ops: Tracer, g: Value, v: Value) -> Value:
            s = _sigmoid(ops, v, exp)
            return g * s * ops.fma(v, 1.0 - s, 1.0)

        return fn

    return _by_vectors(lanes, gradient)


def of_f32(b: LoopBuilder, fn: Callable[..., Value], *args: Arg) -> TensorValue:
    """Apply a function to tensors of `f32` and numbers.

    Raises:
        FallbackToAten: if a tensor has another dtype.
    """
    if b.out.dtype is not DType.F32:
        raise FallbackToAten
    if any(isinstance(a, TensorValue) and a.dtype is not DType.F32 for a in args):
        raise FallbackToAten
    return elementwise(b, fn, args)


def _is_repeated(x: Arg, shape: Sequence[Expr]) -> bool:
    """Return whether elements of a result of this shape share elements of `x`."""
    if not isinstance(x, TensorValue) or len(x.shape) < len(shape):
        return True
    pairs = zip(x.shape, x.strides, shape, strict=True)
    return any(size != whole or (step == ZERO and size != ONE) for size, step, whole in pairs)


def _by_vectors(lanes: int, formula: Callable[[Exp], Scalar]) -> Rule:
    return lambda b, *args: _vectorised(b, formula, lanes * _VECTORS, args)


def _vectorised(
    b: LoopBuilder, formula: Callable[[Exp], Scalar], block: int, args: Sequence[TensorValue]
) -> TensorValue:
    """Apply a formula with the exponential that ATen uses: Sleef's in whole blocks of elements that
    are adjacent in memory, the C library's elsewhere.

    Raises:
        FallbackToAten: if the arguments are not of `f32` and one shape, of many elements, or
            several of different strides.
    """
    shape, outs = integers(b.out.shape), integers(b.out.strides)
    strides = integers(args[0].strides)
    if any((x.shape, x.strides) != (b.out.shape, args[0].strides) for x in args):
        raise FallbackToAten
    if b.out.dtype is not DType.F32 or any(x.dtype is not DType.F32 for x in args):
        raise FallbackToAten
    if prod(shape) >= GRAIN:
        raise FallbackToAten
    dims = iterated(shape, outs, strides)
    steps = (0, 1) if len(args) == 1 else (1,)  # ATen also reads a number into a whole vector
    has_vectors = bool(dims) and dims[0].out == 1 and dims[0].stride in steps
    size = dims[0].size if has_vectors else 0
    whole = size // block * block
    if not whole or whole == size:
        return elementwise(b, formula(sleef_exp if whole else _libm_exp), tuple(args))
    if prod(shape) > _MIXED:
        raise FallbackToAten
    sizes = tuple(Const(d.size) for d in dims[::-1])
    ins, into = (
        tuple(map(Const, steps))
        for steps in zip(*((d.stride, d.out) for d in dims[::-1]), strict=True)
    )
    sources = [evolve(x, shape=sizes, strides=ins) for x in args]
    result = b.buffer(b.out)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        values = [ops.load(x, index) for x in sources]
        by_vector, one_by_one = (formula(exp)(ops, *values) for exp in (sleef_exp, _libm_exp))
        return ops.where(ops.lt(ops.index(index[-1]), whole), by_vector, one_by_one)

    b.pointwise_into(evolve(result, shape=sizes, strides=into), body)
    return result


_LOG2_E = 1.442695040888963407
_LN2_PARTS = (0.693145751953125, 1.428606765330187045e-06)
_SLEEF_EXP = (
    0.000198527617612853646278381,
    0.00139304355252534151077271,
    0.00833336077630519866943359,
    0.0416664853692054748535156,
    0.166666671633720397949219,
    0.5,
)
_SLEEF_RANGE = (-104.0, 100.0)


def _sigmoid(ops: Tracer, x: Value, exp: Exp) -> Value:
    return 1.0 / (1.0 + exp(ops, -x))


def sleef_exp(ops: Tracer, x: Value) -> Value:
    """`Sleef_expf8_u10`."""
    n = ops.round(x * _LOG2_E)
    r = ops.fma(n, -_LN2_PARTS[0], x)
    r = ops.fma(n, -_LN2_PARTS[1], r)
    p = polynomial(ops, r, _SLEEF_EXP)
    result = 1.0 + ops.fma(r * r, p, r)
    power = ops.cast(n, DType.I32)
    half = ops.shr(power, 1)
    result = result * power_of_two(ops, half) * power_of_two(ops, power - half)
    low, high = _SLEEF_RANGE
    result = ops.where(ops.lt(x, low), 0.0, result)
    return ops.where(ops.gt(x, high), math.inf, result)


_LOG = (0.3027294874, 0.3996108174, 0.6666694880)
_LN2 = (0.69314718246459960938, -1.904654323148236017e-09)
_LEAST_NORMAL = 2.0**-126


def sleef_log(ops: Tracer, x: Value) -> Value:
    """`Sleef_logf8_u10`, whose steps have twice the precision of `f32`: values in two parts."""
    is_small = ops.lt(x, _LEAST_NORMAL)
    scaled = ops.where(is_small, x * 2.0**64, x)
    exponent = ops.shr(ops.bitcast(scaled * single(1.0 / 0.75), DType.I32), 23) - 127
    m = ops.bitcast(ops.bitcast(scaled, DType.I32) - ops.shl(exponent, 23), DType.F32)
    power = ops.cast(ops.where(is_small, exponent - 64, exponent), DType.F32)
    product = power * _LN2[0]
    tail = ops.fma(power, _LN2[1], ops.fma(power, _LN2[0], -product))
    (n, n_tail), (d, d_tail) = _two_sum(ops, m, -1.0), _two_sum(ops, m, 1.0)
    inverse = 1.0 / d
    q = n * inverse
    error = ops.fma(-d_tail, inverse, ops.fma(-d, inverse, 1.0))
    q_tail = ops.fma(q, error, ops.fma(n_tail, inverse, ops.fma(inverse, n, -q)))
    square = q * q
    t = polynomial(ops, square, _LOG)
    head = product + q * 2.0
    tail = product - head + q * 2.0 + tail + q_tail * 2.0
    term = square * q * t
    total = head + term
    result = total + (head - total + term + tail)
    result = ops.where(ops.eq(scaled, math.inf), math.inf, result)
    result = ops.where(ops.lt(scaled, 0.0) | ops.isnan(scaled), math.nan, result)
    return ops.where(ops.eq(scaled, 0.0), -math.inf, result)


def _two_sum(ops: Tracer, x: Value, y: float) -> tuple[Value, Value]:
    """Return a rounded sum and its error."""
    total = x + y
    part = total - y
    return total, (y - (total - part)) + (x - part)


_STEPS = 32
_LIBM_EXP = tuple(
    float.fromhex(c) / _STEPS**power
    for c, power in (
        ("0x1.c6af84b912394p-5", 3), ("0x1.ebfce50fac4f3p-3", 2), ("0x1.62e42ff0c52d6p-1", 1),
    )
)  # fmt: skip
_LIBM_RANGE = (-float.fromhex("0x1.9fe368p6"), float.fromhex("0x1.62e42ep6"))
_ROOTS = tuple(float(Decimal(2) ** (Decimal(n) / _STEPS)) for n in range(_STEPS))


def _libm_exp(ops: Tracer, x: Value) -> Value:
    """`expf` of the GNU C library, with fused multiply-adds in `f64`."""
    low, high = _LIBM_RANGE
    within = ops.where(ops.ge(x, low) & ops.le(x, high), x, 0.0)
    z = ops.cast(within, DType.F64) * (math.log2(math.e) * _STEPS)
    n = ops.round(z)
    r = z - n
    cubic, square, slope = _LIBM_EXP
    high_terms = ops.fma(r, cubic, square)
    p = ops.fma(high_terms, r * r, ops.fma(r, slope, 1.0))
    power = ops.cast(n, DType.I32)
    root = selected(ops, power, [ops.const(root, DType.F64) for root in _ROOTS])
    power = ops.shr(power, _STEPS.bit_length() - 1)
    half = ops.shr(power, 1)
    scales = [ops.cast(power_of_two(ops, k), DType.F64) for k in (half, power - half)]
    result = ops.cast(p * (root * scales[0] * scales[1]), DType.F32)
    result = ops.where(ops.lt(x, low), 0.0, result)
    result = ops.where(ops.gt(x, high), math.inf, result)
    return ops.where(ops.isnan(x), x, result)


def selected(ops: Tracer, index: Value, values: Sequence[Value]) -> Value:
    """Return the value at an index, of which the low bits are used."""
    bit = 1
    while len(values) > 1:
        is_odd = ops.ne(index & bit, 0)
        pairs = zip(values[::2], values[1::2], strict=False)
        last = values[len(values) & ~1 :]
        values = [*(ops.where(is_odd, odd, even) for even, odd in pairs), *last]
        bit *= 2
    return values[0]


def power_of_two(ops: Tracer, exponent: Value) -> Value:
    """Return a power of two that is a normal `f32`."""
    return ops.bitcast(ops.shl(exponent + 127, 23), DType.F32)
