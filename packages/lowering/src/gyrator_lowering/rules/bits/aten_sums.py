"""Sums and means of floats in ATen's order (`numerics="bitwise"`).

ATen's CPU kernel sorts the dimensions by stride, reduced ones first, and merges those that are
adjacent in memory. It then adds along the first one, in vectors if it or the next one is
contiguous, and adds the results along the other reduced dimensions one after another. A long sum
is a cascade: 16 values in a row are added, then 16 of these sums, and so on. Where nothing else
hides the latency of an addition, four such sums run beside one another.

From `GRAIN` elements on, ATen distributes the work among threads, which changes the order.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from operator import add
from typing import Any

from attrs import evolve

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Const, Expr, contiguous_strides
from gyrator_ir.types import DType
from gyrator_lowering.builder.program import LoopBuilder, dims_of
from gyrator_lowering.builder.promote import operand
from gyrator_lowering.builder.trace import At, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.table import FallbackToAten

GRAIN = 32768
"""From this number of elements on, ATen distributes the work among threads."""
_VECTOR_BYTES = 32
_CHAIN = 16
"""The length of a sum in a row, for sums of fewer than 2^20 values."""
_BESIDE = 4
"""Independent sums that run beside one another."""
_LEVELS = 4
"""The levels of a cascade; the last adds any number of values in a row."""
_UNROLLED = 8
"""The longest sum whose terms are all in one body."""

Terms = Callable[[Tracer, Sequence[Expr], Expr], Value]
"""The n-th term of the sum at an index of a result."""


@frozen
class Dim:
    """A dimension in ATen's order. Strides are in elements."""

    size: int
    out: int
    """The stride of the result, 0 if the dimension is reduced."""
    stride: int


def aten_sum(b: LoopBuilder, x: TensorValue, dim: Any = None, *_: Any, **__: Any) -> TensorValue:
    """`aten.sum` of floats."""
    return _reduced(b, x, dims_of(dim, x.ndim), b.out.dtype, None)


def aten_mean(b: LoopBuilder, x: TensorValue, dim: Any = None, *_: Any, **__: Any) -> TensorValue:
    """`aten.mean` of floats: a sum that is then divided."""
    dims = dims_of(dim, x.ndim)
    n = Const(prod(integers([x.shape[d] for d in dims])))
    return _reduced(b, x, dims, b.out.dtype.compute, n)


def _reduced(
    b: LoopBuilder, x: TensorValue, dims: Sequence[int], dtype: DType, divisor: Const | None
) -> TensorValue:
    """Store the sum of `x`, converted to `dtype`, as the node's result.

    Raises:
        FallbackToAten: if ATen's order is unknown.
    """
    shape, strides = integers(x.shape), integers(x.strides)
    if not x.dtype.is_float or not dtype.is_float or not 0 < prod(shape) < GRAIN:
        raise FallbackToAten
    if x.dtype is not dtype and x.strides != contiguous_strides(x.shape):
        raise FallbackToAten  # the layout of the converted copy
    if b.out.strides != contiguous_strides(b.out.shape):
        raise FallbackToAten
    ordered = order(shape, strides, dims)
    axes = _Axes.of(ordered)
    outer = tuple(Const(d.size) for d in axes.points)
    viewed = evolve(
        x,
        shape=tuple(Const(d.size) for d in axes.all),
        strides=tuple(Const(d.stride) for d in axes.all),
    )
    total = _Sum(b, viewed, axes, dtype).total()
    result = b.buffer(b.out)
    into = evolve(result, shape=outer, strides=tuple(Const(d.out) for d in axes.points))

    def value(ops: Tracer, index: Sequence[Expr]) -> Value:
        amount = total(ops, index)
        return amount if divisor is None else amount / operand(ops, divisor, (), amount.dtype)

    b.pointwise_into(into, value)
    return result


def integers(sizes: Sequence[Expr]) -> tuple[int, ...]:
    """Return the values of constants. FallbackToAten if there are other expressions."""
    known = tuple(s.value for s in sizes if isinstance(s, Const))
    if len(known) < len(sizes):
        raise FallbackToAten
    return known


