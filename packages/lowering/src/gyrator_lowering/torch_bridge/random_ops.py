"""`gyrator::philox_seed` and `gyrator::philox`: random numbers as a pure function of a seed.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the key is the
seed, and the counter is the linear index of an element, or a quarter of it, as in the rows `rand`,
`randn` and `randint` of the op table. `philox_seed` samples seeds from torch's default generator,
so `torch.manual_seed` determines them. `philox` does not touch the generator, so recomputation
gives the same numbers.
"""

import functools
import math
import threading
from typing import Any

import torch

from gyrator_lowering.torch_bridge import kernel_ops, quantised, recurrent

LIBRARY = "gyrator"

_SEED = "philox_seed(int count, *, Device device) -> Tensor"
_PHILOX = (
    "philox(SymInt[] size, Tensor seeds, int index, str kind, Scalar low, Scalar high, "
    "ScalarType dtype, Device device) -> Tensor"
)
_LOW_WORD = 0xFFFFFFFF
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)


def register_ops() -> None:
    """Register Gyrator's ops with the dispatcher: these two, those that read packed weights, a
    layer of an LSTM, and quantisation. Idempotent and thread-safe."""
    with _LOCK:
        _defined()


_LOCK = threading.Lock()


@functools.cache
def _defined() -> Any:
    """Register the ops and return their library, which the cache keeps alive."""
    make: Any = torch.library.Library
    register: Any = torch.library.register_fake
    library = make(LIBRARY, "FRAGMENT")
    for schema, op, fake, *tags in (
        (_SEED, philox_seed, _fake_seed, torch.Tag.nondeterministic_seeded),
        (_PHILOX, philox, _fake_philox),
        *kernel_ops.OPS,
        (recurrent.SCHEMA, recurrent.lstm_layer, recurrent.fake_lstm_layer),
        (quantised.SCHEMA, quantised.quantize_dequantize, quantised.fake_quantize_dequantize),
    ):
        name = library.define(schema, tags=tuple(tags))
        library.impl(name, op, "CompositeExplicitAutograd")
        register(f"{LIBRARY}::{name}", fake, lib=library)
    return library


def _fake_seed(count: int, *, device: torch.device) -> torch.Tensor:
    return torch.empty((count,), dtype=torch.int64, device=device)


def _fake_philox(
    size: list[int],
    seeds: torch.Tensor,
    index: int,
    kind: str,
    low: float,
    high: float,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def philox_seed(count: int, *, device: torch.device) -> torch.Tensor:
    """Return `int64[count]` seeds sampled from the device's default generator."""
    return torch.randint(-(1 << 63), (1 << 63) - 1, (count,), dtype=torch.int64, device=device)


def philox(
    size: list[int],
    seeds: torch.Tensor,
    index: int,
    kind: str,
    low: float,
    high: float,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Return random numbers from `seeds[index]`.

    Args:
        size: the shape; an element's counter is its linear index.
        seeds: from `philox_seed`.
        index: the index of the seed.
        kind: `rand` for uniform in [low, high), `randn` for normal of mean `low` and standard
            deviation `high`, `randint` for integers in [low, high).
        low: see `kind`.
        high: see `kind`.
        dtype: dtype of the result; floats are generated in `float32` and converted.
        device: device of the result.
    """
    count = math.prod(size)
    counter = torch.arange(count, dtype=torch.int64, device=device)
    seed = seeds[index].to(device)
    if kind == "rand":
        four = torch.stack(_words(seed, counter // 4))
        word = four.gather(0, (counter % 4)[None])[0]
        values = (word >> 8).to(torch.float32) * 2.0**-24
        values = values if (low, high) == (0, 1) else values * float(high - low) + float(low)
    elif kind == "randn":
        w0, w1, w2, w3 = _words(seed, counter // 4)
        later = counter % 4 >= 2
        u1 = ((torch.where(later, w2, w0) >> 8).double() + 1.0) * 2.0**-24
        revolutions = (torch.where(later, w3, w1) >> 8).double() * 2.0**-24 - (counter % 2) / 4.0
        values = (torch.sqrt(-2.0 * torch.log(u1)) * torch.cos(2.0 * math.pi * revolutions)).float()
        values = values if (low, high) == (0, 1) else values * float(high) + float(low)
    else:
        w0, w1, _, _ = _words(seed, counter)
        values = _modulo(w0, w1, int(high) - int(low)) + int(low)
    return values.to(dtype).reshape(size)


def _modulo(w0: torch.Tensor, w1: torch.Tensor, span: int) -> torch.Tensor:
    """Return (w0 + 2**32 * w1) mod span, without 64-bit overflow."""
    if span == 1 << 64:
        return w0 | (w1 << 32)
    if span < 1 << 31:
        return ((w1 % span) * ((1 << 32) % span) + w0 % span) % span
    wide = [(int(a) + (int(b) << 32)) % span for a, b in zip(w0.tolist(), w1.tolist(), strict=True)]
    return torch.tensor(wide, dtype=torch.int64, device=w0.device)


def _words(seed: torch.Tensor, counter: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the four output words, as 32-bit numbers in `int64` tensors."""
    c0, c1 = counter & _LOW_WORD, (counter >> 32) & _LOW_WORD
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seed & _LOW_WORD, (seed >> 32) & _LOW_WORD
    for _ in range(10):
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high1, low1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _LOW_WORD, (k1 + _WEYL[1]) & _LOW_WORD
    return c0, c1, c2, c3


def _product(a: torch.Tensor, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and low words of a 32-bit by 32-bit product, without signed 64-bit
    overflow."""
    low = (a & 0xFFFF) * m
    high = (a >> 16) * m + (low >> 16)
    return (high >> 16) & _LOW_WORD, ((high & 0xFFFF) << 16) | (low & 0xFFFF)
