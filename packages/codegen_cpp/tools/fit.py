"""Fit the polynomial coefficients of the prelude's math headers.

Every polynomial in ``prelude/headers/*.h`` is the output of this program: for float64 a Remez
exchange on a dense grid in 50-digit arithmetic (mpmath), minimising the largest weighted error. For
float32 (where rounding a coefficient is felt) it is Lawson's reweighted least squares, the lowest
power rounded first and the higher ones fitted again to what is left.

Run ``python packages/codegen_cpp/tools/fit.py [name ...]``; it prints coefficients from the highest
power down (the order of ``gy_poly``) and the largest weighted error that remains.
"""

import sys
from collections.abc import Callable, Iterator

import attrs
import mpmath as mp
import numpy as np

Function = Callable[[mp.mpf], mp.mpf]

mp.mp.dps = 50


@attrs.frozen
class Fit:
    """A target: ``f`` on [low, high] by a polynomial of ``degree``, error times ``weight``.

    The ``leading`` lowest coefficients of ``f`` are its Taylor series', each in two parts; the
    polynomial is then that of the rest, divided by the next power, and ``weight`` that of ``f``.
    """

    name: str
    f: Function
    low: mp.mpf
    high: mp.mpf
    degree: int
    weight: Function
    dtype: type
    leading: int = 0


def _one(_: mp.mpf) -> mp.mpf:
    return mp.mpf(1)


def nodes(low: mp.mpf, high: mp.mpf, count: int) -> list[mp.mpf]:
    """Chebyshev extremal points, ascending, in [low, high]."""
    mid, half = (low + high) / 2, (high - low) / 2
    return [mid - half * mp.cos(mp.pi * i / (count - 1)) for i in range(count)]


def _value(coefficients: list[mp.mpf], x: mp.mpf) -> mp.mpf:
    total = mp.mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def _extrema(errors: list[mp.mpf], count: int) -> list[int]:
    """Indices of the largest error in each run of equal sign, thinned to ``count``."""
    picks: list[int] = []
    for i, e in enumerate(errors):
        if picks and (e > 0) == (errors[picks[-1]] > 0):
            if abs(e) > abs(errors[picks[-1]]):
                picks[-1] = i
        else:
            picks.append(i)
    while len(picks) > count:
        picks.pop(0 if abs(errors[picks[0]]) < abs(errors[picks[-1]]) else -1)
    return picks


def remez(
    values: list[mp.mpf],
    grid: list[mp.mpf],
    weights: list[mp.mpf],
    first: int,
    degree: int,
) -> tuple[list[mp.mpf], mp.mpf]:
    """Best weighted fit by powers ``first..degree``; returns their coefficients and the error."""
    terms = degree - first + 1
    step = (len(grid) - 1) / terms
    picks = [round(i * step) for i in range(terms + 1)]
    best: list[mp.mpf] = []
    largest = mp.mpf("inf")
    for _ in range(30):
        matrix = mp.matrix(terms + 1, terms + 1)
        right = mp.matrix(terms + 1, 1)
        for row, k in enumerate(picks):
            for column in range(terms):
                matrix[row, column] = grid[k] ** (first + column)
            matrix[row, terms] = (-1) ** row / weights[k]
            right[row] = values[k]
        solution = mp.lu_solve(matrix, right)
        coefficients = [mp.mpf(0)] * first + [solution[i] for i in range(terms)]
        errors = [
            (v - _value(coefficients, x)) * w for x, v, w in zip(grid, values, weights, strict=True)
        ]
        worst = max(abs(e) for e in errors)
        if worst < largest:
            best, largest = coefficients[first:], worst
        if worst < abs(solution[terms]) * mp.mpf("1.001"):
            break
        new = _extrema(errors, terms + 1)
        if len(new) < terms + 1 or new == picks:
            break
        picks = new
    return best, largest


