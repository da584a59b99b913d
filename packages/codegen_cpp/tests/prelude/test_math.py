"""Accuracy, special values and position independence of the float32 and float64 functions."""

import math

import mpmath
import numpy as np
import pytest
from prelude_harness import build, elementwise, float32_patterns, same_bits, specials, ulps

from gyrator_codegen_cpp.ops import function
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.types import DType

# The largest error in units of the last place, with FMA and without: docs/vector-math.md.
BOUNDS = {
    "exp": (1.0, 0.51),
    "exp2": (1.0, 0.51),
    "expm1": (1.0, 0.51),
    "sigmoid": (1.0, 0.51),
    "log": (1.0, 0.51),
    "log2": (1.0, 0.51),
    "log10": (1.0, 0.51),
    "log1p": (1.0, 0.51),
    "tanh": (1.0, 0.51),
    "sinh": (0.51, 0.51),
    "cosh": (0.51, 0.51),
    "asinh": (0.51, 0.51),
    "acosh": (0.51, 0.51),
    "atanh": (1.0, 0.51),
    "erf": (1.0, 0.51),
    "erfc": (1.0, 0.51),
    "erfinv": (1.0, 0.51),
    "sin": (1.0, 0.51),
    "cos": (1.0, 0.51),
    "tan": (1.0, 0.51),
    "asin": (1.0, 0.51),
    "acos": (1.0, 0.51),
    "atan": (1.0, 0.51),
    "sqrt": (0.5, 0.5),
    "rsqrt": (1.5, 1.5),
    "reciprocal": (0.5, 0.5),
    "lgamma": (0.51, 0.51),
    "digamma": (0.51, 0.51),
    "floor": (0, 0),
    "ceil": (0, 0),
    "trunc": (0, 0),
    "round": (0, 0),
    "abs": (0, 0),
    "neg": (0, 0),
    "sign": (0, 0),
    "relu": (0, 0),
    "square": (0.5, 0.5),
    "frexp_mantissa": (0, 0),
}

EXACT = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "abs": np.abs,
    "neg": np.negative,
    "sqrt": np.sqrt,
    "square": np.square,
    "frexp_mantissa": lambda x: np.frexp(x)[0],
    "sign": lambda x: np.where(np.isnan(x), 0.0, np.sign(x)),
    "relu": lambda x: np.where(x < 0, 0.0, x),
}

MP = {
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "expm1": mpmath.expm1,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "log": mpmath.log,
    "log2": lambda x: mpmath.log(x, 2),
    "log10": mpmath.log10,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "asinh": mpmath.asinh,
    "acosh": mpmath.acosh,
    "atanh": mpmath.atanh,
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
    "erfinv": mpmath.erfinv,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "asin": mpmath.asin,
    "acos": mpmath.acos,
    "atan": mpmath.atan,
    "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))),
    "digamma": mpmath.digamma,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "reciprocal": lambda x: 1 / x,
}

SMALL_DOMAIN = {"erfinv", "asin", "acos", "atanh"}
POSITIVE = {"log", "log2", "log10", "rsqrt"}


def unary(name: str) -> str:
    single, double = (f"{function(name, dtype)}(a)" for dtype in (DType.F32, DType.F64))
    return elementwise("f32", single, "f32", "f32") + elementwise("f64", double, "f64", "f64")


