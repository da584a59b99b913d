"""Placement of temporary buffers in pools."""

from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import accumulate

from attrs import field

from gyrator_ir.define import define, frozen
from gyrator_ir.expr import ZERO, Const, Expr, Sym, ceildiv, maximum
from gyrator_ir.kernel.nodes import Kernel, Lifetime, Schedule
from gyrator_ir.loop.nodes import Buffer, Template
from gyrator_ir.loop.uses import defined_symbols
from gyrator_ir.target import Target
from gyrator_ir.types import Device
from gyrator_scheduler.memory import bytes_of, guessed_bytes, touched
from gyrator_scheduler.naming import fresh

ALIGNMENT = 64


@frozen
class Pool:
    """One allocation on a device, alive from node `first` to node `last`."""

    name: str
    device: Device
    bytes: Expr
    first: int
    last: int


@frozen
class Placement:
    """The pools, and the position of each buffer in them."""

    pools: tuple[Pool, ...]
    offsets: Mapping[str, tuple[str, Expr]]
    """Pool and byte offset by buffer."""


@frozen
class _Chain:
    """Buffers that use the same storage one after another."""

    names: tuple[str, ...]
    device: Device
    bytes: Expr
    guess: int
    """Its size in bytes for typical symbol values."""
    ready: int
    """The last node that determines a symbol of the size; -1 if the inputs determine all of
    them."""
    first: int
    last: int


def place_in_pools(
    schedule: Schedule, targets: Mapping[str, Target], input_symbols: Collection[Sym]
) -> Placement:
    """Place small temporaries that only kernels use in pools.

    Buffers that are alive at the same time never overlap. Buffers of constant size share one pool
    per device of at most `heuristics.pool_bytes`. Buffers of symbolic size share pools that live as
    long as their contents. `input_symbols` are the symbols that the program's inputs determine.
    """
    chains: dict[Device, list[_Chain]] = {}
    for chain in _chains(schedule, input_symbols):
        target = targets.get(chain.device.type)
        if target is not None and chain.guess <= target.heuristics.pool_bytes:
            chains.setdefault(chain.device, []).append(chain)
    pools: list[Pool] = []
    offsets: dict[str, tuple[str, Expr]] = {}
    used_names = {b.name for b in schedule.buffers}
    for device, device_chains in chains.items():
        limit = targets[device.type].heuristics.pool_bytes
        fixed = [c for c in device_chains if isinstance(c.bytes, Const)]
        sized = [c for c in device_chains if not isinstance(c.bytes, Const)]
        for layout in (_packed(fixed, limit), *map(_in_slots, _grouped(sized, limit))):
            if len(layout.placements) < 2:
                continue
            name = fresh(f"pool{len(pools)}", used_names)
            first = min(c.first for c, _ in layout.placements)
            last = max(c.last for c, _ in layout.placements)
            pools.append(Pool(name, device, layout.bytes, first, last))
            offsets.update({n: (name, at) for c, at in layout.placements for n in c.names})
    return Placement(tuple(pools), offsets)


@frozen
class _PoolLayout:
    """The chains of one pool with their offsets, and the size of the pool."""

    placements: Sequence[tuple[_Chain, Expr]]
    bytes: Expr


def _packed(chains: Sequence[_Chain], limit: int) -> _PoolLayout:
    """Place chains of constant size; those that do not fit are left out."""
    offsets = assign_offsets([(c.first, c.last, c.guess) for c in chains], limit)
    placed = [(c, at) for c, at in zip(chains, offsets, strict=True) if at is not None]
    size = max((at + _aligned(c.guess) for c, at in placed), default=0)
    return _PoolLayout([(c, Const(at)) for c, at in placed], Const(size))


@define
class _Slot:
    """A part of a pool that chains use one after another."""

    bytes: Expr
    last: int
    tenants: list[_Chain] = field(factory=list)


def _in_slots(chains: Sequence[_Chain]) -> _PoolLayout:
    """Place chains, sorted by first use, in slots of the size of their largest chain. A chain
    prefers a free slot of its own size."""
    slots: list[_Slot] = []
    for c in chains:
        size = ALIGNMENT * ceildiv(c.bytes, ALIGNMENT)
        free = [s for s in slots if s.last < c.first]
        slot = next((s for s in free if s.bytes is size), free[0] if free else None)
        if slot is None:
            slots.append(slot := _Slot(size, c.last))
        slot.bytes, slot.last = maximum(slot.bytes, size), c.last
        slot.tenants.append(c)
    *starts, end = accumulate((s.bytes for s in slots), initial=ZERO)
    return _PoolLayout(
        [(c, at) for s, at in zip(slots, starts, strict=True) for c in s.tenants], end
    )


