//% gy_atan2_d
// The angle of (|x|, |y|) by one division: reduced to at most tan(pi/8) by turning pi/4 or pi/2.
template <class T> GY_FN T gy_atan2_d(T y, T x) {
  T a = gy_abs(x), b = gy_abs(y);
  auto infinite = (a == __builtin_inf()) & (b == __builtin_inf());
  a = gy_sel(infinite, T{} + 1.0, a);
  b = gy_sel(infinite, T{} + 1.0, b);
  auto high = b > a * 2.414213562373095, middle = b > a * 0.41421356237309503;
  T top = gy_sel(high, -a, gy_sel(middle, b - a, b));
  T bottom = gy_sel(high, b, gy_sel(middle, b + a, a));
  T base = gy_sel(high, T{} + 1.5707963267948966, gy_sel(middle, T{} + 0.7853981633974483, T{}));
  T u = gy_sel((a == 0) & (b == 0), T{}, top / bottom), z = u * u;
  T p = gy_poly(z, -0.025485368182477847, 0.05038328257520922, -0.06510555253563456, 0.0767437443135583,
    -0.09089620916191674, 0.11111054766615996, -0.14285712884910873, 0.1999999998287796, -0.3333333333326115);
  T r = base + gy_mad(u * z, p, u);
  r = gy_sel(gy_copysign(T{} + 1.0, x) < 0, 3.141592653589793 - r, r);
  return gy_copysign(r, y);
}
//% gy_atan_turned_f
// The angle of the pair (low, high), 0 <= low <= high, by a quotient q of what is left of low and high when both are
// turned by the arctangent of b, which is near low / high. What the quotient and its denominator lose is kept.
#if GY_ISA == 512
// Angles by quarters of the tangent, from pi/2 down 8 places on, and those of the left half plane 16 on; what they lose.
static const sf32 gy_atan_table[][32] __attribute__((aligned(64))) = {
  {0, 0.244978666f, 0.463647604f, 0.643501103f, 0.785398185f, 0, 0, 0, 1.57079637f, 1.3258177f, 1.10714877f,
   0.927295208f, 0.785398185f, 0, 0, 0, 3.14159274f, 2.89661407f, 2.67794514f, 2.49809146f, 2.3561945f, 0, 0, 0,
   1.57079637f, 1.81577504f, 2.03444386f, 2.21429753f, 2.3561945f, 0, 0, 0},
  {0, -3.17867777e-09f, 5.01215869e-09f, 5.86893734e-09f, -2.18556941e-08f, 0, 0, 0, -4.37113883e-08f,
   -4.05327114e-08f, -4.87235496e-08f, 1.00243174e-08f, -2.18556941e-08f, 0, 0, 0, -8.74227766e-08f, -8.42440997e-08f,
   -9.24349379e-08f, 8.55222169e-08f, -5.96244032e-09f, 0, 0, 0, -4.37113883e-08f, -4.68900687e-08f, 8.05100555e-08f,
   -9.74470993e-08f, -5.96244032e-09f, 0, 0, 0},
};
GY_FN vf32 gy_atan_turned_f(vf32 low, vf32 high, vi32 swap, vi32 left) {
  vf32 t = gy_mad(low, gy_rough_inverse_w(high), vf32{} + 3145728.0f);
  vi32 i = gy_bits(t) | gy_sel(swap, vi32{} + 8, vi32{}) | ((left >> 27) & 16);
  vf32 b = t - 3145728.0f, top = gy_less_mad(b, high, low), bottom = gy_mad(b, low, high);
  vf32 short_of = gy_mad(b, low, high - bottom);
  top = gy_float(gy_bits(top) ^ ((left ^ swap) & (si32)0x80000000));
  vf32 r = gy_inverse_w(bottom), q = top * r, miss = gy_less_mad(q, short_of, gy_less_mad(q, bottom, top)), z = q * q, lost;
  vf32 p = gy_poly(z, -0.139532626f, 0.19996959f, -0.333333254f);
  vf32 h = gy_sum_w(gy_pick(gy_atan_table[0], i), q, lost);
  return h + (lost + gy_mad(miss, r, gy_mad(q * z, p, gy_pick(gy_atan_table[1], i))));
}
#elif GY_ISA != 0
GY_FN vf32 gy_atan_turned_f(vf32 low, vf32 high, vi32 swap, vi32 left) {
  auto middle = low > high * 0.25f, most = low > high * 0.75f;
  vf32 b = gy_sel(most, vf32{} + 1.0f, gy_sel(middle, vf32{} + 0.5f, vf32{}));
  vf32 angle = gy_sel(most, vf32{} + 0.785398185f, gy_sel(middle, vf32{} + 0.463647604f, vf32{}));
  vf32 rest = gy_sel(most, vf32{} - 2.18556941e-8f, gy_sel(middle, vf32{} + 5.01215869e-9f, vf32{}));
  vf32 base = gy_sel(swap != 0, vf32{} + 1.57079637f, gy_sel(left < 0, vf32{} + 3.14159274f, vf32{}));
  vf32 top = gy_mad(-b, high, low), bottom = gy_mad(b, low, high), short_of = gy_mad(b, low, high - bottom);
  vi32 sign = (left ^ swap) & (si32)0x80000000;
  vf32 r = 1.0f / bottom, q = top * r, miss = gy_mad(-q, short_of, gy_mad(-q, bottom, top)), z = q * q, more, lost;
  vf32 p = gy_poly(z, 0.098436825f, -0.142216057f, 0.199987128f, -0.333333254f);
  vf32 tail = gy_mad(miss, r, gy_mad(q * z, p, rest));
  q = gy_float(gy_bits(q) ^ sign);
  tail = gy_float(gy_bits(tail) ^ sign);
  vf32 h = gy_sum_w(gy_sum_w(base, gy_float(gy_bits(angle) ^ sign), more), q, lost);
  return h + (lost + (gy_mad(base, vf32{} - 2.78275344e-8f, more) + tail));
}
#endif
//% gy_atan2 : gy_atan2_d
#if GY_ISA == 0
GY_VIA_F64_2(gy_atan2)
#else
// Beyond are the double kernel's arguments, whose quotients overflow or vanish, and those that are no finite numbers.
static __attribute__((noinline, cold)) sf32 gy_atan2_far(sf32 y, sf32 x) { return (sf32)gy_atan2_d((sf64)y, (sf64)x); }
static __attribute__((noinline, cold)) vf32 gy_atan2_far(vf32 y, vf32 x) {
  return gy_join(GY_C(gy_atan2_d(GY_C(gy_lo(y), gy_hf64), GY_C(gy_lo(x), gy_hf64)), gy_hf32),
    GY_C(gy_atan2_d(GY_C(gy_hi(y), gy_hf64), GY_C(gy_hi(x), gy_hf64)), gy_hf32));
}
template <class T> GY_FN auto gy_atan2_near(T y, T x) {
  T a = gy_abs(x), b = gy_abs(y);
  return (a < 1e18f) & (b < 1e18f) & ((a > 1e-18f) | (a == 0)) & ((b > 1e-18f) | (b == 0));
}
GY_FN vf32 gy_atan2_f(vf32 y, vf32 x) {
  vf32 a = gy_abs(x), b = gy_abs(y), high = gy_raise(gy_raise(a, b), vf32{} + 1e-18f);
  return gy_copysign(gy_atan_turned_f(gy_lower(a, b), high, b > a, gy_bits(x)), y);
}
GY_FN vf32 gy_atan2(vf32 y, vf32 x) {
  vi32 near = gy_atan2_near(y, x);
  vf32 r = gy_atan2_f(y, x);
  if (__builtin_expect(gy_any_w(~near), 0)) r = gy_sel(near, r, gy_atan2_far(y, x));
  return r;
}
GY_FN sf32 gy_atan2(sf32 y, sf32 x) { return gy_atan2_near(y, x) ? gy_atan2_f(vf32{y}, vf32{x})[0] : gy_atan2_far(y, x); }
#endif
sf64 gy_atan2(sf64, sf64) = delete;
//% gy_atan2_f64 : GY_WIDE_2 gy_any_w
// As gy_atan2_d, but with what each step loses: base + q + q^3 p, where the quotient q has two parts.
#if GY_ISA != 0
template <class T> GY_FN T gy_atan2_w(T y, T x) {
  T a = gy_abs(x), b = gy_abs(y), most = gy_raise(a, b);
  auto huge = most > 1.0715086071862673e+301, tiny = b < 1.0261342003245941e-289;
  if (__builtin_expect(gy_any_w(huge | tiny), 0)) {
    // Scaled by powers of two; of infinities and what is finite beside them only 1 and 0 remain.
    T inf = T{} + __builtin_inf(), one = T{} + 1.0;
    tiny = tiny & (a < 3.273390607896142e+150);
    T scale = gy_sel(huge, T{} + 3.054936363499605e-151, gy_sel(tiny, T{} + 3.273390607896142e+150, one));
    a = gy_sel(most == inf, gy_sel(a == inf, one, a * 0.0), a * scale);
    b = gy_sel(most == inf, gy_sel(b == inf, one, b * 0.0), b * scale);
    a = gy_sel(most == 0, one, a);
  }
  auto high = b > a * 2.414213562373095, middle = b > a * 0.41421356237309503, left = gy_copysign(T{} + 1.0, x) < 0;
  T less, more, least = gy_any_sum_w(b, -a, less), sum = gy_any_sum_w(b, a, more);
  T top = gy_sel(high, -a, gy_sel(middle, least, b)), bottom = gy_sel(high, b, gy_sel(middle, sum, a));
  T r = gy_inverse_w(bottom), q = top * r, z = q * q;
  T miss = gy_mad(-q, bottom, top), rest = gy_mad(-q, more, less);
  T low = (miss + gy_sel(high, T{}, gy_sel(middle, rest, T{}))) * r;
  T p = gy_poly(z, -0.017910980596558455, 0.03806822725986488, -0.05039457716475296, 0.05847925132543814,
    -0.06663109211153292, 0.07692060687231111, -0.09090897785098051, 0.11111110784430997, -0.14285714280216114,
    0.1999999999995378, -0.333333333333332);
  T base = gy_sel(high, T{} + 1.5707963267948966,
    gy_sel(middle, gy_sel(left, T{} + 2.356194490192345, T{} + 0.7853981633974483), gy_sel(left, T{} + 3.141592653589793, T{})));
  T tail = gy_sel(high, T{} + 6.123233995736766e-17,
    gy_sel(middle, gy_sel(left, T{} + 9.184850993605148e-17, T{} + 3.061616997868383e-17),
    gy_sel(left, T{} + 1.2246467991473532e-16, T{})));
  T turned = gy_sel(left, -q, q), lost, h = gy_sum_w(base, turned, lost);
  tail = tail + gy_sel(left, gy_mad(low, z, -low), gy_mad(-low, z, low));
  return gy_copysign(h + (lost + gy_mad(turned * z, p, tail)), y);
}
#endif
GY_WIDE_2(atan2)
//% gy_atan
#if GY_ISA == 0
GY_FN sf64 gy_atan_d(sf64 x) { return gy_atan2_d(x, 1.0); }
#else
#if GY_ISA == 512
// Turned by the arctangent of b, which lies near |x| and stands in the first row of the table; its arctangent, in the second, is
// very near a float. b is 0 in the first interval; from 14 up it is infinite, and the tangent left is -1 / |x|.
static const sf32 gy_atan_tangents[][32] __attribute__((aligned(64))) = {
  {2.24959993f, 2.75440001f, 3.24979997f, 3.75640011f, 4.50519991f, 5.49480009f, 6.5012002f, 7.50080013f,
   9.02159977f, 10.9927998f, 13.0064001f, 1, 0, 0.0860375017f, 0.101525001f, 0.11714375f, 0.140662506f, 0.171862498f,
   0.203087494f, 0.234375f, 0.281399995f, 0.343924999f, 0.406875014f, 0.468800008f, 0.562550008f, 0.687099993f,
   0.812349975f, 0.937349975f, 1.12300003f, 1.37539995f, 1.62450004f, 1.87530005f},
  {1.15250599f, 1.22253847f, 1.2722801f, 1.31061816f, 1.35237181f, 1.39077628f, 1.41817474f, 1.43825877f,
   1.46040189f, 1.48007739f, 1.49406207f, 1.57079637f, 0, 0.0858261436f, 0.101178326f, 0.116612278f, 0.139745653f,
   0.170199782f, 0.200362533f, 0.230219588f, 0.274306446f, 0.331252575f, 0.386419028f, 0.438377559f, 0.512427449f,
   0.602015674f, 0.682226181f, 0.753071427f, 0.843270361f, 0.942138374f, 1.01900399f, 1.08090544f},
};
GY_FN vf32 gy_atan_f(vf32 x) {
  vf32 a = gy_lower(gy_abs(x), vf32{} + 1e30f);
  vi32 i = gy_bits(gy_lower(gy_raise(a, vf32{} + 0.0625f), vf32{} + 15.0f)) >> 21, far = a >= 14.0f;
  vf32 b = gy_pick(gy_atan_tangents[0], i), top = gy_sel(far, vf32{} - 1.0f, a - b);
  vf32 q = top * gy_inverse_w(gy_mad(a, b, gy_sel(far, vf32{}, vf32{} + 1.0f))), z = q * q;
  vf32 p = gy_mad(z, vf32{} + 0.198774174f, vf32{} - 0.333330989f);
  vf32 rest = gy_mad(q * z, p, gy_sel(far, vf32{} - 4.37113883e-8f, vf32{}));
  return gy_copysign(gy_pick(gy_atan_tangents[1], i) + (q + rest), x);
}
GY_FN sf32 gy_atan_f(sf32 x) { return gy_atan_f(vf32{x})[0]; }
#else
// Above 1, pi/2 and the arctangent of -1 / |x|. What the quotient loses is felt next to 1, where the slope is about 0.6.
template <class T> GY_FN T gy_atan_f(T x) {
  T a = gy_lower(gy_abs(x), T{} + 1e30f), lost;
  auto far = a > 1.0f;
  T u = gy_sel(far, T{} - 1.0f, a) * gy_inverse_w(gy_sel(far, a, T{} + 1.0f)), z = u * u;
  T miss = gy_mad(gy_mad(u, a, T{} + 1.0f), u * 0.6f, T{} - 4.37113883e-8f);
  T p = gy_poly(z, -0.00182292587f, 0.0110456068f, -0.0314212777f, 0.0582006946f, -0.0841752514f, 0.109569311f,
    -0.14265126f, 0.199986279f, -0.333333015f);
  T m = u * z, rest = gy_mad(u, z, -m) + u * gy_mad(u, u, -z);
  T h = gy_sum_w(gy_sel(far, T{} + 1.57079637f, T{}), u, lost);
  return gy_copysign(h + (lost + gy_mad(m, p, gy_mad(rest, T{} - 0.25f, gy_sel(far, miss, T{})))), x);
}
#endif
#endif
GY_VIA_F32(gy_atan)
sf64 gy_atan(sf64) = delete;
//% gy_atan_f64 : GY_WIDE gy_less_mad
template <class T> GY_FN T gy_atan_w(T x) { return gy_atan2_w(x, T{} + 1.0); }
#if GY_ISA == 512
// As gy_atan_turned_f, for low / high = |x| or 1 / |x|: b is 0 for quotients up to 0.126, else within 0.032 of them. Rows:
// b, its arctangent, and what is left of the upper part of pi/2; both are very near a double.
static const sf64 gy_atan_table_w[][16] __attribute__((aligned(64))) = {
  {0, 0.15737414453178644, 0.22034635674208403, 0.28331892285495996, 0.3462909674271941, 0.40926326252520084,
    0.47223552875220776, 0.5352078163996339, 0.5981801049783826, 0.6611523944884539, 0.7241246867924929, 0.7870969790965319,
    0.8500692807137966, 0.9130415748804808, 0.9760138662531972, 0},
  {0, 0.1560939070327183, 0.21688064793474315, 0.27608367974045667, 0.3333667450370861, 0.38846635361208914,
    0.4411903606511045, 0.49141556285645915, 0.5390802677035211, 0.5841753084890017, 0.6267342128509913, 0.6668235778150428,
    0.7045342838911467, 0.7399738459457889, 0.7732601130691036, 0},
  {1.5707963267948966, 1.4147024197621783, 1.3539156788601534, 1.29471264705444, 1.2374295817578105, 1.1823299731828074,
    1.129605966143792, 1.0793807639384374, 1.0317160590913754, 0.9866210183058949, 0.9440621139439053, 0.9039727489798538,
    0.8662620429037499, 0.8308224808491077, 0.797536213725793, 1.5707963267948966},
};
GY_FN gy_hf64 gy_atan_w(gy_hf64 x) {
  gy_hf64 a = gy_abs(x), low = gy_lower(a, gy_hf64{} + 1.0), high = gy_lower(gy_raise(a, gy_hf64{} + 1.0), gy_hf64{} + 1e100);
  gy_hf64 r = __builtin_ia32_rcp14pd512_mask(high, high, (su8)-1);
  gy_hi64 i = gy_bits(gy_mad(gy_mad(low, r, gy_hf64{} - 0.0944), gy_hf64{} + 15.88, gy_hf64{} + 6755399441055744.0));
  auto far = a > 1.0;
  gy_hf64 b = gy_pick_w(gy_atan_table_w[0], i), d = gy_mad(b, low, high), top = gy_less_mad(b, high, low);
  top = gy_sel(far, -top, top);
  r = __builtin_ia32_rcp14pd512_mask(d, d, (su8)-1);
  r = gy_mad(gy_less_mad(d, r, gy_hf64{} + 1.0), r, r);
  gy_hf64 q = top * r;
  q = gy_mad(gy_less_mad(q, d, top), r, q);
  gy_hf64 z = q * q, p = gy_poly(z, 0.07337609934994792, -0.09083385080912636, 0.11111032217106806, -0.14285713866689784,
    0.19999999998975926, -0.333333333333325);
  gy_hf64 base = gy_sel(far, gy_pick_w(gy_atan_table_w[2], i), gy_pick_w(gy_atan_table_w[1], i));
  return gy_copysign(base + (q + gy_mad(q * z, p, gy_sel(far, gy_hf64{} + 6.123233995736766e-17, gy_hf64{}))), x);
}
GY_FN sf64 gy_atan_w(sf64 x) { return gy_atan_w(gy_hf64{x})[0]; }
#endif
GY_WIDE(atan)
//% gy_asin_parts
// The arcsine of |x| is h + l, or to that the quarter turn, whose rest is in l, is added: h is |x| up to 1/2, else -2 times
// the root of (1 - |x|) / 2.
template <class T> GY_FN T gy_asin_tail(T z, sf32) {
  return gy_poly(z, 0.0422202013f, 0.0241479725f, 0.045476675f, 0.0749524906f, 0.166667536f);
}
template <class T> GY_FN T gy_asin_tail(T z, sf64) {
  return gy_poly(z, 0.032701957268960635, -0.021116448099232594, 0.02179049935867868, 0.003672225986954338,
    0.010789316065918238, 0.011397292850801351, 0.013981018701004584, 0.0173515954746968, 0.02237221590787758,
    0.030381942675197508, 0.04464285717528769, 0.07499999999970097, 0.16666666666666763);
}
template <class T, class C> GY_FN auto gy_asin_parts(T x, C rest, T &h, T &l) {
  T a = gy_abs(x), t = gy_mad(a, T{} - C(0.5), T{} + C(0.5)), lost, s = gy_root_w(t, lost);
  auto large = a > C(0.5);
  T z = gy_sel(large, t, a * a);
  h = gy_sel(large, s * C(-2), a);
  l = gy_mad(h * z, gy_asin_tail(z, rest), gy_sel(large, gy_mad(lost, T{} - C(2), T{} + rest), T{}));
  return large;
}
//% gy_asin
// quarter + rest is pi/2.
template <class T, class C> GY_FN T gy_asin_of(T x, C quarter, C rest) {
  T h, l, lost;
  auto large = gy_asin_parts(x, rest, h, l);
  T r = gy_sum_w(gy_sel(large, T{} + quarter, T{}), h, lost);
  return gy_copysign(r + (lost + l), x);
}
template <class T> GY_FN T gy_asin_d(T x) { return gy_asin_of(x, 1.5707963267948966, 6.123233995736766e-17); }
template <class T> GY_FN T gy_asin_f(T x) { return gy_asin_of(x, 1.57079637f, -4.37113883e-8f); }
GY_VIA_F32(gy_asin)
sf64 gy_asin(sf64) = delete;
//% gy_asin_f64 : GY_WIDE
template <class T> GY_FN T gy_asin_w(T x) { return gy_asin_d(x); }
GY_WIDE(asin)
//% gy_acos
template <class T, class C> GY_FN T gy_acos_of(T x, C quarter, C rest) {
  T h, l, lost;
  auto large = gy_asin_parts(x, rest, h, l), left = x < 0;
  T times = gy_sel(left, T{} + C(1), T{} - C(1)), far = gy_sel(left, T{} + (quarter + quarter), T{});
  T r = gy_sum_w(gy_sel(large, far, T{} + quarter), h * times, lost);
  return r + (lost + gy_mad(l, times, T{} + rest));
}
template <class T> GY_FN T gy_acos_d(T x) { return gy_acos_of(x, 1.5707963267948966, 6.123233995736766e-17); }
template <class T> GY_FN T gy_acos_f(T x) { return gy_acos_of(x, 1.57079637f, -4.37113883e-8f); }
GY_VIA_F32(gy_acos)
sf64 gy_acos(sf64) = delete;
//% gy_acos_f64 : GY_WIDE
template <class T> GY_FN T gy_acos_w(T x) { return gy_acos_d(x); }
GY_WIDE(acos)
