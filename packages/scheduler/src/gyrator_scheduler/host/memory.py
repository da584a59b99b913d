"""Storage of created buffers: own allocations, taken-over storages, places in a pool."""

from collections.abc import Mapping, Sequence

from attrs import frozen

from gyrator_ir.expr import Const
from gyrator_ir.kernel.nodes import Kernel, Lifetime, Schedule
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.target import Target
from gyrator_ir.types import Device
from gyrator_scheduler.memory import bytes_of, touched
from gyrator_scheduler.naming import fresh

ALIGNMENT = 64


@frozen
class Pool:
    """One allocation on a device that lives from node `first` to node `last`."""

    name: str
    device: Device
    bytes: int
    first: int
    last: int


@frozen
class Placement:
    """Which buffers are in which pool, and at which byte."""

    pools: tuple[Pool, ...]
    offsets: Mapping[str, tuple[str, int]]
    """Pool and byte offset by buffer."""


@frozen
class _Chain:
    """Buffers that take over one storage after another."""

    names: tuple[str, ...]
    device: Device
    bytes: int
    first: int
    last: int


def place_in_pools(schedule: Schedule, targets: Mapping[str, Target]) -> Placement:
    """Place small temporaries of static size, used by kernels only, in one pool a device. Those
    alive at the same time never overlap; a pool exceeds `heuristics.pool_bytes` never."""
    buffers = {b.name: b for b in schedule.buffers}
    chains: dict[Device, list[_Chain]] = {}
    for chain in _chains(schedule, buffers):
        target = targets.get(chain.device.type)
        if target is not None and chain.bytes <= target.heuristics.pool_bytes:
            chains.setdefault(chain.device, []).append(chain)
    pools: list[Pool] = []
    offsets: dict[str, tuple[str, int]] = {}
    taken = {b.name for b in schedule.buffers}
    for device, found in chains.items():
        limit = targets[device.type].heuristics.pool_bytes
        placed = assign_offsets([(c.first, c.last, c.bytes) for c in found], limit)
        kept = [(c, at) for c, at in zip(found, placed, strict=True) if at is not None]
        if len(kept) < 2:
            continue
        name = fresh(f"pool{len(pools)}", taken)
        size = max(at + _aligned(c.bytes) for c, at in kept)
        first, last = min(c.first for c, _ in kept), max(c.last for c, _ in kept)
        pools.append(Pool(name, device, size, first, last))
        offsets.update({n: (name, at) for c, at in kept for n in c.names})
    return Placement(tuple(pools), offsets)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def assign_offsets(lives: Sequence[tuple[int, int, int]], limit: int) -> list[int | None]:
    """Return an offset for each (first, last, bytes), both ends included, such that those alive at
    once do not overlap; None for what would end beyond `limit`. First fit in order of birth."""
    result: list[int | None] = [None] * len(lives)
    active: list[tuple[int, int, int]] = []
    for n in sorted(range(len(lives)), key=lambda n: (lives[n][0], -lives[n][2], n)):
        first, last, size = lives[n]
        size = _aligned(size)
        active = [a for a in active if a[2] >= first]
        offset = 0
        for start, end, _ in active:
            if offset + size <= start:
                break
            offset = max(offset, end)
        if offset + size > limit:
            continue
        result[n] = offset
        active.append((offset, offset + size, last))
        active.sort()
    return result


def _chains(schedule: Schedule, buffers: Mapping[str, Buffer]) -> list[_Chain]:
    """Return chains of reuse whose every buffer is static and touched by kernels alone."""
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
    result: list[_Chain] = []
    for lives in links.values():
        last = lives[-1].last
        size = bytes_of(buffers[lives[0].buffer])
        fit = isinstance(size, Const) and size.value > 0 and last < len(schedule.nodes)
        if fit and not any(x.buffer in outside for x in lives):
            assert isinstance(size, Const)
            device = buffers[lives[0].buffer].device
            names = tuple(x.buffer for x in lives)
            result.append(_Chain(names, device, size.value, lives[0].first, last))
    return result
