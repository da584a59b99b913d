"""Block shapes of programs, ranked by a model of memory traffic and occupancy.

A device needs several 16-byte accesses in flight per thread, and enough warps per core to hide
their latency. More elements per thread than fit in registers reduce the number of warps. Warps that
reduce the same row must exchange partial results. Programs are launched one after the other, while
those launched before move data: whichever takes longer counts, besides the time in which a kernel
starts. The model multiplies the slowdown by each factor. Its parameters were fitted to timings of
12,000 shapes of 610 kernels on an H200, two fifths of the kernels with 65,536 elements and the
others with 8 million, starting from a fit to as many shapes on an H100. The first choice takes 5
per cent longer than the fastest shape in the mean.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import product

from attrs import evolve

from gyrator_codegen.analysis import guess, power_of_two
from gyrator_codegen.lanes import VECTOR, consecutive_inside, lane_access
from gyrator_codegen.passes.blocks.choose_blocks import read_again, sorts
from gyrator_codegen.passes.blocks.ranked import Ranked
from gyrator_ir.body.nodes import Bind, Let, Load, Reduce, ReduceKind, ScanStep, Store
from gyrator_ir.body.ops import OPS
from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, Expr, ShapeFacts, stride_of
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.tile.loops import axes_of, extent_of, in_one_step
from gyrator_ir.tile.nodes import Access, TiledKernel

_LANES = 32  # threads per warp
_LEAST_SIDE = 16  # minimum side of a tile: 32 bytes of 16-bit elements
_MOST = 5  # maximum number of candidates per kernel
_POINTS = 1 << 20  # the estimate of an unknown number of points
_LENGTH = 1024  # the estimate of an unknown number of inner elements

_ACCESS = 16  # bytes per access of a thread
_IN_FLIGHT_OF_ROWS = 48  # bytes that a thread should access of rows that fit in registers
_IN_FLIGHT = 22  # bytes that a thread of a pointwise kernel should access...
_BUSY = 24  # ... unless a point takes as much work as so many statements
_IN_FLIGHT_OF_GROUPS = 32  # bytes of a row that a thread should access, if it merges groups
_IN_FLIGHT_ACROSS = 16  # bytes that a thread should access of columns that it reduces in steps...
_HELD_ACROSS = 64  # ... and may hold of them in registers
_SECTOR = 32  # bytes that memory transfers at once
_LONG = 30  # work per inner element, from which fewer elements fit in registers
_FUNCTION = 6  # further statements that a transcendental function counts as...
_COSTLY = 12  # ... if it has at least this cost in the op table
_TOGETHER = 4  # points of a thread that reduces in steps of one element...
_APART = 8  # ... or the bytes of them, if it reads each by an access of its own
_STRIDED = 4  # elements per thread if some loads are strided...
_MANY_STRIDED = 4  # ... and half of that with more strided loads than this
_HELD = 54  # bytes of a row that a thread holds in registers, with up to two loads
_LAUNCH = 4096  # bytes that the device could move in the time of a program launch...
_WAIT = 4096  # ... and in the time in which it waits for the previous launch
_START = 30000  # ... and that each core could move in the time in which a kernel starts
_RESIDENT = 64  # warps that a core runs at once...
_CACHED = 384 << 10  # ... and its share of the device's cache in bytes
_STATEMENTS = 10  # statements that are free; more cost as much as additional traffic...
_HEAVY = 16  # ... and a reduction with several accumulators counts as this many
_LINE = 128  # bytes of a cache line
_SHORT_ACROSS = 64  # elements of columns that few threads hold
_MOST_HELD = 8192  # elements of longer columns that a program holds...
_HELD_OF_COLUMNS = 256  # ... and the bytes of them that a thread does
_HALVED = (256, 512)  # lengths of few rows of 64-bit keys of which a thread sorts half as many

TOTAL_BYTES = 1 << 14
"""Bytes of the rows that a core processes at once to sum their columns, unless one is longer."""
_HELD_OF_TOTALS = 64  # bytes of them that a thread holds
_POSITIONS = frozenset((ReduceKind.ARGMIN, ReduceKind.ARGMAX))
_KEPT = frozenset(
    (ReduceKind.ARGMIN, ReduceKind.ARGMAX, ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX)
)
"""Reductions with several accumulators."""

_Shape = tuple[int, int, int]
"""Points, inner elements per point, and warps."""


@frozen(kw_only=True)
class _Space:
    """The iteration space of a kernel."""

    count: int
    """Number of points."""
    length: int
    """Inner elements per point."""
    width: int
    """Bytes per element of the largest buffer."""
    along_inner: bool
    """Whether inner elements, rather than points, are contiguous in memory."""
    folds: bool
    """Whether there are inner elements."""
    scans: bool
    """Whether threads exchange partial results of scans, or values together with positions."""
    merges: bool
    """Whether threads merge means or exponentials, which takes several operations per element."""
    groups: bool
    """Whether they merge groups of elements."""
    loads: int
    """Number of different loads."""
    strided: int
    """Number of different loads that are strided from point to point."""
    work: int
    """Statements, and the equivalent of functions."""
    traffic: int
    """Bytes read and written, or an equivalent of the computation if that takes longer."""
    reread: int
    """Bytes per inner element that are read again after a reduction."""
    cores: int
    launch: int
    """Bytes that the device could move in the time in which a program starts."""


def block_shapes(tiled: TiledKernel, facts: ShapeFacts, cores: int, members: int = 1) -> Ranked:
    """Return ranked values of `XBLOCK`, `RBLOCK` if there is a second loop, and `num_warps`, for a
    kernel of a launch with `members` members."""
    kernel = tiled.kernel
    tiles = not kernel.inner and len(tiled.loops) > 1
    first = axes_of(kernel, tiled.loops[0]) if tiles else kernel.axes
    second = axes_of(kernel, tiled.loops[1]) if tiles else kernel.inner
    count = max(guess(extent_of(first), facts, _POINTS), 1) * members
    length = max(guess(extent_of(second), facts, _LENGTH), 1)
    space = _space(tiled, facts, cores, count, length)
    few = _few_shapes(tiled, facts, space, tiles)
    if few is None:
        shapes, price = _priced_shapes(tiled, space, tiles)
        best = sorted(shapes, key=price)[:_MOST]
    else:
        shapes = best = list(few)
    if second:
        return Ranked(("XBLOCK", "RBLOCK", "num_warps"), shapes, best)
    return Ranked(
        ("XBLOCK", "num_warps"), [(x, warps) for x, _, warps in shapes],
        [(x, warps) for x, _, warps in best],
    )  # fmt: skip


def _space(tiled: TiledKernel, facts: ShapeFacts, cores: int, count: int, length: int) -> _Space:
    kernel = tiled.kernel
    kinds = {s.kind for s in kernel.statements if isinstance(s, Reduce)}
    scans = any(isinstance(s, ScanStep) for s in kernel.statements)
    loads, strided = _loads(kernel)
    return _Space(
        count=count,
        length=length,
        width=_width(kernel, facts) * (2 if tiled.pairs else 1),
        along_inner=consecutive_inside(kernel),
        folds=bool(kernel.inner),
        scans=scans or bool(kinds & _POSITIONS),
        merges=bool(kinds & (_KEPT - _POSITIONS)),
        groups=any(r.group > 1 for r in tiled.reductions),
        loads=loads,
        strided=strided,
        work=_work(kernel),
        traffic=_traffic(kernel, facts, count * length),
        reread=sum(read_again(kernel)),
        cores=cores,
        launch=_LAUNCH + (_WAIT if tiled.wait else 0),
    )


def _few_shapes(
    tiled: TiledKernel, facts: ShapeFacts, space: _Space, tiles: bool
) -> Iterable[_Shape] | None:
    """Return the shapes of a kernel for which few make sense, best first; None for other kernels,
    whose shapes are priced."""
    kernel, at_once = tiled.kernel, in_one_step(tiled)
    values = {c.name: c.values for c in tiled.choices}
    count, length, width, cores = space.count, space.length, space.width, space.cores
    if tiles:
        return _tiles(count, length, width, cores) if values["XBLOCK"][0] > 1 else None
    if kernel.totals:
        rows = max(guess(extent_of(kernel.summed), facts), 1)
        each = max(count // rows // max(cores, 1), 1)
        return _totals(rows, power_of_two(length), width, each)
    if at_once and sorts(kernel):
        return _sorting(power_of_two(length), count, cores, packed=bool(tiled.packed))
    if not at_once and values["RBLOCK"] == (1,):
        return _steps(kernel, count, width, cores)
    long_across = at_once and not space.along_inner and length > _SHORT_ACROSS
    if long_across and space.reread and not kernel.locals:
        again = read_again(kernel)
        return _held(power_of_two(length), count, max(again), len(again), cores)
    return None


def _priced_shapes(
    tiled: TiledKernel, space: _Space, tiles: bool
) -> tuple[list[_Shape], Callable[[_Shape], float]]:
    """Return all sensible shapes of a kernel, and their cost."""
    at_once = in_one_step(tiled)
    values = {c.name: c.values for c in tiled.choices}
    if tiles:
        rows = list(_rows(values["XBLOCK"], values["RBLOCK"], space))
        return rows, lambda shape: _row_price(shape, space)
    if space.folds:
        shapes = _blocks(values["XBLOCK"], values["RBLOCK"], at_once, space.count, space.length)
    else:
        shapes = _points(values["XBLOCK"], space.count)
    weights = _weights(space, at_once)
    return list(shapes), lambda shape: _price(shape, space, weights)


def _width(kernel: Kernel, facts: ShapeFacts) -> int:
    """Return the element size of the largest buffer, the widest of equal ones. Without inner axes,
    it is at least that of each buffer accessed contiguously from point to point."""

    def size(b: Buffer) -> tuple[int, int]:
        return math.prod(guess(e, facts) for e in b.shape), b.dtype.size

    largest = max(map(size, kernel.parameters), default=(0, 4))[1]
    if kernel.inner:
        return largest
    widths = {b.name: b.dtype.size for b in kernel.parameters}
    accesses = (s for s in kernel.statements if isinstance(s, Load | Store))
    beside = (widths[s.buffer] for s in accesses if _step(kernel, s.index) == 1)
    return max(largest, *beside, 0)


def _step(kernel: Kernel, index: Expr) -> int:
    """Return the stride of an index from point to point, or 0 if it is not constant."""
    if not kernel.axes:
        return 0
    bound = frozenset(s.symbol for s in kernel.statements if isinstance(s, Bind))
    access = lane_access(index, kernel.axes[-1].symbol, VECTOR, bound)
    if access.kind is Access.STRIDED and isinstance(access.stride, Const):
        return access.stride.value
    return int(access.kind is Access.UNIT)


def _traffic(kernel: Kernel, facts: ShapeFacts, points: int) -> int:
    """Return the bytes of the buffers, counting at most one element per point and buffer, scaled up
    for kernels with many statements."""
    sizes = (math.prod(max(guess(e, facts), 0) for e in b.shape) for b in kernel.parameters)
    each = zip(sizes, kernel.parameters, strict=True)
    moved = sum(min(size, points) * b.dtype.size for size, b in each)
    body = kernel.statements
    work = len(body) + _HEAVY * sum(isinstance(s, Reduce) and s.kind in _KEPT for s in body)
    return moved * max(work, _STATEMENTS) // _STATEMENTS


def _work(kernel: Kernel) -> int:
    """Return the number of statements, where a transcendental function counts as several."""
    body = kernel.statements
    functions = sum(isinstance(s, Let) and OPS[s.op].cost >= _COSTLY for s in body)
    return len(body) + _FUNCTION * functions


def _loads(kernel: Kernel) -> tuple[int, int]:
    """Return the number of different loads, and how many of them are strided."""
    body = kernel.statements
    loads = {(s.buffer, s.index) for s in body if isinstance(s, Load)}
    return len(loads), sum(abs(_step(kernel, index)) > 1 for _, index in loads)


def _steps(kernel: Kernel, count: int, width: int, cores: int) -> Iterator[_Shape]:
    """Yield shapes with one inner element at a time: few points per thread, and enough programs for
    all cores.

    The points of a thread are adjacent. It reads them by one access only from aligned addresses: by
    several, neighbouring threads are the further apart the more points each has.
    """
    inner = {a.symbol for a in kernel.inner}
    indices = [s.index for s in kernel.statements if isinstance(s, Load)]
    steps = [stride_of(index, r) for index in indices for r in inner & index.free_symbols]
    apart = any(isinstance(step, Const) and step.value % _TOGETHER for step in steps)
    each = min(max(_APART // width, 1), _TOGETHER) if apart else _TOGETHER
    most = max(power_of_two(count // max(2 * cores, 1)), _LANES)
    for xblock in dict.fromkeys(min(block, most) for block in (512, 256, 1024, 2048)):
        yield xblock, 1, min(max(xblock // (_LANES * each), 1), 16)


def _totals(count: int, block: int, width: int, programs: int) -> Iterable[_Shape]:
    """Return blocks of the `count` rows whose columns are summed, for `programs` programs per core.

    A thread also holds accumulators of its elements, while those of further rows are on their way.
    """
    fitting = max(TOTAL_BYTES // (block * width * programs), 1)
    rows = min(1 << fitting.bit_length() - 1, power_of_two(count))
    own = max(_HELD_OF_TOTALS // width, 1)
    shapes = (
        (xblock, block, min(max(xblock * block // (_LANES * each), 1), 16))
        for xblock, each in ((rows, own), (max(rows // 2, 1), own), (rows, max(own // 2, 1)))
    )
    return dict.fromkeys(shapes)


def _sorting(block: int, count: int, cores: int, packed: bool) -> Iterator[_Shape]:
    """Yield shapes with few elements per thread and few warps, since exchanges dominate a sort.

    Exchanges among warps cost more than those among 16 elements of a thread, unless rows are so few
    that the time of one thread dominates: then it has 4 of the keys of 64 bits that are not packed.
    """
    most = power_of_two(count)
    if count > 2 * cores:
        preferred = 16 if block > 8 * _LANES else 8
    else:
        preferred = 8 if packed or block not in _HALVED else 4
    for each in dict.fromkeys((preferred, 8, 4, 16)):
        xblock = min(max(_LANES * each // block, 1), most)
        yield xblock, block, min(max(xblock * block // (_LANES * each), 1), 16)


def _held(block: int, count: int, width: int, tensors: int, cores: int) -> Iterable[_Shape]:
    """Return shapes that hold rows of `tensors` tensors, whose points are contiguous, in registers:
    blocks of whole cache lines unless the registers of a program, or the number of programs, do not
    suffice. Threads of few programs hold less, since the time of one thread dominates."""
    points = max(_LINE // width, 1)
    while points * block > _MOST_HELD or (-(-count // points) < cores and points * width > _SECTOR):
        points //= 2
    points = min(points, power_of_two(count))
    programs = -(-count // points)
    each = _HELD_OF_COLUMNS if programs > 4 * cores else _HELD_OF_COLUMNS // 4
    warps = min(max(points * block * width * tensors // (_LANES * each), 1), 16)
    shapes = (
        (points, block, warps), (points, block, min(2 * warps, 16)),
        (points, block, max(warps // 2, 1)), (max(points // 2, 1), block, warps),
    )  # fmt: skip
    return dict.fromkeys(shapes)


def _tiles(count: int, length: int, width: int, cores: int) -> Iterable[_Shape]:
    """Return tiles whose sides are whole cache lines and not much longer than the space.

    For a small space, the tiles are small enough to occupy all cores.
    """
    side = 32 if width >= 4 else 64
    while side > _LEAST_SIDE and -(-count // side) * -(-length // side) < cores:
        side //= 2
    warps = 4 if side >= 32 else 2
    most = power_of_two(count), power_of_two(length)
    tiles = (
        (side, side, warps), (side, 2 * side, 8), (2 * side, side, 8), (2 * side, 2 * side, 8),
    )  # fmt: skip
    return dict.fromkeys((min(a, most[0]), min(b, most[1]), w) for a, b, w in tiles)


def _rows(xblocks: Iterable[int], blocks: Iterable[int], space: _Space) -> Iterator[_Shape]:
    for xblock, block in product(xblocks, blocks):
        if xblock <= power_of_two(space.count) and block <= power_of_two(space.length):
            warps = (w for w in (1, 2, 4, 8) if xblock * block >= _LANES * w)
            yield from ((xblock, block, w) for w in warps)


def _row_price(shape: _Shape, space: _Space) -> float:
    """Return the cost of a tile: that of its points, times the overhead of partial rows, whose ends
    share sectors of memory with other tiles."""
    xblock, block, warps = shape
    beyond = -(-space.length // block) * block / space.length
    edges = 1 + _SECTOR / (block * space.width) if block < space.length else 1.0
    points = evolve(space, count=space.count * space.length, length=1)
    return beyond * edges * _price((xblock * block, 1, warps), points, _weights(points, True))


def _points(xblocks: Iterable[int], count: int) -> Iterator[_Shape]:
    for xblock in xblocks:
        if xblock <= max(power_of_two(count), 64):
            yield from ((xblock, 1, warps) for warps in (1, 2, 4, 8) if xblock >= _LANES * warps)


def _blocks(
    xblocks: Iterable[int], blocks: Iterable[int], at_once: bool, count: int, length: int
) -> Iterator[_Shape]:
    most = power_of_two(count)
    for block in blocks:
        for xblock in xblocks:
            if xblock > most or (not at_once and block > power_of_two(length)):
                continue
            elements = xblock * block
            if elements > 8192 and xblock > 1:
                continue
            for warps in (1, 2, 4, 8, 16):
                if warps == 1 or elements >= 64 * warps:
                    yield xblock, block, warps
    if not at_once:
        yield 1, 16, 1


@frozen
class _Weights:
    """The parameters of the cost model for one kind of kernel: thresholds, and exponents of the
    penalties for missing them."""

    elements: float = 8
    """Threshold: elements per thread that are needed..."""
    threads: float = 2048
    """... if there are enough for so many threads per core."""
    narrow: float = 0.3
    """Exponent: fewer elements."""
    most: float = 13
    """Threshold: elements that a thread can hold in registers."""
    crowded: float = 0.5
    """Exponent: more elements."""
    scattered: float = 0.5
    """Exponent: contiguous runs of less than 128 bytes."""
    warps: float = 8
    """Threshold: warps per core that are needed."""
    idle: float = 0.3
    """Exponent: fewer warps."""
    programs: float = 1
    """Threshold: programs per core that are needed."""
    uneven: float = 0.3
    """Exponent: fewer programs."""
    few: float = 0.0
    """Exponent: fewer than four warps per program."""
    apart: float = 0.0
    """Exponent: several warps that share the elements of a point."""
    waits: float = 0.0
    """Exponent: steps, each of which waits for memory."""


_POINTWISE = _Weights(
    threads=320, narrow=0.62, crowded=0.5, warps=77, idle=0.09, programs=1.9, uneven=0.5, few=0.7
)
_ROWS_AT_ONCE = _Weights(
    threads=560, narrow=1.4, crowded=0.8, warps=2, idle=0.27, programs=1.3, uneven=0.5, few=0.04,
    apart=0.28,
)  # fmt: skip
_ROWS_IN_STEPS = _Weights(threads=1, warps=19, programs=4.5)
_ACROSS_AT_ONCE = _Weights(
    narrow=0.375, most=16, crowded=0.9, scattered=0.25, idle=0.12, programs=4.2, uneven=1.3,
    apart=1.07,
)  # fmt: skip
_ACROSS_IN_STEPS = _Weights(
    most=25, crowded=1.2, scattered=0.4, idle=2.2, programs=8.5, uneven=0.5, few=0.05,
    apart=1.1, waits=0.1,
)  # fmt: skip


def _weights(space: _Space, at_once: bool) -> _Weights:
    if not space.folds:
        needed = _ACCESS if space.work >= _BUSY else _IN_FLIGHT
        elements = max(needed // space.width, 1)
        if space.strided:
            elements = min(elements, _STRIDED if space.strided <= _MANY_STRIDED else _STRIDED // 2)
        return evolve(_POINTWISE, elements=elements, most=elements)
    if space.along_inner and at_once:
        most = _HELD / space.width / math.sqrt(max(space.loads / 2, 1.0))
        most = 2 * most if space.scans else most
        busy = max(space.work / _LONG, 1.0) ** 0.35
        most /= busy
        if space.count * space.length < space.cores * _ROWS_AT_ONCE.threads:
            most = min(most, _ACCESS / space.width)  # the time of one thread dominates
        elements = _IN_FLIGHT_OF_ROWS / space.width / busy
        return evolve(_ROWS_AT_ONCE, elements=elements, most=most)
    if space.along_inner and space.groups:
        each = _IN_FLIGHT_OF_GROUPS / space.width
        return evolve(_ROWS_IN_STEPS, elements=each, most=2 * each)
    if space.along_inner:
        return evolve(_ROWS_IN_STEPS, elements=4) if space.merges else _ROWS_IN_STEPS
    if at_once:
        return _ACROSS_AT_ONCE
    busy = min(max(space.work / _BUSY, 1.0), 2.0)
    return evolve(
        _ACROSS_IN_STEPS,
        elements=_IN_FLIGHT_ACROSS / space.width,
        most=min(_ACROSS_IN_STEPS.most, _HELD_ACROSS / space.width),
        warps=busy * _ACROSS_IN_STEPS.warps,
    )


def _price(shape: _Shape, space: _Space, weights: _Weights) -> float:
    xblock, block, warps = shape
    count, length, width, cores = space.count, space.length, space.width, space.cores
    threads = _LANES * warps
    each = xblock * block / threads
    programs = -(-count // xblock)
    steps = -(-length // block)
    waste = programs * xblock / count * (steps * block / length)
    if steps > 1:
        waste = 1 + (waste - 1) / 4  # most of the elements beyond the end are not read
    # Few elements are all in flight at once, so that the time of one thread dominates.
    elements = min(weights.elements, max(count * length / (cores * weights.threads), 1.0))
    rows = space.folds and space.along_inner
    run = (block if rows else xblock) * width
    sharing = 1.0
    if rows:
        sharing = min(warps, block * width / (_LANES * _ACCESS))
    elif space.folds:
        sharing = threads * _ACCESS / width / xblock
    # What is read again is no longer in the cache if too many rows are processed at once.
    resident = min(-(-programs // cores), _RESIDENT // warps) if steps > 1 else 0
    rows_bytes = resident * xblock * length * space.reread
    start = _START * cores
    launching = (start + max(programs * space.launch, space.traffic)) / (start + space.traffic)
    lost = (
        (launching, 1.0),
        (elements / each, weights.narrow),
        (each / max(weights.most, 1.0), weights.crowded),
        (128 / run, weights.scattered),
        (256 / run, 0.05),
        (_SECTOR / run, 0.03),  # less than a sector
        (weights.warps * cores / (programs * warps), weights.idle),
        (weights.programs * cores / programs, weights.uneven),
        (4 / warps, weights.few),
        (sharing, weights.apart),
        (steps, weights.waits),
        (rows_bytes / _CACHED, 0.12),
    )
    factors = (float(max(1.0, factor) ** exponent) for factor, exponent in lost)
    return waste * math.prod(factors)
