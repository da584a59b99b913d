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
GY_PER_LANE_2(gy_atan2, __builtin_atan2(x, y))
//% gy_atan
template <class T> GY_FN T gy_atan_d(T x) { return gy_atan2_d(x, T{} + 1.0); }
GY_VIA_F64(gy_atan)
GY_PER_LANE(gy_atan, __builtin_atan(x))
//% gy_asin
template <class T> GY_FN T gy_asin_d(T x) { return gy_atan2_d(x, gy_sqrt((1.0 - x) * (x + 1.0))); }
GY_VIA_F64(gy_asin)
GY_PER_LANE(gy_asin, __builtin_asin(x))
//% gy_acos
template <class T> GY_FN T gy_acos_d(T x) { return gy_atan2_d(gy_sqrt((1.0 - x) * (x + 1.0)), x); }
GY_VIA_F64(gy_acos)
GY_PER_LANE(gy_acos, __builtin_acos(x))
