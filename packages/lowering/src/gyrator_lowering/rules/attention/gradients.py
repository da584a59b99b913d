"""Gradients of attention: the weights again, from the scores and the logarithms of their sums."""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ONE, ZERO, Expr
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.attention.scores import (
    Attention,
    attention,
    call_of,
    group_of,
    offers,
    rows_of,
    score_of,
    template,
)
from gyrator_lowering.rules.extern import library
from gyrator_lowering.rules.matmul import summed
from gyrator_lowering.table import FallbackToAten, Rule

_INFINITY = float("inf")


@frozen(kw_only=True)
class Given:
    """What the gradients are computed from."""

    a: Attention
    grad: TensorValue
    out: TensorValue
    sums: TensorValue


def backward(read: Callable[..., Given]) -> Rule:
    """Return the rule of an op that gives the gradients of q, k, v, and of the mask if asked."""
    called = library()

    def rule(b: LoopBuilder, *args: Any, **kwargs: Any) -> Any:
        if not b.generates:
            return called(b, *args, **kwargs)
        given = read(*args, **kwargs)
        results = list(b.outs)
        of_mask = results[3:] and results[3] is not None and 3 in b.used_results
        if offers(b, given.a, TemplateKind.ATTENTION_GRADIENTS) and not of_mask:
            return _template(b, given, args, kwargs)
        g = _Gradients.of(b, given)
        makers = (g.of_queries, g.of_keys, g.of_values, g.of_mask)
        wanted = zip(makers, results, strict=False)
        used = b.used_results
        return tuple(
            make(spec) if spec is not None and place in used else None
            for place, (make, spec) in enumerate(wanted)
        )

    return rule


