"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), and the
three distributions of the op table.

For a 64-bit seed and a 64-bit counter c:

* key = (low 32 bits of the seed, high 32 bits), counter words = (low 32 bits of n, high 32 bits, 0,
  0), which gives words w0, w1, w2, w3; n is c for `randint`, and c div 4 for the others, so that
  four consecutive ones share the rounds;
* `rand` = (w >> 8) * 2**-24, where w is word c mod 4;
* `randn` = sqrt(-2 ln u1) * cos(2 pi (u2 - (c mod 2) / 4)) with u1 = ((v >> 8) + 1) * 2**-24 in
  (0, 1] and u2 = (w >> 8) * 2**-24 in [0, 1), rounded to `f32`; v and w are w0 and w1 where c mod 4
  is less than 2, else w2 and w3;
* `randint` from [low, high) = low + (w0 + 2**32 * w1) mod (high - low), all modulo 2**64.
"""

import numpy as np

from gyrator_testing.interp.dtypes import Array

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_ROUNDS = 10

Words = tuple[Array, Array, Array, Array]


def philox(counter: Words, key: tuple[Array, Array]) -> Words:
    """Return the four words of ten rounds; words are 32-bit numbers held in `uint64` arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def words(seed: Array, counter: Array) -> Words:
    """Return the four words for `int64` seeds and counters."""
    return _words(_unsigned(seed), _unsigned(counter))


def _words(s: Array, c: Array) -> Words:
    zero = np.zeros_like(c)
    return philox((c & _LOW, c >> _32, zero, zero), (s & _LOW, s >> _32))


def rand(seed: Array, counter: Array) -> Array:
    """Return `f32` numbers uniform in [0, 1), multiples of 2**-24."""
    c = _unsigned(counter)
    w = np.choose((c % np.uint64(4)).astype(np.intp), _words(_unsigned(seed), c // np.uint64(4)))
    return ((w >> np.uint64(8)).astype(np.float64) * 2.0**-24).astype(np.float32)


def randn(seed: Array, counter: Array) -> Array:
    """Return `f32` standard normal numbers."""
    c = _unsigned(counter)
    w0, w1, w2, w3 = _words(_unsigned(seed), c // np.uint64(4))
    later = c % np.uint64(4) >= 2
    v, w = np.where(later, w2, w0), np.where(later, w3, w1)
    u1 = ((v >> np.uint64(8)).astype(np.float64) + 1.0) * 2.0**-24
    u2 = (w >> np.uint64(8)).astype(np.float64) * 2.0**-24
    turns = u2 - (c % np.uint64(2)).astype(np.float64) / 4.0
    normal: Array = np.sqrt(-2.0 * np.log(u1)) * np.cos(2.0 * np.pi * turns)
    return normal.astype(np.float32)


def randint(seed: Array, counter: Array, low: Array, high: Array) -> Array:
    """Return `int64` numbers in [low, high); of an empty range, `low`."""
    w0, w1, _, _ = words(seed, counter)
    span = _unsigned(high) - _unsigned(low)
    with np.errstate(divide="ignore"):
        offset = np.mod(w0 | (w1 << _32), span)
    return np.asarray(offset + _unsigned(low)).view(np.int64)


def _unsigned(value: Array) -> Array:
    return np.asarray(value, np.int64).view(np.uint64)
