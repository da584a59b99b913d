"""Calls of dispatcher ops as NumPy functions.

A function receives the arguments of the call: arrays for tensors, Python values for constants,
lists, `TypeArg` for dtypes and devices. It returns an array, or a tuple with an entry for each
return.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gyrator_testing.interp.dtypes import DTYPES, Array, cast
from gyrator_testing.interp.errors import InterpreterError

Extern = Callable[..., Any]
Externs = Mapping[str, Extern]

SEED = 0x1234_5678_9ABC_DEF0
"""The result of `gyrator.philox_seed`, which has no generator in the interpreter."""


def philox_seed(*_: object) -> Array:
    """Return the seed of this call's random numbers, a 0-d `int64` array."""
    return np.asarray(SEED, np.int64)


def matmul(a: Array, b: Array) -> Array:
    """Return the matrix product in the dtype of the operands; narrow floats are accumulated in
    `f32`."""
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


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the elements of nested lists, tuples and dictionaries; tuples become
    lists."""
    if isinstance(value, list | tuple):
        return [mapped(function, v) for v in value]
    if isinstance(value, dict):
        return {k: mapped(function, v) for k, v in value.items()}
    return function(value)


class Dispatched(dict[str, Extern]):
    """The ops of another library, with overrides.

    Args:
        find: return an op of the library by its target, such as `aten.mm.default`.
        to_library: convert an argument to a value of the library.
        from_library: convert a result of the library to an array.
        own: functions that override ops, by target.
    """

    def __init__(
        self,
        find: Callable[[str], Callable[..., Any]],
        to_library: Callable[[Any], Any],
        from_library: Callable[[Any], Any],
        own: Externs | None = None,
    ) -> None:
        super().__init__(own or {})
        self.find = find
        self.to_library, self.from_library = to_library, from_library

    def __contains__(self, target: object) -> bool:
        return True

    def __missing__(self, target: str) -> Extern:
        function = self.find(target)

        def run(*args: Any, **kwargs: Any) -> Any:
            operands = mapped(self.to_library, list(args)), mapped(self.to_library, kwargs)
            return mapped(self.from_library, function(*operands[0], **operands[1]))

        return run


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
"""The functions that the stage tests need; callers may pass more."""


def function_of(externs: Externs, target: str) -> Callable[..., Any]:
    """Return the function for an op, or raise InterpreterError (GY-INTERP-004)."""
    if target not in externs:
        message = f"no function stands for {target!r}"
        raise InterpreterError.of("GY-INTERP-004", message, help="pass one in `externs`")
    return externs[target]
