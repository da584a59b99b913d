"""Helper functions of generated kernels, copied in when used."""

import re

HEAD = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

_HELPERS: tuple[tuple[str, str], ...] = (
    ("gy_add", "(a, b):\n    return a + b\n"),
    ("gy_mul", "(a, b):\n    return a * b\n"),
    ("gy_xor", "(a, b):\n    return a ^ b\n"),
    ("gy_or", "(a, b):\n    return a | b\n"),
    ("gy_and", "(a, b):\n    return a & b\n"),
    ("gy_maximum", "(a, b):\n    return tl.where((a > b) | (a != a), a, b)\n"),
    ("gy_minimum", "(a, b):\n    return tl.where((a < b) | (a != a), a, b)\n"),
    ("gy_fmax", "(a, b):\n    return tl.where((a > b) | (b != b), a, b)\n"),
    ("gy_fmin", "(a, b):\n    return tl.where((a < b) | (b != b), a, b)\n"),
    (
        "gy_floor_div",
        """(a, b):
    # `//` rounds towards 0.
    q = a // b
    return tl.where((q * b != a) & ((a < 0) != (b < 0)), q - 1, q)
""",
    ),
    (
        "gy_floor_mod",
        """(a, b):
    r = a - a // b * b  # compilers find the quotient once where both are wanted
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    ),
    (
        "gy_remainder",
        """(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    ),
    (
        "gy_byte_float_bits",
        """(x, M: tl.constexpr, B: tl.constexpr, TOP: tl.constexpr):
    # Rounds to nearest even by adding half of the dropped bits; subnormals by the float adder.
    u = x.to(tl.int32, bitcast=True)
    a = u & 0x7FFFFFFF
    sign = (u >> 24) & 0x80
    half = (1 << (22 - M)) - 1
    normal = (a - ((127 - B) << 23) + half + ((a >> (23 - M)) & 1)) >> (23 - M)
    adder = a * 0 + ((151 - B - M) << 23)
    total = a.to(tl.float32, bitcast=True) + adder.to(tl.float32, bitcast=True)
    small = total.to(tl.int32, bitcast=True) - adder
    r = tl.where(a < ((128 - B) << 23), small, normal)
    if TOP == 0x7F:
        r = tl.where(r > TOP, 0x80, tl.where(r == 0, 0, r | sign))
    else:
        r = tl.where(a > 0x7F800000, 0x7F, tl.where(r > TOP, TOP, r)) | sign
    return r.to(tl.uint8)
""",
    ),
    (
        "gy_overflowed",
        """(bits, x):
    # Devices give the largest number for what rounds to more, eager an infinity.
    beyond = (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) >= 0x47700000
    return tl.where(beyond & (x == x), (bits & 0x80) | 0x7C, bits).to(tl.uint8)
""",
    ),
    (
        "gy_byte_float_value",
        """(bits, M: tl.constexpr, B: tl.constexpr, TOP: tl.constexpr):
    h = bits.to(tl.int32)
    a = h & 0x7F
    unit = (a * 0 + ((128 - B - M) << 23)).to(tl.float32, bitcast=True)
    small = (a.to(tl.float32) * unit).to(tl.int32, bitcast=True)
    r = tl.where(a < (1 << M), small, (a << (23 - M)) + ((127 - B) << 23))
    if TOP == 0x7F:
        r = tl.where(h == 0x80, 0x7FC00000, r)
    else:
        if TOP == 0x7C:
            r = tl.where(a == TOP, 0x7F800000, r)
        r = tl.where(a > TOP, 0x7FC00000, r)
    return (r | ((h & 0x80) << 24)).to(tl.float32, bitcast=True)
""",
    ),
    (
        "gy_shl",
        """(a, b, width: tl.constexpr):
    inside = (b >= 0) & (b < width)
    return tl.where(inside, a << tl.where(inside, b, 0), 0).to(a.dtype)
""",
    ),
    (
        "gy_shr",
        """(a, b, width: tl.constexpr):
    inside = (b >= 0) & (b < width)
    return a >> tl.where(inside, b, width - 1).to(a.dtype)
""",
    ),
    (
        "gy_shr_unsigned",
        """(a, b, width: tl.constexpr):
    inside = b < width
    return tl.where(inside, a >> tl.where(inside, b, 0), 0).to(a.dtype)
""",
    ),
    (
        "gy_sticky_nan",
        """(a, b, nan: tl.constexpr, word: tl.constexpr):
    bits = tl.where((a != a) | (b != b), nan, b.to(word, bitcast=True))
    return bits.to(b.dtype, bitcast=True)
""",
    ),
    (
        "gy_sigmoid",
        """(a):
    # The exponential of a number that is not positive does not overflow.
    e = libdevice.exp(-tl.abs(a))
    top = tl.where(a >= 0, 1.0, e)
    if a.dtype == tl.float32:
        value = tl.div_rn(top, 1.0 + e)
    else:
        value = top / (1.0 + e)
    return value
""",
    ),
    (
        "gy_sigmoid_approximate",
        """(a):
    e = libdevice.exp(-tl.abs(a))
    return tl.where(a >= 0, 1.0, e) / (1.0 + e)
""",
    ),
    (
        "gy_digamma",
        """(a):
    # Reflection below 0, recurrence up to 12, then the asymptotic series (Abramowitz and Stegun
    # 6.3.18).
    low = a < 0
    whole = libdevice.trunc(a)
    x = tl.where(low, 1.0 - a, a)
    shift = x * 0.0
    for _ in tl.static_range(12):
        small = x < 12.0
        shift += tl.where(small, 1.0 / x, 0.0)
        x = tl.where(small, x + 1.0, x)
    y = 1.0 / (x * x)
    series = y * 0.4432598039215686
    series = (series - 0.08333333333333333) * y
    series = (series + 0.021092796092796094) * y
    series = (series - 0.007575757575757576) * y
    series = (series + 0.004166666666666667) * y
    series = (series - 0.003968253968253968) * y
    series = (series + 0.008333333333333333) * y
    series = (series - 0.08333333333333333) * y
    value = libdevice.log(x) - 0.5 / x + series - shift
    cotangent = 3.141592653589793 / libdevice.tan(3.141592653589793 * (a - whole))
    value = tl.where(low, value - cotangent, value)
    value = tl.where(low & (whole == a), float("nan"), value)
    value = tl.where(a == float("inf"), a, value)
    return tl.where(a == 0, -1.0 / a, value)
""",
    ),
    (
        "gy_argmax",
        """(a, i, b, j):
    # A NaN is the largest; of equals the first.
    better = (a > b) | ((a != a) & (b == b))
    same = (a == b) | ((a != a) & (b != b))
    keep = better | (same & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)
""",
    ),
    (
        "gy_argmin",
        """(a, i, b, j):
    better = (a < b) | ((a != a) & (b == b))
    same = (a == b) | ((a != a) & (b != b))
    keep = better | (same & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)
""",
    ),
    (
        "gy_scan_argmax",
        """(a, i, b, j):
    # Of equals the later one.
    moves = (b != b) | ((b >= a) & (a == a))
    return tl.where(moves, b, a), tl.where(moves, j, i)
""",
    ),
    (
        "gy_scan_argmin",
        """(a, i, b, j):
    moves = (b != b) | ((b <= a) & (a == a))
    return tl.where(moves, b, a), tl.where(moves, j, i)
""",
    ),
    (
        "gy_logaddexp",
        """(a, b):
    more = tl.where((a > b) | (a != a), a, b)
    less = tl.where((a > b) | (a != a), b, a)
    # Two equal infinities have no difference.
    total = more + libdevice.log1p(libdevice.exp(less - more))
    return tl.where((more == less) & (tl.abs(more) == float("inf")), more, total)
""",
    ),
    (
        "gy_welford",
        """(mean_a, square_a, count_a, mean_b, square_b, count_b):
    # Chan, Golub and LeVeque 1979.
    count = count_a + count_b
    part = tl.where(count == 0, 0.0, count_b / tl.where(count == 0, 1.0, count))
    apart = mean_b - mean_a
    mean = mean_a + apart * part
    square = square_a + square_b + apart * apart * count_a * part
    return mean, square, count
""",
    ),
    (
        "gy_order_f32",
        """(a):
    # Integers in the order of floats: a NaN is the largest, the zeros are equal.
    bits = tl.where(a == 0, 0.0, a).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(a != a, 0x7FFFFFFF, key).to(tl.int64)
""",
    ),
    (
        "gy_order_f64",
        """(a):
    bits = tl.where(a == 0, 0.0, a).to(tl.int64, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
    return tl.where(a != a, 0x7FFFFFFFFFFFFFFF, key)
""",
    ),
    (
        "gy_words",
        """(seed, counter):
    # Philox4x32-10: key = seed, counter words = low and high half of the counter, 0, 0.
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32)
    key = (seed & 0xFFFFFFFF).to(tl.uint32)
    more = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = low ^ low
    return tl.philox_impl(low, high, zero, zero, key, more)
""",
    ),
    (
        "gy_rand",
        """(seed, counter):
    w0, w1, w2, w3 = gy_words(seed, counter)
    return (w0 >> 8).to(tl.float32) * 5.9604644775390625e-08
""",
    ),
    (
        "gy_randn",
        """(seed, counter):
    w0, w1, w2, w3 = gy_words(seed, counter)
    u1 = ((w0 >> 8).to(tl.float32) + 1.0) * 5.9604644775390625e-08
    u2 = (w1 >> 8).to(tl.float32) * 5.9604644775390625e-08
    # cos(2 pi u2) from an eighth of a turn, where the product with 2 pi loses nothing.
    turn = libdevice.rint(u2 * 4.0)
    angle = (u2 - turn * 0.25) * 6.283185307179586
    sine = libdevice.sin(angle)
    cosine = libdevice.cos(angle)
    odd = (turn == 1.0) | (turn == 3.0)
    value = tl.where(odd, sine, cosine)
    value = tl.where((turn == 1.0) | (turn == 2.0), value * -1.0, value)
    return tl.sqrt_rn(-2.0 * libdevice.log(u1)) * value
""",
    ),
    (
        "gy_randint",
        """(seed, counter, low, high):
    w0, w1, w2, w3 = gy_words(seed, counter)
    span = (high - low).to(tl.uint64)
    bits = w0.to(tl.uint64) | (w1.to(tl.uint64) << 32)
    offset = bits % tl.where(span == 0, 1, span).to(tl.uint64)
    return low + offset.to(tl.int64)
""",
    ),
)
"""(name, text after it), each after what it uses."""

RESERVED = frozenset(name for name, _ in _HELPERS) | frozenset(
    "and as assert async await break class continue def del elif else except finally for from "
    "global if import in is lambda nonlocal not or pass raise return try while with yield True "
    "False None triton tl libdevice XBLOCK RBLOCK x r x_mask r_mask points extent start range "
    "pair pair_mask first float int bool min max num_warps num_stages num_ctas grid warmup".split()
)
"""Words that generated names must not be."""

_WORD = re.compile(r"[A-Za-z_]\w*")


def preamble(text: str) -> str:
    """Return imports and the helper functions that a text of kernels needs."""
    words = set(_WORD.findall(text))
    chosen: list[str] = []
    for name, body in reversed(_HELPERS):
        if name in words:
            words.update(_WORD.findall(body))
            chosen.append(f"\n\n@triton.jit\ndef {name}{body}")
    return HEAD + "".join(reversed(chosen)) + "\n\n"
