"""Reductions over dimensions: sums, extrema, logic, moments, norms."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ONE, ZERO, Const, Expr, SymKind, product_of
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder, dims_of
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import At, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.pointwise import as_bool, power
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder

Map = Callable[[Tracer, Value], Value]


def split(x: TensorValue, dims: Sequence[int]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """Return the sizes of the dimensions that are kept, and of those that are reduced."""
    outer = tuple(s for d, s in enumerate(x.shape) if d not in dims)
    return outer, tuple(x.shape[d] for d in dims)


def full_index(
    ndim: int, dims: Sequence[int], outer: Sequence[Expr], inner: Sequence[Expr]
) -> list[Expr]:
    """Return the full index from its parts over the kept and the reduced dimensions."""
    outer_iter, inner_iter = iter(outer), iter(inner)
    return [next(inner_iter) if d in dims else next(outer_iter) for d in range(ndim)]


def squeezed(value: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Return the view without the given dimensions, which have size 1."""
    return value.permuted(tuple(d for d in range(value.ndim) if d not in dims))


def unsqueezed(value: TensorValue, ndim: int, dims: Sequence[int]) -> TensorValue:
    """Return the view with dimensions of size 1 inserted, so that it broadcasts along `dims`."""
    sizes, strides = iter(value.shape), iter(value.strides)
    return evolve(
        value,
        shape=tuple(ONE if d in dims else next(sizes) for d in range(ndim)),
        strides=tuple(ZERO if d in dims else next(strides) for d in range(ndim)),
    )


def reduce_into(
    b: LoopBuilder,
    kind: ReduceKind,
    x: TensorValue,
    dims: Sequence[int],
    into: Sequence[TensorValue | None],
    dtype: DType,
    fn: Map | None = None,
) -> None:
    """Reduce `fn(x)` over `dims` into views that have the other dimensions."""

    def at(ops: Tracer, index: Sequence[Expr]) -> Value:
        value = ops.load(x, index)
        return value if fn is None else fn(ops, value)

    reduce_at(b, kind, x, dims, into, dtype, at)


def reduce_at(
    b: LoopBuilder,
    kind: ReduceKind,
    like: TensorValue,
    dims: Sequence[int],
    into: Sequence[TensorValue | None],
    dtype: DType,
    at: At,
) -> None:
    """Reduce `at(ops, index)`, a value or a pair, over `dims` of the indices of `like`, as
    `reduce_into` does."""
    outer, inner = split(like, dims)

    def body(ops: Tracer, index: Sequence[Expr], rindex: Sequence[Expr]) -> Value:
        return at(ops, full_index(like.ndim, dims, index, rindex))

    b.reduction(kind, body, outer, inner, into, dtype)


def reduce_to_buffer(
    b: LoopBuilder, kind: ReduceKind, x: TensorValue, dims: Sequence[int], dtype: DType
) -> TensorValue:
    """Reduce `x` over `dims` into a new contiguous buffer of `dtype`."""
    outer, _ = split(x, dims)
    result = b.temp(outer, dtype, x)
    reduce_into(b, kind, x, dims, [result], dtype)
    return result


def reduced(
    b: LoopBuilder,
    kind: ReduceKind,
    x: TensorValue,
    dims: Sequence[int],
    before: Map | None = None,
    after: Map | None = None,
    dtype: DType | None = None,
    reduced_dtype: DType | None = None,
    out: Spec | None = None,
) -> TensorValue:
    """Emit a complete reduction op: reduce in `dtype`, apply `after`, and round to the result's
    dtype.

    `reduced_dtype` is the dtype of the reduction's result, by default `dtype`.
    """
    out = b.out if out is None else out
    dtype = out.dtype.compute if dtype is None else dtype
    reduced_dtype = dtype if reduced_dtype is None else reduced_dtype
    keeps_dims = len(out.shape) == x.ndim
    if after is None and out.dtype is reduced_dtype:
        result = b.buffer(out)
        reduce_into(
            b, kind, x, dims, [squeezed(result, dims) if keeps_dims else result], dtype, before
        )
        return result
    outer, _ = split(x, dims)
    raw = b.temp(outer, reduced_dtype, x)
    reduce_into(b, kind, x, dims, [raw], dtype, before)
    source = unsqueezed(raw, x.ndim, dims) if keeps_dims else raw
    return b.pointwise(
        lambda ops, index: (
            ops.get(source, index) if after is None else after(ops, ops.get(source, index))
        ),
        out,
    )


