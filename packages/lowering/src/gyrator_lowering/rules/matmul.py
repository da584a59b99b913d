"""Dense matrix products: library calls, or sums of products if kernels are requested."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import Expr
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder, ReductionBody, each
from gyrator_lowering.builder.promote import Arg, operand
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.extern import library
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder

After = Callable[[Tracer, Index, Value], Value]
"""The epilogue that is applied to a sum before it is rounded."""


def accumulator_dtype(dtype: DType) -> DType:
    """Return the dtype in which products of `dtype` are accumulated, as in libraries."""
    if dtype.is_float:
        return dtype.compute
    return DType.I32 if dtype.size < 4 else dtype


def library_or_loops(loops: Rule, out: str | None = None) -> Rule:
    """Return the rule of a dense op: `loops` if kernels are requested, otherwise a library call."""
    called = library(out)

    def rule(b: LoopBuilder, *args: Any, **kwargs: Any) -> Any:
        return (loops if b.generates else called)(b, *args, **kwargs)

    return rule


def _of_one_type(loops: Rule) -> Rule:
    """Return a rule that leaves operands of several dtypes to ATen, which refuses them."""

    def rule(b: LoopBuilder, *args: Any, **kwargs: Any) -> Any:
        if len({a.dtype for a in each((args, kwargs)) if isinstance(a, TensorValue)}) > 1:
            raise FallbackToAten
        return loops(b, *args, **kwargs)

    return rule


def sum_of_products(
    b: LoopBuilder,
    terms: ReductionBody,
    shape: Sequence[Expr],
    inner: Sequence[Expr],
    out: Spec,
    dtype: DType,
    after: After | None = None,
    split: Callable[[TensorValue], TensorValue] | None = None,
) -> TensorValue:
    """Accumulate the products of the pairs from `terms` in `dtype`, apply `after`, and round to
    `out`.

    `split` returns the view with dimensions `shape` of a buffer with the spec `out`.
    """
    wide = b.buffer(Spec(dtype, out.device, out.shape, out.strides))
    into = wide if split is None else split(wide)
    b.reduction(ReduceKind.DOT, terms, shape, inner, [into], dtype)
    if after is None and out.dtype is dtype:
        return wide

    def finish(ops: Tracer, index: Index) -> Value:
        total = ops.load(wide, index)
        return total if after is None else after(ops, index, total)

    return b.pointwise(finish, out)


def accumulated(
    b: LoopBuilder, terms: ReductionBody, inner: Sequence[Expr], after: After | None = None
) -> TensorValue:
    """Return the node's result: the sums of the products of `terms` over `inner`."""
    out = b.out
    return sum_of_products(b, terms, out.shape, inner, out, accumulator_dtype(out.dtype), after)


def product(
    b: LoopBuilder, x: TensorValue, y: TensorValue, after: After | None = None
) -> TensorValue:
    """`x @ y` of tensors with two or more dimensions; those before the last two are broadcast."""

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        *lead, row, column = index
        return ops.get(x, (*lead, row, *rindex)), ops.get(y, (*lead, *rindex, column))

    return accumulated(b, terms, x.shape[-1:], after)


