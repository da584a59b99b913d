"""Reductions over lanes, Welford's update, arg reductions, Philox and atomics."""

import itertools

import numpy as np
import pytest
from prelude_harness import NUMPY, build, same_bits

from gyrator_codegen_cpp.prelude import Isa

NUMBERS = [t for t in NUMPY if t != "bool"]
INTEGERS = [t for t in NUMBERS if t[0] in "iu"]


FOLDS = {"hsum": np.sum, "hprod": np.prod, "hmin": np.min, "hmax": np.max}
BITS = {"hand": np.bitwise_and, "hor": np.bitwise_or, "hxor": np.bitwise_xor}


SOME = """
extern "C" void some(const sbool *p, sbool *o) {
  o[0] = gy_hany(gy_GYKload(p));
  o[1] = gy_hall(gy_GYKload(p));
}
"""


def fold_body() -> str:
    text = ""
    for t in NUMBERS:
        for name in [*FOLDS, *(BITS if t in INTEGERS else [])]:
            head = f'extern "C" void {name}_{t}(const s{t} *p, s{t} *o)'
            text += f"{head} {{ *o = gy_{name}(gy_GYKload(p)); }}\n"
    return text + SOME


@pytest.mark.parametrize("code", NUMBERS)
def test_folds_over_lanes(code, isa, folder):
    lanes = isa.lanes
    library = build(fold_body().replace("GYK", "v" if lanes > 1 else "s"), isa, folder)
    rng = np.random.default_rng(8)
    for _ in range(20):
        if code in INTEGERS:
            x = rng.integers(0, 2**64, lanes, dtype=np.uint64).astype(NUMPY[code])
        else:
            x = rng.uniform(0.5, 2, lanes).astype(NUMPY[code])
        out = np.zeros(1, NUMPY[code])
        for name, f in FOLDS.items():
            library(f"{name}_{code}", x, out)
            with np.errstate(over="ignore"):
                want = f(x, dtype=x.dtype) if name in {"hsum", "hprod"} else f(x)
            if code in INTEGERS or name in {"hmin", "hmax"}:
                assert out[0] == want, name
            else:
                assert np.isclose(out[0], want, rtol=1e-6), name
        for name, f in BITS.items() if code in INTEGERS else ():
            library(f"{name}_{code}", x, out)
            assert out[0] == f.reduce(x)


def test_nan_wins_a_minimum_from_every_lane(isa, folder):
    lanes = isa.lanes
    library = build(fold_body().replace("GYK", "v" if lanes > 1 else "s"), isa, folder)
    for code in ("f32", "f64"):
        for lane in range(lanes):
            x = np.arange(lanes).astype(NUMPY[code])
            x[lane] = np.nan
            out = np.zeros(1, NUMPY[code])
            for name in ("hmin", "hmax"):
                library(f"{name}_{code}", x, out)
                assert np.isnan(out[0])
    one = [1] + [0] * (lanes - 1)
    for m, want in (([0] * lanes, [0, 0]), ([1] * lanes, [1, 1]), (one, [1, lanes == 1])):
        out = np.zeros(2, np.bool_)
        library("some", np.array(m, np.bool_), out)
        assert out.tolist() == want


ARG = """
#define ARG(t, kind, word, bits) \\
extern "C" void kind##_##word##_##t##_##bits(const s##t *p, si64 *o, si64 n) { \\
  auto best = gy_GYKload(p); \\
  auto index = gy_to_i##bits(gy_GYKiota(0)); \\
  for (si64 i = GY_LANES; i < n; i += GY_LANES) \\
    gy_##kind##_##word(best, index, gy_GYKload(p + i), gy_to_i##bits(gy_GYKiota(i))); \\
  *o = GYHARG(kind, best, index); \\
}
#define BOTH(t, bits) \\
  ARG(t, argmin, update, bits) ARG(t, argmax, update, bits) \\
  ARG(t, argmin, next, bits) ARG(t, argmax, next, bits)
#define GYHARG(kind, best, index) GYWORD
BOTH(f32, 32) BOTH(i32, 32) BOTH(u32, 32)
BOTH(f32, 64) BOTH(f64, 64) BOTH(i32, 64) BOTH(u32, 64) BOTH(i64, 64) BOTH(u64, 64)
// gy_argmin_update gy_argmax_update gy_argmin_next gy_argmax_next gy_hargmin gy_hargmax
// gy_to_i32 gy_to_i64
"""


