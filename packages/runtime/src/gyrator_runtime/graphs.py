"""Programs that replay a captured graph of their device: one call for all that they queue.

A graph works on fixed addresses. Inputs that come at the same address again and again (parameters)
are used where they are; the others are copied to a place of the graph's own. Results lie in the
graph's memory, and are handed out only while nobody holds those of an earlier call: then another
graph is recorded, and where there are enough of them, the program runs without one.

Graphs share memory (`GraphMemory`): the n-th recording of every program lies in the n-th pool. What
a graph needs while it runs may be where a graph recorded later has its results, for they were
placed when the earlier one was done. So a graph is replayed only while nobody holds results of
later ones in its pool. The other way round nothing can happen: results of an earlier graph are
never given up.
"""

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, le
from typing import Any

import torch
from attrs import define, evolve, field, frozen

from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.warn import warn

Run = Callable[[list[Any]], Any]

MOST_RECORDINGS = 4
"""Graphs of one program that are kept at a time."""
MOST_ATTEMPTS = 8
"""Recordings after which a program whose inputs keep moving runs without a graph."""
_uses = torch._C._storage_Use_Count
_handed = attrgetter("data")
"""A new tensor of the same memory, as `detach` gives, with a version counter of its own."""


@frozen(eq=False)
class _Results:
    """Storages that a graph writes its results to."""

    storages: tuple[torch.UntypedStorage, ...]
    keys: tuple[int, ...]
    """Of the storages, for torch."""
    uses: tuple[int, ...]
    """References to each storage while nobody holds a result."""

    def free(self) -> bool:
        """Whether nobody holds a result of an earlier call."""
        return all(map(le, map(_uses, self.keys), self.uses))


@define(eq=False)
class _Pool:
    """Memory that graphs of one queue of a device share, in the order of their recording."""

    handle: object
    used: bool = False
    """A graph was recorded in it."""
    _results: list["weakref.ref[_Results]"] = field(factory=list)
    _orphans: list[_Results] = field(factory=list)
    """Of graphs that are gone, while somebody holds them."""

    @property
    def deserted(self) -> bool:
        """Whether all its graphs are gone: a device may then give the memory up."""
        return self.used and all(r() is None for r in self._results)

    def add(self, results: _Results) -> None:
        """Note the results of the latest graph."""
        self._results.append(weakref.ref(results))

    def allows(self, own: _Results) -> bool:
        """Whether the graph with these results may run: nobody holds them or those of later ones.

        Where in the order a graph was that is gone is not known: it counts as a later one.
        """
        if self._orphans:
            self._orphans = [r for r in self._orphans if not r.free()]
            if self._orphans:
                return False
        for found in reversed(self._results):
            results = found()
            if results is own:
                return results.free()
            if results is not None and not results.free():
                return False
        return False

    def retire(self, results: _Results) -> None:
        """Note that the graph with these results is gone, and nothing but `results` refers to them
        on its part."""
        left = evolve(results, uses=(1,) * len(results.uses))
        if not left.free():
            self._orphans.append(left)
        self._results = [r for r in self._results if r() not in (None, results)]


@define(eq=False)
class GraphMemory:
    """The pools of all graphs of one session, by device, queue and number of the recording."""

    addresses: set[int] = field(factory=set)
    """Where results of graphs lie."""
    recorded: int = 0
    """Graphs that were recorded, those that are gone included."""
    _pools: dict[tuple[str, int, int, int], _Pool] = field(factory=dict)

    def pool(self, device: DeviceInterface, index: int, queue: int, number: int) -> _Pool:
        """Return the pool for the recording of this number; made at the first call."""
        key = device.type, index, queue, number
        found = self._pools.get(key)
        if found is None or found.deserted:
            found = self._pools[key] = _Pool(device.graph_pool())
        return found

    def leave(self, pool: _Pool) -> None:
        """Record no more in a pool: a capture failed in it."""
        self._pools = {k: p for k, p in self._pools.items() if p is not pool}


@frozen(eq=False)
class _Recording:
    """One captured run."""

    replay: Callable[[], None]
    pool: _Pool
    queue: int
    """Whose work is in order with what else uses the pool."""
    places: tuple[tuple[int, torch.Tensor], ...]
    """Inputs that are copied, and where to; the others are used where they are."""
    fixed: tuple[int, ...]
    """The others."""
    addresses: tuple[int, ...]
    """Where the others are."""
    tensors: tuple[torch.Tensor, ...]
    """Results in the graph's memory."""
    others: tuple[tuple[int, Any], ...]
    """The other results, numbers or `_Input`, and their places among all."""
    memory: _Results

    def fits(self, addresses: tuple[int, ...]) -> bool:
        """Whether inputs at these addresses may be used, or copied, by this graph."""
        return _picked(addresses, self.fixed) == self.addresses

    def run(self, inputs: list[torch.Tensor], mutated: frozenset[int]) -> tuple[Any, ...]:
        """Copy what has to be, replay, and hand out the results."""
        for k, place in self.places:
            place.copy_(inputs[k])
        self.replay()
        for k, place in self.places if mutated else ():
            if k in mutated:
                inputs[k].copy_(place)
        results: list[Any] = list(map(_handed, self.tensors))
        for k, other in self.others:
            results.insert(k, inputs[other.number] if isinstance(other, _Input) else other)
        return tuple(results)