def lawson(
    values: np.ndarray, grid: np.ndarray, weights: np.ndarray, first: int, degree: int
) -> np.ndarray:
    """Near-best weighted fit by powers ``first..degree``: least squares, reweighted by the error.

    Unlike `remez` it does not need the powers to be a Chebyshev system, which they are not on an
    interval around 0 once the lowest ones are fixed.
    """
    powers = np.stack([grid**p for p in range(first, degree + 1)], axis=1)
    emphasis = np.ones_like(grid)
    best, largest = np.zeros(powers.shape[1]), np.inf
    for _ in range(60):
        scale = weights * np.sqrt(emphasis)
        solution = np.linalg.lstsq(powers * scale[:, None], values * scale, rcond=None)[0]
        error = np.abs((values - powers @ solution) * weights)
        if error.max() < largest:
            best, largest = solution, float(error.max())
        emphasis *= error / max(float(error.max()), 1e-300) + 1e-3
        emphasis /= emphasis.mean()
    return best


def fit(target: Fit) -> tuple[list[float], float]:
    """Coefficients from the lowest power up, rounded to ``target.dtype``, and the error left."""
    count = 24 * (target.degree + 2)
    grid = [x for x in nodes(target.low, target.high, count) if x != 0]
    first = leading(target)
    weights = [target.weight(x) * abs(x) ** target.leading for x in grid]
    values = [(target.f(x) - _value(first, x)) / x**target.leading for x in grid]
    if target.dtype is np.float64:
        coefficients = [float(c) for c in remez(values, grid, weights, 0, target.degree)[0]]
    else:
        coefficients = fit_rounded(values, grid, weights, target.degree)
    error = max(
        abs((v - _value([mp.mpf(c) for c in coefficients], x)) * w)
        for x, v, w in zip(grid, values, weights, strict=True)
    )
    return coefficients, float(error)


def leading(target: Fit) -> list[mp.mpf]:
    """The lowest coefficients, which are not fitted, to 24 digits: the value and the slope."""
    if not target.leading:
        return []
    h = mp.mpf(10) ** -12
    slope = (target.f(h) - target.f(-h)) / (2 * h)
    return [target.f(mp.mpf(0)), slope][: target.leading]


def fit_rounded(
    values: list[mp.mpf], grid: list[mp.mpf], weights: list[mp.mpf], degree: int
) -> list[float]:
    """Round to float32 from the lowest power up, each time fitting the higher powers again."""
    points = np.array([float(x) for x in grid])
    scale = np.array([float(w) for w in weights])
    rest = np.array([float(v) for v in values])
    rounded: list[float] = []
    for power in range(degree + 1):
        c = float(np.float32(lawson(rest, points, scale, power, degree)[0]))
        rounded.append(c)
        rest = rest - c * points**power
    return rounded


def _exp_tail(r: mp.mpf) -> mp.mpf:
    return (mp.expm1(r) - r) / r**2


def _log_tail(f: mp.mpf) -> mp.mpf:
    return (mp.log1p(f) - f + f * f / 2) / f**3


def _log_s(z: mp.mpf) -> mp.mpf:
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / s**3 if s else mp.mpf(2) / 3


def _odd_tail(f: Function) -> Function:
    """(f(x) - x) / x^3 as a function of z = x^2."""

    def tail(z: mp.mpf) -> mp.mpf:
        x = mp.sqrt(z)
        return (f(x) - x) / x**3

    return tail


def _cos_tail(z: mp.mpf) -> mp.mpf:
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def _erf_over_x(z: mp.mpf) -> mp.mpf:
    x = mp.sqrt(z)
    return mp.erf(x) / x


def _erfcx_of_t(t: mp.mpf) -> mp.mpf:
    """exp(x^2) erfc(x) for t = (x - 2.5) / (x + 2.5)."""
    x = mp.mpf("2.5") * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x)


