//% gy_maximum
// A NaN wins; of equals the second.
template <typename T> T gy_maximum(T a, T b) { return a > b || a != a ? a : b; }
//% gy_minimum
template <typename T> T gy_minimum(T a, T b) { return a < b || a != a ? a : b; }
//% gy_fmax
template <typename T> T gy_fmax(T a, T b) { return a > b || b != b ? a : b; }
//% gy_fmin
template <typename T> T gy_fmin(T a, T b) { return a < b || b != b ? a : b; }
//% gy_div gy_rem gy_floor_div gy_floor_mod
// A quotient by 0 is 0, and the smallest integer by -1 is itself: what no element asks for must not end a kernel.
template <typename T> T gy_div(T a, T b) { return b == T(0) ? T(0) : T(b + 1) == T(0) && T(-1) < T(0) ? T(0UL - ulong(a)) : T(a / b); }
template <typename T> T gy_rem(T a, T b) { return b == T(0) || (T(b + 1) == T(0) && T(-1) < T(0)) ? T(0) : T(a % b); }
template <typename T> T gy_floor_div(T a, T b) {
  T q = gy_div(a, b), r = gy_rem(a, b);
  return r != T(0) && (r < T(0)) != (b < T(0)) ? T(q - 1) : q;
}
template <typename T> T gy_floor_mod(T a, T b) {
  T r = gy_rem(a, b);
  return r != T(0) && (r < T(0)) != (b < T(0)) ? T(r + b) : r;
}
//% gy_shl gy_shr
template <typename T> T gy_shl(T a, T b) { return b >= T(0) && b < T(8 * sizeof(T)) ? T(ulong(a) << ulong(b)) : T(0); }
template <typename T> T gy_shr(T a, T b) {
  if (b >= T(0) && b < T(8 * sizeof(T))) return T(a >> b);
  return T(-1) < T(0) && a < T(0) ? T(-1) : T(0);
}
//% gy_to_ulong
ulong gy_to_ulong(float a) { return a < 0.0f ? ulong(long(a)) : ulong(a); }
//% gy_fmod gy_remainder
// Long division in binary: Metal's fmod rounds its quotient.
float gy_fmod(float a, float b) {
  uint x = as_type<uint>(a) & 0x7fffffffU, y = as_type<uint>(b) & 0x7fffffffU, sign = as_type<uint>(a) & 0x80000000U;
  if (y == 0 || x >= 0x7f800000U || y > 0x7f800000U) return NAN;
  if (x < y) return a;
  int at = int(x >> 23), to = int(y >> 23);
  x = at > 0 ? (x & 0x7fffffU) | 0x800000U : x;
  y = to > 0 ? (y & 0x7fffffU) | 0x800000U : y;
  for (at = max(at, 1); x < 0x800000U; at--) x <<= 1;
  for (to = max(to, 1); y < 0x800000U; to--) y <<= 1;
  for (; at > to; at--) x = (x >= y ? x - y : x) << 1;
  x = x >= y ? x - y : x;
  if (x == 0) return as_type<float>(sign);
  for (; x < 0x800000U; at--) x <<= 1;
  return as_type<float>(sign | (at > 0 ? (x & 0x7fffffU) | uint(at) << 23 : x >> uint(1 - at)));
}
float gy_remainder(float a, float b) {
  float r = gy_fmod(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}
//% gy_nextafter
float gy_nextafter(float a, float b) {
  if (a != a || b != b) return a + b;
  if (a == b) return b;
  if (a == 0.0f) return copysign(as_type<float>(1), b);
  return as_type<float>(as_type<int>(a) + ((b > a) == (a > 0.0f) ? 1 : -1));
}
//% gy_hypot
float gy_hypot(float a, float b) {
  float x = fabs(a), y = fabs(b), most = x > y ? x : y, least = x > y ? y : x;
  if (x == INFINITY || y == INFINITY) return INFINITY;
  if (!(most > 0.0f)) return x + y;
  // Scaled by powers of two, which round nothing.
  float scale = most > 1.1529215e18f ? 8.271806e-25f : most < 9.094947e-13f ? 1.2089258e24f : 1.0f;
  most *= scale;
  least *= scale;
  return precise::sqrt(fma(least, least, most * most)) / scale;
}
//% gy_expm1 gy_log1p gy_sigmoid
// Kahan: the error of the rounded argument cancels.
float gy_expm1(float a) {
  float u = precise::exp(a);
  if (u == 1.0f) return a;
  if (u - 1.0f == -1.0f) return -1.0f;
  if (fabs(a) < 0.3f) {
    float p = fma(a, 0.000198412698f, 0.00138888889f);
    p = fma(a, p, 0.00833333333f);
    p = fma(a, p, 0.0416666667f);
    p = fma(a, p, 0.166666667f);
    p = fma(a, p, 0.5f);
    return fma(a * a, p, a);
  }
  return u - 1.0f;
}
float gy_log1p(float a) {
  float u = 1.0f + a;
  if (u == 1.0f) return a;
  if (u == 0.0f || u == INFINITY) return precise::log(u);
  return precise::log(u) + ((a - (u - 1.0f)) / u);
}
float gy_sigmoid(float a) {
  // The exponential of a number that is not positive does not overflow.
  float e = precise::exp(-fabs(a));
  return (a >= 0.0f ? 1.0f : e) / (1.0f + e);
}
//% gy_erf
float gy_erf(float x) {
  float a = fabs(x), z = x * x;
  if (x != x) return x;
  if (a < 0.925f) {
    float p = fma(z, 7.99876143e-05f, -0.000805014162f);
    p = fma(z, p, 0.00519242603f);
    p = fma(z, p, -0.0268557351f);
    p = fma(z, p, 0.112836257f);
    p = fma(z, p, -0.376126289f);
    p = fma(z, p, 0.128379166f);
    return fma(x, p, x);
  }
  float b = a < 4.0f ? a : 4.0f;
  float q = fma(b, 4.52845939e-07f, 1.52524044e-05f);
  q = fma(b, q, -0.00040219404f);
  q = fma(b, q, 0.00407137629f);
  q = fma(b, q, -0.0249309167f);
  q = fma(b, q, 0.108056501f);
  q = fma(b, q, 0.633509457f);
  q = fma(b, q, 1.12944865f);
  q = fma(b, q, -0.000163070828f);
  return copysign(1.0f - precise::exp(-q), x);
}
//% gy_rand gy_randn gy_randint
// Philox4x32-10: the key is the seed, the counter has 0 in its high words.
struct gy_words { uint a, b, c, d; };
gy_words gy_philox(long seed, long counter) {
  uint c0 = uint(ulong(counter)), c1 = uint(ulong(counter) >> 32), c2 = 0, c3 = 0;
  uint k0 = uint(ulong(seed)), k1 = uint(ulong(seed) >> 32);
  for (int round = 0; round < 10; round++) {
    ulong p = ulong(0xd2511f53U) * c0, q = ulong(0xcd9e8d57U) * c2;
    c0 = uint(q >> 32) ^ c1 ^ k0;
    c1 = uint(q);
    c2 = uint(p >> 32) ^ c3 ^ k1;
    c3 = uint(p);
    k0 += 0x9e3779b9U;
    k1 += 0xbb67ae85U;
  }
  gy_words words = {c0, c1, c2, c3};
  return words;
}
float gy_rand(long seed, long counter) {
  gy_words w = gy_philox(seed, long(ulong(counter) >> 2));
  uint k = uint(counter) & 3;
  return float((k < 2 ? k == 0 ? w.a : w.b : k == 2 ? w.c : w.d) >> 8) * 5.9604645e-08f;
}
float gy_randn(long seed, long counter) {
  gy_words w = gy_philox(seed, long(ulong(counter) >> 2));
  uint k = uint(counter) & 3;
  float u = (float((k < 2 ? w.a : w.c) >> 8) + 1.0f) * 5.9604645e-08f;
  float v = float((k < 2 ? w.b : w.d) >> 8) * 5.9604645e-08f - float(k & 1) * 0.25f;
  // cos(2 pi v) from an eighth of a turn, where the product with 2 pi loses nothing.
  float turn = rint(v * 4.0f), angle = (v - turn * 0.25f) * 6.283185307f;
  float value = fabs(turn) == 1.0f || turn == 3.0f ? precise::sin(angle) : precise::cos(angle);
  if (turn == 1.0f || turn == 2.0f) value = -value;
  return precise::sqrt(-2.0f * precise::log(u)) * value;
}
long gy_randint(long seed, long counter, long low, long high) {
  gy_words w = gy_philox(seed, counter);
  ulong span = ulong(high) - ulong(low), bits = ulong(w.b) << 32 | w.a;
  return long(ulong(low) + (span == 0 ? 0UL : bits % span));
}
//% gy_sum gy_prod gy_min gy_max gy_any gy_all gy_xor gy_argmin gy_argmax gy_welford gy_online_softmax gy_scan_argmin gy_scan_argmax gy_logsumexp
// What reductions and scans keep of the elements so far: `take` adds one, `join` what follows, `from` is another thread's.
float gy_from(float v, ushort lane) { return simd_shuffle(v, lane); }
int gy_from(int v, ushort lane) { return simd_shuffle(v, lane); }
uint gy_from(uint v, ushort lane) { return simd_shuffle(v, lane); }
short gy_from(short v, ushort lane) { return short(simd_shuffle(int(v), lane)); }
char gy_from(char v, ushort lane) { return char(simd_shuffle(int(v), lane)); }
ushort gy_from(ushort v, ushort lane) { return ushort(simd_shuffle(uint(v), lane)); }
uchar gy_from(uchar v, ushort lane) { return uchar(simd_shuffle(uint(v), lane)); }
bool gy_from(bool v, ushort lane) { return simd_shuffle(int(v), lane) != 0; }
ulong gy_from(ulong v, ushort lane) { return ulong(simd_shuffle(uint(v >> 32), lane)) << 32 | simd_shuffle(uint(v), lane); }
long gy_from(long v, ushort lane) { return long(gy_from(ulong(v), lane)); }
template <typename T> struct gy_sum {
  T value;
  void take(T x) { value = T(ulong(value) + ulong(x)); }
  void join(gy_sum<T> b) { take(b.value); }
  gy_sum<T> from(ushort lane) { return {gy_from(value, lane)}; }
  T result() { return value; }
};
// Neumaier 1974: what additions round off is summed beside them.
template <> struct gy_sum<float> {
  float value, rest;
  void take(float x) {
    float total = value + x;
    rest += fabs(value) >= fabs(x) ? (value - total) + x : (x - total) + value;
    value = total;
  }
  void join(gy_sum<float> b) { take(b.value); rest += b.rest; }
  gy_sum<float> from(ushort lane) { return {gy_from(value, lane), gy_from(rest, lane)}; }
  float result() {
    float total = value + rest;
    return total != total ? value : total;  // infinities leave no number beside them
  }
};
#define GY_FOLD(name, text) \
  template <typename T> struct name { \
    T value; \
    void take(T b) { T a = value; value = text; } \
    void join(name<T> b) { take(b.value); } \
    name<T> from(ushort lane) { return {gy_from(value, lane)}; } \
    T result() { return value; } \
  };
template <typename T> T gy_product(T a, T b) { return T(ulong(a) * ulong(b)); }
float gy_product(float a, float b) { return a * b; }
GY_FOLD(gy_prod, gy_product(a, b))
GY_FOLD(gy_min, a < b || a != a ? a : b)
GY_FOLD(gy_max, a > b || a != a ? a : b)
GY_FOLD(gy_any, T(a | b))
GY_FOLD(gy_all, T(a & b))
GY_FOLD(gy_xor, T(a ^ b))
// A NaN comes first, else the better value; of equals the first, and in scans the last.
#define GY_PLACE(name, moves) \
  template <typename T> struct name { \
    T value; \
    long at; \
    void take(T x, long place) { if (moves) { value = x; at = place; } } \
    void join(name<T> b) { take(b.value, b.at); } \
    name<T> from(ushort lane) { return {gy_from(value, lane), gy_from(at, lane)}; } \
    long result() { return at == 0x7fffffffffffffffL ? 0L : at; } \
  };
#define GY_FIRST(better) (x != x ? value == value || place < at : value == value && (better || (x == value && place < at)))
GY_PLACE(gy_argmin, GY_FIRST(x < value))
GY_PLACE(gy_argmax, GY_FIRST(x > value))
GY_PLACE(gy_scan_argmin, x != x || (x <= value && value == value))
GY_PLACE(gy_scan_argmax, x != x || (x >= value && value == value))
// Welford 1962; Chan, Golub and LeVeque 1979.
template <typename T> struct gy_welford {
  gy_sum<T> mean, squares;
  long count;
  T apart(T x) { return (x - mean.value) - mean.rest; }
  void take(T x) {
    T before = apart(x);
    count++;
    mean.take(before / T(count));
    squares.take(before * apart(x));
  }
  void join(gy_welford<T> b) {
    if (b.count == 0) return;
    T gap = apart(b.mean.value) + b.mean.rest, part = T(b.count) / T(count + b.count);
    if (count == 0) {
      mean = b.mean;
    } else {
      mean.take(gap * part);
      squares.take(gap * gap * T(count) * part);
    }
    squares.join(b.squares);
    count += b.count;
  }
  gy_welford<T> from(ushort lane) { return {mean.from(lane), squares.from(lane), gy_from(count, lane)}; }
};
// Milakov and Gimelshein 2018.
template <typename T> struct gy_online_softmax {
  T top;
  gy_sum<T> sum;
  long count;
  T scale(T a, T b) { return a == b ? T(1) : precise::exp(a - b); }
  void rise(T x) {
    if (!(x > top || x != x)) return;
    T power = scale(top, x);
    sum.value *= power;
    sum.rest *= power;
    top = x;
  }
  void take(T x) {
    rise(x);
    sum.take(scale(x, top));
    count++;
  }
  void join(gy_online_softmax<T> b) {
    rise(b.top);
    b.rise(top);
    sum.join(b.sum);
    count += b.count;
  }
  gy_online_softmax<T> from(ushort lane) { return {gy_from(top, lane), sum.from(lane), gy_from(count, lane)}; }
  T total() { return count == 0 || top - top == T(0) ? sum.result() : T(NAN); }
};
template <typename T> struct gy_logsumexp {
  T value;
  void take(T x) {
    T more = x > value || x != x ? x : value, less = x > value || x != x ? value : x;
    // Two equal infinities have no difference.
    value = more == less && fabs(more) == INFINITY ? more : more + gy_log1p(precise::exp(less - more));
  }
  void join(gy_logsumexp<T> b) { take(b.value); }
  gy_logsumexp<T> from(ushort lane) { return {gy_from(value, lane)}; }
  T result() { return value; }
};
//% gy_simd gy_group
// What the 32 threads of a SIMD group have come to, the same for all of them.
template <typename S> S gy_simd(S a, ushort lane) {
  for (ushort d = 16; d > 0; d /= 2) a.join(a.from((lane + d) % 32));
  return a.from(0);
}
// The same of a whole threadgroup: each SIMD group's, which all threads then join in one order.
template <typename S, typename M> S gy_group(S a, M parts, uint thread_index, uint groups) {
  a = gy_simd(a, thread_index % 32);
  if (thread_index % 32 == 0) parts[thread_index / 32] = a;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a = parts[0];
  for (uint k = 1; k < groups; k++) a.join(parts[k]);
  return a;
}
//% gy_scan
// The running result of a SIMD group's elements, after what came before.
template <typename S> S gy_scan(S a, S before, ushort lane) {
  for (ushort d = 1; d < 32; d *= 2) {
    S b = a.from((lane + 32 - d) % 32);
    if (lane >= d) {
      b.join(a);
      a = b;
    }
  }
  before.join(a);
  return before;
}
//% gy_before
// Whether a stands before b in a sort: a NaN is the largest.
template <typename T> bool gy_before(T a, T b) { return a < b || (b != b && a == a); }
//% gy_atomic_add gy_atomic_mul gy_atomic_min gy_atomic_max
template <typename T> T gy_of_bits(uint bits) { return T(bits); }
template <> float gy_of_bits<float>(uint bits) { return as_type<float>(bits); }
template <> half gy_of_bits<half>(uint bits) { return as_type<half>(ushort(bits)); }
template <> bfloat gy_of_bits<bfloat>(uint bits) { return as_type<bfloat>(ushort(bits)); }
template <typename T> uint gy_bits(T v) { return uint(v); }
uint gy_bits(float v) { return as_type<uint>(v); }
uint gy_bits(half v) { return as_type<ushort>(v); }
uint gy_bits(bfloat v) { return as_type<ushort>(v); }
template <typename T> T gy_combined(T a, T b, int mode) {
  if (mode > 1) return mode == 2 ? (a < b || a != a ? a : b) : (a > b || a != a ? a : b);
  return mode == 0 ? T(a + b) : T(a * b);
}
// Any combination of elements of at most 4 bytes: the word around one is replaced, again where another was faster.
template <typename T> void gy_replace(device T* p, T x, int mode) {
  ulong address = ulong(p), shift = address % 4 * 8;
  device atomic_uint* word = (device atomic_uint*)(address - address % 4);
  uint ones = sizeof(T) == 4 ? 0xffffffffU : (1U << 8 * (sizeof(T) % 4)) - 1;
  uint old = atomic_load_explicit(word, memory_order_relaxed), made;
  do {
    T now = gy_combined(gy_of_bits<T>((old >> shift) & ones), x, mode);
    made = (old & ~(ones << shift)) | (gy_bits(now) & ones) << shift;
  } while (!atomic_compare_exchange_weak_explicit(word, &old, made, memory_order_relaxed, memory_order_relaxed));
}
template <typename T> void gy_atomic_add(device T* p, T x) { gy_replace(p, x, 0); }
template <typename T> void gy_atomic_mul(device T* p, T x) { gy_replace(p, x, 1); }
template <typename T> void gy_atomic_min(device T* p, T x) { gy_replace(p, x, 2); }
template <typename T> void gy_atomic_max(device T* p, T x) { gy_replace(p, x, 3); }
void gy_atomic_add(device float* p, float x) { atomic_fetch_add_explicit((device atomic_float*)p, x, memory_order_relaxed); }
void gy_atomic_add(device int* p, int x) { atomic_fetch_add_explicit((device atomic_int*)p, x, memory_order_relaxed); }
void gy_atomic_add(device uint* p, uint x) { atomic_fetch_add_explicit((device atomic_uint*)p, x, memory_order_relaxed); }
// Two words: whoever makes the lower one overflow carries. Nobody reads the sum before the kernel ends.
void gy_atomic_add(device ulong* p, ulong x) {
  device atomic_uint* words = (device atomic_uint*)p;
  uint low = uint(x), before = atomic_fetch_add_explicit(words, low, memory_order_relaxed);
  atomic_fetch_add_explicit(words + 1, uint(x >> 32) + (before + low < low ? 1U : 0U), memory_order_relaxed);
}
void gy_atomic_add(device long* p, long x) { gy_atomic_add((device ulong*)p, ulong(x)); }