def panel_mm(b: LoopBuilder, x: TensorValue, panels: TensorValue) -> TensorValue:
    """`gyrator::panel_mm`: see `gyrator_lowering.torch_bridge.kernel_ops`."""
    width = panels.shape[2]

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        row, column = index
        right = (column // width, *rindex, column % width)
        return ops.load(x, (row, *rindex)), ops.load(panels, right)

    return accumulated(b, terms, x.shape[-1:])


def with_addend(tensor: TensorValue, beta: Arg, alpha: Arg) -> After:
    """Return `total -> beta * tensor + alpha * total`; with `beta` 0 the tensor is not read."""

    def after(ops: Tracer, index: Index, total: Value) -> Value:
        dtype = total.dtype
        if not _is(alpha, 1):
            total = total * operand(ops, alpha, index, dtype)
        if _is(beta, 0):
            return total
        more = operand(ops, tensor, index, dtype)
        if not _is(beta, 1):
            more = more * operand(ops, beta, index, dtype)
        return more + total

    return after


def _is(scalar: Arg, number: int) -> bool:
    return isinstance(scalar, int | float) and scalar == number


def _plus_addend(total: Callable[..., TensorValue]) -> Rule:
    """Return the rule of `beta * tensor + alpha * total(x, y)`."""

    def rule(
        b: LoopBuilder, tensor: TensorValue, x: Any, y: Any, *, beta: Arg = 1, alpha: Arg = 1
    ) -> TensorValue:
        return total(b, x, y, with_addend(tensor, beta, alpha))

    return rule


def addmm_activation(
    b: LoopBuilder, *args: TensorValue, use_gelu: bool = False, **factors: Arg
) -> TensorValue:
    """`relu(addmm(...))`."""
    if use_gelu:
        raise FallbackToAten
    return _plus_addend(_rectified)(b, *args, **factors)  # type: ignore[no-any-return]


def _rectified(b: LoopBuilder, x: TensorValue, y: TensorValue, before: After) -> TensorValue:
    def after(ops: Tracer, index: Index, total: Value) -> Value:
        return ops.maximum(before(ops, index, total), 0)

    return product(b, x, y, after)


def times_vector(
    b: LoopBuilder, x: TensorValue, y: TensorValue, after: After | None = None
) -> TensorValue:
    """The sums of products of a vector's elements with those of each row of a matrix, or with those
    of another vector."""

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        return ops.load(x, (*index, *rindex)), ops.load(y, rindex)

    return accumulated(b, terms, y.shape, after)


def linear(
    b: LoopBuilder, x: TensorValue, weight: TensorValue, bias: TensorValue | None = None
) -> TensorValue:
    """`x @ weight.T + bias`; a vector `x` or `weight` is treated as a single row."""

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        rows = index[: x.ndim - 1]
        return ops.load(x, (*rows, *rindex)), ops.load(weight, (*index[x.ndim - 1 :], *rindex))

    after = None if bias is None else with_addend(bias, 1, 1)
    return accumulated(b, terms, x.shape[-1:], after)


def onednn_linear(
    b: LoopBuilder,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    attr: str,
    scalars: Sequence[Arg],
    algorithm: str,
) -> Any:
    """oneDNN's call for `x @ weight.T + bias`; with fused ops or a packed weight it stays one."""
    packed = any(n.meta["val"].layout is not torch.strided for n in b.node.all_input_nodes)
    if attr != "none" or packed:
        return library()(b, x, weight, bias, attr, scalars, algorithm)
    return linear(b, x, weight, bias)


def _sum_of_batch(b: LoopBuilder, x: TensorValue, y: TensorValue, after: After) -> TensorValue:
    """`sum(x[k] @ y[k])`."""

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        (row, column), (batch, k) = index, rindex
        return ops.load(x, (batch, row, k)), ops.load(y, (batch, k, column))

    return accumulated(b, terms, (x.shape[0], x.shape[2]), after)


_ADDMM = _plus_addend(product)
_LIBRARY_OUT: Mapping[str, Rule] = MappingProxyType(
    {"mm": product, "bmm": product, "addmm": _ADDMM, "baddbmm": _ADDMM}
)
_LIBRARY: Mapping[str, Rule] = MappingProxyType(
    {
        "mv": times_vector,
        "dot": times_vector,
        "vdot": times_vector,
        "addmv": _plus_addend(times_vector),
        "_int_mm": product,
        "addbmm": _plus_addend(_sum_of_batch),
        "_addmm_activation": addmm_activation,
    }
)
_ONEDNN_LINEAR = "mkldnn._linear_pointwise.default"
PRODUCTS = (*(f"aten.{op}.default" for op in (*_LIBRARY_OUT, *_LIBRARY)), _ONEDNN_LINEAR)
"""The ops of this family that kernels compute if requested."""

_PACKED = (
    "mkl._mkl_linear.default",
    "mkldnn._convolution_pointwise.default",
    "mkldnn._convolution_pointwise.binary",
    "mkldnn._convolution_transpose_pointwise.default",
    "onednn.qlinear_pointwise.default",
    "onednn.qlinear_pointwise.tensor",
    "onednn.qconv_pointwise.default",
    "onednn.qconv_pointwise.tensor",
)
"""Calls that take weights in their library's packed layout."""


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for op, loops in _LIBRARY_OUT.items():
        table.rule(f"aten.{op}.default")(library_or_loops(_of_one_type(loops), f"aten.{op}.out"))
    for op, loops in _LIBRARY.items():
        table.rule(f"aten.{op}.default")(library_or_loops(_of_one_type(loops)))
    table.rule(_ONEDNN_LINEAR)(library_or_loops(onednn_linear))
    table.rule("gyrator.panel_mm.default")(panel_mm)
    table.rule("aten.linear_backward.default", *_PACKED)(library())