def _erfinv_of_w(w: mp.mpf) -> mp.mpf:
    """erfinv(x) / x for w = -log((1 - x)(1 + x))."""
    y = mp.sqrt(-mp.expm1(-w))
    with mp.workdps(60):
        one_less = mp.exp(-w) / (1 + y)
        x = mp.sqrt(max(w, mp.mpf("1e-30"))) if w > 4 else y * mp.sqrt(mp.pi) / 2
        for _ in range(40):
            error = one_less - mp.erfc(x) if w > 1 else mp.erf(x) - y
            x -= error * mp.sqrt(mp.pi) / 2 * mp.exp(x * x)
            if abs(error) < one_less * mp.mpf("1e-40"):
                break
    return x / y


def _lgamma_near_2(t: mp.mpf) -> mp.mpf:
    """log gamma(2 + t) / t."""
    return mp.loggamma(2 + t) / t if t else 1 - mp.euler


def _lgamma_tail(u: mp.mpf) -> mp.mpf:
    """x times the rest of Stirling's formula at x = 1 / sqrt(u)."""
    x = 1 / mp.sqrt(u)
    return x * (mp.loggamma(x) - (x - 0.5) * mp.log(x) + x - mp.log(2 * mp.pi) / 2)


def _erfcx_by(k: float, y: float) -> Function:
    """(a + k) exp(a^2) erfc(a) of u = 1 / (a + k) - y."""

    def f(u: mp.mpf) -> mp.mpf:
        a = 1 / (u + y) - k
        return (a + k) * mp.exp(a * a) * mp.erfc(a)

    return f


def _erfc(name: str, k: float, y: float, low: str, high: str, degree: int, dtype: type) -> Fit:
    f = _erfcx_by(k, y)
    least, most = 1 / (mp.mpf(high) + k) - y, 1 / (mp.mpf(low) + k) - y
    return Fit(name, f, least, most, degree, lambda u: 1 / f(u), dtype, leading=1)


_HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.01")
_QUARTER = mp.pi / 4 * mp.mpf("1.001")
_Z_LOG = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mp.mpf("1.01")
_ZERO = mp.mpf("1e-12")


def targets() -> Iterator[Fit]:
    """All fits, float32 ones first."""
    yield from _single_targets()
    yield from _double_targets()
    yield from _wide_targets()


def _single_targets() -> Iterator[Fit]:
    f32, half, third, near_1 = np.float32, mp.mpf("0.5"), mp.mpf(1) / 3, mp.mpf(1) / 64

    def exp2(r: mp.mpf) -> mp.mpf:
        return (mp.mpf(2) ** r - 1) / r

    def log_weight(f: mp.mpf) -> mp.mpf:
        return abs(f) ** 3 / abs(mp.log1p(f))

    def erf(z: mp.mpf) -> mp.mpf:
        return _erf_over_x(z) - 1

    def exponent(x: mp.mpf) -> mp.mpf:
        return mp.log(mp.erfc(x), 2)

    yield Fit("exp_f32", _exp_tail, -_HALF_LN2, _HALF_LN2, 4, lambda r: r * r, f32)
    yield Fit("exp2_f32", exp2, -half, half, 5, abs, f32)
    yield Fit("log_table_f32", _log_tail, -near_1, 2 * near_1, 2, log_weight, f32)
    yield Fit("log_f32", _log_tail, -third, third, 8, log_weight, f32)
    yield Fit("tanh_f32", _odd_tail(mp.tanh), _ZERO, mp.mpf("0.4"), 5, lambda z: z, f32)
    yield Fit("sin_f32", _odd_tail(mp.sin), _ZERO, mp.mpf("0.7"), 3, lambda z: z, f32)
    yield Fit("cos_f32", _cos_tail, _ZERO, mp.mpf("0.7"), 2, lambda z: z * z, f32)
    yield Fit("erf_f32", erf, _ZERO, mp.mpf("1.01"), 6, lambda z: 1 / _erf_over_x(z), f32)
    yield Fit("exp_more_f32", _exp_tail, -_HALF_LN2, _HALF_LN2, 5, lambda r: r * r, f32)
    yield Fit("tan_f32", _odd_tail(mp.tan), _ZERO, mp.mpf("0.7"), 6, lambda z: z, f32)
    yield Fit("asin_f32", _odd_tail(mp.asin), _ZERO, mp.mpf("0.2501"), 4, lambda z: z, f32)
    yield Fit("atan_f32", _odd_tail(mp.atan), _ZERO, mp.mpf("1.0001"), 8, lambda z: z, f32)
    yield Fit("atan_near_f32", _odd_tail(mp.atan), _ZERO, mp.mpf("0.0158"), 2, lambda z: z, f32)
    yield Fit("atan_half_f32", _odd_tail(mp.atan), _ZERO, mp.mpf("0.0626"), 3, lambda z: z, f32)
    yield Fit("atan_table_f32", _odd_tail(mp.atan), _ZERO, mp.mpf("0.0062"), 1, lambda z: z, f32)
    yield Fit("atanh_f32", _odd_tail(mp.atanh), _ZERO, mp.mpf("0.2501"), 5, lambda z: z, f32)
    yield Fit("erf_near_f32", erf, _ZERO, mp.mpf("0.4901"), 5, _one, f32)
    yield _erfc("erfc_f32", 2, 0.21875, "0.699", "10.2", 8, f32)
    yield _erfinv("erfinv_f32", 2.5, 1, "-2.5", "2.5", 8, f32, 1)
    yield Fit("erfc_exponent_f32", exponent, mp.mpf("0.99"), mp.mpf("4.0"), 8, mp.erfc, f32)