@pytest.mark.parametrize("code", "f32 f64 i32 u32 i64 u64".split())
def test_arg_reductions_take_the_first_and_nan_first(code, isa, folder):
    text = ARG.replace("GYK", "v" if isa.lanes > 1 else "s")
    text = text.replace("GYWORD", "gy_h##kind(best, index)" if isa.lanes > 1 else "index")
    library = build(text, isa, folder)
    rng = np.random.default_rng(4)
    widths = (32, 64) if code[1:] == "32" else (64,)
    for trial in range(60):
        x = rng.integers(0, 9, 64).astype(NUMPY[code])
        if code[0] == "f" and trial % 2:
            x[rng.integers(0, 64, 2)] = np.nan
        out = np.zeros(1, np.int64)
        for kind, f in (("argmin", np.argmin), ("argmax", np.argmax)):
            for word, bits in itertools.product(("update", "next"), widths):
                library(f"{kind}_{word}_{code}_{bits}", x, out, 64)
                assert out[0] == f(x), (kind, word, bits, x)


WELFORD = """
#define WELFORD(t) \\
extern "C" void welford_##t(const s##t *p, s##t *o, si64 n) { \\
  auto zero = gy_GYKsplat(s##t(0)); \\
  auto mean = zero, m2 = zero, count = zero, mean2 = zero, m22 = zero, count2 = zero; \\
  for (si64 i = 0; i < n / 2; i += GY_LANES) gy_welford_add(mean, m2, count, gy_GYKload(p + i)); \\
  for (si64 i = n / 2; i < n; i += GY_LANES) \\
    gy_welford_add(mean2, m22, count2, gy_GYKload(p + i)); \\
  gy_welford_combine(mean, m2, count, mean2, m22, count2); \\
  gy_welford_combine(mean, m2, count, zero, zero, zero); \\
  gy_welford_h(mean, m2, count, o[0], o[1], o[2]); \\
}
WELFORD(f32) WELFORD(f64)
// gy_vsplat gy_ssplat gy_vload gy_sload
"""


@pytest.mark.parametrize("code", ["f32", "f64"])
def test_welford_survives_a_large_mean(code, isa, folder):
    library = build(WELFORD.replace("GYK", "v" if isa.lanes > 1 else "s"), isa, folder)
    x = (1000 + np.random.default_rng(1).normal(0, 1, 4096)).astype(NUMPY[code])
    out = np.zeros(3, NUMPY[code])
    library(f"welford_{code}", x, out, 4096)
    wide = x.astype(np.float64)
    rtol = 3e-4 if code == "f32" else 1e-12
    assert out[2] == 4096
    assert np.isclose(out[0], wide.mean(), rtol=rtol / 100)
    assert np.isclose(out[1], ((wide - wide.mean()) ** 2).sum(), rtol=rtol)


# Random123's kat_vectors, "philox4x32 10": counter, key, result
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
PHILOX = """
extern "C" void raw(const su32 *c, const su32 *k, su32 *o) {
  su32 a, b, d, e;
  gy_philox(c[0], c[1], c[2], c[3], k[0], k[1], a, b, d, e);
  o[0] = a; o[1] = b; o[2] = d; o[3] = e;
}
#if GY_VEC
extern "C" void raw_v(const su32 *c, const su32 *k, su32 *o) {
  vu32 a, b, d, e;
  vu32 i = gy_to_u32(gy_viota32(0));
  gy_philox(gy_vsplat(c[0]) + i, gy_vsplat(c[1]), gy_vsplat(c[2]), gy_vsplat(c[3]), k[0], k[1],
    a, b, d, e);
  gy_store(o, a);
  gy_store(o + GY_LANES, b);
  gy_store(o + 2 * GY_LANES, d);
  gy_store(o + 3 * GY_LANES, e);
}
#endif
#define FUNCTION(name, out, k, step, call) \\
extern "C" void name##_##k(const si64 *p, out *o, si64 n) { \\
  gy_drawn d; \\
  (void)d; \\
  for (si64 i = 0; i < n; i += step) { \\
    auto a = gy_##k##load(p + i); \\
    gy_store(o + i, call); \\
  } \\
}
#define EACH(k, step) \\
FUNCTION(rand, sf32, k, step, gy_rand(12345678901234567ul, a)) \\
FUNCTION(randn, sf32, k, step, gy_randn(7, a)) \\
FUNCTION(word, su32, k, step, gy_rand_u32(7, a)) \\
FUNCTION(ahead, sf32, k, step, gy_rand(12345678901234567ul, a, d)) \\
FUNCTION(nahead, sf32, k, step, gy_randn(7, a, d)) \\
FUNCTION(seeds, sf32, k, step, gy_rand((su64)(i / 48), a, d)) \\
FUNCTION(int, si64, k, step, gy_randint64(7, a, -5, 12))
EACH(s, 1)
#if GY_VEC
EACH(v, GY_LANES)
#endif
// gy_vload gy_sload
"""


