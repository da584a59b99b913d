"""Sliding blocks of planes as columns (`im2col`), and their sum back (`col2im`)."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from gyrator_ir.expr import Const, Expr, mod
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.index import inside
from gyrator_lowering.rules.pool import expanded, known, read_at, windowed
from gyrator_lowering.table import FallbackToAten, TableBuilder


def im2col(
    b: LoopBuilder, x: TensorValue, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> TensorValue:
    """Columns `[n, c * kh * kw, blocks]` of the blocks of `x`, `[n, c, h, w]`; zero outside."""
    window, spread, pad, step = _numbers(kernel, dilation, padding, stride)
    result = b.buffer(b.out)
    columns = _taken_apart(result, window, _blocks(x.shape[-2:], window, spread, pad, step))
    lead = x.ndim - 2

    def body(ops: Tracer, index: Sequence[Expr]) -> Value:
        offset, block = index[lead : lead + 2], index[lead + 2 :]
        whole = (*index[:lead], *read_at(block, offset, step, pad, spread))
        dims = [lead + k for k in range(2) if pad[k]]
        return ops.load(x, whole, inside(ops, whole, x.shape, dims))

    b.pointwise_into(columns, body)
    return result


def col2im(
    b: LoopBuilder,
    x: TensorValue,
    size: Any,
    kernel: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> TensorValue:
    """Each element of `[n, c, h, w]` is the sum of those of the columns that came from it."""
    window, spread, pad, step = _numbers(kernel, dilation, padding, stride)
    out = b.out
    blocks = _blocks(out.shape[-2:], window, spread, pad, step)
    columns = _taken_apart(x, window, blocks)
    lead = len(out.shape) - 2
    near = [d == 1 for d in spread]
    reach = [(w + s - 1) // s if n else w for w, s, n in zip(window, step, near, strict=True)]

    def term(ops: Tracer, index: Sequence[Expr], turn: Sequence[Any]) -> Value:
        offsets: list[Any] = []
        block: list[Expr] = []
        covered: list[Value] = []
        for k, place in enumerate(index[lead:]):
            at, s = place + pad[k], step[k]
            if near[k]:  # the turn is of the blocks that lie over this element
                block.append(at // s - turn[k])
                offsets.append(at - block[k] * s)
                if window[k] % s:
                    covered.append(ops.lt(ops.index(offsets[k]), window[k]))
            else:
                offsets.append(turn[k])
                first = at - turn[k] * spread[k]
                block.append(first // s)
                if s != 1:
                    covered.append(ops.eq(ops.index(mod(first, Const(s))), 0))
        mask = inside(ops, block, blocks, (0, 1))
        assert mask is not None
        for more in covered:
            mask = mask & more
        value = ops.load(columns, (*index[:lead], *offsets, *block), mask)
        return ops.cast(value, out.dtype.compute)

    return windowed(b, reach, out, out.dtype.compute, term, lambda _, __, total: total)


def _numbers(*given: Any) -> list[list[int]]:
    """Return two of each; what is not a constant is ATen's."""
    numbers = [expanded(v, 2) for v in given]
    if not known(*numbers):
        raise FallbackToAten
    return numbers


def _blocks(
    plane: Sequence[Expr],
    window: Sequence[int],
    spread: Sequence[int],
    pad: Sequence[int],
    step: Sequence[int],
) -> tuple[Expr, ...]:
    """Return how many blocks there are along each dimension of a plane."""
    return tuple(
        (n + 2 * p - d * (w - 1) - 1) // s + 1
        for n, w, d, p, s in zip(plane, window, spread, pad, step, strict=True)
    )


def _taken_apart(
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