def _double_targets() -> Iterator[Fit]:
    f64, center = np.float64, mp.mpf("2.5")

    def near(u: mp.mpf) -> mp.mpf:
        return _erfinv_of_w(u + center)

    def far(u: mp.mpf) -> mp.mpf:
        return _erfinv_of_w((u + 3) ** 2)

    yield Fit("exp_f64", _exp_tail, -_HALF_LN2, _HALF_LN2, 8, lambda r: r * r, f64)
    yield Fit("log_f64", _log_s, _ZERO, _Z_LOG, 5, lambda z: z, f64)
    yield Fit("atan_f64", _odd_tail(mp.atan), _ZERO, mp.mpf("0.1717"), 8, lambda z: z, f64)
    yield Fit("atan_table_f64", _odd_tail(mp.atan), _ZERO, mp.mpf("0.01586"), 5, lambda z: z, f64)
    yield Fit("sin_f64", _odd_tail(mp.sin), _ZERO, _QUARTER**2, 4, lambda z: z, f64)
    yield Fit("cos_f64", _cos_tail, _ZERO, _QUARTER**2, 4, lambda z: z * z, f64)
    yield Fit("erf_f64", _erf_over_x, _ZERO, mp.mpf(1), 9, _one, f64)
    yield _erfcx("erfcx_f64", mp.mpf("0.61"), 12)  # x in [0.9, 10.3]
    yield Fit("erfinv_small_f64", near, _ZERO - center, center, 13, lambda u: 1 / near(u), f64)
    low, high = mp.sqrt(5) - 3, mp.mpf("4.1") - 3
    yield Fit("erfinv_large_f64", far, low, high, 17, lambda u: 1 / far(u), f64)


def _erfcx(name: str, high: mp.mpf, degree: int) -> Fit:
    low = mp.mpf("-0.471")
    return Fit(name, _erfcx_of_t, low, high, degree, lambda t: 1 / _erfcx_of_t(t), np.float64)


def _erfinv(
    name: str,
    center: float,
    power: int,
    low: str,
    high: str,
    degree: int,
    dtype: type,
    leading: int,
) -> Fit:
    """erfinv(x) / x by the distance of w, or of its root, from ``center``."""

    def f(u: mp.mpf) -> mp.mpf:
        return _erfinv_of_w((u + center) ** power)

    least = mp.mpf(low) + _ZERO
    return Fit(name, f, least, mp.mpf(high), degree, lambda u: 1 / f(u), dtype, leading)