def widen(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


@pytest.mark.parametrize("name", BOUNDS)
def test_float32_is_within_its_bound_over_all_exponents(name, isa, folder):
    library = build(unary(name), isa, folder)
    x = float32_patterns(40009, start=17)
    got = library.map("f32_s", "f32", x)
    # the float64 functions have their own test against mpmath
    with np.errstate(all="ignore"):
        wide = widen(x)
        reference = EXACT[name](wide) if name in EXACT else library.map("f64_s", "f64", wide)
    error = ulps(got, reference)
    worst = int(np.argmax(error))
    assert error[worst] <= BOUNDS[name][isa is Isa.PLAIN], (x[worst], got[worst], reference[worst])


@pytest.mark.parametrize("name", ["exp", "sigmoid", "log", "tanh", "erf", "erfc", "atan"])
def test_float32_is_within_its_bound_around_borders_of_intervals(name, isa, folder):
    library = build(unary(name), isa, folder)
    # tables have steps of at least a 64th of an octave
    borders = np.arange(0x3B000000, 0x43000000, 1 << 17)[:, None] + np.arange(-30, 31)
    x = borders.astype(np.uint32).view(np.float32).ravel()
    x = np.concatenate([x, -x])
    got = library.map("f32_s", "f32", x)
    error = ulps(got, library.map("f64_s", "f64", widen(x)))
    worst = int(np.argmax(error))
    assert error[worst] <= BOUNDS[name][isa is Isa.PLAIN], (x[worst], got[worst])


@pytest.mark.parametrize("name", BOUNDS)
def test_vector_lanes_give_the_bits_of_the_scalar(name, vector_isa, folder):
    library = build(unary(name), vector_isa, folder)
    x = float32_patterns(80021, start=5)
    scalar, vector = library.map("f32_s", "f32", x), library.map("f32_v", "f32", x)
    same = same_bits(scalar, vector)
    assert same.all(), (x[~same][:5], scalar[~same][:5], vector[~same][:5])
    wide = widen(float32_patterns(1000003))
    assert same_bits(library.map("f64_s", "f64", wide), library.map("f64_v", "f64", wide)).all()


def sample_points(name: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    if name in SMALL_DOMAIN:
        near = 1 - np.exp(-rng.uniform(0.1, 15, 40))
        return np.concatenate([rng.uniform(-1, 1, 80), near, -near])
    x = np.concatenate([rng.normal(0, 3, 120), np.exp(rng.uniform(-40, 5, 40))])
    if name == "acosh":
        return 1 + np.abs(x)
    if name == "log1p":
        return np.maximum(x, -0.999)
    return np.abs(x) if name in POSITIVE else x


@pytest.mark.parametrize("name", MP)
def test_both_precisions_agree_with_mpmath(name, isa, folder):
    library = build(unary(name), isa, folder)
    x = sample_points(name).astype(np.float32)
    with mpmath.workdps(40):
        exact = [MP[name](mpmath.mpf(float(v))) for v in x]
    reference = np.array([float(v) for v in exact])
    single = ulps(library.map("f32_s", "f32", x), reference)
    assert single.max() <= BOUNDS[name][isa is Isa.PLAIN]
    wide = library.map("f64_s", "f64", x.astype(np.float64))
    error = np.abs(wide - reference) / np.maximum(np.abs(reference), 5e-324)
    # lgamma and digamma cross zero, where a relative bound cannot hold
    absolute = np.abs(wide - reference) < 4e-15 if name in {"lgamma", "digamma"} else False
    assert ((error < 1.5e-15) | absolute).all(), (x[np.argmax(error)], error.max())


WIDE_RANGES = {
    "exp": (-745.0, 709.7),
    "exp2": (-1074.0, 1023.9),
    "expm1": (-45.0, 709.7),
    "sigmoid": (-740.0, 45.0),
    "log": (5e-324, 1e3),
    "log2": (5e-324, 1e3),
    "log10": (5e-324, 1e3),
    "log1p": (-1.0, 1e3),
    "tanh": (-22.0, 22.0),
    "erf": (-6.5, 6.5),
    "sin": (-9.9e8, 9.9e8),
    "cos": (-9.9e8, 9.9e8),
    "tan": (-9.9e8, 9.9e8),
    "sinh": (-710.4, 710.4),
    "cosh": (-710.4, 710.4),
    "asinh": (-1e300, 1e300),
    "acosh": (1.0, 1e8),
    "atanh": (-1.0, 1.0),
    "asin": (-1.0, 1.0),
    "acos": (-1.0, 1.0),
    "atan": (-1e300, 1e300),
    "erfc": (-6.5, 27.2),
    "erfinv": (-1.0, 1.0),
    "lgamma": (0.0, 170.0),
}


def wide_points(low: float, high: float) -> np.ndarray:
    """Points over a range, around 0 and 1, of all exponents, and near multiples of pi/2."""
    rng = np.random.default_rng(11)
    parts = [rng.uniform(low, high, 60), rng.uniform(-1, 1, 60), rng.normal(1, 0.3, 60)]
    parts += [np.exp(rng.uniform(-740, 6, 40)), -np.exp(rng.uniform(-740, 6, 40))]
    parts += [np.rint(rng.uniform(-1e4, 1e4, 30)) * (np.pi / 2), rng.normal(0, 9, 60)]
    parts += [np.array([5e-324, -5e-324, 2.3e-308, -2.2e-308, 1e-20, 1e9, 2e9, -1e22, 0.95, 1.05])]
    x = np.concatenate(parts)
    return x[(x > low) & (x < high) | (high > 1e8)]


@pytest.mark.parametrize("name", WIDE_RANGES)
def test_float64_of_vectors_is_within_one_unit(name, vector_isa, folder):
    library = build(unary(name), vector_isa, folder)
    x = wide_points(*WIDE_RANGES[name])
    got = library.map("f64_v", "f64", x)
    with mpmath.workdps(360 if WIDE_RANGES[name][1] > 1e8 else 60):
        exact = [MP[name](mpmath.mpf(float(v))) for v in x]
        for v, g, e in zip(x, got, exact, strict=True):
            exponent = mpmath.frexp(e)[1] if e else -1074
            unit = mpmath.ldexp(1, max(int(exponent) - 53, -1074))
            assert abs(mpmath.mpf(float(g)) - e) <= unit, (v, g, e)
    assert same_bits(got, library.map("f64_s", "f64", x)).all()


@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_float64_is_within_one_unit_around_borders_of_intervals(name, vector_isa, folder):
    library = build(unary(name), vector_isa, folder)
    equal = 197 / 512 * (np.arange(16) + 0.5)
    quarters = 0.4 * (np.outer([1, 2, 4, 8], [1, 1.25, 1.5, 1.75]).ravel() - 1)
    borders = np.concatenate([equal, quarters, [0.7, 1.0, 5.9375, 5.95, 6.0, 26.6, 27.2]])
    x = (borders[:, None] * (1 + np.array([-9, -1, 0, 1, 9]) * 2.0**-52)).ravel()
    x = np.random.default_rng(9).permutation(np.concatenate([x, -x, x * 1.01]))
    got = library.map("f64_v", "f64", x)
    with mpmath.workdps(60):
        for v, g in zip(x, got, strict=True):
            e = MP[name](mpmath.mpf(float(v)))
            exponent = mpmath.frexp(e)[1] if e else -1074
            unit = mpmath.ldexp(1, max(int(exponent) - 53, -1074))
            assert abs(mpmath.mpf(float(g)) - e) <= unit, (v, g, e)
    assert same_bits(got, library.map("f64_s", "f64", x)).all()


def near_middles() -> np.ndarray:
    """Doubles whose roots come closest to the middle of two doubles: the square of an odd number of
    54 bits, less a small number."""
    squares = []
    for less in range(-79, 80, 8):
        root = 1
        for bits in range(4, 57):  # from a root modulo 2^(bits - 1) to one modulo 2^bits
            if (root * root - less) % (1 << bits):
                root += 1 << (bits - 2)
        for k in (root, -root, root + (1 << 53), -root + (1 << 53)):
            k %= 1 << 54
            if k >> 53:
                squares.append(k * k - less)
    exact = [float(n) for n in squares if int(float(n)) == n]
    assert len(exact) >= 8
    return np.array(exact)


def test_roots_of_vectors_are_rounded_right(vector_isa, folder):
    library = build(unary("sqrt"), vector_isa, folder)
    x = np.arange(0x3F800000, 0x40800000, dtype=np.int32).view(np.float32)  # both parities
    assert same_bits(library.map("f32_v", "f32", x), np.sqrt(x)).all()
    ends = (
        np.array([0x19800000, 0x7F800000], np.int32) + np.arange(-40, 40, dtype=np.int32)[:, None]
    )
    x = ends.ravel().view(np.float32)
    with np.errstate(invalid="ignore"):
        assert same_bits(library.map("f32_v", "f32", x), np.sqrt(x)).all()
    rng = np.random.default_rng(5)
    wide = np.concatenate([near_middles(), rng.uniform(1, 4, 200_000)])
    wide = np.concatenate([wide, np.ldexp(wide, 2 * rng.integers(-460, 440, len(wide)))])
    wide = np.concatenate([wide, np.ldexp(rng.uniform(1, 4, 4000), rng.integers(-910, -890, 4000))])
    assert same_bits(library.map("f64_v", "f64", wide), np.sqrt(wide)).all()


@pytest.mark.parametrize("name", WIDE_RANGES)
def test_float64_ends_are_the_c_library_s(name, vector_isa, folder):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -1.5, 1.0, 5e-324, 1.8e308, -1.8e308])
    got = build(unary(name), vector_isa, folder).map("f64_v", "f64", x)
    want = build(unary(name), Isa.PLAIN, folder).map("f64_s", "f64", x)
    odd = ~np.isfinite(want) | (want == 0)
    assert same_bits(got, want)[odd].all(), (x, got, want)
    assert (np.isfinite(got) & (got != 0) == ~odd).all()


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("exp", -np.inf, 0.0),
        ("exp", 1000.0, np.inf),
        ("exp", -1000.0, 0.0),
        ("expm1", -0.0, -0.0),
        ("log", 0.0, -np.inf),
        ("log", -0.0, -np.inf),
        ("log", -1.0, np.nan),
        ("log", np.inf, np.inf),
        ("log", 1.0, 0.0),
        ("log2", 8.0, 3.0),
        ("log1p", -1.0, -np.inf),
        ("log1p", -0.0, -0.0),
        ("tanh", -0.0, -0.0),
        ("tanh", np.inf, 1.0),
        ("tanh", -np.inf, -1.0),
        ("sigmoid", -np.inf, 0.0),
        ("sigmoid", np.inf, 1.0),
        ("erf", -0.0, -0.0),
        ("erf", -np.inf, -1.0),
        ("erfc", np.inf, 0.0),
        ("erfinv", 1.0, np.inf),
        ("erfinv", -1.0, -np.inf),
        ("erfinv", 1.5, np.nan),
        ("sin", np.inf, np.nan),
        ("sin", -0.0, -0.0),
        ("tan", -0.0, -0.0),
        ("atan", np.inf, np.float32(np.pi / 2)),
        ("asin", 2.0, np.nan),
        ("acosh", 0.5, np.nan),
        ("atanh", 1.0, np.inf),
        ("asinh", -np.inf, -np.inf),
        ("sqrt", -1.0, np.nan),
        ("rsqrt", 0.0, np.inf),
        ("rsqrt", np.inf, 0.0),
        ("digamma", 0.0, -np.inf),
        ("digamma", -0.0, np.inf),
        ("digamma", -2.0, np.nan),
        ("lgamma", -3.0, np.inf),
        ("round", 2.5, 2.0),
        ("round", -0.4, -0.0),
        ("sign", np.nan, 0.0),
        ("relu", np.nan, np.nan),
        ("relu", -0.0, -0.0),
    ],
)
def test_special_values(name, x, expected, isa, folder):
    library = build(unary(name), isa, folder)
    for dtype, code in ((np.float32, "f32"), (np.float64, "f64")):
        for kind in "sv" if isa is not Isa.PLAIN else "s":
            got = library.map(f"{code}_{kind}", code, np.full(3, x, dtype))
            want = np.full(3, np.arctan(np.inf) if name == "atan" else expected, dtype)
            assert same_bits(got, want).all(), (code, kind, got)