def _template(b: LoopBuilder, given: Given, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    a, fakes = given.a, list(b.node.meta["val"])
    mean = _mean(b, given)
    outs = [b.buffer(b.exact_spec(fake)) for fake in fakes[:3]]
    results = (*(out.buffer for out in outs), *(None for _ in fakes[3:]))
    inputs = (a.q.ref, a.k.ref, a.v.ref, given.grad.ref, given.sums.ref, mean.ref)
    outputs = tuple(out.ref for out in outs)
    kind = TemplateKind.ATTENTION_GRADIENTS
    template(b, a, kind, inputs, outputs, call_of(b, args, kwargs, results))
    return (*outs, *(None for _ in fakes[3:]))


def _mean(b: LoopBuilder, given: Given) -> TensorValue:
    """For each row, the product of the result and its gradient."""
    a, grad, out = given.a, given.grad, given.out

    def pairs(ops: Tracer, index: Index, rindex: Index) -> Value:
        at = (*index, *rindex)
        return ops.cast(ops.load(grad, at), a.dtype) * ops.cast(ops.load(out, at), a.dtype)

    rows = a.q.shape[:3]
    mean = b.temp(rows, a.dtype, a.q)
    b.reduction(ReduceKind.SUM, pairs, rows, out.shape[3:], [mean], a.dtype)
    return mean


@frozen(eq=False)
class _Gradients:
    """The gradients, over the weights and what each score's gradient is."""

    b: LoopBuilder
    given: Given
    score: Callable[[Tracer, Index], Value]
    products: TensorValue
    """Of the result's gradient and the values: the gradients of the weights."""
    mean: TensorValue
    """Of these under the weights, for each row: the product of the result and its gradient."""

    @classmethod
    def of(cls, b: LoopBuilder, given: Given) -> "_Gradients":
        """Compute what all of the gradients need."""
        a, grad = given.a, given.grad
        score = score_of(b, a)

        def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
            batch, head, row, column = index
            value = ops.load(a.v, (batch, group_of(a, head), column, *rindex))
            return ops.load(grad, (batch, head, row, *rindex)), value

        products = b.temp(a.scores, a.dtype, a.q)
        b.reduction(ReduceKind.DOT, terms, a.scores, a.v.shape[3:], [products], a.dtype)
        return cls(b, given, score, products, _mean(b, given))

    def weight(self, ops: Tracer, index: Index) -> Value:
        """Return a weight; rows that look nowhere have none."""
        total = ops.load(self.given.sums, index[:3])
        seen = ops.exp(self.score(ops, index) - total)
        return ops.where(ops.eq(total, -_INFINITY), 0, seen)

    def slope(self, ops: Tracer, index: Index) -> Value:
        """Return the gradient of a score."""
        apart = ops.load(self.products, index) - ops.load(self.mean, index[:3])
        return self.weight(ops, index) * apart

    def of_queries(self, out: Spec) -> TensorValue:
        """The scores' gradients times the keys."""
        a = self.given.a

        def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
            batch, head, row, place = index
            slope = self.slope(ops, (batch, head, row, *rindex))
            key = ops.load(a.k, (batch, group_of(a, head), *rindex, place))
            return ops.cast(slope, a.q.dtype), key

        return summed(self.b, terms, out.shape, a.scores[3:], out, a.dtype, self._scaled)

    def of_keys(self, out: Spec) -> TensorValue:
        """The scores' gradients, turned, times the queries of all heads of the group."""
        a = self.given.a

        def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
            batch, group, column, place = index
            head, row = self._head(group, rindex)
            slope = self.slope(ops, (batch, head, row, column))
            return ops.cast(slope, a.q.dtype), ops.load(a.q, (batch, head, row, place))

        return summed(self.b, terms, out.shape, self._folded, out, a.dtype, self._scaled)

    def of_values(self, out: Spec) -> TensorValue:
        """The weights, turned, times the result's gradients of all heads of the group."""
        a, grad = self.given.a, self.given.grad

        def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
            batch, group, column, place = index
            head, row = self._head(group, rindex)
            weight = self.weight(ops, (batch, head, row, column))
            return ops.cast(weight, a.q.dtype), ops.load(grad, (batch, head, row, place))

        return summed(self.b, terms, out.shape, self._folded, out, a.dtype)

    def of_mask(self, out: Spec) -> TensorValue:
        """The scores' gradients, summed where the mask is the same."""
        a = self.given.a
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
        return total * self.given.a.scale

    @property
    def _folded(self) -> tuple[Expr, ...]:
        a = self.given.a
        ratio = ONE if a.q.shape[1] == a.k.shape[1] else a.heads_a_group
        return (ratio, a.q.shape[2])

    def _head(self, group: Expr, rindex: Index) -> tuple[Expr, Expr]:
        """Return the head and the row of a place among those of a group."""
        number, row = rindex
        return group * self._folded[0] + number, row


def _given(a: Attention, grad: TensorValue, out: TensorValue, sums: TensorValue) -> Given:
    if sums.shape[2] == ZERO or sums.dtype is not a.dtype:
        raise FallbackToAten
    return Given(a=a, grad=grad, out=out, sums=rows_of(sums))


def plain(
    grad: TensorValue, q: TensorValue, k: TensorValue, v: TensorValue, out: TensorValue,
    sums: TensorValue, dropout_p: float, is_causal: bool, *, attn_mask: TensorValue | None = None,
    scale: Any = None,
) -> Given:  # fmt: skip
    """Read the op for CPUs."""
    a = attention(q, k, v, attn_mask, dropout_p, is_causal, scale, False)
    return _given(a, grad, out, sums)


def flash(
    grad: TensorValue, q: TensorValue, k: TensorValue, v: TensorValue, out: TensorValue,
    sums: TensorValue, _first: Any, _second: Any, _rows: Any, _columns: Any, dropout_p: float,
    is_causal: bool, *_: Any, scale: Any = None,
) -> Given:  # fmt: skip
    """Read the op of flash attention."""
    a = attention(q, k, v, None, dropout_p, is_causal, scale, True)
    return _given(a, grad, out, sums)


def efficient(
    grad: TensorValue, q: TensorValue, k: TensorValue, v: TensorValue, bias: TensorValue | None,
    out: TensorValue, sums: TensorValue, _seed: Any, _offset: Any, dropout_p: float, _wanted: Any,
    is_causal: bool = False, *, scale: Any = None,
) -> Given:  # fmt: skip
    """Read the op of memory-efficient attention."""
    a = attention(q, k, v, bias, dropout_p, is_causal, scale, False)
    return _given(a, grad, out, sums)


def cudnn(
    grad: TensorValue, q: TensorValue, k: TensorValue, v: TensorValue, out: TensorValue,
    sums: TensorValue, _seed: Any, _offset: Any, bias: TensorValue | None, _first: Any,
    _second: Any, _rows: Any, _columns: Any, dropout_p: float, is_causal: bool, *,
    scale: Any = None,
) -> Given:  # fmt: skip
    """Read cuDNN's op."""
    a = attention(q, k, v, bias, dropout_p, is_causal, scale, True)
    return _given(a, grad, out, sums)


def overrideable(
    grad: TensorValue, q: TensorValue, k: TensorValue, v: TensorValue, bias: TensorValue | None,
    _wanted: Any, out: TensorValue, sums: TensorValue, _first: Any, _second: Any, _rows: Any,
    _columns: Any, dropout_p: float, is_causal: bool, *_: Any, scale: Any = None,
) -> Given:  # fmt: skip
    """Read the op that devices bring themselves."""
    a = attention(q, k, v, bias, dropout_p, is_causal, scale, False)
    return _given(a, grad, out, sums)
