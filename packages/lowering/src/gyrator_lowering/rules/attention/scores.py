"""Attention scores: the arguments of eager's ops, and loops that compute the scores."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Const, Expr
from gyrator_ir.loop.nodes import Extern, Literal, Template, TemplateKind, TensorRef
from gyrator_ir.loop.templates import template_error
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import At, Index, ScalarValue, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.table import FallbackToAten

_INFINITY = float("inf")


@frozen(kw_only=True)
class Attention:
    """`softmax(scale * q k^T + mask) v`, as `TemplateKind.ATTENTION` describes it."""

    q: TensorValue
    k: TensorValue
    v: TensorValue
    mask: TensorValue | None
    scale: float | ScalarValue
    """A symbolic scalar only if the head size is symbolic."""
    causal: bool

    @property
    def heads_a_group(self) -> Expr:
        """The number of query heads that share one key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def scores(self) -> tuple[Expr, ...]:
        """The shape of the scores."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def dtype(self) -> DType:
        """The dtype of all computations."""
        return self.q.dtype.compute

    def expanded_mask(self) -> TensorRef | None:
        """Return the mask expanded to the shape of the scores."""
        if self.mask is None:
            return None
        lead = 4 - self.mask.ndim
        shape = (ONE,) * lead + self.mask.shape
        strides = (ZERO,) * lead + self.mask.strides
        steps = tuple(
            s if n == size else ZERO for n, s, size in zip(shape, strides, self.scores, strict=True)
        )
        return TensorRef(self.mask.buffer, self.mask.dtype, self.scores, steps, self.mask.offset)


def attention(arguments: Mapping[str, Any], last_row_sees_all: bool) -> Attention:
    """Return what an op computes, given its arguments by the names that all of eager's attention
    ops share. With `last_row_sees_all`, eager aligns causal masks at the last row.

    Raises:
        FallbackToAten: for dropout, for head sizes of 0, and for tensors that are not
            four-dimensional or whose shapes do not match.
    """
    q, k, v = (arguments[name] for name in ("query", "key", "value"))
    mask = arguments.get("attn_mask", arguments.get("attn_bias"))
    causal, scale = arguments.get("is_causal", False), arguments.get("scale")
    length = q.shape[-1]
    if arguments.get("dropout_p") or q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise FallbackToAten
    if length is ZERO or not (scale is None or type(scale) is float):
        raise FallbackToAten
    if causal and last_row_sees_all and q.shape[2] != k.shape[2]:
        raise FallbackToAten
    heads, groups = q.shape[1], k.shape[1]
    if heads != groups and not _divides(groups, heads):
        raise FallbackToAten
    number = _default_scale(length) if scale is None else scale
    result = Attention(q=q, k=k, v=v, mask=mask, scale=number, causal=causal)
    inputs = [t.ref for t in (q, k, v)]
    out = TensorRef("out", q.dtype, (*q.shape[:3], v.shape[3]), q.strides, ZERO)
    if template_error(
        TemplateKind.ATTENTION, inputs, (out,), attributes(evolve(result, scale=1.0))
    ):
        raise FallbackToAten
    if mask is not None:
        if mask.ndim > 4 or not (mask.dtype is DType.BOOL or mask.dtype.is_float):
            raise FallbackToAten
        for size, score_size in zip(mask.shape, result.scores[4 - mask.ndim :], strict=True):
            if size not in (ONE, score_size):
                raise FallbackToAten
    return result


def _default_scale(length: Expr) -> float | ScalarValue:
    """Return one over the square root of the head size."""
    if isinstance(length, Const):
        return float(length.value**-0.5)

    def trace(ops: Tracer) -> Value:
        return 1.0 / ops.sqrt(ops.cast(ops.index(length), DType.F64))

    return ScalarValue(DType.F64, trace)


def _divides(groups: Expr, heads: Expr) -> bool:
    if not isinstance(groups, Const) or not isinstance(heads, Const) or not groups.value:
        return False
    return heads.value % groups.value == 0


def attributes(a: Attention) -> tuple[tuple[str, Literal], ...]:
    """Return the attributes of a template, whose scale is constant."""
    assert isinstance(a.scale, float)
    return (("scale", Literal(a.scale)), ("causal", Literal(a.causal)))


def rows_of(sums: TensorValue) -> TensorValue:
    """Return the sums with three dimensions."""
    return evolve(sums, shape=sums.shape[:3], strides=sums.strides[:3])


def finite(ops: Tracer, top: TensorValue, index: Index) -> Value:
    """Return the largest score, or 0 for a row that attends to nothing."""
    value = ops.load(top, index)
    return ops.where(ops.eq(value, -_INFINITY), 0, value)


def group_of(a: Attention, head: Expr) -> Expr:
    """Return the key head that a query head attends to."""
    ratio = ONE if a.q.shape[1] == a.k.shape[1] else a.heads_a_group
    return head if ratio is ONE else head // ratio


def score_of(b: LoopBuilder, a: Attention) -> At:
    """Compute the products of queries and keys; return a function for the scores, with masking."""
    dtype = a.dtype

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        batch, head, row, column = index
        key = ops.load(a.k, (batch, group_of(a, head), column, *rindex))
        return ops.load(a.q, (batch, head, row, *rindex)), key

    products = b.temp(a.scores, dtype, a.q)
    b.reduction(ReduceKind.DOT, terms, a.scores, a.q.shape[3:], [products], dtype)

    def score(ops: Tracer, index: Index) -> Value:
        value = ops.load(products, index) * a.scale
        visible = []
        if a.mask is not None:
            mask = ops.get(a.mask, index)
            if mask.dtype is DType.BOOL:
                visible.append(mask)
            else:
                value = value + ops.cast(mask, dtype)
        if a.causal:
            visible.append(ops.index(index[2]) >= ops.index(index[3]))
        for condition in visible:
            value = ops.where(condition, value, -_INFINITY)
        return value

    return score


def offers(b: LoopBuilder, a: Attention, kind: TemplateKind) -> bool:
    """Return whether the kernels of the device have a template."""
    if isinstance(a.scale, ScalarValue):
        return False
    target = b.targets.get(a.q.device.type)
    return target is not None and kind.value in target.capabilities.templates


def template(
    b: LoopBuilder,
    a: Attention,
    kind: TemplateKind,
    inputs: tuple[TensorRef, ...],
    outputs: tuple[TensorRef, ...],
    call: Extern,
) -> None:
    """Emit a template of these tensors and the mask.

    Raises:
        FallbackToAten: if the template does not support them.
    """
    mask = a.expanded_mask()
    inputs = (*inputs, *(() if mask is None else (mask,)))
    if template_error(kind, inputs, outputs, attributes(a)):
        raise FallbackToAten
    operation = Template(call.name, kind, inputs, outputs, attributes(a), call, b.origin)
    b.operations.append(operation)