def _grouped(chains: Sequence[_Chain], limit: int) -> list[list[_Chain]]:
    """Return groups of chains, sorted by first use, that can share a pool: each starts while
    another of its group is alive, all sizes are determined before the group starts, and the group
    typically fits in `limit` bytes."""
    groups: list[list[_Chain]] = []
    born = last = total = -1
    for c in sorted(chains, key=lambda c: c.first):
        if c.first <= last and c.ready < born and total + c.guess <= limit:
            groups[-1].append(c)
            last, total = max(last, c.last), total + c.guess
        else:
            groups.append([c])
            born, last, total = c.first, c.last, c.guess
    return groups


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def assign_offsets(lives: Sequence[tuple[int, int, int]], limit: int) -> list[int | None]:
    """Return an offset for each lifetime (first, last, bytes), both ends inclusive, such that
    lifetimes that intersect do not overlap in memory; None if it does not fit in `limit` bytes.
    First fit, in order of first use."""
    result: list[int | None] = [None] * len(lives)
    gaps = [(0, limit)]
    occupied: list[tuple[int, int, int]] = []
    for n in sorted(range(len(lives)), key=lambda n: (lives[n][0], -lives[n][2], n)):
        first, last, size = lives[n]
        size = _aligned(size)
        while occupied and occupied[0][0] < first:
            _release(gaps, *heappop(occupied)[1:])
        k = next((k for k, (start, end) in enumerate(gaps) if end - start >= size), None)
        if k is None:
            continue
        start, end = gaps[k]
        gaps[k : k + 1] = [(start + size, end)] if start + size < end else []
        result[n] = start
        heappush(occupied, (last, start, start + size))
    return result


def _release(gaps: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a free range to the gaps, which are sorted and not adjacent."""
    k = bisect(gaps, (start, end))
    if k < len(gaps) and gaps[k][0] == end:
        end = gaps.pop(k)[1]
    if k and gaps[k - 1][1] == start:
        start = gaps.pop(k - 1)[0]
        k -= 1
    gaps.insert(k, (start, end))


def _chains(schedule: Schedule, input_symbols: Collection[Sym]) -> list[_Chain]:
    """Return the chains of reuse whose buffers are accessed by kernels only."""
    buffers = {b.name: b for b in schedule.buffers}
    outside: set[str] = set()
    for node in schedule.nodes:
        if not isinstance(node, Kernel):
            reads, writes = touched(node)
            outside.update(reads, writes)
    links: dict[str, list[Lifetime]] = {}
    for life in sorted(schedule.lifetimes, key=lambda life: life.first):
        chain = links.pop(life.reuses) if life.reuses is not None and life.reuses in links else []
        chain.append(life)
        links[life.buffer] = chain
    known_after = _known_after(schedule, buffers, input_symbols)
    result: list[_Chain] = []
    for lives in links.values():
        first, last = lives[0].first, lives[-1].last
        names = tuple(x.buffer for x in lives)
        if last == len(schedule.nodes) or not outside.isdisjoint(names):
            continue
        b = buffers[names[0]]
        size, guess = bytes_of(b), guessed_bytes(b, schedule.facts)
        ready = max((known_after.get(s, -1) for s in size.free_symbols), default=-1)
        if guess > 0 and schedule.facts.known_nonnegative(size):
            result.append(_Chain(names, b.device, size, guess, ready, first, last))
    return result


def _known_after(
    schedule: Schedule, buffers: Mapping[str, Buffer], input_symbols: Collection[Sym]
) -> dict[Sym, int]:
    """Return the node that determines each symbol that is not an input: as a scalar result, or as a
    size of a result."""
    result: dict[Sym, int] = {}
    for n, node in enumerate(schedule.nodes):
        if isinstance(node, Kernel | Template):
            continue
        sizes = [*defined_symbols(node)]
        for name in touched(node)[1]:
            if name in buffers:
                sizes += [s for e in buffers[name].shape for s in e.free_symbols]
        for s in sizes:
            if s not in input_symbols:
                result.setdefault(s, n)
    return result
