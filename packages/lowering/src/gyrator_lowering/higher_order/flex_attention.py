"""Flexible attention as a template: its graphs become formulas, its block mask the iteration."""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve
from torch.fx import GraphModule

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import ONE, ZERO, Const, eq
from gyrator_ir.loop.formulas import SCORE_INDICES
from gyrator_ir.loop.nodes import (
    AssertCond,
    Literal,
    LoopProgram,
    Template,
    TemplateKind,
    TensorRef,
)
from gyrator_ir.loop.templates import template_error
from gyrator_ir.types import DType
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.higher_order.formulas import FormulaContext, NoFormulaError, formula
from gyrator_lowering.higher_order.steps import Lower
from gyrator_lowering.rules.attention.gradients import row_products
from gyrator_lowering.rules.attention.parts import (
    LONGEST_VECTOR,
    ROWS,
    count_parts,
    lower_parts,
    offers_parts,
)
from gyrator_lowering.torch_bridge.facts import facts_of

NAMES = frozenset({"flex_attention", "flex_attention_backward"})
"""The higher-order ops."""

_FLOATS = (DType.F32, DType.F16, DType.BF16)
_STEP = 16
"""Block lengths must be multiples of this."""
_LOG2E = 1.4426950408889634
_LEAST_COLUMNS = 256  # of a part
_MOST_PARTS = 16


@frozen(kw_only=True)
class _Blocks:
    """A block mask."""

    row_block: int
    column_block: int
    by_rows: tuple[TensorValue, ...]
    """For each block of rows, the number of column blocks to visit and their indices; then the same
    for blocks that need no mask, if known."""
    by_columns: tuple[TensorValue | None, ...]
    """The same for each block of columns."""
    mask: GraphModule

    @classmethod
    def of(cls, block_mask: Sequence[Any]) -> "_Blocks":
        """Read the tuple that the ops take."""
        counts, indices, full_counts, full_indices = block_mask[2:6]
        full = () if full_counts is None else (full_counts, full_indices)
        by_columns = block_mask[6:10] if full else block_mask[6:8]
        return cls(
            row_block=block_mask[-3],
            column_block=block_mask[-2],
            by_rows=(counts, indices, *full),
            by_columns=tuple(by_columns),
            mask=block_mask[-1],
        )


def lower_call(b: LoopBuilder, lower: Lower, args: Sequence[Any]) -> Any:
    """Emit the template for a call of one of the ops.

    Raises:
        UnsupportedError: GY-LOWER-052, for a call that no template supports.
    """
    backward = b.node.target.__name__ == "flex_attention_backward"  # type: ignore[union-attr]
    kind = TemplateKind.FLEX_ATTENTION_GRADIENTS if backward else TemplateKind.FLEX_ATTENTION

    def lowered(gm: GraphModule) -> LoopProgram:
        return lower(gm, "formula", "", None)

    try:
        return (_backward if backward else _forward)(b, lowered, args, kind)
    except (NoFormulaError, UnsupportedError) as error:
        message = f"flexible attention has no template here: {error}"
        raise b.unsupported("GY-LOWER-052", message, help=BY_PYTORCH) from error


def _matched_values(b: LoopBuilder, k: TensorValue, v: TensorValue) -> TensorValue:
    """Return the values, with as many rows as keys; if they differ, an assertion fails, as in
    eager."""
    if v.shape[2] is k.shape[2]:
        return v
    message = "there must be as many values as keys"
    b.operations.append(AssertCond(b.op_name(), eq(k.shape[2], v.shape[2]), message, b.origin))
    return evolve(v, shape=(*v.shape[:2], k.shape[2], v.shape[3]))