@frozen
class _Input:
    """A result that is an argument itself."""

    number: int


@define(eq=False)
class GraphReplay:
    """A program as a callable of one list, like its plan; not for several threads at once.

    Args:
        plan: what runs the program.
        device: that it runs on.
        mutated: arguments that the program writes to.
        index: of the device.
        memory: shared with other programs.
    """

    plan: Run
    device: DeviceInterface
    mutated: frozenset[int] = frozenset()
    index: int = 0
    memory: GraphMemory = field(factory=GraphMemory)
    _recordings: list[_Recording] = field(factory=list)
    _attempts: int = 0
    _last: tuple[int, ...] | None = None
    _moving: set[int] = field(factory=set)
    _refused: bool = False

    def __call__(self, args: list[Any]) -> Any:
        """Run the program, by a graph where that is possible; empties `args`."""
        if self._refused or self.device.capturing():
            return self.plan(args)
        try:
            addresses = tuple(map(torch.Tensor.data_ptr, args))
        except TypeError:  # not a tensor
            return self.plan(args)
        first, last = self._last is None, self._last or addresses
        self._last = addresses
        if addresses != last:
            known = self.memory.addresses
            moved = {k for k, (a, b) in enumerate(zip(addresses, last, strict=True)) if a != b}
            moved -= self._moving
            # Results of other graphs come at one of a few addresses: each gets a recording.
            moved = {k for k in moved if addresses[k] not in known}
            if any(last[k] in known for k in moved):
                return self.plan(args)
            if moved:
                self._moving |= moved
                self._forget()  # they take what moves for fixed
        if first:
            return self.plan(args)
        queue = self.device.queue(self.index)
        for recording in self._recordings:
            fits = recording.queue == queue and recording.fits(addresses)
            if fits and recording.pool.allows(recording.memory):
                inputs = list(args)
                args.clear()
                return recording.run(inputs, self.mutated)
        if len(self._recordings) >= MOST_RECORDINGS or self._attempts >= MOST_ATTEMPTS:
            return self.plan(args)
        return self._record(args, addresses, queue)

    def _forget(self) -> None:
        left = [(r.pool, r.memory) for r in self._recordings]
        self._recordings.clear()
        for pool, results in left:
            self.memory.addresses.difference_update(s.data_ptr() for s in results.storages)
            pool.retire(results)

    def __del__(self) -> None:
        self._forget()

    def _record(self, args: list[Any], addresses: tuple[int, ...], queue: int) -> Any:
        self._attempts += 1
        pool = self.memory.pool(self.device, self.index, queue, len(self._recordings))
        inputs = list(args)
        args.clear()
        places = tuple((k, _twin(inputs[k])) for k in sorted(self._moving))
        given = list(inputs)
        for k, place in places:
            given[k] = place
        made: list[Any] = []

        def run() -> None:
            made[:] = self.plan(list(given))

        pool.used = True
        try:
            replay = self.device.capture(run, warm=False, pool=pool.handle)
        except RuntimeError as error:
            # Something in the program cannot be captured; nothing of it has run.
            self._refused = True
            _warn_uncaptured(error)
            self.memory.leave(pool)
            return self.plan(inputs)
        results = [(k, _noted(r, given)) for k, r in enumerate(made)]
        made.clear()
        tensors = tuple(r for _, r in results if isinstance(r, torch.Tensor))
        others = tuple((k, r) for k, r in results if not isinstance(r, torch.Tensor))
        memory = _results(tensors)
        if set(memory.keys) & {_key(v.untyped_storage()) for v in given}:
            self._refused = True  # a result is a view of an argument
            return self.plan(inputs)
        pool.add(memory)
        self.memory.recorded += 1
        self.memory.addresses.update(s.data_ptr() for s in memory.storages)
        fixed = tuple(k for k in range(len(inputs)) if k not in self._moving)
        at = _picked(addresses, fixed)
        recording = _Recording(replay, pool, queue, places, fixed, at, tensors, others, memory)
        self._recordings.append(recording)
        return recording.run(inputs, self.mutated)


def _picked(values: tuple[int, ...], places: tuple[int, ...]) -> tuple[int, ...]:
    if len(places) == len(values):
        return values
    return tuple(map(values.__getitem__, places))


def _warn_uncaptured(error: RuntimeError) -> None:
    reason = str(error).partition("\n")[0]
    help = "it gives the same results without one; report the op that cannot be captured"
    warn("GY-RUNTIME-004", f"a program, or part of one, runs without a graph: {reason}", help)


def _twin(value: torch.Tensor) -> torch.Tensor:
    """Return memory of the same layout."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _noted(result: Any, given: Sequence[Any]) -> Any:
    for k, value in enumerate(given):
        if result is value:
            return _Input(k)
    return result


def _results(tensors: Sequence[torch.Tensor]) -> _Results:
    """Note the storages of results, while nobody else holds any."""
    found = {_key(s): s for s in (t.untyped_storage() for t in tensors)}
    return _Results(tuple(found.values()), tuple(found), tuple(map(_uses, found)))


def _key(storage: torch.UntypedStorage) -> int:
    return int(storage._cdata)
