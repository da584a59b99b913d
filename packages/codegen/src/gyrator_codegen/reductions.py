"""What reductions and scans start from, in every language."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from gyrator_ir.body.nodes import ReduceKind, ScanKind
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
