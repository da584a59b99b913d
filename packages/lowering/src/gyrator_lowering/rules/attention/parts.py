"""Attention of few rows that attend to many columns, in parts of the columns (split-KV; flash
decoding, Dao et al. 2023): the number of parts, and the combination of their results."""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

from gyrator_ir.body.nodes import Const as ConstStatement
from gyrator_ir.body.nodes import IndexValue, Let, Load
from gyrator_ir.expr import Const, Expr
from gyrator_ir.loop.formulas import COLUMN, ROW, SCORE_INDICES
from gyrator_ir.loop.nodes import Formula, Literal, Template, TemplateKind, TensorRef
from gyrator_ir.loop.templates import template_error
from gyrator_ir.modes import Numerics
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.attention.scores import Attention
from gyrator_lowering.torch_bridge.facts import facts_of

ROWS = 64
"""The number of rows of a program, if there are many."""
LONGEST_VECTOR = 256
"""The maximum length of queries, keys and values."""
_PROGRAMS = 4  # for each core of a device, to hide latency
_HALVES = (DType.F16, DType.BF16)
_FEW_ROWS = 16  # of all heads that share keys: the least block of matrix units
_COLUMNS = 128  # of a part of a long row
_BANDWIDTH = 1 << 24  # bytes of keys and values beyond which libraries reach the memory's speed
_SHORT = 64  # of a part of a short row, with at most so many parts:
_SHORT_PARTS = 8
_MOST_PARTS = 32


def offers_parts(b: LoopBuilder, q: TensorValue) -> bool:
    """Return whether the kernels of the device have the template."""
    target = b.targets.get(q.device.type)
    parts = TemplateKind.FLEX_ATTENTION_PARTS.value
    return target is not None and parts in target.capabilities.templates


