"""What reductions and scans keep of the elements they have seen, in every language."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from gyrator_ir.body.nodes import POSITIONS, Reduce, ReduceKind, ScanKind, ScanStep
from gyrator_ir.tile.nodes import Method, Reduction
from gyrator_ir.types import DType

REDUCTION_OF: Mapping[ScanKind, ReduceKind] = MappingProxyType({
    ScanKind.SUM: ReduceKind.SUM,
    ScanKind.PROD: ReduceKind.PROD,
    ScanKind.MIN: ReduceKind.MIN,
    ScanKind.MAX: ReduceKind.MAX,
    ScanKind.ARGMIN: ReduceKind.MIN,
    ScanKind.ARGMAX: ReduceKind.MAX,
    ScanKind.LOGSUMEXP: ReduceKind.MAX,
})  # fmt: skip
"""The reduction whose identity a scan's values start from."""


def identity(kind: ReduceKind, dtype: DType) -> bool | int | float:
    """Return what leaves a reduction as it is; for `argmin` and `argmax`, as their value."""
    match kind:
        case ReduceKind.PROD | ReduceKind.ALL:
            return True if dtype is DType.BOOL else 1
        case ReduceKind.MIN | ReduceKind.ARGMIN:
            return _largest(dtype)
        case ReduceKind.MAX | ReduceKind.ARGMAX | ReduceKind.ONLINE_SOFTMAX:
            if dtype.is_float:
                return -math.inf
            return -int(_largest(dtype)) - 1 if dtype.is_signed else 0
    return 0


def _largest(dtype: DType) -> bool | int | float:
    if dtype is DType.BOOL:
        return True
    if dtype.is_float:
        return math.inf
    return int((1 << (8 * dtype.size - dtype.is_signed)) - 1)


MERGED: Mapping[ReduceKind, str] = MappingProxyType({
    ReduceKind.SUM: "add",
    ReduceKind.DOT: "add",
    ReduceKind.WELFORD: "add",
    ReduceKind.PROD: "mul",
    ReduceKind.MIN: "minimum",
    ReduceKind.MAX: "maximum",
    ReduceKind.ONLINE_SOFTMAX: "maximum",
    ReduceKind.ANY: "bit_or",
    ReduceKind.ALL: "bit_and",
    ReduceKind.XOR: "bit_xor",
})  # fmt: skip
"""The op that joins two of what a reduction, or its first pass, keeps."""

_NOWHERE = (1 << 63) - 1  # a position behind all others
_WIDE_SCANS = (ScanKind.SUM, ScanKind.PROD, ScanKind.LOGSUMEXP)


@frozen
class Carried:
    """A variable that loops carry from element to element."""

    role: str
    """What it is among those of its reduction: `acc`, and beside it `with`, for each accumulator;
    the `total` that chains end in; `run`, `sum` and `count` of two passes; the place `at`."""
    dtype: DType
    start: bool | int | float
    total: bool = False
    """It only changes when a chain ends."""


def carried(
    s: Reduce | ScanStep, how: Reduction | None = None, copies: int = 1
) -> tuple[Carried, ...]:
    """Return what a reduction, or a running one, carries: for each of `copies` accumulators, or of
    all blocks of two passes."""
    if isinstance(s, ScanStep):
        wide = s.kind in _WIDE_SCANS and s.dtype.is_float
        dtype, kind = DType.F64 if wide else s.dtype, REDUCTION_OF[s.kind]
        places = (Carried("at", DType.I64, 0),) if s.kind in POSITIONS else ()
        return (Carried("acc", dtype, identity(kind, dtype)), *places)
    assert how is not None
    welford = s.kind is ReduceKind.WELFORD
    if how.method is Method.TWO_PASS:
        first = Carried("run", DType.F64, 0 if welford else -math.inf)
        count = (Carried("count", DType.I64, 0),) if welford else ()
        return (first, Carried("sum", DType.F64, 0), *count)
    dtype = DType.F64 if how.wide or welford else s.dtype
    one = [Carried("acc", dtype, identity(s.kind, dtype))]
    if s.kind in POSITIONS:
        one.append(Carried("with", DType.I64, _NOWHERE))
    elif welford or s.kind is ReduceKind.ONLINE_SOFTMAX:
        one.append(Carried("with", DType.F64, 0))
    total = [Carried("total", DType.F64, 0, total=True)] if how.chain else []
    return (*one * copies, *total)