def _wide_targets() -> Iterator[Fit]:
    """What float64 results need: errors far below 2^-53 of the result."""
    f64, half = np.float64, mp.mpf("0.5")

    def near_2(t: mp.mpf) -> mp.mpf:
        return 1 / _lgamma_near_2(t)

    yield Fit("exp_wide", _exp_tail, -_HALF_LN2, _HALF_LN2, 10, lambda r: r * r, f64)
    near_0 = _HALF_LN2 / 16 * mp.mpf("1.001")
    yield Fit("exp_table_wide", _exp_tail, -near_0, near_0, 4, lambda r: r * r, f64)
    low, high = mp.mpf("-0.03715"), mp.mpf("0.06257")
    yield Fit("log_table_wide", _log_tail, low, high, 8, lambda f: f * f / abs(mp.log1p(f)), f64)
    yield Fit("log_wide", _log_s, _ZERO, _Z_LOG, 6, lambda z: z, f64)
    yield Fit("log_pow_wide", _log_s, _ZERO, _Z_LOG, 7, lambda z: z, f64, leading=1)
    yield Fit("sin_wide", _odd_tail(mp.sin), _ZERO, _QUARTER**2, 5, lambda z: z, f64)
    yield Fit("cos_wide", _cos_tail, _ZERO, _QUARTER**2, 5, lambda z: z * z, f64)
    yield Fit("asin_wide", _odd_tail(mp.asin), _ZERO, mp.mpf("0.2501"), 12, lambda z: z, f64)
    yield Fit("atan_wide", _odd_tail(mp.atan), _ZERO, mp.mpf("0.1717"), 10, lambda z: z, f64)
    yield Fit("sinh_wide", _odd_tail(mp.sinh), _ZERO, mp.mpf(1), 7, lambda z: z, f64)
    yield Fit("erf_near_wide", lambda z: _erf_over_x(z) - 1, _ZERO, mp.mpf("0.4901"), 10, _one, f64)
    yield _erfc("erfc_wide", 2.5, 0.203125, "0.699", "6.001", 15, f64)
    yield _erfc("erfc_far_wide", 2.5, 0.078125, "5.999", "27.3", 12, f64)
    yield _erfinv("erfinv_wide", 3.125, 1, "-3.125", "3.125", 22, f64, 1)
    yield _erfinv("erfinv_middle_wide", 3.25, 2, "-0.751", "0.751", 17, f64, 2)
    yield _erfinv("erfinv_far_wide", 5, 2, "-1.001", "1.1", 16, f64, 2)
    yield _erfcx("erfcx_wide", mp.mpf("0.415"), 18)  # x in [0.9, 6]
    yield Fit("erf_wide", lambda z: _erf_over_x(z) - 1, _ZERO, mp.mpf(1), 12, _one, f64)
    yield Fit("lgamma_near_2", _lgamma_near_2, -half, half, 18, near_2, f64)
    yield Fit("lgamma_near_2_wide", _lgamma_near_2, -half, half, 17, near_2, f64, leading=2)
    yield Fit("lgamma_tail", _lgamma_tail, _ZERO, 1 / mp.mpf("12.25"), 10, _one, f64)


def main(names: list[str]) -> None:
    """Print the fits called ``names``, or all of them."""
    for target in targets():
        if names and target.name not in names:
            continue
        coefficients, error = fit(target)
        suffix = "f" if target.dtype is np.float32 else ""
        text = ", ".join(f"{c:.9g}f" if suffix else f"{c!r}" for c in reversed(coefficients))
        sys.stdout.write(f"{target.name}: error 2^{float(mp.log(error, 2)):.1f}\n  {text}\n")
        for c in leading(target):
            high = float(target.dtype(float(c)))
            sys.stdout.write(f"  leading {high!r}, {float(c - high)!r}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
