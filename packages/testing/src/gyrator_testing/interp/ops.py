"""One evaluator for each row of the op table, on whole arrays.

Transcendental functions of `f32` are computed in `f64` and rounded, which is within half a unit in
the last place; those of `f64` are NumPy's or the platform's.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gyrator_ir.types import DType
from gyrator_testing.interp import philox, special
from gyrator_testing.interp.dtypes import NUMPY, Array, cast

Evaluator = Callable[..., Array]
"""Takes the operands and returns the result in the type that the op table says."""


def _precise(function: Callable[..., Any]) -> Evaluator:
    def evaluate(*args: Array) -> Array:
        wide = [a.astype(np.float64) for a in args]
        return np.asarray(function(*wide)).astype(args[0].dtype)

    return evaluate


def _truncdiv(a: Array, b: Array) -> Array:
    quotient = np.asarray(np.floor_divide(a, b))
    inexact = np.fmod(a, b) != 0
    return np.where(inexact & ((a < 0) != (b < 0)), quotient + quotient.dtype.type(1), quotient)


def _remainder(a: Array, b: Array) -> Array:
    r = np.asarray(np.fmod(a, b))
    return np.where((r != 0) & (np.signbit(r) != np.signbit(b)), r + b, r)


def _maximum(a: Array, b: Array) -> Array:
    return np.where((a > b) | (a != a), a, b)


def _minimum(a: Array, b: Array) -> Array:
    return np.where((a < b) | (a != a), a, b)


def _shl(a: Array, b: Array) -> Array:
    inside, amount = _amount(a, b)
    return np.where(inside, np.left_shift(a, amount), a.dtype.type(0))


def _shr(a: Array, b: Array) -> Array:
    inside, amount = _amount(a, b)
    # Every bit of `a < 0` widened to its type is the sign bit of `a`.
    filled = np.negative((a < 0).astype(a.dtype))
    return np.where(inside, np.right_shift(a, amount), filled)


def _amount(a: Array, b: Array) -> tuple[Array, Array]:
    inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return inside, np.where(inside, b, b.dtype.type(0))


def _sigmoid(a: Array) -> Array:
    # The form whose exponential cannot overflow, on each side of 0.
    e = np.exp(-np.abs(a))
    return np.where(a >= 0, 1.0, e) / (1.0 + e)


_SAME: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "fma": special.fma,
    "floordiv": np.floor_divide, "truncdiv": _truncdiv, "mod": np.mod, "rem": np.fmod,
    "fmod": np.fmod, "remainder": _remainder, "neg": np.negative, "abs": np.abs,
    "maximum": _maximum, "minimum": _minimum, "fmax": np.fmax, "fmin": np.fmin,
    "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "copysign": np.copysign, "nextafter": np.nextafter, "ldexp": np.ldexp,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
    "bit_not": np.invert, "shl": _shl, "shr": _shr,
    "isnan": np.isnan, "isinf": np.isinf, "signbit": np.signbit, "where": np.where,
    "rand": philox.rand, "randn": philox.randn, "randint": philox.randint,
}  # fmt: skip

_PRECISE: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": special.erf, "erfc": special.erfc, "erfinv": special.erfinv,
    "lgamma": special.lgamma, "digamma": special.digamma,
    "sigmoid": _sigmoid, "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot,
}  # fmt: skip

EVALUATE: Mapping[str, Evaluator] = MappingProxyType(
    _SAME | {name: _precise(function) for name, function in _PRECISE.items()}
)
"""Evaluator of every op but `cast` and `bitcast`, whose result depends on the type asked for."""

CONVERT: Mapping[str, Callable[[Array, DType], Array]] = MappingProxyType(
    {"cast": cast, "bitcast": lambda a, dtype: _bitcast(a, dtype)}
)
"""Evaluators that also take the result type."""


def apply(op: str, args: list[Array], dtype: DType) -> Array:
    """Return the value of row `op` of the op table; `dtype` is the result type stated."""
    with np.errstate(all="ignore"):
        if op in CONVERT:
            return CONVERT[op](args[0], dtype)
        return np.asarray(EVALUATE[op](*args))


def _bitcast(a: Array, dtype: DType) -> Array:
    return np.ascontiguousarray(a).reshape(a.shape).view(NUMPY[dtype])
