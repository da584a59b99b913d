"""Reductions, scans and sorts along the last axis of an array."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gyrator_ir.body.nodes import ReduceKind, ScanKind
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import DTYPES, NUMPY, Array


def reduce(kind: ReduceKind, args: list[Array], dtype: DType) -> list[Array]:
    """Reduce the last axis of `args` (contiguous, of dtype `dtype`) with the function `kind`."""
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in _REDUCE[kind](args, dtype)]


EXTREME_OF: Mapping[ScanKind, ScanKind] = MappingProxyType(
    {ScanKind.ARGMIN: ScanKind.MIN, ScanKind.ARGMAX: ScanKind.MAX}
)
"""The scan of the extremes whose positions a scan returns."""


def scan(kind: ScanKind, arg: Array, reverse: bool) -> Array:
    """Return the inclusive scan along the last axis, from the end if `reverse`."""
    with np.errstate(all="ignore"):
        if kind in EXTREME_OF:
            return _running_position(kind, arg, reverse)
        line = arg[..., ::-1] if reverse else arg
        result = _SCAN[kind](line)
        return result[..., ::-1] if reverse else result


def sort(arg: Array, descending: bool) -> tuple[Array, Array]:
    """Return the values sorted along the last axis and their `i64` indices.

    Stable; NaN is the largest value.
    """
    line = arg[..., ::-1] if descending else arg
    order = np.argsort(line, axis=-1, kind="stable").astype(np.int64)
    if descending:
        order = (arg.shape[-1] - 1 - order)[..., ::-1]
    return np.take_along_axis(arg, order, axis=-1), order


def lowest(dtype: DType) -> Any:
    """Return the identity of `max`."""
    if dtype.is_float:
        return -np.inf
    return False if dtype is DType.BOOL else np.iinfo(NUMPY[dtype]).min


def highest(dtype: DType) -> Any:
    """Return the identity of `min`."""
    if dtype.is_float:
        return np.inf
    return True if dtype is DType.BOOL else np.iinfo(NUMPY[dtype]).max


def _welford(args: list[Array], dtype: DType) -> list[Array]:
    x = args[0].astype(np.float64)
    count = x.shape[-1]
    mean = np.sum(x, axis=-1) / max(count, 1)
    squares = np.sum((x - mean[..., None]) ** 2, axis=-1)
    result = NUMPY[dtype]
    return [mean.astype(result), squares.astype(result), np.full(mean.shape, count, result)]


def _online_softmax(args: list[Array], dtype: DType) -> list[Array]:
    largest = np.maximum.reduce(args[0], axis=-1, initial=lowest(dtype))
    distance = args[0].astype(np.float64) - np.asarray(largest, np.float64)[..., None]
    return [largest, np.sum(np.exp(distance), axis=-1).astype(NUMPY[dtype])]


def _position(least: Callable[..., Any]) -> Callable[[list[Array], DType], list[Array]]:
    """Return the evaluator of a position, which is 0 without elements."""

    def evaluate(args: list[Array], _: DType) -> list[Array]:
        if args[0].shape[-1] == 0:
            return [np.zeros(args[0].shape[:-1], np.int64)]
        return [least(args[0], axis=-1)]

    return evaluate


_REDUCE: Mapping[ReduceKind, Callable[[list[Array], DType], list[Array]]] = MappingProxyType({
    ReduceKind.SUM: lambda args, dtype: [np.sum(args[0], axis=-1, dtype=NUMPY[dtype])],
    ReduceKind.PROD: lambda args, dtype: [np.prod(args[0], axis=-1, dtype=NUMPY[dtype])],
    ReduceKind.DOT: lambda args, dtype: [np.sum(args[0] * args[1], axis=-1, dtype=NUMPY[dtype])],
    ReduceKind.MIN: lambda args, dtype: [
        np.minimum.reduce(args[0], axis=-1, initial=highest(dtype))
    ],
    ReduceKind.MAX: lambda args, dtype: [
        np.maximum.reduce(args[0], axis=-1, initial=lowest(dtype))
    ],
    ReduceKind.ARGMIN: _position(np.argmin),
    ReduceKind.ARGMAX: _position(np.argmax),
    ReduceKind.ANY: lambda args, _: [np.any(args[0], axis=-1)],
    ReduceKind.ALL: lambda args, _: [np.all(args[0], axis=-1)],
    ReduceKind.XOR: lambda args, _: [np.bitwise_xor.reduce(args[0], axis=-1)],
    ReduceKind.WELFORD: _welford,
    ReduceKind.ONLINE_SOFTMAX: _online_softmax,
})  # fmt: skip


def _running_logsumexp(line: Array) -> Array:
    wide = line.astype(np.float64)
    return np.logaddexp.accumulate(wide, axis=-1).astype(line.dtype)


_SCAN: Mapping[ScanKind, Callable[[Array], Array]] = MappingProxyType({
    ScanKind.SUM: lambda line: np.add.accumulate(line, axis=-1, dtype=line.dtype),
    ScanKind.PROD: lambda line: np.multiply.accumulate(line, axis=-1, dtype=line.dtype),
    ScanKind.MIN: lambda line: np.minimum.accumulate(line, axis=-1),
    ScanKind.MAX: lambda line: np.maximum.accumulate(line, axis=-1),
    ScanKind.LOGSUMEXP: _running_logsumexp,
})  # fmt: skip


def _running_position(kind: ScanKind, arg: Array, reverse: bool) -> Array:
    line = arg[..., ::-1] if reverse else arg
    best = _SCAN[EXTREME_OF[kind]](line)
    moves = line == best
    if DTYPES[arg.dtype].is_float:
        moves |= np.isnan(line)
    steps = np.maximum.accumulate(np.where(moves, np.arange(arg.shape[-1]), 0), axis=-1)
    return (arg.shape[-1] - 1 - steps)[..., ::-1] if reverse else steps
