"""Complex numbers as pairs of real numbers: kernels have no complex types.

Results of kernels are stored in two buffers, one for each part, until an operation other than a
kernel reads them. Functions for which ATen calls the C library are generated only for `complex64`,
in `float64`: each part is then as accurate as the library's, whatever its magnitude.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from attrs import evolve

from gyrator_ir.body.rewrite import live
from gyrator_ir.expr import contiguous_strides
from gyrator_ir.loop.nodes import Pointwise
from gyrator_ir.modes import Numerics
from gyrator_ir.types import DType
from gyrator_lowering.builder.pairs import Pair, in_planes, pair_of
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.promote import promoted_dtype
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules import creation, reduction, view
from gyrator_lowering.rules.pointwise import as_bool
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH, TO_TORCH
from gyrator_lowering.torch_bridge.schema import info_of

Formula = Callable[..., Pair]
"""`fn(ops, x, y, ...)` from pairs to a pair."""


def elementwise(
    b: LoopBuilder, fn: Formula, args: Sequence[Any], out: Spec | None = None
) -> TensorValue:
    """Apply `fn` to arguments, which are converted to the complex dtype of the result."""
    out = b.out if out is None else out
    half = evolve(out, dtype=out.dtype.part)

    def plane(which: int) -> TensorValue:
        def body(ops: Tracer, at: Index) -> Value:
            return fn(ops, *[pair_of(ops, a, at, half.dtype) for a in args]).part(which)

        result = b.pointwise(body, half)
        operation = b.operations[-1]
        assert isinstance(operation, Pointwise)
        # Without the values of the other part.
        b.operations[-1] = evolve(operation, body=live(operation.body))
        return result

    return in_planes(b, plane(0), plane(1), out.dtype)


def simple(fn: Formula, arity: int) -> Rule:
    """Return the rule of an op whose result is complex."""

    def rule(b: LoopBuilder, *args: Any) -> TensorValue:
        return elementwise(b, fn, args[:arity])

    return rule


def real_valued(fn: Callable[..., Value], arity: int) -> Rule:
    """Return the rule of an op with a real result, computed in the promoted dtype of its
    arguments."""

    def rule(b: LoopBuilder, *args: Any) -> TensorValue:
        kind = promoted_dtype(args[:arity]).part

        def body(ops: Tracer, at: Index) -> Value:
            return fn(ops, *[pair_of(ops, a, at, kind) for a in args[:arity]])

        return b.pointwise(body)

    return rule


# Each part by itself -------------------------------------------------------------------------

_VALUES = frozenset({"value", "fill_value"})
"""Number arguments that become elements of the result."""

_INDICES = frozenset({"index", "indices"})
"""Tensor arguments that say where elements are; both parts have the same ones."""


def by_part(rule: Rule) -> Rule:
    """Return the complex rule of an op that treats real and imaginary parts separately and
    alike."""

    def both(b: LoopBuilder, *args: Any, **kwargs: Any) -> TensorValue:
        dtype = b.out.dtype
        names = info_of(b.node.target).arguments
        b.by_part = True
        try:
            real, imag = (
                rule(
                    b,
                    *[_part(a, which, name) for a, name in zip(args, names, strict=False)],
                    **{name: _part(a, which, name) for name, a in kwargs.items()},
                )
                for which in range(2)
            )
        finally:
            b.by_part = False
        if not dtype.is_complex:
            raise FallbackToAten
        return in_planes(b, real, imag, dtype)

    return both


def _part(value: Any, which: int, name: str) -> Any:
    """Return an argument for the rule of one part.

    Raises:
        FallbackToAten: for real tensors whose elements are part of the result.
    """
    if isinstance(value, TensorValue):
        if value.dtype.is_complex:
            return value.part(which)
        if name not in _INDICES:
            raise FallbackToAten
    elif isinstance(value, list):
        return [_part(item, which, name) for item in value]
    elif isinstance(value, torch.dtype):
        return TO_TORCH[FROM_TORCH[value].part]
    elif isinstance(value, (int, float, complex)) and name in _VALUES:
        return value.imag if which else value.real
    elif isinstance(value, complex):
        raise FallbackToAten
    return value


# Arithmetic ----------------------------------------------------------------------------------


def add(b: LoopBuilder, x: Any, y: Any, *more: Any, alpha: Any = 1) -> TensorValue:
    """`x + alpha * y`; ATen multiplies even by 1, which turns one part of an infinity into NaN."""
    factor = more[0] if more else alpha
    return elementwise(b, lambda ops, p, q, f: p + q * f, (x, y, factor))


def sub(b: LoopBuilder, x: Any, y: Any, *more: Any, alpha: Any = 1) -> TensorValue:
    """`x - alpha * y`."""
    factor = more[0] if more else alpha
    if isinstance(factor, (int, float, complex)):
        return add(b, x, y, -factor)
    return elementwise(b, lambda ops, p, q, f: p + q * -f, (x, y, factor))


def rsub(b: LoopBuilder, x: Any, y: Any, *more: Any, alpha: Any = 1) -> TensorValue:
    """`y - alpha * x`."""
    return sub(b, y, x, *more, alpha=alpha)


def addcmul(b: LoopBuilder, x: Any, p: Any, q: Any, *, value: Any = 1) -> TensorValue:
    """`x + value * p * q`."""
    return elementwise(b, lambda ops, a, c, d, f: a + f * c * d, (x, p, q, value))


def addcdiv(b: LoopBuilder, x: Any, p: Any, q: Any, *, value: Any = 1) -> TensorValue:
    """`x + value * p / q`."""
    return elementwise(b, lambda ops, a, c, d, f: a + f * c / d, (x, p, q, value))


def pow_scalar(b: LoopBuilder, x: TensorValue, exponent: Any) -> TensorValue:
    """`x**exponent` for the exponents that ATen computes by products, quotients and roots."""
    if exponent == 0.5:
        return root(b, x)
    formula = _POWERS.get(exponent) if isinstance(exponent, (int, float, complex)) else None
    if formula is None:
        raise FallbackToAten
    return elementwise(b, formula, (x,))


def one_like(ops: Tracer, like: Pair) -> Pair:
    """Return 1."""
    dtype = like.real.dtype
    return Pair(ops.const(1.0, dtype), ops.const(0.0, dtype))


_POWERS: Mapping[complex, Formula] = MappingProxyType(
    {
        0: one_like,
        1: lambda ops, x: x,
        2: lambda ops, x: x * x,
        3: lambda ops, x: x * x * x,
        -1: lambda ops, x: one_like(ops, x) / x,
        -2: lambda ops, x: one_like(ops, x) / (x * x),
    }
)


def neg(b: LoopBuilder, x: TensorValue) -> TensorValue:
    """`-x`; ATen's vector code subtracts from 0, so that zeros differ in sign from its scalar
    code."""
    if b.options.numerics is Numerics.BITWISE:
        raise FallbackToAten
    return elementwise(b, lambda ops, p: -p, (x,))


def conjugate(ops: Tracer, x: Pair) -> Pair:
    """Return the conjugate."""
    return Pair(x.real, -x.imag)


def materialized_view(fn: Formula) -> Rule:
    """Return the rule of a lazy view that conjugates or negates: it is computed at once, into a
    tensor with the view's strides."""

    def rule(b: LoopBuilder, x: TensorValue) -> TensorValue:
        return view.materialized(b, x, lambda y, out: elementwise(b, fn, (y,), out))

    return rule


