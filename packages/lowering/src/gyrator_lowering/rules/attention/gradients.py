"""Gradients of attention, which recompute the weights from the scores and the saved logarithms of
their sums."""

from collections.abc import Sequence
from typing import Any

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Expr
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import At, Index, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.attention.scores import (
    Attention,
    attention,
    group_of,
    offers,
    rows_of,
    score_of,
    template,
)
from gyrator_lowering.rules.extern import by_name, call_of, library
from gyrator_lowering.rules.matmul import After, sum_of_products
from gyrator_lowering.rules.reduction import reduce_at
from gyrator_lowering.table import FallbackToAten, Rule

_INFINITY = float("inf")


@frozen(kw_only=True)
class Saved:
    """The values that the gradients are computed from."""

    a: Attention
    grad: TensorValue
    out: TensorValue
    sums: TensorValue


def backward(last_row_sees_all: bool) -> Rule:
    """Return the rule of an op that returns the gradients of q, k, v, and of the mask if
    requested; see `attention`."""
    called = library()

    def rule(b: LoopBuilder, *args: Any, **kwargs: Any) -> Any:
        if not b.generates:
            return called(b, *args, **kwargs)
        arguments = by_name(b, args, kwargs)
        a, sums = attention(arguments, last_row_sees_all), arguments["logsumexp"]
        if sums.shape[2] == ZERO or sums.dtype is not a.dtype:
            raise FallbackToAten
        saved = Saved(a=a, grad=args[0], out=arguments["out"], sums=rows_of(sums))
        outs = b.wanted()
        needs_mask_gradient = any(out is not None for out in outs[3:])
        if offers(b, saved.a, TemplateKind.ATTENTION_GRADIENTS) and not needs_mask_gradient:
            return _template(b, saved, args, kwargs)
        g = _Gradients.of(b, saved)
        makers = (g.of_queries, g.of_keys, g.of_values, g.of_mask)
        gradients = zip(makers, outs, strict=False)
        return tuple(None if out is None else make(out) for make, out in gradients)

    return rule


