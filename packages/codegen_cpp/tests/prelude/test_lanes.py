"""Memory access, masks, selection, integer arithmetic: every lane type, every tail."""

import ctypes

import numpy as np
import pytest
from prelude_harness import NUMPY, build, elementwise, same_bits

from gyrator_codegen_cpp.prelude import Isa

INTEGERS = [t for t in NUMPY if t[0] in "iu"]
STORAGE = {**NUMPY, "bf16": np.uint16, "f16": np.uint16}
SPELL = {t: f"s{t}" for t in NUMPY} | {"bf16": "gy_bf16", "f16": "gy_f16"}


def random_values(code: str, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if code == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    if code in {"bf16", "f16"}:
        return rng.integers(0x3000, 0x7000, count).astype(np.uint16)
    if code in INTEGERS:
        return rng.integers(0, 2**64, count, dtype=np.uint64).astype(NUMPY[code])
    return rng.normal(0, 100, count).astype(NUMPY[code])


TAILS = (
    "#if GY_VEC\n"
    + "".join(
        f"""
extern "C" void tail_{t}(const {s} *p, {s} *o, si64 n) {{ gy_store_n(o, gy_vload_n(p, n), n); }}
extern "C" void full_{t}(const {s} *p, {s} *o, si64 n) {{ gy_store(o, gy_vload_n(p, n)); }}
extern "C" void mask_{t}(const {s} *p, {s} *o, const sbool *m) {{
  auto k = gy_vload(m);
  gy_store_mask(o, gy_vload_mask(p, k, gy_vload(p + GY_LANES)), k);
  gy_store(o + GY_LANES, gy_vload_mask(p, k, gy_vload(p + GY_LANES)));
  gy_store(o + 2 * GY_LANES, gy_combine_n(gy_vload(p), gy_vload(p + GY_LANES), 3));
}}
extern "C" void gather_{t}(const {s} *p, const si64 *i, const sbool *m, {s} *o) {{
  auto v = gy_vload(i);
  auto k = gy_vload(m);
  gy_store(o, gy_gather(p, v));
  gy_store(o + GY_LANES, gy_gather(p, gy_to_i32(v)));
  gy_store(o + 2 * GY_LANES, gy_gather_mask(p, v, k, gy_vload(p)));
  gy_scatter(o + 3 * GY_LANES, v, gy_vload(p));
  gy_scatter_mask(o + 8 * GY_LANES, gy_to_i32(v), gy_vload(p), k);
  gy_store_strided(o + 13 * GY_LANES, 3, gy_vload_strided(p, 2));
  gy_store(o + 16 * GY_LANES, gy_gather(p, i[0]));
  gy_store(o + 17 * GY_LANES, gy_vload_back(p + 4 * GY_LANES - 1));
}}
"""
        for t, s in SPELL.items()
    )
    + "#endif\n"
)


@pytest.mark.parametrize("code", STORAGE)
def test_masked_tails_of_every_length_touch_nothing_else(code, vector_isa, folder):
    library = build(TAILS, vector_isa, folder)
    lanes = vector_isa.lanes
    # the tail ends with the page, so that a load or store beyond it faults
    page = np.frombuffer(protected_page(), dtype=STORAGE[code])
    for n in range(lanes + 1):
        x = page[len(page) - n :]
        x[:] = random_values(code, n, n)
        out = random_values(code, lanes + 2, 99)
        want = out.copy()
        want[:n] = x
        library(f"tail_{code}", x, out, n)
        assert np.array_equal(out, want), n
        library(f"tail_{code}", want, x, n)
        assert np.array_equal(page[len(page) - n :], want[:n])
        zeroed = random_values(code, lanes, 98)
        library(f"full_{code}", x, zeroed, n)
        assert np.array_equal(zeroed[:n], want[:n])
        assert not zeroed[n:].any()


PAIRS = (
    "#if GY_VEC\n"
    + "".join(
        f"""
extern "C" void pairs_{t}(const {s} *p, {s} *apart, {s} *joined) {{
  auto even = gy_vload(p), odd = even;
  gy_vload_pairs(p, even, odd);
  gy_store(apart, even);
  gy_store(apart + GY_LANES, odd);
  gy_store_pairs(joined, even, odd);
}}
"""
        for t, s in SPELL.items()
    )
    + "#endif\n"
)


@pytest.mark.parametrize("code", STORAGE)
def test_pairs_are_taken_apart_and_put_together(code, vector_isa, folder):
    library = build(PAIRS, vector_isa, folder)
    x = random_values(code, 2 * vector_isa.lanes)
    apart, joined = np.empty_like(x), np.empty_like(x)
    library(f"pairs_{code}", x, apart, joined)
    assert np.array_equal(apart, np.concatenate([x[::2], x[1::2]]))
    assert np.array_equal(joined, x)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def protected_page() -> ctypes.Array:
    """A page of memory whose successor cannot be touched."""
    base = _libc.mmap(None, 8192, 3, 0x22, -1, 0)
    assert base not in (None, ctypes.c_void_p(-1).value)
    assert _libc.mprotect(base + 4096, 4096, 0) == 0
    return (ctypes.c_char * 4096).from_address(base)


@pytest.mark.parametrize("code", STORAGE)
def test_masks_and_indices(code, vector_isa, folder):
    library = build(TAILS, vector_isa, folder)
    lanes = vector_isa.lanes
    rng = np.random.default_rng(5)
    x = random_values(code, 4 * lanes, 1)
    # some lanes, none and all: masked loads have a branch for each
    for m in (rng.integers(0, 2, lanes) > 0, np.zeros(lanes, np.bool_), np.ones(lanes, np.bool_)):
        out = random_values(code, 3 * lanes, 2)
        before = out.copy()
        library(f"mask_{code}", x, out, m)
        assert np.array_equal(out[:lanes], np.where(m, x[:lanes], before[:lanes]))
        assert np.array_equal(out[lanes : 2 * lanes], np.where(m, x[:lanes], x[lanes : 2 * lanes]))
        assert np.array_equal(out[2 * lanes :], np.concatenate([x[:3], x[lanes + 3 : 2 * lanes]]))
    m = rng.integers(0, 2, lanes) > 0
    i = rng.integers(0, 4 * lanes, lanes)
    i[2] = i[1]  # a later lane must win in a scatter
    out = random_values(code, 18 * lanes, 3)
    want = out.copy()
    library(f"gather_{code}", x, i, m, out)
    want[:lanes] = want[lanes : 2 * lanes] = x[i]
    want[2 * lanes : 3 * lanes] = np.where(m, x[i], x[:lanes])
    for lane in range(lanes):
        want[3 * lanes + i[lane]] = x[lane]
        if m[lane]:
            want[8 * lanes + i[lane]] = x[lane]
    want[13 * lanes : 16 * lanes : 3] = x[: 2 * lanes : 2]
    got, want = out[: 16 * lanes + 1], want[: 16 * lanes + 1]
    want[-1] = x[i[0]]
    assert np.array_equal(got, want)
    assert np.array_equal(out[17 * lanes :], x[: 3 * lanes - 1 : -1])


STRIDED = (
    "#if GY_VEC\n"
    + "".join(
        f"""
extern "C" void strided_{t}(const {s} *p, si64 first, si64 stride, const sbool *m, {s} *o) {{
  gy_store(o, gy_vload_strided_mask(p + first, stride, gy_vload(m), gy_vload(o)));
}}
"""
        for t, s in SPELL.items()
    )
    + "#endif\n"
)


@pytest.mark.parametrize("code", STORAGE)
def test_masked_strides_read_no_other_element(code, vector_isa, folder):
    library = build(STRIDED, vector_isa, folder)
    lanes = vector_isa.lanes
    rng = np.random.default_rng(11)
    page = np.frombuffer(protected_page(), dtype=STORAGE[code])
    for stride in (2, 3, 7, 1 << 27, 1 << 40):
        for live in (0, 1, lanes // 2, lanes) if stride < 8 else (0, 1):
            m = (np.arange(lanes) < live) & (rng.integers(0, 4, lanes) > 0)
            x = page[len(page) - max(0, live - 1) * stride - 1 :]
            x[:] = random_values(code, len(x), live)
            out = random_values(code, lanes, 98)
            want = out.copy()
            want[m] = x[::stride][m[:live].nonzero()[0]]
            library(f"strided_{code}", x, 0, stride, m, out)
            assert np.array_equal(out, want), (stride, live)
    out = random_values(code, lanes, 97)
    m, x = rng.integers(0, 2, lanes) > 0, page[-3 * lanes :]
    want = np.where(m, x[::-2][:lanes], out)
    library(f"strided_{code}", x, 3 * lanes - 1, -2, m, out)
    assert np.array_equal(out, want)


@pytest.mark.parametrize("code", ["f32", "i32", "u32", "bf16", "f16"])
@pytest.mark.parametrize("near", [True, False])
def test_gathers_of_windows_read_no_element_beyond_the_last(code, near, vector_isa, folder):
    if vector_isa is Isa.NEON:
        pytest.skip("Windows are for AVX2 and AVX-512.")
    head = f"const {SPELL[code]} *p, const si32 *i, si64 n, si64 live, {SPELL[code]} *o, sbool *f"
    body = f"""
    extern "C" void t({head}) {{
      auto v = gy_vload(i);
      auto m = gy_lane_mask(live);
      auto all = gy_window_of(v, n), some = gy_window_of(v, n, m);
      f[0] = all.near, f[1] = some.near;
      if (live == GY_LANES) gy_store(o, gy_gather_near(p, all, v));
      gy_store(o + GY_LANES, gy_gather_near(p, some, v, m, gy_vload(o + 2 * GY_LANES)));
    }}"""
    library = build(body, vector_isa, folder)
    lanes, element = vector_isa.lanes, np.dtype(STORAGE[code])
    rng = np.random.default_rng(7)
    page = np.frombuffer(protected_page(), element)
    for size in (3, lanes, lanes + 5, 3 * lanes):
        x = page[len(page) - size :]
        x[:] = random_values(code, size, size)
        for live in (1, lanes - 3, lanes):
            first = rng.integers(0, max(size - lanes, 0) + 1) if near else 0
            i = rng.integers(first, min(first + lanes, size), lanes).astype(np.int32)
            i[0], fits = i.min() if near else 0, near and size >= lanes
            if not near:
                i[live - 1] = size - 1
            i[live:] = -(2**31)
            out, flags = random_values(code, 3 * lanes, 3), np.zeros(2, np.bool_)
            want = np.where(np.arange(lanes) < live, x[np.maximum(i, 0)], out[2 * lanes :])
            library("t", x, i, size, live, out, flags)
            assert np.array_equal(out[lanes : 2 * lanes], want)
            assert live < lanes or np.array_equal(out[:lanes], want)
            assert not fits or flags[1]
            assert flags[1] == (size >= lanes and i[:live].max() - min(i[0], size - lanes) < lanes)


@pytest.mark.parametrize("code", ["f32", "i32"])
def test_transpose(code, vector_isa, folder):
    n = vector_isa.lanes
    loads = " ".join(f"auto r{k} = gy_vload(p + {k * n});" for k in range(n))
    stores = " ".join(f"gy_store(o + {k * n}, r{k});" for k in range(n))
    rows = ", ".join(f"r{k}" for k in range(n))
    head = f'extern "C" void t(const s{code} *p, s{code} *o)'
    body = f"{head} {{ {loads} gy_transpose({rows}); {stores} }}"
    library = build(body, vector_isa, folder)
    x = np.arange(n * n).reshape(n, n).astype(NUMPY[code])
    out = np.zeros_like(x)
    library("t", x, out)
    assert np.array_equal(out, x.T)


TURNS = (
    "#if GY_VEC\n"
    + "".join(
        f"""
extern "C" void turn_{t}(const {s} *p, si64 step, {to} *o, si64 rows, si64 live) {{
  gy_turn(p, step, o, rows, live);
}}
"""
        for t, s, to in (("f32", "sf32", "sf32"), ("i16", "si16", "si16"),
                         ("bf16", "gy_bf16", "sf32"), ("f64", "sf64", "sf64"),
                         ("i64", "si64", "si64"), ("u8", "su8", "su8"))
    )
    + "#endif\n"
)  # fmt: skip


@pytest.mark.parametrize("code", ["f32", "i16", "bf16", "f64", "i64", "u8"])
def test_rows_are_turned_to_vectors(code, vector_isa, folder):
    library = build(TURNS, vector_isa, folder)
    lanes, step = vector_isa.lanes, 80
    x = random_values(code, lanes * step)
    values = (x.astype(np.uint32) << 16).view(np.float32) if code == "bf16" else x
    # whole tiles, a rest after them, and less than one
    few = ((5, lanes), (40, lanes - 1), (9, 1))
    for rows, live in ((32, lanes), (75, lanes), (lanes, lanes), *few):
        out = np.zeros((rows + 1, lanes), values.dtype)
        library(f"turn_{code}", x, step, out, rows, live)
        assert np.array_equal(out[:rows, :live], values.reshape(lanes, step)[:live, :rows].T)
        assert not out[rows].any()


COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
COMPARE |= {"eq": np.equal, "ne": np.not_equal}


@pytest.mark.parametrize("code", NUMPY)
def test_comparison_and_selection(code, isa, folder):
    body = "".join(
        elementwise(f"{name}_{t}", f"gy_{name}(a, b)", f"{t} {t}", "bool")
        for t in NUMPY
        for name in COMPARE
    ) + "".join(
        elementwise(f"select_{t}", "gy_select(gy_not(a), b, c)", f"bool {t} {t}", t) for t in NUMPY
    )
    library = build(body, isa, folder)
    a, b = random_values(code, 200, 1), random_values(code, 200, 2)
    b[:60] = a[:60]
    if code[0] == "f":
        a[::7] = np.nan
    m = random_values("bool", 200, 3)
    for kind in "sv" if isa is not Isa.PLAIN else "s":
        for name, reference in COMPARE.items():
            assert np.array_equal(
                library.map(f"{name}_{code}_{kind}", "bool", a, b), reference(a, b)
            )
        got = library.map(f"select_{code}_{kind}", code, m, a, b)
        assert same_bits(got, np.where(m, b, a)).all()


def floor_mod(a: int, b: int) -> tuple[int, int]:
    return (0, 0) if b == 0 else (a // b, a % b)


def trunc_mod(a: int, b: int) -> tuple[int, int]:
    if b == 0:
        return 0, 0
    q = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return q, a - q * b


def shift(a: int, b: int, bits: int, signed: bool, left: bool) -> int:
    if 0 <= b < bits:
        return a << b if left else a >> b
    return -1 if not left and signed and a < 0 else 0


def power(a: int, b: int) -> int:
    if b < 0:
        return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)
    return pow(a, b, 2**64)


INT_FUNCTIONS = {
    "floordiv": lambda a, b, _: floor_mod(a, b)[0],
    "remainder": lambda a, b, _: floor_mod(a, b)[1],
    "truncdiv": lambda a, b, _: trunc_mod(a, b)[0],
    "fmod": lambda a, b, _: trunc_mod(a, b)[1],
    "shl": lambda a, b, t: shift(a, b, int(t[1:]), t[0] == "i", left=True),
    "shr": lambda a, b, t: shift(a, b, int(t[1:]), t[0] == "i", left=False),
    "ipow": lambda a, b, _: power(a, b),
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "mul": lambda a, b, _: a * b,
    "minimum": lambda a, b, _: min(a, b),
    "maximum": lambda a, b, _: max(a, b),
    "bitand": lambda a, b, _: a & b,
    "bitor": lambda a, b, _: a | b,
    "bitxor": lambda a, b, _: a ^ b,
    "neg": lambda a, _, __: -a,
    "abs": lambda a, _, __: abs(a),
    "sign": lambda a, _, __: (a > 0) - (a < 0),
    "relu": lambda a, _, __: max(a, 0),
    "square": lambda a, _, __: a * a,
    "bitnot": lambda a, _, __: ~a,
}
UNARY = {"neg", "abs", "sign", "relu", "square", "bitnot"}
INT_BODY = "".join(
    elementwise(
        f"{name}_{t}", f"gy_{name}(a)" if name in UNARY else f"gy_{name}(a, b)", f"{t} {t}", t
    )
    for name in INT_FUNCTIONS
    for t in INTEGERS
).replace("auto b = gy_", "[[maybe_unused]] auto b = gy_")


def wrap(x: int, code: str) -> int:
    bits = int(code[1:])
    x %= 2**bits
    return x - 2**bits if code[0] == "i" and x >= 2 ** (bits - 1) else x


@pytest.mark.parametrize("code", INTEGERS)
def test_integer_arithmetic_wraps_and_divides_as_defined(code, isa, folder):
    library = build(INT_BODY, isa, folder)
    info = np.iinfo(NUMPY[code])
    edge = np.array([info.min, info.min + 1, 0, 1, 2, 3, 7, info.max - 1, info.max], NUMPY[code])
    small = np.arange(-70 if code[0] == "i" else 0, 70, 9).astype(NUMPY[code])
    s = np.concatenate([edge, small, random_values(code, 20, 4)])
    a, b = np.repeat(s, len(s)), np.tile(s, len(s))
    for name, reference in INT_FUNCTIONS.items():
        inputs = zip(a.tolist(), b.tolist(), strict=True)
        want = [wrap(reference(x, y, code), code) for x, y in inputs]
        for kind in "sv" if isa is not Isa.PLAIN else "s":
            got = library.map(f"{name}_{code}_{kind}", code, a, b)
            bad = got != np.array(want, NUMPY[code])
            assert not bad.any(), (name, kind, a[bad][:3], b[bad][:3], got[bad][:3])


@pytest.mark.parametrize("code", ["i64", "u64"])
def test_quotients_near_the_limits_of_float64(code, isa, folder):
    names = ("floordiv", "remainder", "truncdiv", "fmod")
    body = "".join(elementwise(n, f"gy_{n}(a, b)", f"{code} {code}", code) for n in names)
    library = build(body, isa, folder)
    rng = np.random.default_rng(11)
    divisors = rng.integers(1, 2 ** rng.integers(1, 51, 640))
    a = divisors * (2**51 // divisors - rng.integers(0, 9, 640)) + rng.integers(-1, 2, 640)
    a[::80], a[1::80], divisors[2::80] = 2**51, 2**51 - 1, 2**51 - 1
    signs = rng.choice([-1, 1] if code == "i64" else [1], (2, 640))
    a, b = np.abs(a) * signs[0], divisors * signs[1]
    a, b = a.astype(NUMPY[code]), b.astype(NUMPY[code])
    a[320:336] = -(2**51) if code == "i64" else 0
    for name in names:
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        want = np.array([INT_FUNCTIONS[name](x, y, code) for x, y in pairs], NUMPY[code])
        for kind in "sv" if isa is not Isa.PLAIN else "s":
            np.testing.assert_array_equal(library.map(f"{name}_{kind}", code, a, b), want)


def test_popcount_iota_splat(isa, folder):
    body = elementwise("pop", "gy_popcount(a)", "u32", "u32")
    for k, step in (("s", "1"), ("v", "GY_LANES")):
        f = f"""
extern "C" void iota_{k}(const si64 *p, si64 *o, si64 n) {{
  for (si64 i = 0; i < n; i += {step}) gy_store(o + i, gy_add(gy_{k}iota(i), gy_{k}iota(-4, 0)));
  (void)p;
}}
extern "C" void iota32_{k}(const si64 *p, si32 *o, si64 n) {{
  for (si64 i = 0; i < n; i += {step})
    gy_store(o + i, gy_add(gy_{k}iota32(si32(3 * i), 3), gy_{k}splat(si32(5))));
  (void)p;
}}
extern "C" void any_{k}(const sbool *p, sbool *o, si64 n) {{
  for (si64 i = 0; i < n; i += {step}) {{
    auto m = gy_{k}load(p + i);
    gy_store(o + i, gy_{k}splat(sbool(gy_any(m) != gy_all(m))));
  }}
}}
"""
        body += f if k == "s" else f"#if GY_VEC\n{f}#endif\n"
    library = build(body, isa, folder)
    x = random_values("u32", 100)
    n = np.zeros(100, np.int64)
    for k in "sv" if isa is not Isa.PLAIN else "s":
        assert np.array_equal(library.map(f"pop_{k}", "u32", x), np.bitwise_count(x))
        assert np.array_equal(library.map(f"iota_{k}", "i64", n), np.arange(100) - 4)
        assert np.array_equal(library.map(f"iota32_{k}", "i32", n), 3 * np.arange(100) + 5)
    m = np.zeros(48, np.bool_)
    m[3] = True
    m[16:32] = True
    lanes = isa.lanes
    blocks = m.reshape(-1, lanes)
    want = np.repeat(blocks.any(axis=1) != blocks.all(axis=1), lanes)
    kind = "v" if lanes > 1 else "s"
    assert np.array_equal(library.map(f"any_{kind}", "bool", m), want)