def count(x: TensorValue, dims: Sequence[int]) -> Expr:
    """Return the number of elements in each reduction."""
    return product_of(x.shape[d] for d in dims)


def sum_(b: LoopBuilder, x: TensorValue, dim: Any = None, *_: Any, **__: Any) -> TensorValue:
    """Sum, of integers and booleans in `i64`. With a bool result, whether any element is true."""
    kind = ReduceKind.ANY if b.out.dtype is DType.BOOL else ReduceKind.SUM
    return reduced(b, kind, x, dims_of(dim, x.ndim), _to_result(b))


def _to_result(b: LoopBuilder) -> Map:
    """Return the conversion of elements to the dtype of the result, before the reduction."""
    dtype = b.out.dtype

    def convert(ops: Tracer, value: Value) -> Value:
        if dtype is DType.BOOL:
            return as_bool(ops, value)
        return value if dtype.is_narrow_float else ops.cast(value, dtype)

    return convert


def mean(b: LoopBuilder, x: TensorValue, dim: Any = None, *_: Any, **__: Any) -> TensorValue:
    """Arithmetic mean."""
    dims = dims_of(dim, x.ndim)
    n = count(x, dims)
    return reduced(
        b,
        ReduceKind.SUM,
        x,
        dims,
        _to_result(b),
        lambda ops, total: total / operand(ops, n, (), total.dtype),
    )


def prod(b: LoopBuilder, x: TensorValue, dim: Any = None, *_: Any, **__: Any) -> TensorValue:
    """Product, of integers and booleans in `i64`. With a bool result, whether all elements are
    true."""
    kind = ReduceKind.ALL if b.out.dtype is DType.BOOL else ReduceKind.PROD
    return reduced(b, kind, x, dims_of(dim, x.ndim), _to_result(b))


def _refuse_empty(x: TensorValue, dims: Sequence[int]) -> None:
    """Leave extrema over no elements, which are undefined, to ATen, which raises."""
    for d in dims:
        size = x.shape[d]
        if size is ZERO or any(s.kind is SymKind.UNBACKED for s in size.free_symbols):
            raise FallbackToAten


def extreme(kind: ReduceKind) -> Rule:
    """Return the rule of `amax`, `amin`, and of `max` and `min` over all elements."""
    boolean = ReduceKind.ANY if kind is ReduceKind.MAX else ReduceKind.ALL

    def rule(b: LoopBuilder, x: TensorValue, dim: Any = None, *_: Any, **__: Any) -> TensorValue:
        dims = dims_of(dim, x.ndim)
        _refuse_empty(x, dims)
        chosen = boolean if x.dtype is DType.BOOL else kind
        return reduced(b, chosen, x, dims)

    return rule


def extreme_of_dim(kind: ReduceKind, position: ReduceKind) -> Rule:
    """Return the rule of `max.dim` or `min.dim`: values and indices."""
    boolean = ReduceKind.ANY if kind is ReduceKind.MAX else ReduceKind.ALL

    def rule(b: LoopBuilder, x: TensorValue, dim: int, *_: Any, **__: Any) -> Any:
        dims = dims_of(dim, x.ndim)
        _refuse_empty(x, dims)
        values, indices = b.wanted()
        chosen = boolean if x.dtype is DType.BOOL else kind
        return (
            None if values is None else reduced(b, chosen, x, dims, out=values),
            None if indices is None else _position(b, position, x, dims, indices),
        )

    return rule


