"""Philox4x32-10 against the known answers of Random123, and the distributions."""

import math

import numpy as np
import pytest

from gyrator_testing.interp import philox

# Random123, tests/kat_vectors, philox4x32 10.
KNOWN = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(numbers):
    return tuple(np.array([n], np.uint64) for n in numbers)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    got = philox.philox(words(counter), words(key))
    assert tuple(int(w[0]) for w in got) == answer


def test_seed_is_the_key_and_counter_comes_low_word_first():
    seed = np.array([0x299F31D0A4093822], np.int64)
    counter = np.array([-0x7A5CF72CDBC09578], np.int64)  # 0x85A308D3243F6A88
    direct = philox.philox(words((0x243F6A88, 0x85A308D3, 0, 0)), words((0xA4093822, 0x299F31D0)))
    assert [int(w[0]) for w in philox.words(seed, counter)] == [int(w[0]) for w in direct]


@pytest.mark.parametrize("k", range(8))
def test_distributions_follow_their_definitions(k):
    seed, counter = np.array([42], np.int64), np.array([k * 3 - 5], np.int64)
    w0, w1, _, _ = (int(w[0]) for w in philox.words(seed, counter))
    got = philox.randint(seed, counter, np.array([-3], np.int64), np.array([10], np.int64))
    assert got[0] == -3 + (w0 + (w1 << 32)) % 13
    n = np.array([(k * 3 - 5) % 2**64 // 4], np.uint64).view(np.int64)
    four = [int(w[0]) for w in philox.words(seed, n)]
    k = (k * 3 - 5) % 4
    assert philox.rand(seed, counter)[0] == np.float32((four[k] >> 8) * 2.0**-24)
    u1, u2 = ((four[k // 2 * 2] >> 8) + 1) * 2.0**-24, (four[k // 2 * 2 + 1] >> 8) * 2.0**-24
    wave = math.sin if k % 2 else math.cos
    normal = math.sqrt(-2 * math.log(u1)) * wave(2 * math.pi * u2)
    assert abs(philox.randn(seed, counter)[0] - normal) < 1e-6


def test_randint_over_all_integers():
    info = np.iinfo(np.int64)
    seed, counter = np.zeros(100, np.int64), np.arange(100, dtype=np.int64)
    got = philox.randint(seed, counter, np.int64(info.min), np.int64(info.max))
    assert got.min() < -(2**60)
    assert got.max() > 2**60


def test_statistics():
    seed = np.full(100_000, 7, np.int64)
    counter = np.arange(100_000, dtype=np.int64)
    uniform = philox.rand(seed, counter)
    assert uniform.dtype == np.float32
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.005
    normal = philox.randn(seed, counter).astype(np.float64)
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    dice = philox.randint(seed, counter, np.int64(1), np.int64(7))
    assert sorted(np.unique(dice).tolist()) == [1, 2, 3, 4, 5, 6]