def _template(b: LoopBuilder, saved: Saved, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    a, fakes = saved.a, list(b.node.meta["val"])
    mean = row_products(b, saved.grad, saved.out, a.dtype)
    outs = [b.buffer(b.exact_spec(fake)) for fake in fakes[:3]]
    results = (*(out.buffer for out in outs), *(None for _ in fakes[3:]))
    inputs = (a.q.ref, a.k.ref, a.v.ref, saved.grad.ref, saved.sums.ref, mean.ref)
    outputs = tuple(out.ref for out in outs)
    kind = TemplateKind.ATTENTION_GRADIENTS
    template(b, a, kind, inputs, outputs, call_of(b, args, kwargs, results))
    return (*outs, *(None for _ in fakes[3:]))


def row_products(b: LoopBuilder, x: TensorValue, y: TensorValue, dtype: DType) -> TensorValue:
    """Return the dot product of each row of two tensors with four dimensions."""
    rows = b.temp(x.shape[:3], dtype, x)

    def term(ops: Tracer, index: Index) -> Value:
        return ops.cast(ops.load(x, index), dtype) * ops.cast(ops.load(y, index), dtype)

    reduce_at(b, ReduceKind.SUM, x, (3,), [rows], dtype, term)
    return rows


@frozen(eq=False)
class _Gradients:
    """The gradients, computed from the weights and the gradients of the scores."""

    b: LoopBuilder
    saved: Saved
    score: At
    products: TensorValue
    """Products of the result's gradient and the values: the gradients of the weights."""
    mean: TensorValue
    """Their mean under the weights, for each row: the product of the result and its gradient."""

    @classmethod
    def of(cls, b: LoopBuilder, saved: Saved) -> "_Gradients":
        """Compute the values that all gradients need."""
        a, grad = saved.a, saved.grad
        score = score_of(b, a)

        def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
            batch, head, row, column = index
            value = ops.load(a.v, (batch, group_of(a, head), column, *rindex))
            return ops.load(grad, (batch, head, row, *rindex)), value

        products = b.temp(a.scores, a.dtype, a.q)
        b.reduction(ReduceKind.DOT, terms, a.scores, a.v.shape[3:], [products], a.dtype)
        return cls(b, saved, score, products, row_products(b, grad, saved.out, a.dtype))

    def weight(self, ops: Tracer, index: Index) -> Value:
        """Return a weight; it is 0 in rows that attend to nothing."""
        total = ops.load(self.saved.sums, index[:3])
        weight = ops.exp(self.score(ops, index) - total)
        return ops.where(ops.eq(total, -_INFINITY), 0, weight)

    def slope(self, ops: Tracer, index: Index) -> Value:
        """Return the gradient of a score."""
        deviation = ops.load(self.products, index) - ops.load(self.mean, index[:3])
        return self.weight(ops, index) * deviation

    def of_queries(self, out: Spec) -> TensorValue:
        """The gradients of the scores times the keys."""
        a = self.saved.a

        def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
            batch, head, row, element = index
            slope = self.slope(ops, (batch, head, row, *rindex))
            key = ops.load(a.k, (batch, group_of(a, head), *rindex, element))
            return ops.cast(slope, a.q.dtype), key

        return sum_of_products(self.b, terms, out.shape, a.scores[3:], out, a.dtype, self._scaled)

    def of_keys(self, out: Spec) -> TensorValue:
        """The transposed gradients of the scores times the queries of all heads of the group."""
        return self._over_group(self.slope, self.saved.a.q, out, self._scaled)

    def of_values(self, out: Spec) -> TensorValue:
        """The transposed weights times the result's gradients of all heads of the group."""
        return self._over_group(self.weight, self.saved.grad, out)

    def _over_group(
        self, factor: At, rows: TensorValue, out: Spec, after: After | None = None
    ) -> TensorValue:
        """Return the transposed factors of the scores times rows of all heads of the group."""
        a = self.saved.a

        def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
            batch, group, column, element = index
            head, row = self._head(group, rindex)
            value = factor(ops, (batch, head, row, column))
            return ops.cast(value, a.q.dtype), ops.load(rows, (batch, head, row, element))

        return sum_of_products(self.b, terms, out.shape, self._reduced_shape, out, a.dtype, after)

    def of_mask(self, out: Spec) -> TensorValue:
        """The gradients of the scores, reduced over the axes along which the mask is broadcast."""
        a = self.saved.a
        lead = 4 - len(out.shape)
        shape = (ONE,) * lead + out.shape
        same = [d for d in range(4) if shape[d] is ONE]

        def slopes(ops: Tracer, index: Index, rindex: Index) -> Value:
            at = [ZERO] * lead + list(index)
            for d, i in zip(same, rindex, strict=True):
                at[d] = i
            return self.slope(ops, at)

        inner = [a.scores[d] for d in same]
        if not inner:
            return self.b.pointwise(lambda ops, i: ops.cast(self.slope(ops, i), out.dtype), out)
        wide = self.b.temp(out.shape, a.dtype, a.q)
        self.b.reduction(ReduceKind.SUM, slopes, out.shape, inner, [wide], a.dtype)
        return self.b.copy(wide, out)

    def _scaled(self, ops: Tracer, index: Index, total: Value) -> Value:
        return total * self.saved.a.scale

    @property
    def _reduced_shape(self) -> tuple[Expr, ...]:
        a = self.saved.a
        ratio = ONE if a.q.shape[1] == a.k.shape[1] else a.heads_a_group
        return (ratio, a.q.shape[2])

    def _head(self, group: Expr, rindex: Index) -> tuple[Expr, Expr]:
        """Return the head and the row of an index into the rows of a group."""
        number, row = rindex
        return group * self._reduced_shape[0] + number, row
