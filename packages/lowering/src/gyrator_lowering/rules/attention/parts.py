"""Attention of few rows that attend to many columns, in parts of the columns (split-KV; flash
decoding, Dao et al. 2023): the number of parts, and the combination of their results."""

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

from gyrator_ir.body.nodes import Const as ConstStatement
from gyrator_ir.body.nodes import Let, Load
from gyrator_ir.expr import Const, Expr
from gyrator_ir.loop.formulas import SCORE_INDICES
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
_PROGRAMS = 4  # for each core of a device, to hide latency
_HALVES = (DType.F16, DType.BF16)
_FEW_ROWS = 16  # of all heads that share keys: the least block of matrix units
_LONGEST_VECTOR = 256
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


def useful_parts(b: LoopBuilder, q: TensorValue, columns: Expr, together: int) -> tuple[int, int]:
    """Return how many parts occupy the device, for the typical sizes and with the rows of so many
    heads in a block, and the typical number of columns."""
    facts = facts_of(b.symbols)
    sizes = [facts.hint(size) for size in (*q.shape[:3], columns)]
    batch, heads, rows, count = (size or 0 for size in sizes)
    programs = batch * heads // together * -(-rows * together // ROWS)
    cores = b.targets[q.device.type].heuristics.cores
    return _PROGRAMS * cores // max(programs, 1) if programs else 0, count


def combine_parts(
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


def few_rows(b: LoopBuilder, a: Attention) -> bool:
    """Return whether kernels over parts of the columns compute this attention sooner than a library
    does. Libraries are at their best without a mask, if there is much to read."""
    if b.options.numerics not in (Numerics.EAGER, Numerics.FAST):
        return False  # the number of parts depends on the batch
    numbers = (a.q.shape[1], a.k.shape[1], a.q.shape[2], a.q.shape[3], a.v.shape[3])
    tensors = (a.q, a.k, a.v, *(() if a.mask is None else (a.mask,)))
    if a.causal or not isinstance(a.scale, float) or a.q.dtype not in _HALVES:
        return False
    if any(t.stored is not t.dtype or t.device != a.q.device for t in tensors):
        return False
    if not offers_parts(b, a.q) or not all(isinstance(n, Const) for n in numbers):
        return False
    heads, groups, rows, *lengths = (n.value for n in numbers if isinstance(n, Const))
    if not groups or not 0 < heads // groups * rows <= _FEW_ROWS or max(lengths) > _LONGEST_VECTOR:
        return False
    return (a.mask is not None or _key_bytes(b, a) <= _BANDWIDTH) and _parts(b, a) > 1


def lower_few_rows(b: LoopBuilder, a: Attention, out: TensorValue) -> None:
    """Emit the kernels of attention for which `few_rows` holds."""
    parts = _parts(b, a)
    together = _together(a)
    lengths = (a.v.shape[3:], ())
    partial = [b.temp((Const(parts), *a.q.shape[:3], *more), DType.F32, a.q) for more in lengths]
    _, columns = useful_parts(b, a.q, a.k.shape[2], together)
    mask = a.expanded_mask()
    inputs = (a.q.ref, a.k.ref, a.v.ref, *(() if mask is None else (mask,)))
    assert isinstance(a.scale, float)
    attributes = (
        ("scale", Literal(a.scale)),
        ("row_block", Literal(_FEW_ROWS)),
        ("column_block", Literal(_COLUMNS if columns >= parts * _COLUMNS else _SHORT)),
        ("lists", Literal(0)),
        ("parts", Literal(parts)),
        ("together", Literal(together)),
    )
    outputs = tuple(t.ref for t in partial)
    kind = TemplateKind.FLEX_ATTENTION_PARTS
    assert not template_error(kind, inputs, outputs, attributes)
    formulas = _formulas(mask)
    b.operations.append(
        Template(b.op_name(), kind, inputs, outputs, attributes, None, b.origin, formulas)
    )
    combine_parts(b, partial, [out])


def _key_bytes(b: LoopBuilder, a: Attention) -> int:
    """Return the bytes of keys and values, for the typical sizes."""
    hint = facts_of(b.symbols).hint
    return sum(math.prod(hint(n) or 0 for n in t.shape) * t.dtype.size for t in (a.k, a.v))


def _together(a: Attention) -> int:
    heads, groups = a.q.shape[1], a.k.shape[1]
    assert isinstance(heads, Const) and isinstance(groups, Const)
    return heads.value // groups.value


def _parts(b: LoopBuilder, a: Attention) -> int:
    """Return the number of parts that columns are split into."""
    useful, columns = useful_parts(b, a.q, a.k.shape[2], _together(a))
    most = max(columns // _COLUMNS, min(columns // _SHORT, _SHORT_PARTS))
    most = min(most, useful, _MOST_PARTS)
    return 1 << most.bit_length() - 1 if most else 1


def _formulas(mask: TensorRef | None) -> tuple[Formula, Formula]:
    """Return the formulas that add a mask of numbers to the scores, or apply one of booleans."""
    score, seen = (
        Formula("score", ("score",), (), "score"),
        ConstStatement("seen", True, DType.BOOL),
    )
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
