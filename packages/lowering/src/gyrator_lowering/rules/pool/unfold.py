"""Sliding blocks of planes as columns (`im2col`), and their sums (`col2im`)."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from gyrator_ir.expr import Const, Expr, mod
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.index import inside
from gyrator_lowering.rules.pool import read_at, window_numbers, windowed
from gyrator_lowering.table import TableBuilder


def im2col(
    b: LoopBuilder, x: TensorValue, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> TensorValue:
    """Columns `[n, c * kh * kw, blocks]` of the blocks of `x`, `[n, c, h, w]`; zero out of
    bounds."""
    window, step, pad, dilations = window_numbers(2, kernel, stride, padding, dilation)
    result = b.buffer(b.out)
    columns = _split_columns(result, window, _blocks(x.shape[-2:], window, dilations, pad, step))
    lead = x.ndim - 2

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        offset, block = index[lead : lead + 2], index[lead + 2 :]
        full_index = (*index[:lead], *read_at(block, offset, step, pad, dilations))
        dims = [lead + k for k in range(2) if pad[k]]
        return ops.load(x, full_index, inside(ops, full_index, x.shape, dims))

    b.pointwise_into(columns, body)
    return result


def col2im(
    b: LoopBuilder, x: TensorValue, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> TensorValue:
    """Each element of `[n, c, h, w]` is the sum of the column elements that it corresponds to."""
    window, step, pad, dilations = window_numbers(2, kernel, stride, padding, dilation)
    out = b.out
    blocks = _blocks(out.shape[-2:], window, dilations, pad, step)
    columns = _split_columns(x, window, blocks)
    lead = len(out.shape) - 2
    is_dense = [d == 1 for d in dilations]
    counts = [(w + s - 1) // s if n else w for w, s, n in zip(window, step, is_dense, strict=True)]

    def term(ops: Tracer, index: Sequence[Expr], number: Sequence[Any]) -> Value:
        offsets: list[Any] = []
        block: list[Expr] = []
        covered: list[Value] = []
        for k, position in enumerate(index[lead:]):
            at, s = position + pad[k], step[k]
            if is_dense[k]:  # the number counts the blocks that contain this element
                block.append(at // s - number[k])
                offsets.append(at - block[k] * s)
                if window[k] % s:
                    covered.append(ops.lt(ops.index(offsets[k]), window[k]))
            else:
                offsets.append(number[k])
                first = at - number[k] * dilations[k]
                block.append(first // s)
                if s != 1:
                    covered.append(ops.eq(ops.index(mod(first, Const(s))), 0))
        mask = inside(ops, block, blocks, (0, 1))
        assert mask is not None
        for more in covered:
            mask = mask & more
        value = ops.load(columns, (*index[:lead], *offsets, *block), mask)
        return ops.cast(value, out.dtype.compute)

    return windowed(b, counts, out, out.dtype.compute, term, lambda _, __, total: total)


def _blocks(
    plane: Sequence[Expr],
    window: Sequence[int],
    dilations: Sequence[int],
    pad: Sequence[int],
    step: Sequence[int],
) -> tuple[Expr, ...]:
    """Return the number of blocks along each dimension of a plane."""
    return tuple(
        (n + 2 * p - d * (w - 1) - 1) // s + 1
        for n, w, d, p, s in zip(plane, window, dilations, pad, step, strict=True)
    )


def _split_columns(
    columns: TensorValue, window: Sequence[int], blocks: tuple[Expr, ...]
) -> TensorValue:
    """View `[n, c * kh * kw, blocks]` as `[n, c, kh, kw, blocks down, blocks across]`."""
    *lead, rows, _ = columns.shape
    *outer, row, block = columns.strides
    height, width = window
    return evolve(
        columns,
        shape=(*lead, rows // (height * width), Const(height), Const(width), *blocks),
        strides=(*outer, row * (height * width), row * width, row, block * blocks[1], block),
    )


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.im2col.default")(im2col)
    table.rule("aten.col2im.default")(col2im)