def _position(
    b: LoopBuilder, kind: ReduceKind, x: TensorValue, dims: Sequence[int], out: Spec
) -> TensorValue:
    dtype = DType.U8 if x.dtype is DType.BOOL else x.dtype.compute
    return reduced(b, kind, x, dims, dtype=dtype, reduced_dtype=DType.I64, out=out)


def position(kind: ReduceKind) -> Rule:
    """Return the rule of `argmax` or `argmin`."""

    def rule(b: LoopBuilder, x: TensorValue, dim: int | None = None, *_: Any, **__: Any) -> Any:
        dims = dims_of(dim, x.ndim)
        _refuse_empty(x, dims)
        return _position(b, kind, x, dims, b.out)

    return rule


def logical(kind: ReduceKind) -> Rule:
    """Return the rule of `any` or `all`."""

    def rule(b: LoopBuilder, x: TensorValue, dim: Any = None, *_: Any, **__: Any) -> TensorValue:
        empty = isinstance(dim, (list, tuple)) and not dim
        dims = () if empty and b.out.shape == x.shape else dims_of(dim, x.ndim)
        return reduced(b, kind, x, dims, as_bool, dtype=DType.BOOL)

    return rule


def _moments(
    b: LoopBuilder, x: TensorValue, dims: Sequence[int], dtype: DType
) -> tuple[TensorValue, TensorValue]:
    """Return the mean and the sum of squared deviations over `dims`."""
    outer, _ = split(x, dims)
    middle, squares = b.temp(outer, dtype, x), b.temp(outer, dtype, x)
    reduce_into(b, ReduceKind.WELFORD, x, dims, [middle, squares, None], dtype)
    return middle, squares


def _variance(
    b: LoopBuilder,
    x: TensorValue,
    dims: Sequence[int],
    squares: TensorValue,
    correction: Any,
    root: bool,
    out: Spec,
) -> TensorValue:
    n = count(x, dims)
    source = unsqueezed(squares, x.ndim, dims) if len(out.shape) == x.ndim else squares
    less = 1 if correction is None else correction

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        total = ops.get(source, index)
        free = ops.maximum(operand(ops, n, (), total.dtype) - float(less), 0.0)
        return ops.sqrt(total / free) if root else total / free

    return b.pointwise(body, out)


def _exact_mean(
    b: LoopBuilder, x: TensorValue, dims: Sequence[int], running: TensorValue, out: Spec | None
) -> TensorValue:
    """Return the mean over `dims`, given the result of Welford's algorithm; NaN over no elements.

    On the host eager reduces in `f64`, which shows if terms cancel; a sum in `f64` is as accurate.
    An infinite sum is taken from Welford's algorithm, which mostly gives NaN.
    """
    assert out is not None
    n = count(x, dims)
    broadcast = (
        (lambda v: unsqueezed(v, x.ndim, dims)) if len(out.shape) == x.ndim else (lambda v: v)
    )
    source = broadcast(running)
    on_host = out.device.is_host
    total = broadcast(reduce_to_buffer(b, ReduceKind.SUM, x, dims, DType.F64)) if on_host else None

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        value = ops.get(source, index)
        if total is not None:
            exact = ops.get(total, index)
            quotient = exact / operand(ops, n, (), DType.F64)
            return ops.where(ops.isinf(exact), value, quotient)
        if n is not ZERO and type(n) is Const:
            return value
        return ops.where(ops.eq(ops.index(n), 0), float("nan"), value)

    return b.pointwise(body, out)


def variance(root: bool, with_mean: bool) -> Rule:
    """Return the rule of `var`, `std`, `var_mean` or `std_mean`."""

    def rule(
        b: LoopBuilder,
        x: TensorValue,
        dim: Any = None,
        *,
        correction: Any = None,
        keepdim: bool = False,
    ) -> Any:
        dims = dims_of(dim, x.ndim)
        specs = b.outs if with_mean else (b.out,)
        out = specs[0]
        assert out is not None
        # On the host eager reduces in `f64`, in which squares of large numbers do not overflow.
        dtype = DType.F64 if out.device.is_host else out.dtype.compute
        middle, squares = _moments(b, x, dims, dtype)
        first = _variance(b, x, dims, squares, correction, root, out)
        if not with_mean:
            return first
        return first, _exact_mean(b, x, dims, middle, specs[1])

    return rule