def count_parts(
    b: LoopBuilder, q: TensorValue, columns: Expr, together: int, most: Callable[[int], int]
) -> int:
    """Return the number of parts that columns are split into, for the typical sizes and with the
    rows of so many heads in a block: enough to occupy the device, at most `most` of the columns, a
    power of two."""
    facts = facts_of(b.symbols)
    sizes = [facts.hint(size) for size in (*q.shape[:3], columns)]
    batch, heads, rows, count = (size or 0 for size in sizes)
    programs = batch * heads // together * -(-rows * together // ROWS)
    cores = b.targets[q.device.type].heuristics.cores
    parts = min(_PROGRAMS * cores // programs, most(count)) if programs else 0
    return 1 << parts.bit_length() - 1 if parts else 1


def lower_parts(
    b: LoopBuilder,
    inputs: Sequence[TensorRef],
    attributes: Sequence[tuple[str, Literal]],
    formulas: Sequence[Formula],
    parts: int,
    together: int,
    outs: Sequence[TensorValue],
) -> str:
    """Emit attention over parts of the columns, with the rows of `together` heads in a block, and
    the combination of the parts. `outs` are those of flexible attention.

    Returns:
        Why the template does not support these tensors; nothing is emitted then.
    """
    out = outs[0]
    shapes = (out.shape, *(out.shape[:3] for _ in range(max(len(outs) - 1, 1))))
    partial = [b.temp((Const(parts), *shape), DType.F32, out) for shape in shapes]
    inputs, outputs = tuple(inputs), tuple(t.ref for t in partial)
    every = (*attributes, ("parts", Literal(parts)), ("together", Literal(together)))
    kind = TemplateKind.FLEX_ATTENTION_PARTS
    if problem := template_error(kind, inputs, outputs, every):
        return problem
    b.operations.append(
        Template(b.op_name(), kind, inputs, outputs, every, None, b.origin, tuple(formulas))
    )
    _combine_parts(b, partial, outs)
    return ""


def _combine_parts(
    b: LoopBuilder, parts: Sequence[TensorValue], outs: Sequence[TensorValue]
) -> None:
    """Emit the combination of the partial results of all column parts."""
    count = parts[0].shape[0]
    assert isinstance(count, Const)
    numbers = [Const(n) for n in range(count.value)]

    def weights(ops: Tracer, rows: Index) -> tuple[Value, list[Value]]:
        sums = [ops.load(parts[1], (n, *rows)) for n in numbers]
        top = reduce(ops.maximum, sums)
        # The maximum is -inf for rows that attend to nothing.
        top = ops.where(ops.eq(top, -math.inf), 0.0, top)
        return top, [ops.exp2(s - top) for s in sums]

    def mean(ops: Tracer, index: Index) -> Value:
        _, scales = weights(ops, index[:3])
        pairs = zip(numbers, scales, strict=True)
        total = reduce(add, scales)
        mixed = reduce(add, (ops.load(parts[0], (n, *index)) * weight for n, weight in pairs))
        return ops.cast(mixed / ops.where(ops.eq(total, 0.0), 1.0, total), outs[0].dtype)

    def logarithm(ops: Tracer, index: Index) -> Value:
        top, scales = weights(ops, index)
        return top + ops.log2(reduce(add, scales))

    def largest(ops: Tracer, index: Index) -> Value:
        return reduce(ops.maximum, (ops.load(parts[2], (n, *index)) for n in numbers))

    for out, fn in zip(outs, (mean, logarithm, largest), strict=False):
        b.pointwise_into(out, fn)


def parts_of_few_rows(b: LoopBuilder, a: Attention) -> int:
    """Return the number of parts of the columns over which kernels compute this attention sooner
    than a library does; 0 if they do not. Libraries are at their best without a mask, if there is
    much to read."""
    if b.options.numerics not in (Numerics.EAGER, Numerics.FAST):
        return 0  # the number of parts depends on the batch
    numbers = (a.q.shape[1], a.k.shape[1], a.q.shape[2], a.q.shape[3], a.v.shape[3])
    tensors = (a.q, a.k, a.v, *(() if a.mask is None else (a.mask,)))
    if a.causal or not isinstance(a.scale, float) or a.q.dtype not in _HALVES:
        return 0
    if any(t.stored is not t.dtype or t.device != a.q.device for t in tensors):
        return 0
    if not offers_parts(b, a.q) or not all(isinstance(n, Const) for n in numbers):
        return 0
    _, groups, rows, *lengths = (n.value for n in numbers if isinstance(n, Const))
    if not groups or max(lengths) > LONGEST_VECTOR or not 0 < _together(a) * rows <= _FEW_ROWS:
        return 0
    if a.mask is None and _key_bytes(b, a) > _BANDWIDTH:
        return 0
    parts = count_parts(b, a.q, a.k.shape[2], _together(a), _most_parts)
    return parts if parts > 1 else 0


def lower_few_rows(b: LoopBuilder, a: Attention, parts: int, out: TensorValue) -> None:
    """Emit the kernels of attention over as many parts as `parts_of_few_rows` returns."""
    columns = facts_of(b.symbols).hint(a.k.shape[2]) or 0
    mask = a.expanded_mask()
    inputs = (a.q.ref, a.k.ref, a.v.ref, *(() if mask is None else (mask,)))
    assert isinstance(a.scale, float)
    attributes = (
        ("scale", Literal(a.scale)),
        ("row_block", Literal(_FEW_ROWS)),
        ("column_block", Literal(_COLUMNS if columns >= parts * _COLUMNS else _SHORT)),
        ("lists", Literal(0)),
    )
    problem = lower_parts(b, inputs, attributes, mask_formulas(mask), parts, _together(a), [out])
    assert not problem, problem


def _key_bytes(b: LoopBuilder, a: Attention) -> int:
    """Return the bytes of keys and values, for the typical sizes."""
    hint = facts_of(b.symbols).hint
    return sum(math.prod(hint(n) or 0 for n in t.shape) * t.dtype.size for t in (a.k, a.v))


def _together(a: Attention) -> int:
    assert isinstance(a.heads_a_group, Const)
    return a.heads_a_group.value


def _most_parts(columns: int) -> int:
    return min(max(columns // _COLUMNS, min(columns // _SHORT, _SHORT_PARTS)), _MOST_PARTS)


def mask_formulas(mask: TensorRef | None, causal: bool = False) -> tuple[Formula, Formula]:
    """Return the formulas that add a mask of numbers to the scores, or apply one of booleans; a
    causal one if there is no other."""
    score = Formula("score", ("score",), (), "score")
    seen = ConstStatement("seen", True, DType.BOOL)
    if mask is None and causal:
        pairs = (("row", ROW), ("column", COLUMN))
        indices = (IndexValue(name, index, DType.I64) for name, index in pairs)
        earlier = Let("seen", "ge", ("row", "column"), DType.BOOL)
        return score, Formula("mask", (), (*indices, earlier), "seen")
    if mask is None:
        return score, Formula("mask", (), (seen,), "seen")
    terms = (i * stride for i, stride in zip(SCORE_INDICES, mask.strides, strict=True))
    index = sum(terms, mask.offset)
    if mask.dtype is DType.BOOL:
        return score, Formula("mask", (), (Load("seen", mask.buffer, index),), "seen")
    added = (
        Load("mask", mask.buffer, index),
        Let("bias", "cast", ("mask",), DType.F32),
        Let("sum", "add", ("score", "bias"), DType.F32),
    )
    return Formula("score", ("score",), added, "sum"), Formula("mask", (), (seen,), "seen")