def sgn(ops: Tracer, x: Pair) -> Pair:
    """Return `x / |x|`, 0 where `x` is 0."""
    size = magnitude(ops, x)
    is_zero = ops.eq(size, 0.0)
    return Pair(ops.where(is_zero, 0.0, x.real / size), ops.where(is_zero, 0.0, x.imag / size))


def magnitude(ops: Tracer, x: Pair) -> Value:
    """Return `|x|`, which overflows only if the result is not representable."""
    return ops.hypot(x.real, x.imag)


# Functions -----------------------------------------------------------------------------------


def in_float64(fn: Formula) -> Callable[[LoopBuilder, TensorValue], TensorValue]:
    """Return the rule of a function for which ATen calls the C library: `complex64` only, in
    `float64`."""

    def narrow(ops: Tracer, x: Pair) -> Pair:
        wide = fn(ops, Pair(ops.cast(x.real, DType.F64), ops.cast(x.imag, DType.F64)))
        return Pair(ops.cast(wide.real, DType.F32), ops.cast(wide.imag, DType.F32))

    def rule(b: LoopBuilder, x: TensorValue) -> TensorValue:
        if b.out.dtype is not DType.C64:
            raise FallbackToAten
        return elementwise(b, narrow, (x,))

    return rule


def exp(ops: Tracer, x: Pair) -> Pair:
    """Return `exp(x)`, also for infinite real parts, whose imaginary parts may be anything."""
    size = ops.exp(x.real)
    flat = ops.eq(x.imag, 0.0)
    real = ops.where(flat, size, size * ops.cos(x.imag))
    imag = ops.where(flat, x.imag, size * ops.sin(x.imag))
    is_special = ops.isinf(x.real) & (ops.isinf(x.imag) | ops.isnan(x.imag))
    vanishes = is_special & ops.lt(x.real, 0.0)
    zero = ops.copysign(ops.const(0.0, x.real.dtype), x.imag)
    return Pair(ops.where(is_special, size, real), ops.where(vanishes, zero, imag))


