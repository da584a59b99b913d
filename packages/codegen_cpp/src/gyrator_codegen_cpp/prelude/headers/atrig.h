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
//% gy_atan2 : gy_atan2_d
GY_VIA_F64_2(gy_atan2)
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
GY_VIA_F32(gy_atan)
sf64 gy_atan(sf64) = delete;
//% gy_atan_f64 : GY_WIDE
template <class T> GY_FN T gy_atan_w(T x) { return gy_atan2_w(x, T{} + 1.0); }
GY_WIDE(atan)
//% gy_asin_parts
// |x| up to 1/2, else the root of (1 - |x|) / 2, with what the root lost, and its arcsine h + l: twice that is
// short of the quarter turn.
template <class T> GY_FN T gy_asin_tail(T z, sf32) {
  return gy_poly(z, 0.0422202013f, 0.0241479725f, 0.045476675f, 0.0749524906f, 0.166667536f);
}
template <class T> GY_FN T gy_asin_tail(T z, sf64) {
  return gy_poly(z, 0.032701957268960635, -0.021116448099232594, 0.02179049935867868, 0.003672225986954338,
    0.010789316065918238, 0.011397292850801351, 0.013981018701004584, 0.0173515954746968, 0.02237221590787758,
    0.030381942675197508, 0.04464285717528769, 0.07499999999970097, 0.16666666666666763);
}
template <class T, class C> GY_FN auto gy_asin_parts(T x, C kind, T &h, T &l) {
  T a = gy_abs(x), t = (C(1) - a) * C(0.5), rest, s = gy_root_w(t, rest);
  auto large = a > C(0.5);
  T z = gy_sel(large, t, a * a);
  h = gy_sel(large, s, a);
  l = gy_mad(h * z, gy_asin_tail(z, kind), gy_sel(large, rest, T{}));
  return large;
}
//% gy_asin
// quarter + rest is pi/2.
template <class T, class C> GY_FN T gy_asin_of(T x, C quarter, C rest) {
  T h, l, lost;
  auto large = gy_asin_parts(x, quarter, h, l);
  T r = gy_sum_w(gy_sel(large, T{} + quarter, T{}), gy_sel(large, -(h + h), h), lost);
  return gy_copysign(r + (lost + gy_sel(large, rest - (l + l), l)), x);
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
  T h, l, lost, one = gy_copysign(T{} + C(1), x);
  auto large = gy_asin_parts(x, quarter, h, l), left = x < 0;
  h = h * one;
  l = l * one;
  T half = gy_sel(left, T{} + (quarter + quarter), T{}), low = gy_sel(left, T{} + (rest + rest), T{});
  T r = gy_sum_w(gy_sel(large, half, T{} + quarter), gy_sel(large, h + h, -h), lost);
  return r + (lost + gy_sel(large, low + (l + l), rest - l));
}
template <class T> GY_FN T gy_acos_d(T x) { return gy_acos_of(x, 1.5707963267948966, 6.123233995736766e-17); }
template <class T> GY_FN T gy_acos_f(T x) { return gy_acos_of(x, 1.57079637f, -4.37113883e-8f); }
GY_VIA_F32(gy_acos)
sf64 gy_acos(sf64) = delete;
//% gy_acos_f64 : GY_WIDE
template <class T> GY_FN T gy_acos_w(T x) { return gy_acos_d(x); }
GY_WIDE(acos)
