"""Comparison of a kernel's results with those of the reference interpreter."""

from collections.abc import Iterable, Mapping

import numpy as np

from gyrator_ir.body.rewrite import AnyStatement
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import DTYPES, Array


def same_bits(got: Array, want: Array) -> Array:
    """Return where two arrays agree: bitwise equal, both NaN, or both zero."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype == np.bool_:
        return np.asarray(got == want)
    equal = np.asarray(got.view(f"u{got.itemsize}") == want.view(f"u{got.itemsize}"))
    if DTYPES[got.dtype].is_float:
        wide = got.astype(np.float64), want.astype(np.float64)
        equal |= np.isnan(wide[0]) & np.isnan(wide[1])
        equal |= (wide[0] == 0) & (wide[1] == 0)
    return equal


def tolerance(want: Array, width: int) -> tuple[float, float]:
    """Return the relative and the absolute tolerance for results that should be `want`.

    `width` is the size in bytes of the dtype in which the kernel computes; results of a wider dtype
    are not more accurate.
    """
    loose = {1: 0.25, 2: 2e-2, 4: 3e-5, 8: 1e-9}[min(want.itemsize, width)]
    wide = want.astype(np.float64)
    scale = np.abs(wide[np.isfinite(wide)]).max(initial=1.0)
    return loose, loose * float(scale) * 0.1


def agree(got: Array, want: Array, width: int) -> Array:
    """Return where two arrays agree to the precision of their type, as `assert_close` asserts."""
    if want.dtype.kind in "iub":
        return np.asarray(got == want)
    relative, absolute = tolerance(want, width)
    wide = got.astype(np.float64), want.astype(np.float64)
    return np.isclose(*wide, rtol=relative, atol=absolute, equal_nan=True)


def assert_close(got: Array, want: Array, name: str, width: int) -> None:
    """Assert that two buffers agree to the precision of their type.

    Integers and bools must be equal.
    """
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    relative, absolute = tolerance(want, width)
    a, b = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=relative, atol=absolute, err_msg=name)


def computed_width(body: Iterable[AnyStatement]) -> int:
    """Return the bytes of the type that statements compute floats in."""
    return 4 if any(getattr(s, "dtype", None) is DType.F32 for s in body) else 8


def assert_same_writes(kernel: Kernel, got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
    """Assert that all parameters of a kernel that ran twice agree by `assert_close`."""
    body = kernel.statements
    width = computed_width(body)
    for buffer in kernel.parameters:
        assert_close(got[buffer.name], want[buffer.name], buffer.name, width)
