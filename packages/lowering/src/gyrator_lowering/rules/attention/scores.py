"""Scores of attention: what eager's ops say of them, and how loops compute them."""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve, frozen

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.expr import ONE, ZERO, Const, Expr
from gyrator_ir.loop.nodes import Extern, Literal, Template, TemplateKind, TensorRef
from gyrator_ir.loop.templates import wrong_with
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, ScalarValue, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.extern import LIBRARY, argument
from gyrator_lowering.table import FallbackToAten
from gyrator_lowering.torch_bridge.schema import info_of

_INFINITY = float("inf")


@frozen(kw_only=True)
class Attention:
    """`softmax(scale * q k^T + mask) v`, as `TemplateKind.ATTENTION` describes it."""

    q: TensorValue
    k: TensorValue
    v: TensorValue
    mask: TensorValue | None
    scale: float | ScalarValue
    """Known at run time only where the length of vectors is."""
    causal: bool

    @property
    def heads_a_group(self) -> Expr:
        """How many heads of queries look at one head of keys."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def scores(self) -> tuple[Expr, ...]:
        """The shape of the scores."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def dtype(self) -> DType:
        """The type that all is computed in."""
        return self.q.dtype.compute

    def spread(self) -> TensorRef | None:
        """Return the mask in the shape of the scores."""
        if self.mask is None:
            return None
        lead = 4 - self.mask.ndim
        shape = (ONE,) * lead + self.mask.shape
        strides = (ZERO,) * lead + self.mask.strides
        steps = tuple(
            s if n == size else ZERO for n, s, size in zip(shape, strides, self.scores, strict=True)
        )
        return TensorRef(self.mask.buffer, self.mask.dtype, self.scores, steps, self.mask.offset)


def attention(
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    mask: TensorValue | None,
    dropout: float,
    causal: bool,
    scale: Any,
    last_row_sees_all: bool,
) -> Attention:
    """Return what an op's arguments say; `last_row_sees_all` where eager counts causal rows from
    the last one.

    Raises:
        FallbackToAten: for dropout, for vectors without elements, and for tensors that do not have
            four dimensions, or do not agree.
    """
    length = q.shape[-1]
    if dropout or q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise FallbackToAten
    if length is ZERO or not (scale is None or type(scale) is float):
        raise FallbackToAten
    if causal and last_row_sees_all and q.shape[2] != k.shape[2]:
        raise FallbackToAten
    heads, groups = q.shape[1], k.shape[1]
    if heads != groups and not _divides(groups, heads):
        raise FallbackToAten
    if mask is not None and (
        mask.ndim > 4 or not (mask.dtype is DType.BOOL or mask.dtype.is_float)
    ):
        raise FallbackToAten
    number = _usual_scale(length) if scale is None else scale
    found = Attention(q=q, k=k, v=v, mask=mask, scale=number, causal=causal)
    inputs = [t.ref for t in (q, k, v)]
    out = TensorRef("out", q.dtype, (*q.shape[:3], v.shape[3]), q.strides, ZERO)
    if wrong_with(TemplateKind.ATTENTION, inputs, (out,), attributes(evolve(found, scale=1.0))):
        raise FallbackToAten
    if mask is not None:
        if mask.ndim > 4 or not (mask.dtype is DType.BOOL or mask.dtype.is_float):
            raise FallbackToAten
        for size, wanted in zip(mask.shape, found.scores[4 - mask.ndim :], strict=True):
            if size not in (ONE, wanted):
                raise FallbackToAten
    return found


def _usual_scale(length: Expr) -> float | ScalarValue:
    """Return one over the root of the length of vectors."""
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
    """Return the attributes of a template, whose scale is a constant."""
    assert isinstance(a.scale, float)
    return (("scale", Literal(a.scale)), ("causal", Literal(a.causal)))


def rows_of(sums: TensorValue) -> TensorValue:
    """Return the sums with three dimensions."""
    return evolve(sums, shape=sums.shape[:3], strides=sums.strides[:3])


def finite(ops: Tracer, top: TensorValue, index: Index) -> Value:
    """Return the largest score, or 0 for a row that looks nowhere."""
    value = ops.load(top, index)
    return ops.where(ops.eq(value, -_INFINITY), 0, value)


def group_of(a: Attention, head: Expr) -> Expr:
    """Return the head of keys that a head of queries looks at."""
    ratio = ONE if a.q.shape[1] == a.k.shape[1] else a.heads_a_group
    return head if ratio is ONE else head // ratio


def score_of(b: LoopBuilder, a: Attention) -> Callable[[Tracer, Index], Value]:
    """Sum the products of queries and keys; return what a score is, minus infinity out of sight."""
    dtype = a.dtype

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        batch, head, row, column = index
        key = ops.load(a.k, (batch, group_of(a, head), column, *rindex))
        return ops.load(a.q, (batch, head, row, *rindex)), key

    products = b.temp(a.scores, dtype, a.q)
    b.reduction(ReduceKind.DOT, terms, a.scores, a.q.shape[3:], [products], dtype)

    def score(ops: Tracer, index: Index) -> Value:
        value = ops.load(products, index) * a.scale
        seen = []
        if a.mask is not None:
            mask = ops.get(a.mask, index)
            if mask.dtype is DType.BOOL:
                seen.append(mask)
            else:
                value = value + ops.cast(mask, dtype)
        if a.causal:
            seen.append(ops.index(index[2]) >= ops.index(index[3]))
        for condition in seen:
            value = ops.where(condition, value, -_INFINITY)
        return value

    return score


def offers(b: LoopBuilder, a: Attention, kind: TemplateKind) -> bool:
    """Whether the kernels of the attention's device have a template."""
    if isinstance(a.scale, ScalarValue):
        return False
    target = b.targets.get(a.q.device.type)
    return target is not None and kind.value in target.capabilities.templates


def call_of(
    b: LoopBuilder, args: Sequence[Any], kwargs: dict[str, Any], results: tuple[str | None, ...]
) -> Extern:
    """Return the current node as a call of the library that gives these buffers."""
    info = info_of(b.node.target)
    return Extern(
        b.op_name(),
        info.name,
        tuple(argument(b, x) for x in args),
        tuple((key, argument(b, x)) for key, x in kwargs.items()),
        results,
        reason=LIBRARY,
        origins=b.origin,
        uncaptured=info.uncaptured,
    )


def template(
    b: LoopBuilder,
    a: Attention,
    kind: TemplateKind,
    inputs: tuple[TensorRef, ...],
    outputs: tuple[TensorRef, ...],
    call: Extern,
) -> None:
    """Emit a template of these tensors, and of the mask.

    Raises:
        FallbackToAten: where they are not as the template's kind says.
    """
    mask = a.spread()
    inputs = (*inputs, *(() if mask is None else (mask,)))
    if wrong_with(kind, inputs, outputs, attributes(a)):
        raise FallbackToAten
    made = Template(call.name, kind, inputs, outputs, attributes(a), call, b.origin)
    b.operations.append(made)
