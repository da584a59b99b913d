"""Flexible attention as a template: its graphs become formulas, its block mask what is walked."""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve, frozen
from torch.fx import GraphModule

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import ONE, ZERO, Const, eq
from gyrator_ir.loop.formulas import PLACES
from gyrator_ir.loop.nodes import (
    AssertCond,
    Literal,
    LoopProgram,
    Template,
    TemplateKind,
    TensorRef,
)
from gyrator_ir.loop.templates import wrong_with
from gyrator_ir.types import DType
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.formulas import NoFormulaError, Surroundings, formula
from gyrator_lowering.steps import Lower
from gyrator_lowering.torch_bridge.facts import facts_of

NAMES = frozenset({"flex_attention", "flex_attention_backward"})
"""The higher-order ops."""

_LONGEST_VECTOR = 256
_FLOATS = (DType.F32, DType.F16, DType.BF16)
_STEP = 16
"""Lengths of blocks are multiples of so many places."""
_LOG2E = 1.4426950408889634


@frozen(kw_only=True)
class _Blocks:
    """What a block mask says."""

    row_block: int
    column_block: int
    by_rows: tuple[TensorValue, ...]
    """How many blocks of columns each block of rows looks at, and which; the same of whole ones."""
    by_columns: tuple[TensorValue | None, ...]
    """The same, turned."""
    mask: GraphModule

    @classmethod
    def of(cls, given: Sequence[Any]) -> "_Blocks":
        """Read the tuple that the ops take."""
        counts, places, full_counts, full_places = given[2:6]
        full = () if full_counts is None else (full_counts, full_places)
        turned = given[6:10] if full else given[6:8]
        return cls(
            row_block=given[-3],
            column_block=given[-2],
            by_rows=(counts, places, *full),
            by_columns=tuple(turned),
            mask=given[-1],
        )


def lower_call(b: LoopBuilder, lower: Lower, args: Sequence[Any]) -> Any:
    """Emit the template that a call of one of the ops is.

    Raises:
        UnsupportedError: GY-LOWER-052, for a call that no template is.
    """
    backward = b.node.target.__name__ == "flex_attention_backward"  # type: ignore[union-attr]
    kind = TemplateKind.FLEX_ATTENTION_GRADIENTS if backward else TemplateKind.FLEX_ATTENTION

    def lowered(gm: GraphModule) -> LoopProgram:
        return lower(gm, "formula", "", None)

    try:
        return (_backward if backward else _forward)(b, lowered, args, kind)
    except (NoFormulaError, UnsupportedError) as error:
        said = f"flexible attention has no template here: {error}"
        raise b.unsupported("GY-LOWER-052", said, help=BY_PYTORCH) from error


def _as_many(b: LoopBuilder, k: TensorValue, v: TensorValue) -> TensorValue:
    """Return the values, as many as there are keys: eager raises where they are not."""
    if v.shape[2] is k.shape[2]:
        return v
    said = "there must be as many values as keys"
    b.operations.append(AssertCond(b.op_name(), eq(k.shape[2], v.shape[2]), said, b.origin))
    return evolve(v, shape=(*v.shape[:2], k.shape[2], v.shape[3]))


def _check(q: TensorValue, k: TensorValue, v: TensorValue, blocks: _Blocks) -> None:
    """Raise NoFormulaError for what no template's kernel holds."""
    if q.dtype not in _FLOATS or {k.dtype, v.dtype} != {q.dtype}:
        raise NoFormulaError(f"attention of {q.dtype.value}")
    lengths = (q.shape[3], v.shape[3])
    if not all(isinstance(n, Const) and 0 < n.value <= _LONGEST_VECTOR for n in lengths):
        raise NoFormulaError(f"vectors of {lengths[0]} and {lengths[1]} numbers")
    heads, groups = q.shape[1], k.shape[1]
    if not isinstance(heads, Const) or not isinstance(groups, Const):
        raise NoFormulaError("the number of heads is not constant")
    if not groups.value or heads.value % groups.value or not heads.value:
        raise NoFormulaError(f"{heads} heads look at {groups}")
    sizes = (blocks.row_block, blocks.column_block)
    if not all(isinstance(n, int) for n in sizes):
        raise NoFormulaError("the lengths of blocks are not constant")
    if any(n % _STEP for n in sizes):
        raise NoFormulaError(f"blocks are no multiples of {_STEP} places")
    tensors = (q, k, v, *blocks.by_rows)
    if any(t.device != q.device for t in tensors):
        raise NoFormulaError("tensors are on several devices")


def _offered(b: LoopBuilder, q: TensorValue, kind: TemplateKind) -> None:
    target = b.targets.get(q.device.type)
    if target is None or kind.value not in target.capabilities.templates:
        raise NoFormulaError(f"kernels for {q.device.type} have no template of {kind.value}")


def _spread(t: TensorValue | None, q: TensorValue) -> TensorRef:
    """Return a tensor of block numbers for all batches and heads."""
    if not isinstance(t, TensorValue):
        raise NoFormulaError("the block mask is not complete")
    wanted = q.shape[:2]
    for size, whole in zip(t.shape, wanted, strict=False):
        if size not in (ONE, whole):
            raise NoFormulaError(f"a block mask for {size} of {whole} batches or heads")
    steps = tuple(ZERO if n is ONE else s for n, s in zip(t.shape[:2], t.strides, strict=False))
    return evolve(t.ref, shape=(*wanted, *t.shape[2:]), strides=(*steps, *t.strides[2:]))


def _attributes(scale: float, blocks: _Blocks) -> tuple[tuple[str, Literal], ...]:
    return (
        ("scale", Literal(float(scale))),
        ("row_block", Literal(blocks.row_block)),
        ("column_block", Literal(blocks.column_block)),
        ("full", Literal(len(blocks.by_rows) > 2)),
    )


