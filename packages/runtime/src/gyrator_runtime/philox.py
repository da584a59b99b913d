"""Seeds for random numbers that generated code makes.

Kernels compute Philox 4x32-10 (Salmon et al., SC 2011) from a seed, an offset and an element
index. Here is where the seed comes from: one draw of torch's own generator for each execution of
a program, so that `torch.manual_seed`, saved generator states and `fork_rng` keep their meaning,
and equal states give equal numbers. A backward pass that recomputes gets the same pair handed on.
"""

import torch


def seed_offset(generator: torch.Generator | None = None) -> tuple[int, int]:
    """Draw (seed, offset) for one program execution and advance `generator`.

    The seed is uniform over 0 .. 2**63-1; the offset is 0, the start of the seed's stream. None
    means torch's default generator of the host.
    """
    return int(seed_tensor(1, generator)[0]), 0


def seed_tensor(count: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw `count` seeds, an int64 tensor that kernels read without a Python int being made."""
    seeds = torch.empty((count,), dtype=torch.int64)
    return seeds.random_(generator=generator)
