"""Launch configurations worth measuring, ranked by a model of bytes and occupancy.

A program moves `XBLOCK * RBLOCK` elements of every buffer. A device wants several accesses of 16
bytes in flight a thread, and several programs a core; more registers a thread than about 64 bytes
of a row's values leave fewer warps to hide the memory's latency. The model multiplies what is lost
to each. Its numbers are from measurements on an H100.
"""

import math
from collections.abc import Iterator

from gyrator_codegen import extent_guess
from gyrator_codegen_triton.shape import (
    contiguous_inside,
    inner_extent,
    level,
    points,
    power_of_two,
    rblock,
    sorts,
    stepped,
)
from gyrator_ir.expr import Expr, ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Numerics
from gyrator_ir.loop.body import Bind
from gyrator_ir.source import Configuration
from gyrator_ir.target import Heuristics

_LANES = 32  # threads of a warp, as far as choices go
_LEAST_SIDE = 16  # of a tile: 32 bytes of narrow elements
_THREADS = 2048  # of a core, at most
_COMPUTED = 4  # bytes of a narrow element once it is computed on
_MOST = 5  # candidates of a kernel
_POINTS = 1 << 20  # what an unknown number of points is taken for


def candidates(
    kernel: Kernel, facts: ShapeFacts, heuristics: Heuristics, tiled: bool
) -> tuple[Configuration, ...]:
    """Return configurations, the best guess first. `tiled`: the inner axes are points too.

    Values are `XBLOCK`, `RBLOCK` where there are inner axes, `num_warps`, `num_stages`, and
    compiler options: `enable_fp_fusion` is 0 where each operation rounds, `debug` is 1 where the
    kernel checks indices.
    """
    width = _element_bytes(kernel)
    count = max(_guess(points(kernel), facts, _POINTS), 1)
    length = max(_guess(inner_extent(kernel), facts, 1024), 1)
    if tiled:
        shapes = _tiles(count, length, width, heuristics.cores)
        return tuple(_configuration(kernel, shape) for shape in shapes)
    if sorts(kernel):
        block = power_of_two(length)
        shapes = tuple(_sorting(block, power_of_two(count)))
        return tuple(_configuration(kernel, shape) for shape in shapes)
    if stepped(kernel):
        return tuple(_configuration(kernel, shape) for shape in _steps(count, heuristics))
    along_inner = contiguous_inside(kernel)
    ranked = sorted(
        _shapes(kernel, heuristics, count, length, along_inner),
        key=lambda shape: _price(shape, count, length, width, along_inner, heuristics),
    )
    return tuple(_configuration(kernel, shape) for shape in ranked[:_MOST])


def _configuration(kernel: Kernel, shape: tuple[int, int, int]) -> Configuration:
    xblock, block, warps = shape
    values = [("XBLOCK", xblock)]
    if kernel.inner:
        values.append(("RBLOCK", block))
    values += [("num_warps", warps), ("num_stages", 1)]
    if kernel.numerics is Numerics.EAGER:
        values.append(("enable_fp_fusion", 0))
    if any(isinstance(s, Bind) and s.check for stage in kernel.stages for s in stage.body):
        values += [("debug", 1), ("sanitize_overflow", 0)]
    return Configuration(tuple(values))


def _steps(count: int, heuristics: Heuristics) -> Iterator[tuple[int, int, int]]:
    """Yield shapes of one inner element at a time: few points a thread, and programs for all."""
    most = max(power_of_two(count // max(2 * heuristics.cores, 1)), _LANES)
    for xblock in dict.fromkeys(min(block, most) for block in (512, 256, 1024, 2048)):
        yield xblock, 1, min(xblock // _LANES, 4)


def _sorting(block: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield shapes with few elements a thread in few warps: exchanges among these are the cost."""
    for each in (8, 4, 16):
        xblock = min(max(_LANES * each // block, 1), most)
        yield xblock, block, min(max(xblock * block // (_LANES * each), 1), 16)


def _tiles(count: int, length: int, width: int, cores: int) -> tuple[tuple[int, int, int], ...]:
    """Return tiles whose sides are whole lines of memory, of not much more than the space.

    Of a small space, tiles for all cores: then what counts is how long one takes.
    """
    side = 32 if width >= 4 else 64
    while side > _LEAST_SIDE and -(-count // side) * -(-length // side) < cores:
        side //= 2
    warps = 4 if side >= 32 else 2
    wanted = ((side, side, warps), (side, 2 * side, 8), (2 * side, side, 8))
    most = power_of_two(count), power_of_two(length)
    tiles = (*wanted, (2 * side, 2 * side, 8))
    return tuple(dict.fromkeys((min(a, most[0]), min(b, most[1]), w) for a, b, w in tiles))


def _guess(e: Expr, facts: ShapeFacts, otherwise: int) -> int:
    known = facts.hint(e)
    if known is not None:
        return known
    return otherwise if e.free_symbols else extent_guess(e)


def _element_bytes(kernel: Kernel) -> int:
    return max((b.dtype.size for b in kernel.parameters), default=4)


def _shapes(
    kernel: Kernel, heuristics: Heuristics, count: int, length: int, along_inner: bool
) -> Iterator[tuple[int, int, int]]:
    if not kernel.inner:
        for xblock in (128, 256, 512, 1024, 2048):
            if xblock <= max(power_of_two(count), 128):
                yield from ((xblock, 1, warps) for warps in (4, 8) if xblock >= 32 * warps)
        return
    whole = rblock(kernel, heuristics)
    most = power_of_two(min(count, level(kernel, heuristics) or count))
    blocks = (whole,) if whole is not None else (16, 64, 256, 1024, 2048, 4096)
    for block in blocks:
        for xblock in (1, 2, 4, 8, 16, 32, 64, 128):
            if xblock > most or (whole is None and block > power_of_two(length)):
                continue
            elements = xblock * block
            if elements > 8192 and xblock > 1:
                continue
            for warps in (1, 2, 4, 8, 16):
                if warps == 1 or elements >= 64 * warps:
                    yield xblock, block, warps
    if whole is None:
        yield 1, 16, 1


def _price(
    shape: tuple[int, int, int], count: int, length: int, width: int, along_inner: bool,
    heuristics: Heuristics,
) -> float:  # fmt: skip
    xblock, block, warps = shape
    elements = xblock * block
    threads = _LANES * warps
    programs = -(-count // xblock)
    steps = -(-length // block)
    waste = programs * xblock / count * (steps * block / length)
    loop, rows = steps > 1, along_inner or length == 1
    if loop:
        waste = 1 + (waste - 1) / 4  # most of what lies beyond the end is not read
    # A loop waits for each block; one that folds across has a few of each point's elements.
    wanted: float = (32 if rows else 64) if loop or length == 1 else 16
    if length == 1:
        # Few points are all in flight at once, and what counts is how long one thread takes.
        wanted = min(wanted, max(count * width / (heuristics.cores * _THREADS), 8))
    narrow = math.sqrt(max(1.0, wanted * threads / (elements * width)))
    held = elements * max(width, _COMPUTED) / threads
    crowded = max(1.0, held / (128 if loop and not rows else 64))
    run = (block if along_inner else xblock) * width
    scattered = max(1.0, 128 / run) * math.pow(max(1.0, 256 / run), 0.05)
    idle = math.pow(max(1.0, 4 * heuristics.cores / programs), 0.25)
    idle *= math.pow(max(1.0, (16 if loop and rows else 4) / warps), 0.1)
    several = math.pow(xblock, 0.02) if loop and rows else 1.0  # rows at once gain nothing then
    return waste * narrow * crowded * scattered * idle * several
