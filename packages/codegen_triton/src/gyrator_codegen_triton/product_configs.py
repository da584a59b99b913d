"""Launch configurations of matrix products, ranked by a model of what a multiprocessor does.

The time of a block is that of its products at the rate that its shape reaches: a step loads
`KBLOCK * (XBLOCK + RBLOCK)` elements for `KBLOCK * XBLOCK * RBLOCK` products, so that narrow blocks
wait for memory, plus the time to fill and drain the pipeline. Blocks beyond a whole number for each
multiprocessor leave the others idle.
"""

from collections.abc import Iterator
from math import ceil

from attrs import frozen

from gyrator_codegen_triton.contract import Contraction, extent, guess
from gyrator_codegen_triton.shape import power_of_two
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Numerics
from gyrator_ir.loop.body import Bind
from gyrator_ir.source import Configuration
from gyrator_ir.target import Target
from gyrator_ir.types import DType

_MOST = 6  # candidates of a kernel
_DEPTHS = 2  # candidates with the same rows and columns
_SPARE = 2 << 10  # bytes of shared memory that compilers take for barriers and reordering
_SHARED = 48 << 10  # bytes of shared memory where the target says nothing
_LOADS = 24.0  # rows and columns that a unit of work costs as much as
_LOOSE = 200.0  # the same for factors that are not read in whole vectors
_DRAIN = 3e6  # products that a block could have done while its pipeline fills and drains
_PLAIN_DRAIN = 2e5  # the same for units that multiply one pair at a time


@frozen
class _Shape:
    """A configuration: `x` rows by `r` columns by `k` folded elements."""

    x: int
    r: int
    k: int
    warps: int
    stages: int


def product_candidates(
    c: Contraction, facts: ShapeFacts, target: Target
) -> tuple[Configuration, ...]:
    """Return configurations, the best guess first.

    Values are `XBLOCK`, `RBLOCK`, `KBLOCK`, `num_warps`, `num_stages`, and compiler options as for
    other kernels.
    """
    sizes = [max(guess(extent(g), facts), 1) for g in (c.rows, c.columns, c.folded)]
    many = max(guess(extent(c.batches), facts), 1)
    steps = max(guess(extent(c.outside), facts), 1)
    shapes = list(_shapes(c, sizes[0], sizes[1], sizes[2], target))
    cores = max(target.heuristics.cores, 1)
    plain = _plain(c, target)
    factors = [
        [f.loose for f in side]
        for side in ([p.left for p in c.products], [p.right for p in c.products])
    ]
    loads = [_LOOSE if any(side) else _LOADS for side in factors]
    deep = 32 if _LOOSE in loads else 64

    def price(shape: _Shape) -> float:
        blocks = many * ceil(sizes[0] / shape.x) * ceil(sizes[1] / shape.r)
        folded = steps * ceil(sizes[2] / shape.k) * shape.k
        rate = 1 / (1 + loads[0] / shape.r + loads[1] / shape.x)
        work = shape.x * shape.r * folded / rate + (_PLAIN_DRAIN if plain else _DRAIN)
        return (
            float(ceil(blocks / cores))
            * work
            * (1 + 0.02 * (deep / shape.k - 1))
            / float(shape.stages**0.1)
        )

    ranked = sorted(shapes, key=price)
    # Neighbours in depth are much the same: other blocks are worth more to whoever measures.
    kept = [s for k, s in enumerate(ranked) if _nth(ranked, k) < _DEPTHS]
    return tuple(_configuration(c, shape) for shape in kept[:_MOST])


def _nth(ranked: list[_Shape], place: int) -> int:
    """Return how many shapes with the same block stand before a place."""
    shape = ranked[place]
    return sum((s.x, s.r) == (shape.x, shape.r) for s in ranked[:place])


def _plain(c: Contraction, target: Target) -> bool:
    """Whether products are of `f32` as they are, which no matrix unit takes."""
    return c.products[0].left.dtype is DType.F32 and not target.capabilities.tf32


def _shapes(c: Contraction, m: int, n: int, k: int, target: Target) -> Iterator[_Shape]:
    size = c.products[0].left.dtype.size
    shared = target.heuristics.shared_bytes or _SHARED
    count = len(c.products)
    lefts, rights = len({p.left for p in c.products}), len({p.right for p in c.products})
    plain = _plain(c, target)
    depths = (16, 32) if plain else (32, 64, 128) if size > 1 else (64, 128)
    if any(f.loose for p in c.products for f in (p.left, p.right)):
        depths = depths[:2]  # what is not copied as it is waits in registers
    sides = (16, 32, 64, 128) if plain else (16, 32, 64, 128, 256)
    for x in sides:
        for r in sides:
            if x > max(power_of_two(m), 16) or r > max(power_of_two(n), 16):
                continue
            if x * r * count > (128 * 64 if plain else 128 * 256):
                continue
            warps = 8 if x * r * count >= 128 * 128 and x >= 128 else 4
            for depth in depths:
                if depth > max(power_of_two(k), depths[0]):
                    continue
                held = depth * (x * lefts + r * rights) * size
                stages = min(4, (shared - _SPARE) // held)
                if stages >= 1:
                    yield _Shape(x, r, depth, warps, stages)


def _configuration(c: Contraction, shape: _Shape) -> Configuration:
    values = [("XBLOCK", shape.x), ("RBLOCK", shape.r), ("KBLOCK", shape.k)]
    values += [("num_warps", shape.warps), ("num_stages", shape.stages)]
    if c.kernel.numerics is Numerics.EAGER:
        values.append(("enable_fp_fusion", 0))
    if any(isinstance(s, Bind) and s.check for stage in c.kernel.stages for s in stage.body):
        values += [("debug", 1), ("sanitize_overflow", 0)]
    return Configuration(tuple(values))