def _check(q: TensorValue, k: TensorValue, v: TensorValue, blocks: _Blocks) -> None:
    """Raise NoFormulaError for a call that no template's kernel supports."""
    if q.dtype not in _FLOATS or {k.dtype, v.dtype} != {q.dtype}:
        raise NoFormulaError(f"attention of {q.dtype.value}")
    lengths = (q.shape[3], v.shape[3])
    if not all(isinstance(n, Const) and 0 < n.value <= LONGEST_VECTOR for n in lengths):
        raise NoFormulaError(f"vectors of {lengths[0]} and {lengths[1]} elements")
    heads, groups = q.shape[1], k.shape[1]
    if not isinstance(heads, Const) or not isinstance(groups, Const):
        raise NoFormulaError("the number of heads is not constant")
    if not groups.value or heads.value % groups.value or not heads.value:
        raise NoFormulaError(f"{heads} heads attend to {groups}")
    sizes = (blocks.row_block, blocks.column_block)
    if not all(isinstance(n, int) for n in sizes):
        raise NoFormulaError("the lengths of blocks are not constant")
    if any(n % _STEP for n in sizes):
        raise NoFormulaError(f"block lengths are not multiples of {_STEP}")
    tensors = (q, k, v, *blocks.by_rows)
    if any(t.device != q.device for t in tensors):
        raise NoFormulaError("tensors are on several devices")


def _require_template(b: LoopBuilder, q: TensorValue, kind: TemplateKind) -> None:
    target = b.targets.get(q.device.type)
    if target is None or kind.value not in target.capabilities.templates:
        raise NoFormulaError(f"kernels for {q.device.type} have no template {kind.value}")


def _expanded(t: TensorValue | None, q: TensorValue) -> TensorRef:
    """Broadcast a tensor of block numbers to all batches and heads."""
    if not isinstance(t, TensorValue):
        raise NoFormulaError("the block mask is not complete")
    batch_shape = q.shape[:2]
    for size, count in zip(t.shape, batch_shape, strict=False):
        if size not in (ONE, count):
            raise NoFormulaError(f"a block mask for {size} of {count} batches or heads")
    steps = tuple(ZERO if n is ONE else s for n, s in zip(t.shape[:2], t.strides, strict=False))
    return evolve(t.ref, shape=(*batch_shape, *t.shape[2:]), strides=(*steps, *t.strides[2:]))