def order(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> list[Dim]:
    """Return the dimensions of a reduction as ATen's iterator orders and merges them.

    Args:
        shape: the sizes of the reduced tensor.
        strides: its strides.
        dims: the reduced dimensions.
    """
    outs, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        if d not in dims:
            outs[d], step = step, step * shape[d]
    return iterated(shape, outs, strides)


def iterated(shape: Sequence[int], outs: Sequence[int], strides: Sequence[int]) -> list[Dim]:
    """Return the dimensions of a loop over a result and an argument as ATen's iterator orders and
    merges them, the fastest first.

    Args:
        shape: the sizes.
        outs: the strides of the result.
        strides: those of the argument.
    """
    axes = [Dim(*d) for d in zip(shape, outs, strides, strict=True)][::-1]
    for last in range(1, len(axes)):
        place = last
        for before in reversed(range(last)):
            comparison = _compared(axes[before], axes[place])
            if comparison > 0:
                axes[before], axes[place] = axes[place], axes[before]
                place = before
            elif comparison < 0:
                break
    return _merged(axes)


def _compared(a: Dim, b: Dim) -> int:
    """Return a positive number if `a` comes after `b`, a negative one if before, 0 if unclear."""
    if (a.out == 0) != (b.out == 0):
        return 1 if b.out == 0 else -1
    for p, q in ((a.out, b.out), (a.stride, b.stride)):
        if p == 0 or q == 0:
            continue
        if p != q:
            return p - q
        if a.size > b.size:
            return 1
    return 0


def _merged(dims: list[Dim]) -> list[Dim]:
    merged = dims[:1]
    for d in dims[1:]:
        last = merged[-1]
        steps = last.size * last.out, last.size * last.stride
        if last.size == 1:
            merged[-1] = d
        elif d.size == 1 or steps == (d.out, d.stride):
            merged[-1] = evolve(last, size=last.size * d.size)
        else:
            merged.append(d)
    return merged


@frozen
class _Axes:
    """The dimensions in the roles that they have in ATen's kernel."""

    points: tuple[Dim, ...]
    """Dimensions of the result, the slowest first."""
    outer: tuple[Dim, ...]
    """Reduced dimensions but for the first, the slowest first."""
    first: Dim
    second: Dim
    """The dimension after the first, reduced or not; of one element if there is none."""

    @classmethod
    def of(cls, ordered: Sequence[Dim]) -> "_Axes":
        reduced = [d for d in ordered if d.out == 0]
        points = tuple(d for d in ordered if d.out)[::-1]
        if not reduced:  # only dimensions of one element are reduced
            return cls(points, (), Dim(1, 0, 0), Dim(1, 0, 0))
        second = ordered[1] if len(ordered) > 1 else Dim(1, 0, 0)
        return cls(points, tuple(reduced[:0:-1]), reduced[0], second)

    @property
    def all(self) -> tuple[Dim, ...]:
        return (*self.points, *self.outer, self.first)


@frozen
class _Sum:
    """Emits the sum of `x`, whose dimensions are `axes.all`, over the reduced ones."""

    b: LoopBuilder
    x: TensorValue
    axes: _Axes
    dtype: DType
    """The dtype in which ATen reads the terms."""

    @property
    def lanes(self) -> int:
        """The number of accumulators in a vector."""
        return _VECTOR_BYTES // self.dtype.compute.size

    def total(self) -> At:
        """Return the sum over all reduced dimensions."""
        length = prod(d.size for d in self.axes.outer)
        if length == 1:
            return self._along_first()
        points = self.x.shape[: len(self.axes.points)]
        each = self._stored(self.x.shape[:-1], self._along_first())
        rows = evolve(
            each, shape=(*points, Const(length)), strides=(*each.strides[: len(points)], ONE)
        )
        return self._chain(points, length, lambda ops, at, n: ops.load(rows, (*at, n)))

    def _along_first(self) -> At:
        """Return the sums over the first dimension."""
        first, second, vector = self.axes.first, self.axes.second, _VECTOR_BYTES // self.dtype.size
        if first.stride == 1 and first.size >= vector:
            return self._vectors(vector)
        if second.stride == 1 and second.size >= vector:
            return self._columns(self.lanes)
        if first.stride < second.stride:
            return self._beside(self.x.shape[:-1], first.size, self._terms(self.x))
        return self._columns(1)

    def _terms(self, x: TensorValue) -> Terms:
        def term(ops: Tracer, at: Sequence[Expr], n: Expr) -> Value:
            return ops.cast(ops.cast(ops.load(x, (*at, n)), self.dtype), self.dtype.compute)

        return term

    def _vectors(self, vector: int) -> At:
        """Return the sums of rows that are contiguous: of vectors, then of a vector's lanes."""
        terms, lanes, shape = self._terms(self.x), self.lanes, self.x.shape[:-1]
        count = self.axes.first.size // vector

        def of_lane(ops: Tracer, at: Sequence[Expr], n: Expr) -> Value:
            *row, lane = at
            parts = range(0, vector, lanes)  # a vector of narrow floats has two for each lane
            return reduce(add, [terms(ops, row, n * vector + lane + p) for p in parts])

        sums = self._beside((*shape, Const(lanes)), count, of_lane)
        if count > 1:
            sums = self._loaded(self._stored((*shape, Const(lanes)), sums))

        def value(ops: Tracer, at: Sequence[Expr]) -> Value:
            rest = [terms(ops, at, Const(n)) for n in range(count * vector, self.axes.first.size)]
            by_lane = [sums(ops, (*at, Const(lane))) for lane in range(lanes)]
            return self._added(ops, [*rest, *by_lane])

        return value

    def _columns(self, width: int) -> At:
        """Return the sums of columns: those of full blocks, which are `width` times `_BESIDE`
        columns wide, need no further sums beside one another."""
        shape, n, block = self.x.shape[:-1], self.axes.first.size, width * _BESIDE
        size = self.axes.second.size
        full = size // block * block if n >= _BESIDE else size
        if full == size:
            return self._cascade(shape, n, self._terms(self.x))
        if not full:
            return self._beside(shape, n, self._terms(self.x))
        column, parts = len(shape) - 1, []
        for begin, end, adder in ((0, full, self._cascade), (full, size, self._beside)):
            part = _narrowed(self.x, column, begin, end)
            parts.append(
                self._stored(part.shape[:-1], adder(part.shape[:-1], n, self._terms(part)))
            )

        def value(ops: Tracer, at: Sequence[Expr]) -> Value:
            in_block = ops.lt(ops.index(at[column]), full)
            in_rest = ops.bit_not(in_block)
            rest = (*at[:column], at[column] - full)
            return ops.where(
                in_block, ops.load(parts[0], at, in_block), ops.load(parts[1], rest, in_rest)
            )

        return value

    def _beside(self, shape: Sequence[Expr], n: int, terms: Terms) -> At:
        """Return a sum that is computed as four, of every fourth term each, and the rest."""
        length = n // _BESIDE
        if not length:
            return self._chain(shape, n, terms)
        parts = self._cascade(
            (*shape, Const(_BESIDE)),
            length,
            lambda ops, at, k: terms(ops, at[:-1], k * _BESIDE + at[-1]),
        )

        def value(ops: Tracer, at: Sequence[Expr]) -> Value:
            first, *others = (parts(ops, (*at, Const(k))) for k in range(_BESIDE))
            rest = [terms(ops, at, Const(k)) for k in range(length * _BESIDE, n)]
            return reduce(add, [first, *rest, *others])

        return value

    def _cascade(self, shape: Sequence[Expr], n: int, terms: Terms) -> At:
        """Return a sum of chains of terms, of chains of these, and so on."""
        levels: list[At] = []
        while n > _CHAIN and len(levels) < _LEVELS - 1:
            whole = n // _CHAIN
            if n % _CHAIN:
                rest = _after(terms, whole * _CHAIN)
                levels.append(self._chain(shape, n % _CHAIN, rest))
            chains = self._stored(
                (*shape, Const(whole)), self._chain((*shape, Const(whole)), _CHAIN, _split(terms))
            )
            n, terms = whole, self._loaded_terms(chains)
        levels.append(self._chain(shape, n, terms))
        return lambda ops, at: reduce(add, [level(ops, at) for level in levels])

    def _chain(self, shape: Sequence[Expr], n: int, terms: Terms) -> At:
        """Return a sum of terms that are added one after another."""
        if n <= _UNROLLED:
            return lambda ops, at: self._added(ops, [terms(ops, at, Const(k)) for k in range(n)])
        result = self.b.temp(shape, self.dtype.compute, self.x)
        self.b.reduction(
            ReduceKind.SUM,
            lambda ops, at, inner: terms(ops, at, inner[0]),
            shape,
            (Const(n),),
            [result],
            self.dtype.compute,
        )
        return self._loaded(result)

    def _added(self, ops: Tracer, values: Sequence[Value]) -> Value:
        """Add values to 0 one after another: a sum of negative zeros is 0."""
        return reduce(add, values, ops.const(0.0, self.dtype.compute))

    def _stored(self, shape: Sequence[Expr], get: At) -> TensorValue:
        """Store sums that are read several times."""
        result = self.b.temp(shape, self.dtype.compute, self.x)
        self.b.pointwise_into(result, get)
        return result

    def _loaded(self, sums: TensorValue) -> At:
        return lambda ops, at: ops.load(sums, at)

    def _loaded_terms(self, sums: TensorValue) -> Terms:
        return lambda ops, at, n: ops.load(sums, (*at, n))


def _after(terms: Terms, begin: int) -> Terms:
    return lambda ops, at, n: terms(ops, at, n + begin)


def _split(terms: Terms) -> Terms:
    """Return the terms of chains, whose number is the last index."""
    return lambda ops, at, n: terms(ops, at[:-1], at[-1] * _CHAIN + n)


def _narrowed(x: TensorValue, dim: int, begin: int, end: int) -> TensorValue:
    shape = (*x.shape[:dim], Const(end - begin), *x.shape[dim + 1 :])
    return evolve(x, shape=shape, offset=x.offset + x.strides[dim] * begin)
