"""Functions that NumPy lacks, to within a unit in the last place or so of `float64`."""

import math
from collections.abc import Callable
from fractions import Fraction
from statistics import NormalDist

import numpy as np

from gyrator_testing.interp.dtypes import Array


def elementwise(function: Callable[..., float], *args: Array) -> Array:
    """Apply a function of Python floats at every point, and return `float64`."""
    return np.asarray(np.frompyfunc(function, len(args), 1)(*args), dtype=np.float64)


def erf(a: Array) -> Array:
    """Return the error function."""
    return elementwise(math.erf, a)


def erfc(a: Array) -> Array:
    """Return 1 - erf(a) without cancellation."""
    return elementwise(math.erfc, a)


def lgamma(a: Array) -> Array:
    """Return log |gamma(a)|; infinite at the poles."""
    return elementwise(_lgamma, a)


def digamma(a: Array) -> Array:
    """Return the derivative of `lgamma`; NaN at negative integers, -copysign(inf, a) at 0."""
    return elementwise(_digamma, a)


def erfinv(a: Array) -> Array:
    """Return the inverse of `erf`; infinite at 1 and -1, NaN outside."""
    return elementwise(_erfinv, a)


def fma(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c rounded once to the type of the operands, `f32` or `f64`."""
    if a.dtype == np.float32:
        return _fma32(a, b, c)
    return elementwise(_fma64, a, b, c)


def _lgamma(x: float) -> float:
    if math.isnan(x):
        return x
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if x == math.floor(x):
            return math.nan
        fraction = math.fmod(x, 1.0)
        return _digamma(1.0 - x) - math.pi / math.tan(math.pi * fraction)
    shift = 0.0
    while x < 12.0:
        shift += 1.0 / x
        x += 1.0
    if x > 1e17:
        return math.log(x)
    y = 1.0 / (x * x)
    # Asymptotic series (Abramowitz and Stegun 6.3.18): the Bernoulli numbers B_2n / 2n.
    coefficients = (
        1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160,
    )  # fmt: skip
    series = 0.0
    for c in reversed(coefficients):
        series = (series + c) * y
    return math.log(x) - 0.5 / x - series - shift


def _erfinv(y: float) -> float:
    if not -1.0 <= y <= 1.0:
        return math.nan
    if abs(y) == 1.0:
        return math.copysign(math.inf, y)
    if y == 0.0:
        return y
    z = abs(y)
    tail = 1.0 - z
    start = z * math.sqrt(math.pi) / 2
    x = start if z < 1e-8 else -NormalDist().inv_cdf(tail / 2) / math.sqrt(2)
    for _ in range(3):  # Newton on erf, or on erfc where erf is near 1
        error = math.erf(x) - z if z < 0.5 else tail - math.erfc(x)
        x -= error * math.sqrt(math.pi) / 2 * math.exp(x * x)
    return math.copysign(x, y)


def _fma32(a: Array, b: Array, c: Array) -> Array:
    # The product is exact in f64. The sum is rounded to odd there, so that the second rounding, to
    # f32, is right (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)
    inexact = np.isfinite(total) & (error != 0) & (total.view(np.int64) & 1 == 0)
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact, np.nextafter(total, towards), total).astype(np.float32)


def _fma64(a: float, b: float, c: float) -> float:
    plain = a * b + c
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return plain
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.copysign(math.inf, exact)