def test_philox_known_answers(isa, folder):
    library = build(PHILOX, isa, folder)
    for counter, key, want in KNOWN:
        c, k = np.array(counter, np.uint32), np.array(key, np.uint32)
        out = np.zeros(4, np.uint32)
        library("raw", c, k, out)
        assert out.tolist() == want
        if isa is Isa.PLAIN:
            continue
        many = np.zeros((4, isa.lanes), np.uint32)
        library("raw_v", c, k, many)
        assert many[:, 0].tolist() == want
        for lane in range(1, isa.lanes):
            moved = c + np.array([lane, 0, 0, 0], np.uint32)
            library("raw", moved, k, out)
            assert many[:, lane].tolist() == out.tolist()


def test_random_values_have_their_distribution(isa, folder):
    library = build(PHILOX, isa, folder)
    offset = np.concatenate([np.arange(100000), [2**40, -1]])
    for kind in "sv" if isa is not Isa.PLAIN else "s":
        u = library.map(f"rand_{kind}", "f32", offset)
        assert u.min() >= 0 and u.max() < 1
        assert np.array_equal(u * 2**24, np.floor(u * 2**24))
        assert abs(u.mean() - 0.5) < 0.004 and abs(u.var() - 1 / 12) < 0.002
        z = library.map(f"randn_{kind}", "f32", offset)
        assert np.isfinite(z).all()
        assert abs(z.mean()) < 0.015 and abs(z.var() - 1) < 0.02
        n = library.map(f"int_{kind}", "i64", offset)
        assert set(n.tolist()) == set(range(-5, 12))
    if isa is not Isa.PLAIN:
        for name, code in (("rand", "f32"), ("randn", "f32"), ("word", "u32"), ("int", "i64")):
            s, v = library.map(f"{name}_s", code, offset), library.map(f"{name}_v", code, offset)
            assert same_bits(s, v).all()


@pytest.mark.parametrize("start", [0, 4, 2, 60, 1 << 33, (1 << 34) - 24, -8])
def test_words_that_are_drawn_ahead_are_those_of_each_offset(vector_isa, folder, start):
    library = build(PHILOX, vector_isa, folder)
    along = np.arange(start, start + 480)
    rows = (np.arange(480) // 48 * 1000 + np.arange(480) % 48) + start
    back = along.reshape(-1, 16)[::-1].ravel()
    wrapped = start + np.arange(480) % 20
    for offset in (along, rows, back, wrapped, along[::-1].copy(), 3 * along, np.repeat(along, 2)):
        for name, plain in (("ahead", "rand"), ("nahead", "randn"), ("seeds", "seeds")):
            want = library.map(f"{plain}_s", "f32", offset)
            assert same_bits(library.map(f"{name}_v", "f32", offset), want).all()


ATOMIC = """
#define ATOMIC_ONE(name, t, p, x) \\
extern "C" void name##_##t(p *o, const x *v, si64 n) { \\
  _Pragma("omp parallel for num_threads(4)") \\
  for (si64 i = 0; i < n; i++) gy_atomic_##name(o + i % 3, v[i]); \\
}
#define ATOMIC(t, p, x) \\
ATOMIC_ONE(add, t, p, x) ATOMIC_ONE(max, t, p, x) ATOMIC_ONE(min, t, p, x)
// gy_atomic_add gy_atomic_max gy_atomic_min
""" + "".join(f"ATOMIC({t}, s{t}, s{t})\n" for t in NUMBERS)
ATOMIC += "ATOMIC(bf16, gy_bf16, sf32)\nATOMIC(f16, gy_f16, sf32)\n"
ATOMIC += """
extern "C" si32 threads() {
  return omp_get_max_threads() - omp_get_thread_num() - omp_in_parallel();
}
"""


@pytest.mark.parametrize("code", [*NUMBERS, "bf16", "f16"])
def test_atomics_lose_no_update(code, isa, folder):
    import ml_dtypes

    library = build(ATOMIC, isa, folder)
    half = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
    dtype = half.get(code) or NUMPY[code]
    value = np.float32 if code in half else dtype
    # small integers, so that sums are exact in every type
    v = (np.arange(300) % 4 if code in half else np.arange(3000) % 5).astype(value)
    if code in half:
        v[:] = v % 2
    for name, f in (("add", np.sum), ("max", np.max), ("min", np.min)):
        out = np.ones(3, dtype)
        library(f"{name}_{code}", out, v, len(v))
        for slot in range(3):
            actual = v[slot::3].astype(np.int64)
            want = f(np.append(actual, 1)) if name != "add" else 1 + f(actual)
            assert out[slot].astype(value) == np.array(want).astype(value), name
    assert library("threads") >= 1