def log(ops: Tracer, x: Pair) -> Pair:
    """Return `log(x)`, accurate near the unit circle too."""
    a, c = ops.abs(x.real), ops.abs(x.imag)
    large, small = ops.maximum(a, c), ops.minimum(a, c)
    square = large * large + small * small
    near = ops.gt(square, 0.5) & ops.lt(square, 2.0)
    excess = (large - 1.0) * (large + 1.0) + small * small
    real = ops.where(near, ops.log1p(excess), ops.log(square)) * 0.5
    infinite = ops.isinf(x.real) | ops.isinf(x.imag)
    return Pair(ops.where(infinite, math.inf, real), ops.atan2(x.imag, x.real))


def sqrt(ops: Tracer, x: Pair) -> Pair:
    """Return the root with a non-negative real part."""
    a, c = ops.abs(x.real), ops.abs(x.imag)
    infinite = ops.isinf(x.real) | ops.isinf(x.imag)
    size = ops.where(infinite, math.inf, ops.sqrt(a * a + c * c))
    half = ops.sqrt((size + a) * 0.5)
    other = c / (half * 2.0)
    left = ops.lt(x.real, 0.0)
    real = ops.where(left, other, half)
    imag = ops.copysign(ops.where(left, half, other), x.imag)
    alone = ops.eq(half, 0.0) | ops.isinf(x.imag)
    real = ops.where(alone, half, real)
    return Pair(ops.where(ops.isinf(x.imag), math.inf, real), ops.where(alone, x.imag, imag))


root = in_float64(sqrt)


def polar(b: LoopBuilder, size: TensorValue, angle: TensorValue) -> TensorValue:
    """`size * (cos(angle) + i sin(angle))`."""

    def body(ops: Tracer, r: Pair, phi: Pair) -> Pair:
        return Pair(r.real * ops.cos(phi.real), r.real * ops.sin(phi.real))

    return elementwise(b, body, (size, angle))


# Comparisons, selections, tensors from numbers -------------------------------------------------


def equal(ops: Tracer, x: Pair, y: Pair) -> Value:
    """Return whether both parts are equal."""
    return ops.eq(x.real, y.real) & ops.eq(x.imag, y.imag)


def where(b: LoopBuilder, condition: TensorValue, x: Any, y: Any) -> TensorValue:
    """`x` where the condition holds, else `y`."""
    out = b.out

    def plane(which: int) -> TensorValue:
        def body(ops: Tracer, at: Index) -> Value:
            chosen = as_bool(ops, ops.get(condition, at))
            p, q = (pair_of(ops, v, at, out.dtype.part).part(which) for v in (x, y))
            return ops.where(chosen, p, q)

        return b.pointwise(body, evolve(out, dtype=out.dtype.part))

    return in_planes(b, plane(0), plane(1), out.dtype)


