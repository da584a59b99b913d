"""Helper functions of generated kernels that are no vector arithmetic: copied in when used."""

import re

from gyrator_codegen_cpp.prelude import Isa, assemble, load_manifest

_HELPERS: tuple[tuple[str, str], ...] = (
    (
        "gy_recast",
        """\
template <class To, class From> GY_FN To gy_recast(From x) {
  static_assert(sizeof(To) == sizeof(From), "a bitcast keeps the size");
  To r;
  __builtin_memcpy(&r, &x, sizeof r);
  return r;
}
""",
    ),
    (
        "gy_floor_div",
        """\
GY_FN si64 gy_floor_div(si64 a, si64 b) {
  const si64 q = a / b;
  return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
""",
    ),
    (
        "gy_floor_mod",
        """\
GY_FN si64 gy_floor_mod(si64 a, si64 b) {
  const si64 r = a % b;
  return r + ((r != 0) & ((r < 0) != (b < 0)) ? b : 0);
}
""",
    ),
    ("gy_least", "GY_FN si64 gy_least(si64 a, si64 b) { return a < b ? a : b; }\n"),
    (
        "gy_together",
        """\
// What there is to do: pieces that threads share out, units of work in a piece, element operations.
struct gy_share {
  si64 pieces, units, work;
};
struct gy_kind {
  si64 (*part)(void *const *, const si64 *, si64, si64, sbool);
  gy_share share;
  const si64 *sizes;
  si64 codes;
};
struct gy_member {
  si64 kind, buffers;
};
// Needs omp_get_num_threads and omp_get_thread_num. Each thread takes a stretch of equal work of
// all members' pieces, one after the other.
static si64 gy_together(const gy_kind *kinds, const gy_member *members, si64 count,
                        void *const *buffers, si64 grain) {
  si64 total = 0, failed = 0;
  for (si64 m = 0; m < count; m++) {
    const gy_share &s = kinds[members[m].kind].share;
    if (s.pieces > 0) total += s.pieces * (s.work / s.pieces + 1);
  }
#pragma omp parallel if (total >= grain)
  {
    const si64 team = omp_get_num_threads(), thread = omp_get_thread_num();
    const si64 low = total / team * thread + total % team * thread / team;
    const si64 high = total / team * (thread + 1) + total % team * (thread + 1) / team;
    si64 at = 0;
    for (si64 m = 0; m < count; m++) {
      const gy_kind &k = kinds[members[m].kind];
      if (k.share.pieces <= 0) continue;
      const si64 weight = k.share.work / k.share.pieces + 1;
      si64 begin = low <= at ? 0 : (low - at + weight - 1) / weight;
      si64 end = high <= at ? 0 : (high - at + weight - 1) / weight;
      if (end > k.share.pieces) end = k.share.pieces;
      if (begin < end) {
        begin *= k.share.units, end *= k.share.units;
        const si64 code = k.part(buffers + members[m].buffers, k.sizes, begin, end, team > 1);
        if (code) __atomic_store_n(&failed, code + k.codes, __ATOMIC_RELAXED);
      }
      at += k.share.pieces * weight;
    }
  }
  return failed;
}
""",
    ),
    (
        "gy_atomic_mul",
        """\
// Needs gy_bf16_bits, gy_bf16_value, gy_f16_bits, gy_f16_value, gy_mul and GY_ATOMIC.
GY_ATOMIC_ALL(gy_atomic_mul, gy_mul)
""",
    ),
    (
        "gy_scratch",
        """\
struct gy_scratch {
  void *p;
  explicit gy_scratch(si64 bytes) : p(__builtin_malloc(bytes > 0 ? (bytes + 127) : 128)) {}
  ~gy_scratch() { __builtin_free(p); }
  void *aligned() const { return (void *)(((su64)p + 63) & ~63UL); }
};
""",
    ),
    (
        "gy_sorts_before",
        """\
GY_FN sbool gy_sorts_before(sbool a, sbool b, sbool down) { return down ? a > b : a < b; }
template <class T> GY_FN sbool gy_sorts_before(T a, T b, sbool down) {
  if (down) return (a > b) | ((a != a) & (b == b));
  return (a < b) | ((b != b) & (a == a));
}
""",
    ),
    (
        "gy_merge_sort",
        """\
// Stable merge sort of values and their positions: runs of 16 by insertion, then doubling merges.
template <class T> static void gy_merge_sort(T *x, si64 *p, T *v, si64 *q, si64 n, sbool down) {
  for (si64 lo = 0; lo < n; lo += 16) {
    const si64 hi = gy_least(lo + 16, n);
    for (si64 i = lo + 1; i < hi; i++) {
      const T t = x[i];
      const si64 k = p[i];
      si64 j = i;
      for (; j > lo && gy_sorts_before(t, x[j - 1], down); j--) x[j] = x[j - 1], p[j] = p[j - 1];
      x[j] = t, p[j] = k;
    }
  }
  T *a = x, *b = v;
  si64 *ka = p, *kb = q;
  for (si64 width = 16; width < n; width *= 2) {
    for (si64 lo = 0; lo < n; lo += 2 * width) {
      const si64 mid = gy_least(lo + width, n), hi = gy_least(lo + 2 * width, n);
      si64 i = lo, j = mid, k = lo;
      while (i < mid && j < hi) {
        const sbool right = gy_sorts_before(a[j], a[i], down);
        const si64 from = right ? j : i;
        b[k] = a[from], kb[k] = ka[from];
        k++, j += right, i += !right;
      }
      for (; i < mid; i++, k++) b[k] = a[i], kb[k] = ka[i];
      for (; j < hi; j++, k++) b[k] = a[j], kb[k] = ka[j];
    }
    T *t = a;
    a = b, b = t;
    si64 *u = ka;
    ka = kb, kb = u;
  }
  if (a != x) for (si64 i = 0; i < n; i++) x[i] = a[i], p[i] = ka[i];
}
""",
    ),
    (
        "gy_sort_key",
        """\
GY_FN su32 gy_sort_key(sbool x) { return x; }
GY_FN su32 gy_sort_key(su8 x) { return x; }
GY_FN su32 gy_sort_key(su16 x) { return x; }
GY_FN su32 gy_sort_key(su32 x) { return x; }
GY_FN su32 gy_sort_key(si8 x) { return (su8)(x ^ 0x80); }
GY_FN su32 gy_sort_key(si16 x) { return (su16)(x ^ 0x8000); }
GY_FN su32 gy_sort_key(si32 x) { return (su32)x ^ 0x80000000u; }
GY_FN su32 gy_sort_key(sf32 x) {
  const su32 bits = (su32)gy_bits(x == 0 ? 0.0f : x);  // both zeros are equal
  return x != x ? ~0u : bits >> 31 ? ~bits : bits ^ 0x80000000u;
}
""",
    ),
    (
        "gy_digit_sort",
        """\
// The same by digits of a key, the lowest first (Knuth, The Art of Computer Programming 3, 5.2.5).
// The key lies in front of the position, which is below 2^32.
template <class T> static void gy_digit_sort(T *x, si64 *p, T *v, si64 *q, si64 n, sbool down) {
  su32 counts[sizeof(T)][256] = {};
  su64 *a = (su64 *)p, *b = (su64 *)q;
  const su32 flip = down ? ~0u : 0u;
  for (si64 i = 0; i < n; i++) {
    const su32 key = gy_sort_key(x[i]) ^ flip;
    a[i] = (su64)key << 32 | (su64)i;
    for (su32 d = 0; d < sizeof(T); d++) counts[d][key >> 8 * d & 255]++;
  }
  for (su32 d = 0; d < sizeof(T); d++) {
    su32 *const places = counts[d];
    const su32 shift = 32 + 8 * d;
    if (places[a[0] >> shift & 255] == (su32)n) continue;
    su32 sum = 0;
    for (su32 k = 0; k < 256; k++) {
      const su32 here = places[k];
      places[k] = sum, sum += here;
    }
    for (si64 i = 0; i < n; i++) b[places[a[i] >> shift & 255]++] = a[i];
    su64 *const t = a;
    a = b, b = t;
  }
  for (si64 i = 0; i < n; i++) v[i] = x[a[i] & 0xffffffffu];
  for (si64 i = 0; i < n; i++) x[i] = v[i], p[i] = (si64)(a[i] & 0xffffffffu);
}
""",
    ),
    (
        "gy_sort",
        """\
// Stable sort of values whose positions are 0, 1, ... n - 1; v and q are scratch of n elements
// each, and the result is in x and p.
template <class T> static void gy_sort(T *x, si64 *p, T *v, si64 *q, si64 n, sbool down) {
  if constexpr (sizeof(T) <= 4) {
    if (n >= 64 && n < 1L << 31) return gy_digit_sort(x, p, v, q, n, down);
  }
  gy_merge_sort(x, p, v, q, n, down);
}
""",
    ),
)
"""(name, text), each after what it uses."""

_WORD = re.compile(r"[A-Za-z_]\w*")


def preamble(text: str, isa: Isa) -> str:
    """Return the least prelude and helper functions for a text of kernels."""
    words = set(_WORD.findall(text))
    chosen: list[str] = []
    for name, body in reversed(_HELPERS):
        if name in words:
            words.update(_WORD.findall(body))
            chosen.append(body)
    helpers = "".join(reversed(chosen))
    return assemble(load_manifest().index.keys() & words, isa) + helpers
