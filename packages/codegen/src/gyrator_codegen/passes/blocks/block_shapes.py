"""Shapes of programs that hold blocks of elements, ranked by a model of bytes and occupancy.

A program moves `XBLOCK * RBLOCK` elements of every buffer. A device wants several accesses of 16
bytes in flight a thread, and several programs a core; more registers a thread than about 64 bytes
of a row's values leave fewer warps to hide the memory's latency. The model multiplies what is lost
to each. Its numbers are from measurements on an H100.
"""

import math
from collections.abc import Iterable, Iterator

from gyrator_codegen.consecutive import consecutive_inside
from gyrator_codegen.extents import guess, power_of_two
from gyrator_codegen.passes.blocks.choose_blocks import sorts
from gyrator_codegen.passes.blocks.ranked import Ranked
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.tile.loops import axes_of, extent_of, in_one_step
from gyrator_ir.tile.nodes import TiledKernel

_LANES = 32  # threads of a warp, as far as choices go
_LEAST_SIDE = 16  # of a tile: 32 bytes of narrow elements
_THREADS = 2048  # of a core, at most
_COMPUTED = 4  # bytes of a narrow element once it is computed on
_MOST = 5  # candidates of a kernel
_POINTS = 1 << 20  # what an unknown number of points is taken for
_LENGTH = 1024  # what an unknown number of inner elements is taken for

_Shape = tuple[int, int, int]
"""Points, elements of each, and warps."""


def block_shapes(tiled: TiledKernel, facts: ShapeFacts, cores: int) -> Ranked:
    """Return values of `XBLOCK`, of `RBLOCK` where a second loop has such steps, and of
    `num_warps`."""
    kernel = tiled.kernel
    transposes = not kernel.inner and len(tiled.loops) > 1
    first = axes_of(kernel, tiled.loops[0]) if transposes else kernel.axes
    second = axes_of(kernel, tiled.loops[1]) if transposes else kernel.inner
    width = max((b.dtype.size for b in kernel.parameters), default=4)
    count = max(guess(extent_of(first), facts, _POINTS), 1)
    length = max(guess(extent_of(second), facts, _LENGTH), 1)
    values = {c.name: c.values for c in tiled.choices}
    whole = in_one_step(tiled)
    if transposes:
        shapes = best = list(_tiles(count, length, width, cores))
    elif whole and sorts(kernel):
        shapes = best = list(_sorting(power_of_two(length), power_of_two(count)))
    elif not whole and values["RBLOCK"] == (1,):
        shapes = best = list(_steps(count, cores))
    else:
        along = consecutive_inside(kernel)
        if kernel.inner:
            shapes = list(_blocks(values["XBLOCK"], values["RBLOCK"], whole, count, length))
        else:
            shapes = list(_points(values["XBLOCK"], count))
        ranked = sorted(shapes, key=lambda s: _price(s, count, length, width, along, cores))
        best = ranked[:_MOST]
    if second:
        return Ranked(("XBLOCK", "RBLOCK", "num_warps"), shapes, best)
    return Ranked(
        ("XBLOCK", "num_warps"), [(x, warps) for x, _, warps in shapes],
        [(x, warps) for x, _, warps in best],
    )  # fmt: skip


def _steps(count: int, cores: int) -> Iterator[_Shape]:
    """Yield shapes of one inner element at a time: few points a thread, and programs for all."""
    most = max(power_of_two(count // max(2 * cores, 1)), _LANES)
    for xblock in dict.fromkeys(min(block, most) for block in (512, 256, 1024, 2048)):
        yield xblock, 1, min(xblock // _LANES, 4)


def _sorting(block: int, most: int) -> Iterator[_Shape]:
    """Yield shapes with few elements a thread in few warps: exchanges among these are the cost."""
    for each in (8, 4, 16):
        xblock = min(max(_LANES * each // block, 1), most)
        yield xblock, block, min(max(xblock * block // (_LANES * each), 1), 16)


def _tiles(count: int, length: int, width: int, cores: int) -> Iterable[_Shape]:
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
    return dict.fromkeys((min(a, most[0]), min(b, most[1]), w) for a, b, w in tiles)


def _points(xblocks: Iterable[int], count: int) -> Iterator[_Shape]:
    for xblock in xblocks:
        if xblock <= max(power_of_two(count), 128):
            yield from ((xblock, 1, warps) for warps in (4, 8) if xblock >= 32 * warps)


def _blocks(
    xblocks: Iterable[int], blocks: Iterable[int], whole: bool, count: int, length: int
) -> Iterator[_Shape]:
    most = power_of_two(count)
    for block in blocks:
        for xblock in xblocks:
            if xblock > most or (not whole and block > power_of_two(length)):
                continue
            elements = xblock * block
            if elements > 8192 and xblock > 1:
                continue
            for warps in (1, 2, 4, 8, 16):
                if warps == 1 or elements >= 64 * warps:
                    yield xblock, block, warps
    if not whole:
        yield 1, 16, 1


def _price(
    shape: _Shape, count: int, length: int, width: int, along_inner: bool, cores: int
) -> float:
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
        wanted = min(wanted, max(count * width / (cores * _THREADS), 8))
    narrow = math.sqrt(max(1.0, wanted * threads / (elements * width)))
    held = elements * max(width, _COMPUTED) / threads
    crowded = max(1.0, held / (128 if loop and not rows else 64))
    run = (block if along_inner else xblock) * width
    scattered = max(1.0, 128 / run) * math.pow(max(1.0, 256 / run), 0.05)
    idle = math.pow(max(1.0, 4 * cores / programs), 0.25)
    idle *= math.pow(max(1.0, (16 if loop and rows else 4) / warps), 0.1)
    several = math.pow(xblock, 0.02) if loop and rows else 1.0  # rows at once gain nothing then
    return waste * narrow * crowded * scattered * idle * several