def _around(
    b: LoopBuilder, lower: Callable[[GraphModule], LoopProgram], q: TensorValue, k: TensorValue
) -> Surroundings:
    extents = dict(zip(PLACES, (*q.shape[:3], k.shape[2]), strict=True))
    return Surroundings(lower=lower, facts=facts_of(b.symbols), extents=extents)


def _captured(more: Sequence[Any], q: TensorValue) -> list[TensorRef]:
    tensors = [t for t in more if isinstance(t, TensorValue)]
    if any(t.device != q.device for t in tensors):
        raise NoFormulaError("a captured tensor is on another device")
    return [t.ref for t in tensors]


def _keys(t: TensorValue, q: TensorValue) -> TensorRef:
    """Return keys or values for all batches of queries."""
    if t.shape[0] is not ONE:
        return t.ref
    return evolve(t.ref, shape=(q.shape[0], *t.shape[1:]), strides=(ZERO, *t.strides[1:]))


def _emit(
    b: LoopBuilder,
    kind: TemplateKind,
    inputs: tuple[TensorRef, ...],
    outputs: tuple[TensorRef, ...],
    attributes: tuple[tuple[str, Literal], ...],
    formulas: tuple[Any, ...],
) -> None:
    if said := wrong_with(kind, inputs, outputs, attributes):
        raise NoFormulaError(said)
    name = b.op_name()
    made = Template(name, kind, inputs, outputs, attributes, None, b.origin, formulas)
    b.operations.append(made)


def _forward(
    b: LoopBuilder,
    lower: Callable[[GraphModule], LoopProgram],
    args: Sequence[Any],
    kind: TemplateKind,
) -> Any:
    q, k, v, score, given, scale, _, *rest = args
    score_more, mask_more = (*rest, (), ())[:2]
    _offered(b, q, kind)
    blocks, v = _Blocks.of(given), _as_many(b, k, v)
    _check(q, k, v, blocks)
    around = _around(b, lower, q, k)
    formulas = (
        formula("score", score, {0: "score"}, range(1, 5), score_more, DType.F32, around),
        formula("mask", blocks.mask, {}, range(4), mask_more, DType.BOOL, around),
    )
    fakes, used = b.node.meta["val"], b.used_results
    count = 1 + max((place for place in used if 0 < place < len(fakes)), default=0)
    outs = [b.buffer(b.exact_spec(fake)) for fake in fakes[:count]]
    inputs = (
        q.ref, _keys(k, q), _keys(v, q), *(_spread(t, q) for t in blocks.by_rows),
        *_captured((*score_more, *mask_more), q),
    )  # fmt: skip
    _emit(b, kind, inputs, tuple(o.ref for o in outs), _attributes(scale, blocks), formulas)
    return (*outs, *(None for _ in fakes[count:]))


def _backward(
    b: LoopBuilder,
    lower: Callable[[GraphModule], LoopProgram],
    args: Sequence[Any],
    kind: TemplateKind,
) -> Any:
    q, k, v, out, sums, grad, grad_sums, score, joint, given, scale, _, *rest = args
    score_more, mask_more = (*rest, (), ())[:2]
    _offered(b, q, kind)
    blocks, v = _Blocks.of(given), _as_many(b, k, v)
    _check(q, k, v, blocks)
    if grad is None or grad.dtype is not q.dtype or sums.dtype is not DType.F32:
        raise NoFormulaError("there is no gradient of the result of its type")
    if k.shape[0] != q.shape[0]:
        raise NoFormulaError("keys of one batch serve many")
    around = _around(b, lower, q, k)
    formulas = (
        formula("score", score, {0: "score"}, range(1, 5), score_more, DType.F32, around),
        formula("mask", blocks.mask, {}, range(4), mask_more, DType.BOOL, around),
        formula(
            "slope", joint, {0: "score", 5: "slope"}, range(1, 5), score_more, DType.F32, around
        ),
    )
    inputs = [q.ref, k.ref, v.ref, grad.ref, sums.ref]
    numbers = [_spread(t, q) for t in (*blocks.by_rows, *blocks.by_columns)]
    captured = _captured((*score_more, *mask_more), q)
    mean = _mean(b, out, grad, grad_sums)
    fakes = b.node.meta["val"]
    outs = [b.buffer(b.exact_spec(fake)) for fake in fakes[:3]]
    given_all = (*inputs, mean.ref, *numbers, *captured)
    outputs = (outs[0].ref, outs[1].ref, evolve(outs[2].ref, shape=v.shape))
    _emit(b, kind, given_all, outputs, _attributes(scale, blocks), formulas)
    return (*outs, [None for _ in fakes[3]])


def _mean(
    b: LoopBuilder, out: TensorValue, grad: TensorValue, grad_sums: TensorValue | None
) -> TensorValue:
    """For each row, the product of the result and its gradient, less what the gradient of the
    logarithm adds, which is to base 2."""
    rows = out.shape[:3]

    def pairs(ops: Tracer, index: Index, rindex: Index) -> Value:
        one, other = (ops.load(t, (*index, *rindex)) for t in (out, grad))
        return ops.cast(one, DType.F32) * ops.cast(other, DType.F32)

    found = b.temp(rows, DType.F32, out)
    b.reduction(ReduceKind.SUM, pairs, rows, out.shape[3:], [found], DType.F32)
    if not isinstance(grad_sums, TensorValue):
        return found
    mean = b.temp(rows, DType.F32, out)

    def less(ops: Tracer, index: Index) -> Value:
        return ops.load(found, index) - ops.cast(ops.load(grad_sums, index), DType.F32) * _LOG2E

    b.pointwise_into(mean, less)
    return mean