def logsumexp(b: LoopBuilder, x: TensorValue, dim: Any, keepdim: bool = False) -> TensorValue:
    """`log(sum(exp(x)))` without overflow."""
    out = b.out
    dims = dims_of(dim, x.ndim)
    outer, _ = split(x, dims)
    dtype = out.dtype.compute
    top, total = b.temp(outer, dtype, x), b.temp(outer, dtype, x)
    reduce_into(b, ReduceKind.ONLINE_SOFTMAX, x, dims, [top, total], dtype)
    if keepdim:
        top, total = unsqueezed(top, x.ndim, dims), unsqueezed(total, x.ndim, dims)

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        m = ops.get(top, index)
        return ops.where(ops.isinf(m), m, m + ops.log(ops.get(total, index)))

    return b.pointwise(body, out)


def vector_norm(
    b: LoopBuilder,
    x: TensorValue,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> TensorValue:
    """The p-norm over `dim`."""
    dims = dims_of(dim, x.ndim)
    kind = b.out.dtype.compute

    def magnitude(ops: Tracer, value: Value) -> Value:
        return ops.abs(ops.cast(value, kind))

    if ord == math.inf:
        return reduced(b, ReduceKind.MAX, x, dims, magnitude)
    if ord == -math.inf:
        return reduced(b, ReduceKind.MIN, x, dims, magnitude)
    if ord == 0:
        return reduced(b, ReduceKind.SUM, x, dims, lambda ops, v: ops.cast(as_bool(ops, v), kind))
    if ord == 1 or all(x.shape[d] is ONE for d in dims):  # a single element cannot overflow
        return reduced(b, ReduceKind.SUM, x, dims, magnitude)
    if ord == 2:
        return reduced(
            b,
            ReduceKind.SUM,
            x,
            dims,
            lambda ops, v: power(ops, ops.cast(v, kind), 2),
            lambda ops, v: ops.sqrt(v),
        )
    return reduced(
        b,
        ReduceKind.SUM,
        x,
        dims,
        lambda ops, v: power(ops, magnitude(ops, v), float(ord)),
        lambda ops, v: ops.pow(v, 1.0 / float(ord)),
    )


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.sum.default", "aten.sum.dim_IntList")(sum_)
    table.rule("aten.mean.default", "aten.mean.dim")(mean)
    table.rule("aten.prod.default", "aten.prod.dim_int")(prod)
    table.rule("aten.amax.default", "aten.max.default")(extreme(ReduceKind.MAX))
    table.rule("aten.amin.default", "aten.min.default")(extreme(ReduceKind.MIN))
    table.rule("aten.max.dim")(extreme_of_dim(ReduceKind.MAX, ReduceKind.ARGMAX))
    table.rule("aten.min.dim")(extreme_of_dim(ReduceKind.MIN, ReduceKind.ARGMIN))
    table.rule("aten.argmax.default")(position(ReduceKind.ARGMAX))
    table.rule("aten.argmin.default")(position(ReduceKind.ARGMIN))
    table.rule("aten.any.default", "aten.any.dim", "aten.any.dims")(logical(ReduceKind.ANY))
    table.rule("aten.all.default", "aten.all.dim", "aten.all.dims")(logical(ReduceKind.ALL))
    table.rule("aten.var.correction")(variance(root=False, with_mean=False))
    table.rule("aten.std.correction")(variance(root=True, with_mean=False))
    table.rule("aten.var_mean.correction")(variance(root=False, with_mean=True))
    table.rule("aten.std_mean.correction")(variance(root=True, with_mean=True))
    table.rule("aten.logsumexp.default")(logsumexp)
    table.rule("aten.linalg_vector_norm.default")(vector_norm)
