;% gy_floor_div gy_floor_mod
; Quotients that round down. The divisor is not 0; the least integer divided by -1 wraps.
define internal i64 @gy_floor_div(i64 %a, i64 %b) alwaysinline nounwind willreturn memory(none) {
  %minus = icmp eq i64 %b, -1
  %c = select i1 %minus, i64 1, i64 %b
  %p = sdiv i64 %a, %c
  %n = sub i64 0, %a
  %q = select i1 %minus, i64 %n, i64 %p
  %r = srem i64 %a, %c
  %x = xor i64 %r, %b
  %apart = icmp slt i64 %x, 0
  %inexact = icmp ne i64 %r, 0
  %wrong = and i1 %apart, %inexact
  %lower = add i64 %q, -1
  %d = select i1 %wrong, i64 %lower, i64 %q
  ret i64 %d
}
define internal i64 @gy_floor_mod(i64 %a, i64 %b) alwaysinline nounwind willreturn memory(none) {
  %minus = icmp eq i64 %b, -1
  %c = select i1 %minus, i64 1, i64 %b
  %r = srem i64 %a, %c
  %x = xor i64 %r, %b
  %apart = icmp slt i64 %x, 0
  %inexact = icmp ne i64 %r, 0
  %wrong = and i1 %apart, %inexact
  %higher = add i64 %r, %b
  %m = select i1 %wrong, i64 %higher, i64 %r
  ret i64 %m
}
;% gy_to_bf16
; Round to nearest even by adding half of the dropped bits.
define internal i16 @gy_to_bf16(float %x) alwaysinline nounwind willreturn memory(none) {
  %u = bitcast float %x to i32
  %high = lshr i32 %u, 16
  %odd = and i32 %high, 1
  %half = add i32 %odd, 32767
  %sum = add i32 %u, %half
  %r = lshr i32 %sum, 16
  %nan = fcmp uno float %x, %x
  %y = select i1 %nan, i32 32704, i32 %r
  %z = trunc i32 %y to i16
  ret i16 %z
}
;% gy_from_bf16
define internal float @gy_from_bf16(i16 %x) alwaysinline nounwind willreturn memory(none) {
  %w = zext i16 %x to i32
  %u = shl i32 %w, 16
  %f = bitcast i32 %u to float
  ret float %f
}
;% gy_to_u64
; A number of 2^63 or more is lowered by that before it is converted.
define internal i64 @gy_to_u64(double %x) alwaysinline nounwind willreturn memory(none) {
  %small = fcmp olt double %x, 0x43E0000000000000
  %lower = fsub double %x, 0x43E0000000000000
  %y = select i1 %small, double %x, double %lower
  %n = fptosi double %y to i64
  %k = freeze i64 %n
  %top = select i1 %small, i64 0, i64 -9223372036854775808
  %r = xor i64 %k, %top
  ret i64 %r
}
;% gy_log_add
; log(exp(a) + exp(b)) without overflow.
define internal double @gy_log_add(double %a, double %b) alwaysinline nounwind willreturn memory(none) {
  %a_more = fcmp ogt double %a, %b
  %a_nan = fcmp uno double %a, %a
  %a_top = or i1 %a_more, %a_nan
  %top = select i1 %a_top, double %a, double %b
  %same = fcmp oeq double %a, %b
  %difference = fsub double %a, %b
  %apart = select i1 %same, double 0.0, double %difference
  %size = call double @llvm.fabs.f64(double %apart)
  %below = fneg double %size
  %power = call double @exp(double %below)
  %rest = call double @log1p(double %power)
  %sum = fadd double %top, %rest
  ret double %sum
}
;% gy_philox
; Philox4x32-10 of Salmon, Moraes, Dror and Shaw (2011), with the counter (counter, 0).
define internal { i32, i32, i32, i32 } @gy_philox(i64 %key, i64 %counter) alwaysinline nounwind willreturn memory(none) {
entry:
  %first = trunc i64 %counter to i32
  %counter_high = lshr i64 %counter, 32
  %second = trunc i64 %counter_high to i32
  %key_low = trunc i64 %key to i32
  %key_top = lshr i64 %key, 32
  %key_high = trunc i64 %key_top to i32
  br label %round
round:
  %n = phi i32 [ 0, %entry ], [ %n_next, %round ]
  %a = phi i32 [ %first, %entry ], [ %a_next, %round ]
  %b = phi i32 [ %second, %entry ], [ %q_low, %round ]
  %c = phi i32 [ 0, %entry ], [ %c_next, %round ]
  %d = phi i32 [ 0, %entry ], [ %p_low, %round ]
  %k = phi i32 [ %key_low, %entry ], [ %k_next, %round ]
  %h = phi i32 [ %key_high, %entry ], [ %h_next, %round ]
  %a_wide = zext i32 %a to i64
  %c_wide = zext i32 %c to i64
  %p = mul i64 %a_wide, 3528531795
  %q = mul i64 %c_wide, 3449720151
  %p_low = trunc i64 %p to i32
  %q_low = trunc i64 %q to i32
  %p_top = lshr i64 %p, 32
  %q_top = lshr i64 %q, 32
  %p_high = trunc i64 %p_top to i32
  %q_high = trunc i64 %q_top to i32
  %q_mixed = xor i32 %q_high, %b
  %a_next = xor i32 %q_mixed, %k
  %p_mixed = xor i32 %p_high, %d
  %c_next = xor i32 %p_mixed, %h
  %k_next = add i32 %k, -1640531527
  %h_next = add i32 %h, -1150833019
  %n_next = add i32 %n, 1
  %more = icmp ult i32 %n_next, 10
  br i1 %more, label %round, label %end
end:
  %s0 = insertvalue { i32, i32, i32, i32 } poison, i32 %a_next, 0
  %s1 = insertvalue { i32, i32, i32, i32 } %s0, i32 %q_low, 1
  %s2 = insertvalue { i32, i32, i32, i32 } %s1, i32 %c_next, 2
  %s3 = insertvalue { i32, i32, i32, i32 } %s2, i32 %p_low, 3
  ret { i32, i32, i32, i32 } %s3
}
;% gy_rand
; Word `counter` mod 4 of the counter's quarter; its upper 24 bits as a multiple of 2^-24.
define internal float @gy_rand(i64 %key, i64 %counter) alwaysinline nounwind willreturn memory(none) {
  %quarter = lshr i64 %counter, 2
  %words = call { i32, i32, i32, i32 } @gy_philox(i64 %key, i64 %quarter)
  %w0 = extractvalue { i32, i32, i32, i32 } %words, 0
  %w1 = extractvalue { i32, i32, i32, i32 } %words, 1
  %w2 = extractvalue { i32, i32, i32, i32 } %words, 2
  %w3 = extractvalue { i32, i32, i32, i32 } %words, 3
  %low_bit = trunc i64 %counter to i1
  %by_two = lshr i64 %counter, 1
  %high_bit = trunc i64 %by_two to i1
  %x = select i1 %low_bit, i32 %w1, i32 %w0
  %y = select i1 %low_bit, i32 %w3, i32 %w2
  %w = select i1 %high_bit, i32 %y, i32 %x
  %bits = lshr i32 %w, 8
  %f = uitofp i32 %bits to float
  %u = fmul float %f, 0x3E70000000000000
  ret float %u
}
;% gy_randn
; Box-Muller. The radius takes a number in (0, 1]; an odd counter takes the sine.
define internal float @gy_randn(i64 %key, i64 %counter) alwaysinline nounwind willreturn memory(none) {
  %quarter = lshr i64 %counter, 2
  %words = call { i32, i32, i32, i32 } @gy_philox(i64 %key, i64 %quarter)
  %w0 = extractvalue { i32, i32, i32, i32 } %words, 0
  %w1 = extractvalue { i32, i32, i32, i32 } %words, 1
  %w2 = extractvalue { i32, i32, i32, i32 } %words, 2
  %w3 = extractvalue { i32, i32, i32, i32 } %words, 3
  %low_bit = trunc i64 %counter to i1
  %by_two = lshr i64 %counter, 1
  %high_bit = trunc i64 %by_two to i1
  %v = select i1 %high_bit, i32 %w2, i32 %w0
  %w = select i1 %high_bit, i32 %w3, i32 %w1
  %v_bits = lshr i32 %v, 8
  %w_bits = lshr i32 %w, 8
  %v_wide = uitofp i32 %v_bits to double
  %w_wide = uitofp i32 %w_bits to double
  %v_some = fadd double %v_wide, 0x3FF0000000000000
  %u = fmul double %v_some, 0x3E70000000000000
  %t = fmul double %w_wide, 0x3E70000000000000
  %back = select i1 %low_bit, double 0x3FD0000000000000, double 0.0
  %turn = fsub double %t, %back
  %log = call double @log(double %u)
  %square = fmul double %log, 0xC000000000000000
  %radius = call double @llvm.sqrt.f64(double %square)
  %angle = fmul double %turn, 0x401921FB54442D18
  %cosine = call double @cos(double %angle)
  %normal = fmul double %radius, %cosine
  %r = fptrunc double %normal to float
  ret float %r
}
;% gy_randint
; low + (64-bit word mod (high - low)); low where the range is empty.
define internal i64 @gy_randint(i64 %key, i64 %counter, i64 %low, i64 %high) alwaysinline nounwind willreturn memory(none) {
  %words = call { i32, i32, i32, i32 } @gy_philox(i64 %key, i64 %counter)
  %w0 = extractvalue { i32, i32, i32, i32 } %words, 0
  %w1 = extractvalue { i32, i32, i32, i32 } %words, 1
  %lower = zext i32 %w0 to i64
  %upper = zext i32 %w1 to i64
  %shifted = shl i64 %upper, 32
  %word = or i64 %shifted, %lower
  %span = sub i64 %high, %low
  %empty = icmp eq i64 %span, 0
  %by = select i1 %empty, i64 1, i64 %span
  %offset = urem i64 %word, %by
  %r = add i64 %low, %offset
  ret i64 %r
}
;% gy_exp
; x = n ln 2 + r, and a series in r that is scaled by 2^n in two steps, with one rounding.
define internal float @gy_exp(float %x) alwaysinline nounwind willreturn memory(none) {
  %raised_if = fcmp olt float %x, 0xC05A000000000000
  %raised = select i1 %raised_if, float 0xC05A000000000000, float %x
  %held_if = fcmp ogt float %raised, 0x4056400000000000
  %held = select i1 %held_if, float 0x4056400000000000, float %raised
  %t = call float @llvm.fma.f32(float %held, float 0x3FF7154760000000, float 0x4168000000000000)
  %n = fsub float %t, 0x4168000000000000
  %r_part = call float @llvm.fma.f32(float %n, float 0xBFE62E3000000000, float %held)
  %r = call float @llvm.fma.f32(float %n, float 0xBEE2FEFA20000000, float %r_part)
  %p0 = call float @llvm.fma.f32(float 0x3F56D83A60000000, float %r, float 0x3F8123F920000000)
  %p1 = call float @llvm.fma.f32(float %p0, float %r, float 0x3FA5554B80000000)
  %p2 = call float @llvm.fma.f32(float %p1, float %r, float 0x3FC55548A0000000)
  %p3 = call float @llvm.fma.f32(float %p2, float %r, float 0x3FE0000000000000)
  %p4 = call float @llvm.fma.f32(float %p3, float %r, float 0x3FF0000000000000)
  %p5 = call float @llvm.fma.f32(float %p4, float %r, float 0x3FF0000000000000)
  %t_bits = bitcast float %t to i32
  %i = sub i32 %t_bits, 1262485504
  %i_half = ashr i32 %i, 1
  %i_rest = sub i32 %i, %i_half
  %scale_a_biased = add i32 %i_half, 127
  %scale_a_bits = shl i32 %scale_a_biased, 23
  %scale_a = bitcast i32 %scale_a_bits to float
  %scale_b_biased = add i32 %i_rest, 127
  %scale_b_bits = shl i32 %scale_b_biased, 23
  %scale_b = bitcast i32 %scale_b_bits to float
  %scaled = fmul float %p5, %scale_a
  %y = fmul float %scaled, %scale_b
  ret float %y
}
;% gy_sigmoid
; 1 / (1 + exp(-x)), scaled by 2^64, with the denominator in two parts and the quotient
; corrected once.
define internal float @gy_sigmoid(float %x) alwaysinline nounwind willreturn memory(none) {
  %minus = fneg float %x
  %is_low = fcmp olt float %minus, 0xC044000000000000
  %from_low = select i1 %is_low, float 0xC044000000000000, float %minus
  %is_high = fcmp ogt float %from_low, 0x405A400000000000
  %to_high = select i1 %is_high, float 0x405A400000000000, float %from_low
  %t = call float @llvm.fma.f32(float %to_high, float 0x3FF7154760000000, float 0x41680007E0000000)
  %n = fsub float %t, 0x41680007E0000000
  %r_part = call float @llvm.fma.f32(float %n, float 0xBFE62E3000000000, float %to_high)
  %r = call float @llvm.fma.f32(float %n, float 0xBEE2FEFA20000000, float %r_part)
  %q0 = call float @llvm.fma.f32(float 0x3F56D83A60000000, float %r, float 0x3F8123F920000000)
  %q1 = call float @llvm.fma.f32(float %q0, float %r, float 0x3FA5554B80000000)
  %q2 = call float @llvm.fma.f32(float %q1, float %r, float 0x3FC55548A0000000)
  %q3 = call float @llvm.fma.f32(float %q2, float %r, float 0x3FE0000000000000)
  %r2 = fmul float %r, %r
  %p = call float @llvm.fma.f32(float %r2, float %q3, float %r)
  %t_bits = bitcast float %t to i32
  %s_bits = shl i32 %t_bits, 23
  %s = bitcast i32 %s_bits to float
  %v = fmul float %s, %p
  %s_less = fcmp olt float %s, 0x3BF0000000000000
  %large = select i1 %s_less, float 0x3BF0000000000000, float %s
  %small = select i1 %s_less, float %s, float 0x3BF0000000000000
  %sum = fadd float %large, %v
  %d = fadd float %sum, %small
  %rest_a = fsub float %sum, %d
  %rest_b = fadd float %rest_a, %small
  %rest_c = fsub float %large, %sum
  %rest_d = fadd float %rest_c, %v
  %rest = fadd float %rest_b, %rest_d
  %quotient = fdiv float 0xBFF0000000000000, %d
  %error_a = call float @llvm.fma.f32(float %quotient, float %d, float 0x3FF0000000000000)
  %error = call float @llvm.fma.f32(float %quotient, float %rest, float %error_a)
  %corrected = call float @llvm.fma.f32(float %quotient, float %error, float %quotient)
  %y = fmul float %corrected, 0xBBF0000000000000
  ret float %y
}
;% gy_tanh
; A series below 0.65; from there on 1 - 2 / (exp(2a) + 1), with the denominator in two parts and
; its reciprocal corrected once.
define internal float @gy_tanh(float %x) alwaysinline nounwind willreturn memory(none) {
  %a = call float @llvm.fabs.f32(float %x)
  %z = fmul float %x, %x
  %is_high = fcmp ogt float %a, 0x4024000000000000
  %to_high = select i1 %is_high, float 0x4024000000000000, float %a
  %series0 = call float @llvm.fma.f32(float 0x3F61868680000000, float %z, float 0xBF80BF2240000000)
  %series1 = call float @llvm.fma.f32(float %series0, float %z, float 0x3F96392B00000000)
  %series2 = call float @llvm.fma.f32(float %series1, float %z, float 0xBFAB9F0380000000)
  %series3 = call float @llvm.fma.f32(float %series2, float %z, float 0x3FC1110760000000)
  %series4 = call float @llvm.fma.f32(float %series3, float %z, float 0xBFD5555540000000)
  %xz = fmul float %x, %z
  %small = call float @llvm.fma.f32(float %xz, float %series4, float %x)
  %double_a = fadd float %to_high, %to_high
  %t = call float @llvm.fma.f32(float %double_a, float 0x3FF7154760000000, float 0x4168000000000000)
  %n = fsub float %t, 0x4168000000000000
  %r_part = call float @llvm.fma.f32(float %n, float 0xBFE62E3000000000, float %double_a)
  %r = call float @llvm.fma.f32(float %n, float 0xBEE2FEFA20000000, float %r_part)
  %q0 = call float @llvm.fma.f32(float 0x3F56D83A60000000, float %r, float 0x3F8123F920000000)
  %q1 = call float @llvm.fma.f32(float %q0, float %r, float 0x3FA5554B80000000)
  %q2 = call float @llvm.fma.f32(float %q1, float %r, float 0x3FC55548A0000000)
  %q3 = call float @llvm.fma.f32(float %q2, float %r, float 0x3FE0000000000000)
  %r2 = fmul float %r, %r
  %p = call float @llvm.fma.f32(float %r2, float %q3, float %r)
  %t_bits = bitcast float %t to i32
  %s_exponent = sub i32 1262485631, %t_bits
  %s_bits = shl i32 %s_exponent, 23
  %s = bitcast i32 %s_bits to float
  %one = fadd float %s, 0x3FF0000000000000
  %d = fadd float %one, %p
  %rest_a = fsub float %one, %d
  %rest = fadd float %rest_a, %p
  %quotient = fdiv float 0x3FF0000000000000, %d
  %minus_quotient = fneg float %quotient
  %error_a = call float @llvm.fma.f32(float %minus_quotient, float %d, float 0x3FF0000000000000)
  %error = call float @llvm.fma.f32(float %minus_quotient, float %rest, float %error_a)
  %corrected = call float @llvm.fma.f32(float %quotient, float %error, float %quotient)
  %two_s = fadd float %s, %s
  %minus_two_s = fneg float %two_s
  %large = call float @llvm.fma.f32(float %minus_two_s, float %corrected, float 0x3FF0000000000000)
  %is_small = fcmp olt float %a, 0x3FE4CCCCC0000000
  %size = select i1 %is_small, float %small, float %large
  %y = call float @llvm.copysign.f32(float %size, float %x)
  ret float %y
}
;% gy_erf
; A series below 1; from there on 1 - 2^(b q(b) + 0.000287).
define internal float @gy_erf(float %x) alwaysinline nounwind willreturn memory(none) {
  %a = call float @llvm.fabs.f32(float %x)
  %z = fmul float %x, %x
  %series0 = call float @llvm.fma.f32(float 0x3F14779660000000, float %z, float 0xBF4A353480000000)
  %series1 = call float @llvm.fma.f32(float %series0, float %z, float 0x3F753F24C0000000)
  %series2 = call float @llvm.fma.f32(float %series1, float %z, float 0xBF9B7F71C0000000)
  %series3 = call float @llvm.fma.f32(float %series2, float %z, float 0x3FBCE2CE60000000)
  %series4 = call float @llvm.fma.f32(float %series3, float %z, float 0xBFD81273E0000000)
  %series5 = call float @llvm.fma.f32(float %series4, float %z, float 0x3FC06EBA80000000)
  %small = call float @llvm.fma.f32(float %x, float %series5, float %x)
  %is_high = fcmp ogt float %a, 0x4010000000000000
  %to_high = select i1 %is_high, float 0x4010000000000000, float %a
  %power0 = call float @llvm.fma.f32(float 0x3E90AF6660000000, float %to_high, float 0xBF02485C20000000)
  %power1 = call float @llvm.fma.f32(float %power0, float %to_high, float 0x3F4596D0C0000000)
  %power2 = call float @llvm.fma.f32(float %power1, float %to_high, float 0xBF7928CEA0000000)
  %power3 = call float @llvm.fma.f32(float %power2, float %to_high, float 0x3FA2B40D80000000)
  %power4 = call float @llvm.fma.f32(float %power3, float %to_high, float 0xBFC40C77C0000000)
  %power5 = call float @llvm.fma.f32(float %power4, float %to_high, float 0xBFED3A4E60000000)
  %power6 = call float @llvm.fma.f32(float %power5, float %to_high, float 0xBFFA1352C0000000)
  %t = call float @llvm.fma.f32(float %to_high, float %power6, float 0x4168000FE0000000)
  %t_bits = bitcast float %t to i32
  %s_bits = shl i32 %t_bits, 23
  %s = bitcast i32 %s_bits to float
  %n = fsub float %t, 0x4168000FE0000000
  %offset = fsub float 0x3F32D09B40000000, %n
  %r = call float @llvm.fma.f32(float %to_high, float %power6, float %offset)
  %tail0 = call float @llvm.fma.f32(float 0x3F24447BC0000000, float %r, float 0x3F55F09620000000)
  %tail1 = call float @llvm.fma.f32(float %tail0, float %r, float 0x3F83B2A280000000)
  %tail2 = call float @llvm.fma.f32(float %tail1, float %r, float 0x3FAC6AF7A0000000)
  %tail3 = call float @llvm.fma.f32(float %tail2, float %r, float 0x3FCEBFBE00000000)
  %tail4 = call float @llvm.fma.f32(float %tail3, float %r, float 0x3FE62E4300000000)
  %e = fmul float %r, %tail4
  %minus_s = fneg float %s
  %one_less = fsub float 0x3FF0000000000000, %s
  %large = call float @llvm.fma.f32(float %minus_s, float %e, float %one_less)
  %signed = call float @llvm.copysign.f32(float %large, float %x)
  %is_small = fcmp olt float %a, 0x3FF0000000000000
  %y = select i1 %is_small, float %small, float %signed
  ret float %y
}
