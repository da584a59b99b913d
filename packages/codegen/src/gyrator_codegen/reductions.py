"""The loop-carried state of reductions and scans, common to all languages."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from attrs import evolve

from gyrator_ir.body.nodes import POSITIONS, Reduce, ReduceKind, ScanKind, ScanStep, identity_of
from gyrator_ir.define import frozen
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
"""The reduction whose identity is the initial value of each kind of scan."""


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
"""The op that merges two accumulators of a reduction, or of its first pass."""


def in_pairs(parts: Sequence[str], combined: Callable[[str, str], str]) -> str:
    """Return the pairwise (tree) combination of a power of two of parts, in the order in which
    accumulators are merged."""
    while len(parts) > 1:
        parts = [combined(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


_WIDE_SCANS = (ScanKind.SUM, ScanKind.PROD, ScanKind.LOGSUMEXP)


@frozen
class Carried:
    """A loop-carried variable."""

    role: str
    """Its role in the reduction: `acc` and its companion `with`, for each accumulator; `total`, to
    which chains are added; `run`, `sum` and `count` of two passes; the index `at` of a scan. Of a
    scan of `logsumexp`, `acc` is the maximum, `with` the sum of the other exponentials over its."""
    dtype: DType
    start: bool | int | float
    total: bool = False
    """Whether it only changes at the end of a chain."""
    lanes: bool = False
    """Whether each lane has its own."""
    name: str = ""
    """Its name in the text."""


def _extreme_type(dtype: DType) -> DType:
    """Return the type of accumulators, whose comparisons give masks as wide as positions."""
    return DType.I32 if dtype.size < DType.I32.size and not dtype.is_float else dtype


def carried(
    s: Reduce | ScanStep, how: Reduction | None = None, copies: int = 1
) -> tuple[Carried, ...]:
    """Return the loop-carried variables of a reduction with `copies` accumulators, of a two-pass
    reduction, or of a scan."""
    if isinstance(s, ScanStep):
        wide = s.kind in _WIDE_SCANS and s.dtype.is_float
        dtype, kind = DType.F64 if wide else s.dtype, REDUCTION_OF[s.kind]
        acc = Carried("acc", dtype, identity_of(kind, dtype))
        if s.kind is ScanKind.LOGSUMEXP:
            return acc, Carried("with", dtype, 0)
        return (acc, Carried("at", DType.I64, 0)) if s.kind in POSITIONS else (acc,)
    assert how is not None
    welford = s.kind is ReduceKind.WELFORD
    if how.method is Method.TWO_PASS:
        first = Carried("run", DType.F64, 0 if welford else -math.inf)
        count = (Carried("count", DType.I64, 0),) if welford else ()
        return (first, Carried("sum", DType.F64, 0), *count)
    if how.of:
        return ()
    dtype = DType.F64 if how.wide or welford else s.dtype
    accumulator = [Carried("acc", dtype, identity_of(s.kind, dtype))]
    if s.kind in POSITIONS:
        # If nothing is better than the identity, the first element is as good.
        position = Carried("with", DType.I32 if how.narrow else DType.I64, 0)
        accumulator = [evolve(accumulator[0], dtype=_extreme_type(s.dtype)), position]
    elif welford or s.kind is ReduceKind.ONLINE_SOFTMAX:
        accumulator.append(Carried("with", DType.F64, 0))
    total = [Carried("total", DType.F64, 0, total=True)] if how.chain else []
    return (*accumulator * copies, *total)
