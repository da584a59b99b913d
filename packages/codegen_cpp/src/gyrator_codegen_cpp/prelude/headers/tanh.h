//% gy_tanh : gy_exp_d
template <class T> GY_FN T gy_tanh_d(T x) {
  T t = gy_expm1_d(gy_sel(x > 20.0, T{} + 40.0, x + x));
  return gy_sel(x == 0, x, t / (t + 2.0));
}
// From 0.65 on 1 - 2 / (exp(2a) + 1): with exp(2a) = 2^n (1 + p), both parts of the quotient are
// divided by 2^n; the denominator is kept in two parts and its reciprocal corrected once.
template <class T> GY_FN T gy_tanh_f(T x) {
  T a = gy_abs(x), z = x * x, b = gy_lower(a, T{} + 10.0f);
  T poly = gy_poly(z, 0.00213934202f, -0.00817705877f, 0.0217024535f, -0.053947553f, 0.133332178f, -0.333333313f);
  T small = gy_mad(x * z, poly, x);
  T p, t = gy_exp_parts_f(b + b, p);
  T s = gy_float((0x4b400000 + 127 - gy_bits(t)) << 23);
  T one = s + 1.0f, d = one + p, rest = (one - d) + p;
  T q = 1.0f / d;
  T e = gy_mad(-q, rest, gy_mad(-q, d, T{} + 1.0f));
  T large = gy_mad(-(s + s), gy_mad(q, e, q), T{} + 1.0f);
  return gy_copysign(gy_sel(a < 0.65f, small, large), x);
}
#if GY_ISA == 512
static const sf32 gy_tanh_table[][32] __attribute__((aligned(64))) = {
  {2.25040007f, 2.7506001f, 3.2506001f, 3.74959993f, 4.49800014f, 5.49679995f, 6.4987998f, 7.51160002f, 8.68000031f,
   0, 0, 0, 0, 0.0858562514f, 0.101543747f, 0.117131248f, 0.140662506f, 0.171812505f, 0.203087494f, 0.234174997f,
   0.281574994f, 0.343800008f, 0.406075001f, 0.468775004f, 0.561950028f, 0.687349975f, 0.812749982f, 0.937650025f,
   1.12390006f, 1.3757f, 1.62259996f, 1.87479997f},
  {0.978043497f, 0.99186945f, 0.997001231f, 0.998893559f, 0.999752223f, 0.999966383f, 0.99999547f, 0.999999404f,
   0.99999994f, 0, 0, 0, 0, 0.0856459141f, 0.10119617f, 0.116598502f, 0.139742076f, 0.170141622f, 0.200340718f,
   0.229986295f, 0.274362147f, 0.330865651f, 0.385134935f, 0.43720901f, 0.509422839f, 0.596276879f, 0.671104491f,
   0.734140694f, 0.808921218f, 0.879984736f, 0.925000489f, 0.954027295f},
  {0.043430917f, 0.0161950011f, 0.00598854758f, 0.00221166015f, 0.000495506683f, 6.72349197e-05f, 9.06324476e-06f,
   1.19561844e-06f, 1.1492093e-07f, 0, 0, 0, -7.33447886e-11f, 0.992664754f, 0.989759326f, 0.986404777f, 0.980472147f,
   0.971051812f, 0.959863603f, 0.947106302f, 0.924725413f, 0.890527904f, 0.8516711f, 0.808848262f, 0.74048835f,
   0.644453883f, 0.549618781f, 0.461037427f, 0.345646471f, 0.225626856f, 0.144374087f, 0.0898319185f},
  {-0.0424761102f, -0.016062405f, -0.00597017724f, -0.00220905128f, -0.000494768028f, -6.7148736e-05f,
   -9.05182151e-06f, -1.1940831e-06f, -1.15580228e-07f, 0, 0, 0, 4.30198988e-08f, -0.0850178972f, -0.100159928f,
   -0.115013406f, -0.137013242f, -0.165216401f, -0.192299739f, -0.217821479f, -0.253709644f, -0.294645131f,
   -0.328008264f, -0.353635788f, -0.377221644f, -0.384272873f, -0.368851602f, -0.338466376f, -0.279602647f,
   -0.198549315f, -0.133546501f, -0.0857021511f},
  {0.0270679519f, 0.0105338208f, 0.00395617681f, 0.00146944623f, 0.000329722272f, 4.47731545e-05f, 6.0347179e-06f,
   7.95073788e-07f, 8.12098691e-08f, 0, 0, 0, -0.333337367f, -0.32212764f, -0.319198072f, -0.314564139f, -0.30760771f,
   -0.295318156f, -0.281531006f, -0.265570343f, -0.238635406f, -0.199291646f, -0.157634363f, -0.114925317f,
   -0.0546490513f, 0.0143140871f, 0.0643129349f, 0.0948150158f, 0.110958636f, 0.0995134115f, 0.0754065439f,
   0.0518188998f},
  {-0.0123775462f, -0.00514171412f, -0.0019755594f, -0.000739820418f, -0.000172635613f, -2.34654963e-05f,
   -3.16396495e-06f, -4.17321104e-07f, -4.04363369e-08f, 0, 0, 0, 0.000126550673f, 0.062039651f, 0.068092458f,
   0.0774206892f, 0.0888639987f, 0.105831675f, 0.120311424f, 0.133749112f, 0.149973899f, 0.164183125f, 0.169924766f,
   0.168182746f, 0.153450474f, 0.119492233f, 0.0797899365f, 0.0432850234f, 0.00384168862f, -0.0211493485f,
   -0.0251476429f, -0.0208562165f},
  {0.00397687033f, 0.00191614928f, 0.000771331193f, 0.000292997604f, 6.85893101e-05f, 9.31873456e-06f,
   1.26182283e-06f, 1.70786208e-07f, 9.83679538e-09f, 0, 0, 0, 0.131959379f, -19.0711517f, -7.35448265f, -10.6503782f,
   -0.105058633f, -0.716950774f, 0.419052362f, -0.0378804095f, 0.0603138618f, -0.017055938f, 0.0644366667f,
   -0.0787065774f, -0.0460267738f, -0.061424382f, -0.0591431968f, -0.0553098619f, -0.03207561f, -0.00957437046f,
   0.00134321139f, 0.00458163535f},
};
GY_FN vf32 gy_tanh_f(vf32 x) { return gy_by_table(x, 9.5f, gy_tanh_table); }
GY_FN sf32 gy_tanh_f(sf32 x) { return gy_tanh_f(vf32{x})[0]; }
#endif
GY_VIA_F32(gy_tanh)
sf64 gy_tanh(sf64) = delete;
//% gy_sinh
template <class T> GY_FN T gy_sinh_d(T x) {
  T t = gy_expm1_d(gy_abs(x));
  return gy_copysign((t + t / (t + 1.0)) * 0.5, x);
}
GY_VIA_F64(gy_sinh)
sf64 gy_sinh(sf64) = delete;
//% gy_cosh
template <class T> GY_FN T gy_cosh_d(T x) {
  T e = gy_exp_d(gy_abs(x));
  return (e + 1.0 / e) * 0.5;
}
GY_VIA_F64(gy_cosh)
sf64 gy_cosh(sf64) = delete;
//% gy_asinh : gy_log1p_d
template <class T> GY_FN T gy_asinh_d(T x) {
  T a = gy_abs(x), s = a * a;
  T r = gy_log1p_d(a + s / (gy_sqrt(s + 1.0) + 1.0));
  return gy_copysign(gy_sel(a < __builtin_inf(), r, a), x);
}
GY_VIA_F64(gy_asinh)
sf64 gy_asinh(sf64) = delete;
//% gy_acosh : gy_log1p_d
template <class T> GY_FN T gy_acosh_d(T x) {
  T t = x - 1.0;
  T r = gy_log1p_d(t + gy_sqrt(t * (t + 2.0)));
  return gy_sel(t < 0, T{} + __builtin_nan(""), r);
}
GY_VIA_F64(gy_acosh)
sf64 gy_acosh(sf64) = delete;
//% gy_atanh : gy_log1p_d gy_log_sum_f
template <class T> GY_FN T gy_atanh_d(T x) {
  T a = gy_abs(x);
  return gy_copysign(gy_log1p_d((a + a) / (1.0 - a)) * 0.5, x);
}
#if GY_ISA != 0
// From 1/2 on half the logarithm of (1 + a) / (1 - a), a quotient in two parts.
template <class T> GY_FN T gy_atanh_f(T x) {
  T a = gy_abs(x), z = x * x, n = a + 1.0f, d = 1.0f - a, r = 1.0f / d, u = n * r;
  T c = (gy_mad(-u, d, n) + (a - (n - 1.0f))) * r, p = gy_poly(z, 0.177292541f, 0.0509154759f, 0.118358925f, 0.142212391f,
    0.20002602f, 0.333332986f);
  T large = gy_log_sum_f(u, gy_sel(d == 0, T{}, c)) * 0.5f;
  return gy_copysign(gy_sel(a < 0.5f, gy_mad(a * z, p, a), large), x);
}
#endif
GY_VIA_F32(gy_atanh)
sf64 gy_atanh(sf64) = delete;