def masked_fill(b: LoopBuilder, x: TensorValue, mask: TensorValue, value: Any) -> TensorValue:
    """`value` where the mask is set, else `x`."""
    return where(b, mask, value, x)


def filled(b: LoopBuilder, value: Any) -> TensorValue:
    """Return a tensor of one broadcast value with the spec of the node's result."""
    return elementwise(b, lambda ops, v: v, (value,))


def uninitialized(b: LoopBuilder, *_: Any, **__: Any) -> TensorValue:
    """A tensor of uninitialised memory."""
    value = creation.empty_value(b)
    return filled(b, value) if b.out.dtype.is_complex else creation.filled(b, value)


def filling(position: int) -> Rule:
    """Return the rule of an op that fills a tensor with its argument at `position`."""

    def rule(b: LoopBuilder, *args: Any, **_: Any) -> TensorValue:
        if b.out.dtype.is_complex:
            return filled(b, args[position])
        if isinstance(args[position], (TensorValue, complex)):
            raise FallbackToAten
        return creation.filled(b, args[position])

    return rule


def constant(value: int) -> Rule:
    """Return the rule of a tensor of zeros or ones."""

    def rule(b: LoopBuilder, *_: Any, **__: Any) -> TensorValue:
        return filled(b, value) if b.out.dtype.is_complex else creation.filled(b, value)

    return rule


def to_copy(b: LoopBuilder, x: Any, *_: Any, **__: Any) -> TensorValue:
    """A copy of another dtype or layout: the imaginary part of real numbers is 0, and that of
    complex numbers is dropped for a real result."""
    out = b.out
    if isinstance(x, TensorValue) and x.device != out.device:
        raise FallbackToAten
    if out.dtype.is_complex:
        return filled(b, x)
    if not isinstance(x, TensorValue):
        raise FallbackToAten
    if out.dtype is DType.BOOL:
        return b.pointwise(
            lambda ops, at: (
                as_bool(ops, ops.get(x.part(0), at)) | as_bool(ops, ops.get(x.part(1), at))
            )
        )
    return creation.convert(b, x.part(0), out)


def copy(b: LoopBuilder, x: TensorValue, source: Any, *_: Any) -> TensorValue:
    """A tensor with the spec of `x` and the elements of `source`."""
    return to_copy(b, source)


def copy_(b: LoopBuilder, into: TensorValue, value: Any, *_: Any) -> TensorValue:
    """Write `value` to an existing tensor, after all earlier reads of it."""
    if isinstance(value, TensorValue):
        if value.device != into.device or not into.dtype.is_complex:
            raise FallbackToAten
        if value.buffer == into.buffer:
            if value == into:
                return into
            contiguous = contiguous_strides(value.shape)
            form = Spec(value.dtype, value.device, value.shape, contiguous)
            value = elementwise(b, lambda ops, v: v, (value,), form)
    kind = into.dtype.part
    parts = tuple(map(into.part, range(2)))
    b.many_into(parts, lambda ops, at: [pair_of(ops, value, at, kind).part(w) for w in range(2)])
    return into.in_memory


# Reductions ----------------------------------------------------------------------------------


def vector_norm(b: LoopBuilder, x: TensorValue, *args: Any, **kwargs: Any) -> TensorValue:
    """The p-norm of magnitudes."""
    kind = x.dtype.part
    form = Spec(kind, x.device, x.shape, contiguous_strides(x.shape))
    sizes = b.pointwise(lambda ops, at: magnitude(ops, pair_of(ops, x, at, kind)), form)
    return reduction.vector_norm(b, sizes, *args, **kwargs)


_Register = Callable[..., Callable[[Rule], Rule]]
"""Registers a rule of the given ATen ops."""


def register(table: TableBuilder) -> None:
    """Add the rules of complex numbers to `table`, which has those of real ones."""

    def rule(*ops: str) -> Callable[[Rule], Rule]:
        return table.rule(*(f"aten.{op}" for op in ops), complex=True)

    _register_arithmetic(rule)
    _register_tensors(rule)
    table.rule("prims.convert_element_type.default", complex=True)(to_copy)
    of_reals = table.build()
    for name in (f"aten.{op}" for op in _BY_PART):
        of_parts = of_reals.find(name)
        assert of_parts is not None
        table.rule(name, complex=True)(by_part(of_parts))
    for op in ("_unsafe_view", "lift", "as_strided_"):
        rule(f"{op}.default")(view.same_storage)
    rule("as_strided.default")(view.as_strided)
    rule("linalg_vector_norm.default")(vector_norm)


