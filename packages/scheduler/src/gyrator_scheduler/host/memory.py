"""Storage of created buffers: own allocations, taken-over storages, places in a pool."""

from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import accumulate

from attrs import define, field, frozen

from gyrator_ir.expr import ZERO, Const, Expr, Sym, ceildiv, maximum
from gyrator_ir.kernel.nodes import Kernel, Lifetime, Schedule
from gyrator_ir.loop.nodes import Buffer, Template
from gyrator_ir.target import Target
from gyrator_ir.types import Device
from gyrator_scheduler.access import defined_symbols
from gyrator_scheduler.memory import bytes_of, guessed_bytes, touched
from gyrator_scheduler.naming import fresh

ALIGNMENT = 64


@frozen
class Pool:
    """One allocation on a device that lives from node `first` to node `last`."""

    name: str
    device: Device
    bytes: Expr
    first: int
    last: int


@frozen
class Placement:
    """Which buffers are in which pool, and at which byte."""

    pools: tuple[Pool, ...]
    offsets: Mapping[str, tuple[str, Expr]]
    """Pool and byte offset by buffer."""


@frozen
class _Chain:
    """Buffers that take over one storage after another."""

    names: tuple[str, ...]
    device: Device
    bytes: Expr
    guess: int
    """Its bytes for typical sizes."""
    ready: int
    """The node that determines the last of the sizes; -1 where the inputs determine them all."""
    first: int
    last: int


def place_in_pools(
    schedule: Schedule, targets: Mapping[str, Target], given: Collection[Sym]
) -> Placement:
    """Place small temporaries that only kernels use in pools. Those alive at the same time never
    overlap. What has a constant size shares one pool a device, never of more than
    `heuristics.pool_bytes`; what has a size of symbols, of which inputs tell the `given` ones,
    shares pools that live as long as what is in them."""
    chains: dict[Device, list[_Chain]] = {}
    for chain in _chains(schedule, given):
        target = targets.get(chain.device.type)
        if target is not None and chain.guess <= target.heuristics.pool_bytes:
            chains.setdefault(chain.device, []).append(chain)
    pools: list[Pool] = []
    offsets: dict[str, tuple[str, Expr]] = {}
    taken = {b.name for b in schedule.buffers}
    for device, found in chains.items():
        limit = targets[device.type].heuristics.pool_bytes
        fixed = [c for c in found if isinstance(c.bytes, Const)]
        sized = [c for c in found if not isinstance(c.bytes, Const)]
        for shared in (_packed(fixed, limit), *map(_in_slots, _together(sized, limit))):
            if len(shared.places) < 2:
                continue
            name = fresh(f"pool{len(pools)}", taken)
            first = min(c.first for c, _ in shared.places)
            last = max(c.last for c, _ in shared.places)
            pools.append(Pool(name, device, shared.bytes, first, last))
            offsets.update({n: (name, at) for c, at in shared.places for n in c.names})
    return Placement(tuple(pools), offsets)


@frozen
class _Shared:
    """Where chains are in one pool."""

    places: Sequence[tuple[_Chain, Expr]]
    bytes: Expr


def _packed(chains: Sequence[_Chain], limit: int) -> _Shared:
    """Place chains of constant sizes, without those that do not fit."""
    offsets = assign_offsets([(c.first, c.last, c.guess) for c in chains], limit)
    found = [(c, at) for c, at in zip(chains, offsets, strict=True) if at is not None]
    size = max((at + _aligned(c.guess) for c, at in found), default=0)
    return _Shared([(c, Const(at)) for c, at in found], Const(size))


@define
class _Slot:
    """A part of a pool that chains have one after another."""

    bytes: Expr
    last: int
    tenants: list[_Chain] = field(factory=list)


def _in_slots(chains: Sequence[_Chain]) -> _Shared:
    """Place chains, given in order of birth, in slots as large as the largest that was in them. A
    chain takes a free slot of its own size first."""
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
    return _Shared([(c, at) for s, at in zip(slots, starts, strict=True) for c in s.tenants], end)


def _together(chains: Sequence[_Chain], limit: int) -> list[list[_Chain]]:
    """Return groups of chains, in order of birth, each of which is born while another of its group
    lives, whose sizes are known when the first is, and which typically fit in `limit` together."""
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
    """Return an offset for each (first, last, bytes), both ends included, such that those alive at
    once do not overlap; None for what would end beyond `limit`. First fit in order of birth."""
    result: list[int | None] = [None] * len(lives)
    gaps = [(0, limit)]
    held: list[tuple[int, int, int]] = []
    for n in sorted(range(len(lives)), key=lambda n: (lives[n][0], -lives[n][2], n)):
        first, last, size = lives[n]
        size = _aligned(size)
        while held and held[0][0] < first:
            _release(gaps, *heappop(held)[1:])
        k = next((k for k, (start, end) in enumerate(gaps) if end - start >= size), None)
        if k is None:
            continue
        start, end = gaps[k]
        gaps[k : k + 1] = [(start + size, end)] if start + size < end else []
        result[n] = start
        heappush(held, (last, start, start + size))
    return result


def _release(gaps: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a part to the gaps, which are in order and touch nowhere."""
    k = bisect(gaps, (start, end))
    if k < len(gaps) and gaps[k][0] == end:
        end = gaps.pop(k)[1]
    if k and gaps[k - 1][1] == start:
        start = gaps.pop(k - 1)[0]
        k -= 1
    gaps.insert(k, (start, end))


def _chains(schedule: Schedule, given: Collection[Sym]) -> list[_Chain]:
    """Return chains of reuse whose every buffer is touched by kernels alone."""
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
    known_after = _known_after(schedule, buffers, given)
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
    schedule: Schedule, buffers: Mapping[str, Buffer], given: Collection[Sym]
) -> dict[Sym, int]:
    """Return the node that determines each symbol that is not given: by its value, or by the size
    of a tensor that it returns."""
    found: dict[Sym, int] = {}
    for n, node in enumerate(schedule.nodes):
        if isinstance(node, Kernel | Template):
            continue
        sizes = [*defined_symbols(node)]
        for name in touched(node)[1]:
            if name in buffers:
                sizes += [s for e in buffers[name].shape for s in e.free_symbols]
        for s in sizes:
            if s not in given:
                found.setdefault(s, n)
    return found
