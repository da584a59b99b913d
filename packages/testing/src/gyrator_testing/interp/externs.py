"""Calls of dispatcher ops as NumPy functions.

A function takes what the call passes: arrays for tensors, Python values for constants, lists,
`TypeArg` for dtypes and devices. It returns an array, or a tuple with an entry for each return.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gyrator_testing.interp.dtypes import DTYPES, Array, cast

Extern = Callable[..., Any]
Externs = Mapping[str, Extern]

SEED = 0x1234_5678_9ABC_DEF0
"""What `gyrator.philox_seed` gives here, where no generator stands behind it."""


def philox_seed(*_: object) -> Array:
    """Return the seed of this call's random numbers, a 0-d `int64` array."""
    return np.asarray(SEED, np.int64)


def matmul(a: Array, b: Array) -> Array:
    """Return the matrix product in the type of the operands; narrow floats are summed in `f32`."""
    dtype = DTYPES[a.dtype]
    if dtype.is_narrow_float:
        return cast(np.matmul(a.astype(np.float32), b.astype(np.float32)), dtype)
    return np.asarray(np.matmul(a, b))


def addmm(bias: Array, a: Array, b: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """Return `beta * bias + alpha * (a @ b)`, rounded once for narrow floats."""
    dtype = DTYPES[a.dtype]
    wide = [cast(x, dtype.compute) for x in (bias, a, b)]
    product = np.asarray(alpha, wide[1].dtype) * np.matmul(wide[1], wide[2])
    if beta == 0:
        return cast(product, dtype)
    return cast(np.asarray(beta, product.dtype) * wide[0] + product, dtype)


def copy_(destination: Array, source: Array, _non_blocking: object = None) -> Array:
    """Overwrite `destination` with the values of `source`, converted."""
    destination[...] = cast(source, DTYPES[destination.dtype])
    return destination


def local_scalar_dense(a: Array) -> int | float | bool:
    """Return the value of a one-element tensor."""
    value: int | float | bool = a.item()
    return value


DEFAULT: Externs = MappingProxyType(
    {
        "aten.mm.default": matmul,
        "aten.bmm.default": matmul,
        "aten.addmm.default": addmm,
        "aten.baddbmm.default": addmm,
        "aten.copy_.default": copy_,
        "aten._local_scalar_dense.default": local_scalar_dense,
        "gyrator.philox_seed": philox_seed,
    }
)
"""Enough for the tests of the stages; more are passed by who needs them."""
