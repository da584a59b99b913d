"""Conversions between all lane types, and the half-precision storage types."""

import ml_dtypes
import numpy as np
import pytest
from prelude_harness import NUMPY, build, elementwise, same_bits, specials

from gyrator_codegen_cpp.prelude import Isa

INTEGERS = [t for t in NUMPY if t[0] in "iu"]
PAIRS = [(a, b) for a in NUMPY for b in NUMPY]
BODY = "".join(elementwise(f"{a}_{b}", f"gy_to_{b}(a)", a, b) for a, b in PAIRS)


def values(code: str) -> np.ndarray:
    """Boundary and random values of a type."""
    rng = np.random.default_rng(11)
    if code == "bool":
        return np.array([True, False, True])
    if code in INTEGERS:
        info = np.iinfo(NUMPY[code])
        edge = [info.min, info.min + 1, 0, 1, 2, 127, info.max - 1, info.max, info.max // 2]
        bits = rng.integers(0, 2**64, 50, dtype=np.uint64)
        spread = bits >> rng.integers(0, 64, 50).astype(np.uint64)
        return np.concatenate([np.array(edge, NUMPY[code]), spread.astype(NUMPY[code])])
    edges = [2.0**k for k in (7, 8, 15, 16, 31, 32, 52, 62, 63, 64, 70)]
    edges += [300.7, -300.7, 255.5, -0.9, -1.5, 3e9, 65535.9, 2147483583.0]
    x = np.array([*edges, *(-e for e in edges), *rng.normal(0, 1e5, 50)])
    return np.concatenate([x, specials().astype(np.float64)]).astype(NUMPY[code])


def whole(t: np.ndarray, bits: int, saturates: bool) -> np.ndarray:
    """Whole floats as signed integers: what is out of range is the least one on x86, and the
    nearest one, 0 for NaN, where conversions saturate."""
    least, limit = -(2 ** (bits - 1)), 2.0 ** (bits - 1)
    inside = (t >= -limit) & (t < limit)
    outside = np.where(t > 0, -least - 1, np.where(t < 0, least, 0)) if saturates else least
    return np.where(inside, np.where(inside, t, 0).astype(np.int64), outside)


def truncated(x: np.ndarray, code: str, saturates: bool) -> np.ndarray:
    """What eager torch gives for float to integer, also out of range."""
    bits = 64 if code[1:] == "64" else 32
    with np.errstate(invalid="ignore"):
        t = np.trunc(x.astype(np.float64))
        if code in {"u32", "u64"}:
            half = 2.0 ** (bits - 1)
            big = ~(t < half)
            low = whole(np.where(big, t - half, t), bits, saturates).astype(np.uint64)
            return (low ^ np.where(big, np.uint64(half), np.uint64(0))).astype(NUMPY[code])
        return whole(t, bits, saturates).astype(NUMPY[code])


@pytest.mark.parametrize("source", NUMPY)
def test_every_pair_of_types(source, isa, folder):
    library = build(BODY, isa, folder)
    x = values(source)
    for target in NUMPY:
        if target == "bool":
            want = x != 0
        elif source in {"f32", "f64"} and target in INTEGERS:
            want = truncated(x, target, isa is Isa.NEON)
        else:
            with np.errstate(all="ignore"):
                want = x.astype(NUMPY[target])
        for kind in "sv" if isa is not Isa.PLAIN else "s":
            got = library.map(f"{source}_{target}_{kind}", target, x)
            same = same_bits(got, want)
            assert same.all(), (target, kind, x[~same][:4], got[~same][:4], want[~same][:4])


LEAST = {t: f"-{-(np.iinfo(NUMPY[t]).min + 1)}L - 1" for t in INTEGERS if t[0] == "i"}
REACHED = "".join(
    f'extern "C" void reach_{t}(const sbool *p, si64 *o) {{'
    f" auto best = GYKsplat((s{t})({least})); auto at = GYKsplat((si64)0);"
    f" for (si64 r = 0; r < 3; r++) {{ const auto x = gy_to_{t}(gy_GYKload(p + r * GYKSTEP));"
    f" gy_reach(best, at, x, GYKsplat(r), gy_ge(x, best)); }} gy_store(o, at); }}\n"
    for t, least in LEAST.items()
)


@pytest.mark.parametrize("code", LEAST)
def test_booleans_as_integers_have_the_place_of_their_maximum(code, isa, folder):
    """The first is compared with the least integer, which has no negative: a compiler that knows
    it must not turn the comparison of a negated mask around."""
    vectors = isa.lanes > 1
    words = {"GYKsplat": "gy_vsplat" if vectors else "", "gy_GYK": "gy_v" if vectors else "gy_s"}
    body = REACHED.replace("GYKSTEP", str(isa.lanes))
    for word, text in words.items():
        body = body.replace(word, text)
    library = build(body, isa, folder)
    x = np.random.default_rng(5).random((3, isa.lanes)) < 0.5
    places = np.zeros(isa.lanes, np.int64)
    library(f"reach_{code}", x, places)
    assert np.array_equal(places, 2 - x[::-1].argmax(0))


def half_body(kind: str) -> str:
    text = ""
    for k, step in (("s", "1"), ("v", "GY_LANES")):
        loops = (
            f'extern "C" void load_{kind}_{k}(const gy_{kind} *p, sf32 *o, si64 n) {{'
            f" for (si64 i = 0; i < n; i += {step}) gy_store(o + i, gy_{k}load(p + i)); }}\n"
            f'extern "C" void store_{kind}_{k}(const sf32 *p, gy_{kind} *o, si64 n) {{'
            f" for (si64 i = 0; i < n; i += {step}) gy_store(o + i, gy_{k}load(p + i)); }}\n"
        )
        text += loops if k == "s" else f"#if GY_VEC\n{loops}#endif\n"
    return text + elementwise(f"round_{kind}", f"gy_round_{kind}(a)", "f32", "f32")


def rounding_points() -> np.ndarray:
    """All 16-bit patterns as upper halves, their neighbours, ties, and random floats."""
    rng = np.random.default_rng(2)
    top = np.arange(2**16, dtype=np.uint32) << 16
    low = [0, 1, 0x1000, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    bits = np.concatenate([top | np.uint32(x) for x in low])
    # around float16: every half, the ties between them and their float neighbours
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    ties = np.concatenate([halves + np.uint32(d) for d in (0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF)])
    noise = rng.integers(0, 2**32, 100000, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits, ties, noise]).view(np.float32)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_half_precision_rounds_to_nearest_even_both_ways(kind, isa, folder):
    library = build(half_body(kind), isa, folder)
    dtype = ml_dtypes.bfloat16 if kind == "bf16" else np.float16
    NUMPY_HALF = {"h": dtype}
    every = np.arange(2**16, dtype=np.uint16)
    x = rounding_points()
    with np.errstate(all="ignore"):
        up, down = every.view(dtype).astype(np.float32), x.astype(dtype)
    nan = np.isnan(x)
    for k in "sv" if isa is not Isa.PLAIN else "s":
        got = library.map(f"load_{kind}_{k}", "f32", every)
        assert same_bits(got, up).all()
        assert np.array_equal(np.signbit(got), np.signbit(up)) or kind == "bf16"
        stored = library.map(f"store_{kind}_{k}", "u16", x)
        bad = ~nan & (stored != down.view(np.uint16))
        assert not bad.any(), (x[bad][:4], stored[bad][:4], down.view(np.uint16)[bad][:4])
        assert np.isnan(stored.view(NUMPY_HALF["h"]).astype(np.float32))[nan].all()
        if kind == "bf16":
            assert (stored[nan] == 0x7FC0).all()
        rounded = library.map(f"round_{kind}_{k}", "f32", x)
        assert same_bits(rounded, down.astype(np.float32)).all()


def test_exact_stores_keep_all_bits(isa, folder):
    text = ""
    for k, step in (("s", "1"), ("v", "GY_LANES")):
        loop = (
            f'extern "C" void exact_{k}(const gy_bf16 *p, gy_bf16 *o, si64 n) {{ for (si64 i = 0;'
            f" i < n; i += {step}) gy_store_exact(o + i, gy_{k}load(p + i)); }}\n"
        )
        text += loop if k == "s" else f"#if GY_VEC\n{loop}#endif\n"
    library = build(text, isa, folder)
    every = np.arange(2**16, dtype=np.uint16)
    for k in "sv" if isa is not Isa.PLAIN else "s":
        assert np.array_equal(library.map(f"exact_{k}", "u16", every), every)