def _attributes(scale: float, blocks: _Blocks) -> tuple[tuple[str, Literal], ...]:
    return (
        ("scale", Literal(float(scale))),
        ("row_block", Literal(blocks.row_block)),
        ("column_block", Literal(blocks.column_block)),
        ("lists", Literal(len(blocks.by_rows) // 2)),
    )


def _context(
    b: LoopBuilder, lower: Callable[[GraphModule], LoopProgram], q: TensorValue, k: TensorValue
) -> FormulaContext:
    extents = dict(zip(SCORE_INDICES, (*q.shape[:3], k.shape[2]), strict=True))
    return FormulaContext(lower=lower, facts=facts_of(b.symbols), extents=extents)


def _captured(more: Sequence[Any], q: TensorValue) -> list[TensorRef]:
    tensors = [t for t in more if isinstance(t, TensorValue)]
    if any(t.device != q.device for t in tensors):
        raise NoFormulaError("a captured tensor is on another device")
    return [t.ref for t in tensors]


def _keys(t: TensorValue, q: TensorValue) -> TensorRef:
    """Broadcast keys or values to all batches of queries."""
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
    if problem := template_error(kind, inputs, outputs, attributes):
        raise NoFormulaError(problem)
    name = b.op_name()
    template = Template(name, kind, inputs, outputs, attributes, None, b.origin, formulas)
    b.operations.append(template)


def _forward(
    b: LoopBuilder,
    lower: Callable[[GraphModule], LoopProgram],
    args: Sequence[Any],
    kind: TemplateKind,
) -> Any:
    q, k, v, score, block_mask, scale, _, *rest = args
    score_more, mask_more = (*rest, (), ())[:2]
    _require_template(b, q, kind)
    blocks, v = _Blocks.of(block_mask), _matched_values(b, k, v)
    _check(q, k, v, blocks)
    context = _context(b, lower, q, k)
    formulas = (
        formula("score", score, {0: "score"}, range(1, 5), score_more, DType.F32, context),
        formula("mask", blocks.mask, {}, range(4), mask_more, DType.BOOL, context),
    )
    fakes, used = b.node.meta["val"], b.used_results
    count = 1 + max((k for k in used if 0 < k < len(fakes)), default=0)
    outs = [b.buffer(b.exact_spec(fake)) for fake in fakes[:count]]
    inputs = (
        q.ref, _keys(k, q), _keys(v, q), *(_expanded(t, q) for t in blocks.by_rows),
        *_captured((*score_more, *mask_more), q),
    )  # fmt: skip
    attributes = _attributes(scale, blocks)
    heads_per_block = _heads_per_block(b, q, k, inputs[3 : 3 + len(blocks.by_rows)], blocks)
    if (parts := _parts(b, q, k, heads_per_block)) > 1 or heads_per_block > 1:
        problem = lower_parts(b, inputs, attributes, formulas, parts, heads_per_block, outs)
        if problem:
            raise NoFormulaError(problem)
    else:
        _emit(b, kind, inputs, tuple(o.ref for o in outs), attributes, formulas)
    return (*outs, *(None for _ in fakes[count:]))


def _heads_per_block(
    b: LoopBuilder, q: TensorValue, k: TensorValue, listed: Sequence[TensorRef], blocks: _Blocks
) -> int:
    """Return how many query heads share one block of rows."""
    rows, heads, groups = q.shape[2], q.shape[1], k.shape[1]
    assert isinstance(heads, Const) and isinstance(groups, Const)
    shared = heads.value // groups.value
    if not offers_parts(b, q) or any(t.strides[1] is not ZERO for t in listed):
        return 1
    few = isinstance(rows, Const) and rows.value <= min(blocks.row_block, ROWS // shared)
    return shared if few else 1


def _parts(b: LoopBuilder, q: TensorValue, k: TensorValue, heads_per_block: int) -> int:
    """Return the number of parts that columns are split into: each is large enough that combining
    them is cheap."""
    if not offers_parts(b, q):
        return 1
    return count_parts(
        b, q, k.shape[2], heads_per_block, lambda n: min(n // _LEAST_COLUMNS, _MOST_PARTS)
    )


def _backward(
    b: LoopBuilder,
    lower: Callable[[GraphModule], LoopProgram],
    args: Sequence[Any],
    kind: TemplateKind,
) -> Any:
    q, k, v, out, sums, grad, grad_sums, score, joint, block_mask, scale, _, *rest = args
    score_more, mask_more = (*rest, (), ())[:2]
    _require_template(b, q, kind)
    blocks, v = _Blocks.of(block_mask), _matched_values(b, k, v)
    _check(q, k, v, blocks)
    if grad is None or grad.dtype is not q.dtype or sums.dtype is not DType.F32:
        raise NoFormulaError("the gradient of the result is missing, or has another dtype")
    if k.shape[0] != q.shape[0]:
        raise NoFormulaError("keys are broadcast over batches")
    context = _context(b, lower, q, k)
    formulas = (
        formula("score", score, {0: "score"}, range(1, 5), score_more, DType.F32, context),
        formula("mask", blocks.mask, {}, range(4), mask_more, DType.BOOL, context),
        formula(
            "slope", joint, {0: "score", 5: "slope"}, range(1, 5), score_more, DType.F32, context
        ),
    )
    inputs = [q.ref, k.ref, v.ref, grad.ref, sums.ref]
    numbers = [_expanded(t, q) for t in (*blocks.by_rows, *blocks.by_columns)]
    captured = _captured((*score_more, *mask_more), q)
    mean = _mean(b, out, grad, grad_sums)
    fakes = b.node.meta["val"]
    outs = [b.buffer(b.exact_spec(fake)) for fake in fakes[:3]]
    all_inputs = (*inputs, mean.ref, *numbers, *captured)
    outputs = (outs[0].ref, outs[1].ref, evolve(outs[2].ref, shape=v.shape))
    _emit(b, kind, all_inputs, outputs, _attributes(scale, blocks), formulas)
    return (*outs, [None for _ in fakes[3]])


def _mean(
    b: LoopBuilder, out: TensorValue, grad: TensorValue, grad_sums: TensorValue | None
) -> TensorValue:
    """For each row, return the dot product of the result and its gradient, minus the contribution
    of the gradient of the logarithm, which is to base 2."""
    products = row_products(b, out, grad, DType.F32)
    if not isinstance(grad_sums, TensorValue):
        return products
    mean = b.temp(products.shape, DType.F32, out)

    def less(ops: Tracer, index: Index) -> Value:
        return ops.load(products, index) - ops.cast(ops.load(grad_sums, index), DType.F32) * _LOG2E

    b.pointwise_into(mean, less)
    return mean