def _register_arithmetic(rule: _Register) -> None:
    rule("add.Tensor", "add.Scalar")(add)
    rule("sub.Tensor", "sub.Scalar")(sub)
    rule("rsub.Tensor", "rsub.Scalar")(rsub)
    rule("mul.Tensor", "mul.Scalar")(simple(lambda ops, x, y: x * y, 2))
    rule("div.Tensor", "div.Scalar")(simple(lambda ops, x, y: x / y, 2))
    rule("addcmul.default")(addcmul)
    rule("addcdiv.default")(addcdiv)
    rule("pow.Tensor_Scalar")(pow_scalar)
    rule("reciprocal.default")(simple(lambda ops, x: one_like(ops, x) / x, 1))
    rule("neg.default")(neg)
    rule("positive.default", "conj_physical.real")(simple(lambda ops, x: x, 1))
    rule("conj_physical.default", "_conj_physical.default")(simple(conjugate, 1))
    rule("_conj.default")(materialized_view(conjugate))
    rule("_neg_view.default")(materialized_view(lambda ops, x: -x))
    rule("sgn.default")(simple(sgn, 1))
    rule("abs.default")(real_valued(magnitude, 1))
    rule("angle.default")(real_valued(lambda ops, x: ops.atan2(x.imag, x.real), 1))
    rule("eq.Tensor", "eq.Scalar")(real_valued(equal, 2))
    rule("ne.Tensor", "ne.Scalar")(real_valued(lambda ops, x, y: ~equal(ops, x, y), 2))
    rule("isnan.default")(real_valued(lambda ops, x: ops.isnan(x.real) | ops.isnan(x.imag), 1))
    rule("isinf.default")(real_valued(lambda ops, x: ops.isinf(x.real) | ops.isinf(x.imag), 1))
    rule("exp.default")(in_float64(exp))
    rule("log.default")(in_float64(log))
    rule("sqrt.default")(root)
    rule("polar.default")(polar)
    rule("complex.default")(simple(lambda ops, x, y: Pair(x.real, y.real), 2))


def _register_tensors(rule: _Register) -> None:
    rule("where.self", "where.ScalarSelf", "where.ScalarOther")(where)
    rule("masked_fill.Scalar", "masked_fill.Tensor")(masked_fill)
    rule("scalar_tensor.default")(filling(0))
    rule("full.default", "full_like.default", "fill.Scalar", "fill.Tensor")(filling(1))
    rule("new_full.default")(filling(2))
    for value, ops in ((0, _ZEROS), (1, ("ones.default", "ones_like.default", "new_ones.default"))):
        rule(*ops)(constant(value))
    rule(*_FRESH)(uninitialized)
    rule("clone.default", "lift_fresh_copy.default", "_to_copy.default")(to_copy)
    rule("copy.default")(copy)
    rule("copy_.default")(copy_)


_ZEROS = (
    "zeros.default", "zeros_like.default", "new_zeros.default", "_efficientzerotensor.default",
)  # fmt: skip
_FRESH = (
    "empty.memory_format", "empty_like.default", "empty_strided.default", "new_empty.default",
    "new_empty_strided.default", "empty_permuted.default",
)  # fmt: skip
_BY_PART = """
    cat.default index.Tensor _unsafe_index.Tensor index_select.default gather.default take.default
    embedding.default constant_pad_nd.default flip.default repeat.default roll.default triu.default
    tril.default index_put.default _unsafe_index_put.default scatter.src scatter.value
    scatter_add.default index_add.default index_copy.default index_fill.int_Scalar
    slice_scatter.default slice_backward.default select_scatter.default select_backward.default
    diagonal_scatter.default sum.default sum.dim_IntList mean.default mean.dim cumsum.default
""".split()
