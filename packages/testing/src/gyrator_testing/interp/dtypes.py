"""NumPy dtypes of element types, eager's conversions, and poison values."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from gyrator_ir.types import DType

Array = np.ndarray[Any, Any]

NUMPY: Mapping[DType, np.dtype[Any]] = MappingProxyType(
    {dtype: np.dtype(getattr(ml_dtypes, dtype.full_name, dtype.full_name)) for dtype in DType}
)
"""The NumPy dtype of each element type; `ml_dtypes` supplies those that NumPy lacks."""

DTYPES: Mapping[np.dtype[Any], DType] = MappingProxyType({n: d for d, n in NUMPY.items()})
"""The inverse of `NUMPY`."""

_LARGEST_E4M3 = np.float32(448)
POISON_BYTE = 0xA5


def poisoned(dtype: DType, count: int) -> Array:
    """Return `count` elements that a program must not read before it writes them.

    NaN for floats, a conspicuous bit pattern for integers, `True` for bool.
    """
    array: Array = np.empty(count, NUMPY[dtype])
    poison(array)
    return array


def poison(array: Array) -> None:
    """Overwrite a flat array in place with poison values."""
    dtype = DTYPES[array.dtype]
    if dtype.is_float or dtype.is_complex:
        array[...] = np.nan
    elif dtype is DType.BOOL:
        array[...] = True
    else:
        array.view(np.uint8)[...] = POISON_BYTE


def scalar(value: bool | int | float, dtype: DType) -> Array:
    """Return a constant as a 0-d array; integers wrap."""
    if dtype.is_narrow_float:
        return cast(np.asarray(value, np.float64), dtype)
    if dtype.is_int and not isinstance(value, float):
        bits = int(value) & ((1 << 8 * dtype.size) - 1)
        return np.asarray(bits, f"u{dtype.size}").view(NUMPY[dtype])
    return np.asarray(value, NUMPY[dtype])


def cast(value: Array, dtype: DType) -> Array:
    """Convert by value as eager does.

    Narrow floats are converted via `f32`; floats are truncated towards zero to integers; integers
    wrap; any nonzero value is `True`. Conversions that are undefined in eager (floats outside the
    range of the integer type) are undefined here.
    """
    source, target = DTYPES[value.dtype], NUMPY[dtype]
    if value.dtype == target:
        return value
    with np.errstate(all="ignore"):
        if source.is_narrow_float:
            value, source = value.astype(np.float32), DType.F32
        if dtype.is_narrow_float:
            wide = value.astype(np.float32)
            if dtype is DType.F8E4M3:  # has no infinity: eager saturates
                wide = np.clip(wide, -_LARGEST_E4M3, _LARGEST_E4M3)
            rounded = wide.astype(target)
            if dtype is DType.F8E5M2:  # of the NaNs that there are, eager gives this one
                bits = rounded.view(np.uint8)
                return np.where(np.isnan(wide), bits | 0x7F, bits).view(target)
            return rounded
        if source.is_float and dtype.is_int:
            return _truncated(value, dtype)
        if source.is_complex and not dtype.is_complex and dtype is not DType.BOOL:
            value = value.real
        if dtype is DType.BOOL:
            return np.asarray(value != 0)
        return value.astype(target)


def _truncated(value: Array, dtype: DType) -> Array:
    target = NUMPY[dtype]
    if dtype is DType.U64:
        large = value >= 2.0**63
        low = np.where(large, 0, value).astype(np.int64).astype(target)
        return np.where(large, np.where(large, value, 2.0**63).astype(target), low)
    if dtype in (DType.I64, DType.I32):
        return value.astype(target)
    return value.astype(np.int64).astype(target)