def test_lgamma_is_close_next_to_its_zeros_and_poles(isa, folder):
    library = build(unary("lgamma"), isa, folder)
    near = [1.0, 2.0, -2.4570247, -2.7476826, -3.1435809, 0.5, 1.5, 2.5, 3.5, -1.0, -7.0, 8388607.5]
    steps = np.float32(1) + np.float32(2**-23) * np.float32([-3, -2, -1, 0, 1, 2, 3, 900, -900])
    x = np.outer(np.float32(near), steps).ravel().astype(np.float32)
    got = library.map(f"f32_{'s' if isa is Isa.PLAIN else 'v'}", "f32", x)
    with mpmath.workdps(40):
        poles = (x <= 0) & (x == np.rint(x))
        exact = [
            np.inf if p else float(MP["lgamma"](float(v))) for v, p in zip(x, poles, strict=True)
        ]
    reference = np.array(exact)
    with np.errstate(invalid="ignore"):
        close = (ulps(got, reference) <= 0.51) | (np.abs(got - reference) < 4e-15)
    assert close.all()


def test_lgamma_of_float64_is_close_below_zero_and_far_from_it(vector_isa, folder):
    library = build(unary("lgamma"), vector_isa, folder)
    rng = np.random.default_rng(13)
    zeros = -np.array([2.4570247382208006, 2.7476826467274122, 3.1435808883499, 9.99999972442667])
    steps = 1 + np.array([0.0, 2**-52, -(2**-40), 2**-20, -0.001])
    far = np.array([3.5, 1e15, 4503599627370497.5, 1e300, 2.5e305, -1e-200, -9e-201, -5e-324])
    tiny = -np.exp(rng.uniform(-740, 0, 60))
    poles = -1.0 - np.exp(rng.uniform(-36, -1, 40))
    x = np.concatenate([np.outer(zeros, steps).ravel(), far, tiny, poles, -rng.uniform(0, 170, 99)])
    got = library.map("f64_v", "f64", x)
    with mpmath.workdps(400):
        for v, g in zip(x, got, strict=True):
            a = abs(mpmath.mpf(float(v)))
            e = mpmath.loggamma(a)
            if v < 0:
                e = mpmath.log(mpmath.pi / (a * abs(mpmath.sinpi(a)))) - e
            unit = mpmath.ldexp(1, int(mpmath.frexp(e)[1]) - 53)
            assert abs(mpmath.mpf(float(g)) - e) <= max(unit, mpmath.mpf("5e-17")), (v, g, e)
    assert same_bits(got, library.map("f64_s", "f64", x)).all()


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pairs over all exponents, near ones, and all pairs of special values."""
    rng = np.random.default_rng(3)
    wild = rng.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = rng.normal(0, 4, (2, count)).astype(np.float32)
    whole = rng.integers(-9, 9, (2, count)).astype(np.float32)
    s = specials()
    grid = np.stack([np.repeat(s, len(s)), np.tile(s, len(s))])
    a, b = np.concatenate([wild, near, whole, grid], axis=1)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def python_mod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    m = np.fmod(a, b)
    return np.where((m != 0) & ((m < 0) != (b < 0)), m + b, m)


def binary(name: str) -> str:
    single, double = (f"{function(name, dtype)}(a, b)" for dtype in (DType.F32, DType.F64))
    body = elementwise("f32", single, "f32 f32", "f32")
    return body + elementwise("f64", double, "f64 f64", "f64")


BINARY = {
    "pow": (np.power, 0.51),
    "atan2": (np.arctan2, 0.65),
    "hypot": (np.hypot, 0.51),
    "fmod": (np.fmod, 0),
    "remainder": (python_mod, 0.5),
    "copysign": (np.copysign, 0),
    "minimum": (np.minimum, 0),
    "maximum": (np.maximum, 0),
    "fmin": (np.fmin, 0),
    "fmax": (np.fmax, 0),
    "add": (np.add, 0.5),
    "div": (np.divide, 0.5),
}


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arguments(name, isa, folder):
    reference, bound = BINARY[name]
    library = build(binary(name), isa, folder)
    a, b = pairs(20000)
    with np.errstate(all="ignore"):
        want = reference(widen(a), widen(b))
        got = library.map("f32_s", "f32", a, b)
        error = ulps(got, want)
        wide = library.map("f64_s", "f64", widen(a), widen(b))
        relative = np.abs(wide - want) / np.maximum(np.abs(want), 1e-300)
    worst = int(np.argmax(error))
    bound = min(bound, 0.51) if isa is Isa.PLAIN else bound
    assert error[worst] <= bound, (a[worst], b[worst], got[worst], want[worst])
    odd = ~np.isfinite(want) | ~np.isfinite(wide)
    assert (same_bits(wide, want) | (wide == want))[odd].all()
    assert relative[~odd].max() < 1e-15
    zero = want == 0
    # 0 against -0 is open in these
    if name not in {"minimum", "maximum", "fmin", "fmax", "remainder"}:
        assert (np.signbit(got) == np.signbit(want))[zero].all()
    if isa is not Isa.PLAIN:
        assert same_bits(got, library.map("f32_v", "f32", a, b)).all()
        assert same_bits(wide, library.map("f64_v", "f64", widen(a), widen(b))).all()


def test_angles_of_pairs_around_borders_of_intervals(vector_isa, folder):
    rng = np.random.default_rng(9)
    count = 40000
    b = rng.uniform(1, 2, count) * 10.0 ** rng.choice([-44, -38, -18, -17, 0, 17, 18, 37], count)
    # intervals of the quotient end at eighths
    a = b * (rng.integers(0, 9, count) / 8 * (1 + rng.normal(0, 2e-3, count)))
    a, b = np.where(rng.random(count) < 0.5, [a, b], [b, a]) * rng.choice([-1, 1], (2, count))
    a, b = a.astype(np.float32), b.astype(np.float32)
    got = build(binary("atan2"), vector_isa, folder).map("f32_v", "f32", a, b)
    error = ulps(got, np.arctan2(widen(a), widen(b)))
    worst = int(np.argmax(error))
    assert error[worst] <= BINARY["atan2"][1], (a[worst], b[worst], got[worst])


def wide_pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of doubles: ordinary and subnormal ones, and such whose squares overflow or vanish."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(0, 3, (2, 5 * count))
    scale = np.repeat(2.0 ** np.array([0, 1020, -1000, -1072, 0]), count)
    b[4 * count :] *= 2.0 ** rng.integers(-1070, 1020, count)
    return a * scale, b * scale


MP_BINARY = {"atan2": mpmath.atan2, "hypot": mpmath.hypot}


@pytest.mark.parametrize("name", MP_BINARY)
def test_float64_of_two_arguments_is_within_one_unit(name, vector_isa, folder):
    a, b = wide_pairs(40)
    got = build(binary(name), vector_isa, folder).map("f64_v", "f64", a, b)
    with mpmath.workdps(60):
        for x, y, g in zip(a, b, got, strict=True):
            e = MP_BINARY[name](mpmath.mpf(float(x)), mpmath.mpf(float(y)))
            unit = mpmath.ldexp(1, max(int(mpmath.frexp(e)[1]) - 53, -1074))
            assert abs(mpmath.mpf(float(g)) - e) <= unit, (x, y, g, e)


def test_remainders_of_doubles_are_exact(vector_isa, folder):
    library = build(binary("fmod"), vector_isa, folder)
    a, b = wide_pairs(2000)
    a = np.concatenate([a, np.rint(a / 4) * 3.0])
    b = np.concatenate([b, np.rint(b)])
    with np.errstate(all="ignore"):
        want = np.fmod(a, b)
    assert same_bits(library.map("f64_v", "f64", a, b), want).all()
    assert same_bits(library.map("f64_s", "f64", a, b), want).all()


def test_powers_of_vectors_with_at_most_one_special_lane(isa, folder):
    """Vectors of positive finite numbers take a path of their own; no other lane may take it."""
    library = build(binary("pow"), isa, folder)
    rng = np.random.default_rng(7)
    a = rng.integers(1, 0x7F800000, 64000).astype(np.uint32).view(np.float32)
    b = (rng.uniform(-140, 140, 64000) / np.log(a.astype(np.float64) + 1e-50)).astype(np.float32)
    odd = np.float32([0, -0.0, -2, np.inf, -np.inf, np.nan])
    a[:12000:3] *= -1
    b[:12000:6] = np.rint(b[:12000:6])
    a[40000:52000:24], b[52000::24] = np.resize(odd, 500), np.resize(odd, 500)
    with np.errstate(all="ignore"):
        want = np.power(widen(a), widen(b))
    for kind in "sv" if isa is not Isa.PLAIN else "s":
        assert ulps(library.map(f"f32_{kind}", "f32", a, b), want).max() <= 0.51
        wide = library.map(f"f64_{kind}", "f64", widen(a), widen(b))
        np.testing.assert_allclose(wide, want, rtol=2.3e-16, atol=0)


def test_powers_of_doubles_are_within_one_unit(vector_isa, folder):
    library = build(binary("pow"), vector_isa, folder)
    rng = np.random.default_rng(8)
    a = np.concatenate([rng.lognormal(0, 1, 200), 1 + rng.normal(0, 1e-3, 200)])
    a = np.concatenate(
        [a, np.exp(rng.uniform(-700, 700, 200)), 2.0 ** rng.uniform(-1074, -1010, 200)]
    )
    b = np.where(
        rng.random(800) < 0.2, rng.normal(0, 3, 800), rng.uniform(-744, 709, 800) / np.log(a)
    )
    a[::7], b[::7] = -a[::7], np.rint(b[::7])
    got = library.map("f64_v", "f64", a, b)
    with mpmath.workdps(60):
        for x, y, g in zip(a, b, got, strict=True):
            e = mpmath.power(mpmath.mpf(float(x)), mpmath.mpf(float(y)))
            if abs(e) < mpmath.mpf(2) ** 1024:
                unit = mpmath.ldexp(1, max(int(mpmath.frexp(e)[1]) - 53, -1074))
                assert abs(mpmath.mpf(float(g)) - e) <= unit, (x, y, g, e)


def test_pow_follows_ieee_at_every_pair_of_specials(isa, folder):
    library = build(elementwise("f32", "gy_pow(a, b)", "f32 f32", "f32"), isa, folder)
    a, b = pairs(1)
    got = library.map("f32_s", "f32", a, b)
    with np.errstate(all="ignore"):
        want = np.power(widen(a), widen(b)).astype(np.float32)
    signs = (np.signbit(got) == np.signbit(want)) | np.isnan(want)
    assert signs.all(), (a[~signs], b[~signs])


def test_floor_division_of_floats_is_torch_s(isa, folder):
    body = elementwise("f32", "gy_floordiv(a, b)", "f32 f32", "f32")
    library = build(body, isa, folder)
    a = np.array([7, -7, 7, -7, 1, 6, np.inf, 3, 1, -1, 0.3, 5], np.float32)
    b = np.array([2, 2, -2, -2, 0, 0.1, 2, np.inf, np.inf, np.inf, 0.1, np.nan], np.float32)
    # float32 6 / 0.1 is 59.99..., and 0.3 / 0.1 is 3.00000003 - as torch.floor_divide gives them
    want = [3, -4, -4, 3, np.inf, 59, np.nan, 0, 0, -1, 3, np.nan]
    for kind in "sv" if isa is not Isa.PLAIN else "s":
        assert np.array_equal(library.map(f"f32_{kind}", "f32", a, b), want, equal_nan=True)


def test_large_arguments_of_sine_are_reduced_exactly(isa, folder):
    library = build(unary("sin"), isa, folder)
    x = np.array([1e5, 1e6, 16367173 * 2.0**72, 3.4e38, 4.9e8, 5.1e8, 710.0, 355.0], np.float32)
    with mpmath.workdps(80):
        want = np.array([float(mpmath.sin(mpmath.mpf(float(v)))) for v in x])
    assert ulps(library.map("f32_s", "f32", x), want).max() <= 0.51


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_next_to_multiples_of_a_quarter_turn(name, isa, folder):
    # up to 1e6 the reduction is of float32, and nearly all of the argument cancels
    x = (np.arange(1, 636000) * (np.pi / 2)).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), -x])
    got = build(unary(name), isa, folder).map("f32_s", "f32", x)
    error = ulps(got, getattr(np, name)(widen(x)))
    worst = int(np.argmax(error))
    assert error[worst] <= BOUNDS[name][isa is Isa.PLAIN], (x[worst], got[worst])


def test_nextafter_walks_the_floats(isa, folder):
    library = build(binary("nextafter"), isa, folder)
    a, b = pairs(2000)
    tiny = np.array([0.0, -0.0, 5e-324, -5e-324])
    wide_a, wide_b = (np.concatenate([widen(x), tiny]) for x in (a, b))
    for code, x, y in (("f32", a, b), ("f64", wide_a, wide_b[::-1].copy())):
        with np.errstate(all="ignore"):
            want = np.nextafter(x, y)
        for kind in "sv" if isa is not Isa.PLAIN else "s":
            same = same_bits(library.map(f"{code}_{kind}", code, x, y), want)
            assert same.all(), (code, x[~same], y[~same])


def test_ldexp_and_frexp_are_exact(isa, folder):
    body = elementwise("l32", "gy_ldexp(a, b)", "f32 f32", "f32")
    body += elementwise("l64", "gy_ldexp(a, b)", "f64 f64", "f64")
    body += elementwise("e32", "gy_frexp_exponent(a)", "f32", "i32")
    body += elementwise("e64", "gy_frexp_exponent(a)", "f64", "i32")
    library = build(body, isa, folder)
    x = specials()
    n = np.resize(np.arange(-290, 290, 7), len(x) * 9).astype(np.float32)
    x = np.resize(x, len(x) * 9)
    for kind in "sv" if isa is not Isa.PLAIN else "s":
        with np.errstate(all="ignore"):
            want = np.ldexp(x.astype(np.float64), n.astype(np.int64)).astype(np.float32)
            wide = np.ldexp(x.astype(np.float64), n.astype(np.int64))
        assert same_bits(library.map(f"l32_{kind}", "f32", x, n), want).all()
        got = library.map(f"l64_{kind}", "f64", widen(x), n.astype(np.float64))
        assert same_bits(got, wide).all()
        finite = x[np.isfinite(x)]
        for code, dtype in (("32", np.float32), ("64", np.float64)):
            got = library.map(f"e{code}_{kind}", "i32", finite.astype(dtype))
            assert np.array_equal(got, np.frexp(finite.astype(np.float64))[1])


def test_powi_is_repeated_multiplication(isa, folder):
    body = "".join(elementwise(f"p{n}", f"gy_powi(a, {n})", "f64", "f64") for n in (1, 2, 3, 7, 12))
    library = build(body, isa, folder)
    x = np.linspace(-2, 2, 41)
    for n in (1, 2, 3, 7, 12):
        assert np.allclose(library.map(f"p{n}_s", "f64", x), x**n, rtol=4e-16 * n, atol=0)


def test_predicates_and_fma(isa, folder):
    body = "".join(
        elementwise(f"{name}{code}", f"gy_{name}(a)", code, "bool")
        for name in ("isnan", "isinf", "isfinite", "signbit")
        for code in ("f32", "f64")
    )
    body += elementwise("fma", "gy_fma(a, b, c)", "f32 f32 f32", "f32")
    library = build(body, isa, folder)
    x = specials()
    for name in ("isnan", "isinf", "isfinite", "signbit"):
        for code, dtype in (("f32", np.float32), ("f64", np.float64)):
            for kind in "sv" if isa is not Isa.PLAIN else "s":
                got = library.map(f"{name}{code}_{kind}", "bool", x.astype(dtype))
                assert np.array_equal(got, getattr(np, name)(x)), (name, code, kind)
    one = np.array([1 + 2**-12], np.float32)
    got = library.map("fma_s", "f32", one, one, -one * one)
    assert got[0] == math.ldexp(1, -24)
