//% gy_sorts_before
GY_FN sbool gy_sorts_before(sbool a, sbool b, sbool down) { return down ? a > b : a < b; }
template <class T> GY_FN sbool gy_sorts_before(T a, T b, sbool down) {
  if (down) return (a > b) | ((a != a) & (b == b));
  return (a < b) | ((b != b) & (a == a));
}
//% gy_merge_sort
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
//% gy_sort_key
GY_FN su32 gy_sort_key(sbool x) { return x; }
GY_FN su32 gy_sort_key(su8 x) { return x; }
GY_FN su32 gy_sort_key(su16 x) { return x; }
GY_FN su32 gy_sort_key(su32 x) { return x; }
GY_FN su64 gy_sort_key(su64 x) { return x; }
GY_FN su32 gy_sort_key(si8 x) { return (su8)(x ^ 0x80); }
GY_FN su32 gy_sort_key(si16 x) { return (su16)(x ^ 0x8000); }
GY_FN su32 gy_sort_key(si32 x) { return (su32)x ^ 0x80000000u; }
GY_FN su64 gy_sort_key(si64 x) { return (su64)x ^ 1UL << 63; }
// Both zeros have one key, and so have all NaNs. What a bfloat16 does not have stays zero.
GY_FN su32 gy_sort_key(sf32 x) {
  const su32 bits = (su32)gy_bits(x);
  return x != x ? 0xffff0000u : bits >> 31 ? -bits : bits ^ 0x80000000u;
}
GY_FN su64 gy_sort_key(sf64 x) {
  const su64 bits = (su64)gy_bits(x);
  return x != x ? 0xffffUL << 48 : bits >> 63 ? -bits : bits ^ 1UL << 63;
}
//% gy_count_sort
// Sort numbers by `take(x)`, which is below `ends`, at most 2,048: count each, then move it to its place.
template <class T, class Take> static void gy_count_sort(T *x, si64 *p, T *v, si64 n, su32 ends, Take take) {
  su32 places[2048], sum = 0;
  for (su32 k = 0; k < ends; k++) places[k] = 0;
  for (si64 i = 0; i < n; i++) places[take(x[i])]++;
  for (su32 k = 0; k < ends; k++) {
    const su32 here = places[k];
    places[k] = sum, sum += here;
  }
  for (si64 i = 0; i < n; i++) {
    const su32 at = places[take(x[i])]++;
    v[at] = x[i], p[at] = i;
  }
  __builtin_memcpy(x, v, n * sizeof(T));
}
//% gy_digit_sort
// Sort numbers by `passes` digits of their upper halves, the lowest first, and return where they are:
// a or b, which is scratch. `take(i)` is number i of a.
template <su32 passes, class Take> static su64 *gy_digit_passes(su64 *a, su64 *b, si64 n, su32 width, Take take) {
  const su32 digits = 1u << width;
  su32 counts[passes << 11];
  for (su32 k = 0; k < passes << width; k++) counts[k] = 0;
  for (si64 i = 0; i < n; i++) {
    const su64 x = take(i);
    a[i] = x;
#pragma GCC unroll 4
    for (su32 d = 0; d < passes; d++) counts[(d << width) + (x >> (32 + width * d) & (digits - 1))]++;
  }
  for (su32 d = 0; d < passes; d++) {
    su32 *const places = counts + (d << width);
    const su32 shift = 32 + width * d;
    if (places[a[0] >> shift & (digits - 1)] == (su32)n) continue;
    su32 sum = 0;
    for (su32 k = 0; k < digits; k++) {
      const su32 here = places[k];
      places[k] = sum, sum += here;
    }
    for (si64 i = 0; i < n; i++) b[places[a[i] >> shift & (digits - 1)]++] = a[i];
    su64 *const t = a;
    a = b, b = t;
  }
  return a;
}
// The same by digits of a key (Knuth, The Art of Computer Programming 3, 5.2.5). 32 bits of the key,
// less the least key, lie in front of the position, which is below 2^32; more bits are sorted by
// afterwards. Wider digits need fewer passes, but their counts take time too.
template <class T> static void gy_digit_sort(T *x, si64 *p, T *v, si64 *q, si64 n, sbool down) {
  using Key = decltype(gy_sort_key(x[0]));
  const Key flip = down ? ~(Key)0 : 0;
  if (sizeof(T) == 1 && n >= 256)
    return gy_count_sort(x, p, v, n, 256, [=](T t) GY_LAMBDA { return (gy_sort_key(t) ^ flip) & 255; });
  Key low = ~(Key)0, high = 0;
  for (si64 i = 0; i < n; i++) {
    const Key key = gy_sort_key(x[i]) ^ flip;
    low = key < low ? key : low, high = key > high ? key : high;
  }
  if (high - low < (n < 4096 ? 256 : 2048))
    return gy_count_sort(x, p, v, n, high - low + 1, [=](T t) GY_LAMBDA { return (gy_sort_key(t) ^ flip) - low; });
  su64 *a = (su64 *)p;
  for (su32 begin = 0; begin < 8 * sizeof(Key); begin += 32) {
    const su64 range = (su64)(high - low) >> begin;
    if (range == 0) break;
    const su32 bits = range >> 32 ? 32 : 64 - __builtin_clzl(range);
    const su32 most = n < 4096 ? 8 : 11, passes = (bits + most - 1) / most, width = (bits + passes - 1) / passes;
    su64 *const b = a == (su64 *)p ? (su64 *)q : (su64 *)p;
    const auto take = [=](si64 i) GY_LAMBDA {
      const su64 at = begin ? a[i] & 0xffffffffu : (su64)i;
      return (su64)((gy_sort_key(x[at]) ^ flip) - low) >> begin << 32 | at;
    };
    a = passes == 1   ? gy_digit_passes<1>(a, b, n, width, take)
        : passes == 2 ? gy_digit_passes<2>(a, b, n, width, take)
        : passes == 3 ? gy_digit_passes<3>(a, b, n, width, take)
                      : gy_digit_passes<4>(a, b, n, width, take);
  }
  for (si64 i = 0; i < n; i++) {
    const si64 at = a[i] & 0xffffffffu;
    v[i] = x[at], p[i] = at;
  }
  __builtin_memcpy(x, v, n * sizeof(T));
}
//% gy_sort
// Stable sort of values. x receives them in order, p the positions that they had; v and q are scratch
// of n elements each.
template <class T> static void gy_sort(T *x, si64 *p, T *v, si64 *q, si64 n, sbool down) {
  if (n >= 64 && n < 1L << 31) return gy_digit_sort(x, p, v, q, n, down);
  for (si64 i = 0; i < n; i++) p[i] = i;
  gy_merge_sort(x, p, v, q, n, down);
}
