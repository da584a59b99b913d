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
GY_FN su32 gy_sort_key(si8 x) { return (su8)(x ^ 0x80); }
GY_FN su32 gy_sort_key(si16 x) { return (su16)(x ^ 0x8000); }
GY_FN su32 gy_sort_key(si32 x) { return (su32)x ^ 0x80000000u; }
GY_FN su32 gy_sort_key(sf32 x) {
  const su32 bits = (su32)gy_bits(x == 0 ? 0.0f : x);  // both zeros are equal
  return x != x ? ~0u : bits >> 31 ? ~bits : bits ^ 0x80000000u;
}
//% gy_digit_sort
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
//% gy_sort
// Stable sort of values whose positions are 0, 1, ... n - 1; v and q are scratch of n elements
// each, and the result is in x and p.
template <class T> static void gy_sort(T *x, si64 *p, T *v, si64 *q, si64 n, sbool down) {
  if constexpr (sizeof(T) <= 4) {
    if (n >= 64 && n < 1L << 31) return gy_digit_sort(x, p, v, q, n, down);
  }
  gy_merge_sort(x, p, v, q, n, down);
}
