"""How what a kernel wrote is compared with what the reference interpreter says."""

from collections.abc import Mapping

import numpy as np

from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import DTYPES, Array


def same_bits(got: Array, want: Array) -> Array:
    """Return where two arrays agree: in every bit, or both NaN, or both a zero."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype == np.bool_:
        return np.asarray(got == want)
    equal = np.asarray(got.view(f"u{got.itemsize}") == want.view(f"u{got.itemsize}"))
    if DTYPES[got.dtype].is_float:
        wide = got.astype(np.float64), want.astype(np.float64)
        equal |= np.isnan(wide[0]) & np.isnan(wide[1])
        equal |= (wide[0] == 0) & (wide[1] == 0)
    return equal


def assert_close(got: Array, want: Array, name: str, single: bool) -> None:
    """Assert that two buffers agree to the precision of their type.

    Integers and bool in every bit. `single` says that the kernel computes in `f32`, so that its
    `f64` results are no closer.
    """
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    loose = {2: 2e-2, 4: 3e-5, 8: 3e-5 if single else 1e-9}[got.itemsize]
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    scale = np.abs(b[finite]).max() if finite.any() else 1.0
    np.testing.assert_allclose(a, b, rtol=loose, atol=loose * max(scale, 1.0) * 0.1, err_msg=name)


def assert_same_writes(kernel: Kernel, got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
    """Assert that all parameters of a kernel that ran twice agree by `assert_close`."""
    body = [s for stage in kernel.stages for s in stage.body]
    single = any(getattr(s, "dtype", None) is DType.F32 for s in body)
    for buffer in kernel.parameters:
        assert_close(got[buffer.name], want[buffer.name], buffer.name, single)
