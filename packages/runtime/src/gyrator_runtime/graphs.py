"""Programs that replay a captured device graph: one call for all the work that they queue.

A graph works on fixed addresses. Inputs that keep their address (parameters) are used directly;
others are copied into memory of the graph. Results are in the graph's memory, so a graph is
replayed only while no results of an earlier call are alive. Otherwise another graph is recorded,
and once there are `MAX_RECORDINGS`, the program runs without one.

Graphs share memory (`GraphMemory`): the n-th recording of every program uses the n-th pool. The
temporaries of a graph may overlap with the results of a graph that was recorded later in the same
pool, because those were allocated after the temporaries were freed. A graph is therefore replayed
only while no results of later graphs in its pool are alive. The reverse is safe: the memory of an
earlier graph's results is never reused.
"""

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, le
from typing import Any

import torch
from attrs import evolve, field

from gyrator_ir.define import define, frozen
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.host.outside import empty_like
from gyrator_runtime.warn import warn

Run = Callable[[list[Any]], Any]

MAX_RECORDINGS = 4
"""Maximum number of graphs of one program at a time."""
MAX_ATTEMPTS = 8
"""Number of recordings after which a program whose inputs keep moving runs without a graph."""
_uses = torch._C._storage_Use_Count
_alias = attrgetter("data")
"""Returns a new tensor with the same memory, like `detach`, and its own version counter."""


@frozen(eq=False)
class _Results:
    """The storages that a graph writes its results to."""

    storages: tuple[torch.UntypedStorage, ...]
    keys: tuple[int, ...]
    """Addresses of the storages' implementation objects."""
    uses: tuple[int, ...]
    """Reference count of each storage while no result is alive."""

    def free(self) -> bool:
        """Return whether no result of an earlier call is alive."""
        return all(map(le, map(_uses, self.keys), self.uses))


@define(eq=False)
class _Pool:
    """Memory shared by the graphs of one device queue, in the order of their recording."""

    handle: object
    used: bool = False
    """Whether a graph was recorded in it."""
    _results: list["weakref.ref[_Results]"] = field(factory=list)
    _orphans: list[_Results] = field(factory=list)
    """Results of deleted graphs that are still alive."""

    @property
    def abandoned(self) -> bool:
        """Whether all its graphs are deleted: the device may then have released the memory."""
        return self.used and all(r() is None for r in self._results)

    def add(self, results: _Results) -> None:
        """Register the results of the latest graph."""
        self._results.append(weakref.ref(results))

    def allows(self, own: _Results) -> bool:
        """Return whether the graph with these results may run: neither they nor results of later
        graphs are alive.

        The position of a deleted graph in the order is unknown, so it counts as a later one.
        """
        if self._orphans:
            self._orphans = [r for r in self._orphans if not r.free()]
            if self._orphans:
                return False
        for reference in reversed(self._results):
            results = reference()
            if results is own:
                return results.free()
            if results is not None and not results.free():
                return False
        return False

    def retire(self, results: _Results) -> None:
        """Record that the graph with these results is deleted and only `results` refers to them."""
        left = evolve(results, uses=(1,) * len(results.uses))
        if not left.free():
            self._orphans.append(left)
        self._results = [r for r in self._results if r() not in (None, results)]


@define(eq=False)
class GraphMemory:
    """The pools of all graphs of a session, by device, queue and recording number."""

    addresses: set[int] = field(factory=set)
    """Addresses of the results of graphs."""
    recorded: int = 0
    """Number of graphs recorded, including deleted ones."""
    _pools: dict[tuple[str, int, int, int], _Pool] = field(factory=dict)

    def pool(self, device: DeviceInterface, index: int, queue: int, number: int) -> _Pool:
        """Return the pool for a recording number, created on first use."""
        key = device.type, index, queue, number
        pool = self._pools.get(key)
        if pool is None or pool.abandoned:
            pool = self._pools[key] = _Pool(device.graph_pool())
        return pool

    def discard(self, pool: _Pool) -> None:
        """Stop recording in a pool, because a capture failed in it."""
        self._pools = {k: p for k, p in self._pools.items() if p is not pool}


@frozen(eq=False)
class _Recording:
    """One captured run."""

    replay: Callable[[], None]
    pool: _Pool
    queue: int
    """The queue that orders its work with other users of the pool."""
    copied: tuple[tuple[int, torch.Tensor], ...]
    """Indices of the inputs that are copied, with their destinations."""
    fixed: tuple[int, ...]
    """Indices of the other inputs, which are used directly."""
    addresses: tuple[int, ...]
    """Addresses of the `fixed` inputs."""
    tensors: tuple[torch.Tensor, ...]
    """Results in the graph's memory."""
    others: tuple[tuple[int, Any], ...]
    """The other results, numbers or `_Input`, with their positions among all results."""
    memory: _Results

    def fits(self, addresses: tuple[int, ...]) -> bool:
        """Return whether the graph can run on inputs at these addresses."""
        return _select(addresses, self.fixed) == self.addresses

    def run(self, inputs: list[torch.Tensor], mutated: frozenset[int]) -> tuple[Any, ...]:
        """Copy inputs that need it, replay, and return the results."""
        for k, place in self.copied:
            place.copy_(inputs[k])
        self.replay()
        for k, place in self.copied if mutated else ():
            if k in mutated:
                inputs[k].copy_(place)
        results: list[Any] = list(map(_alias, self.tensors))
        for k, other in self.others:
            results.insert(k, inputs[other.number] if isinstance(other, _Input) else other)
        return tuple(results)


@frozen
class _Input:
    """A result that is an argument of the program."""

    number: int


@define(eq=False)
class GraphReplay:
    """A program as a callable of one list, like its plan. Not thread-safe.

    Args:
        plan: runs the program without a graph.
        device: the device that it runs on.
        mutated: indices of the arguments that the program writes to.
        index: index of the device.
        memory: graph memory, shared with other programs.
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
        """Run the program, by replaying a graph if possible. Empties `args`."""
        if self._refused or self.device.capturing():
            return self.plan(args)
        try:
            addresses = tuple(map(torch.Tensor.data_ptr, args))
        except TypeError:  # not a tensor
            return self.plan(args)
        first, last = self._last is None, self._last or addresses
        self._last = addresses
        if addresses != last:
            graph_addresses = self.memory.addresses
            moved = {k for k, (a, b) in enumerate(zip(addresses, last, strict=True)) if a != b}
            moved -= self._moving
            # Results of other graphs have one of a few addresses, so each gets a recording.
            moved = {k for k in moved if addresses[k] not in graph_addresses}
            if any(last[k] in graph_addresses for k in moved):
                return self.plan(args)
            if moved:
                self._moving |= moved
                self._forget()  # they treat moving inputs as fixed
        if first:
            return self.plan(args)
        queue = self.device.queue(self.index)
        for recording in self._recordings:
            fits = recording.queue == queue and recording.fits(addresses)
            if fits and recording.pool.allows(recording.memory):
                inputs = list(args)
                args.clear()
                return recording.run(inputs, self.mutated)
        if len(self._recordings) >= MAX_RECORDINGS or self._attempts >= MAX_ATTEMPTS:
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
        copies = tuple((k, empty_like(inputs[k])) for k in sorted(self._moving))
        arguments = list(inputs)
        for k, place in copies:
            arguments[k] = place
        outputs: list[Any] = []

        def run() -> None:
            outputs[:] = self.plan(list(arguments))

        pool.used = True
        try:
            replay = self.device.capture(run, warm=False, pool=pool.handle)
        except RuntimeError as error:
            # Part of the program cannot be captured. Nothing has run yet.
            self._refused = True
            _warn_uncaptured(error)
            self.memory.discard(pool)
            return self.plan(inputs)
        results = [(k, _as_output(r, arguments)) for k, r in enumerate(outputs)]
        outputs.clear()
        tensors = tuple(r for _, r in results if isinstance(r, torch.Tensor))
        others = tuple((k, r) for k, r in results if not isinstance(r, torch.Tensor))
        memory = _track(tensors)
        if set(memory.keys) & {_key(v.untyped_storage()) for v in arguments}:
            self._refused = True  # a result is a view of an argument
            return self.plan(inputs)
        pool.add(memory)
        self.memory.recorded += 1
        self.memory.addresses.update(s.data_ptr() for s in memory.storages)
        fixed = tuple(k for k in range(len(inputs)) if k not in self._moving)
        at = _select(addresses, fixed)
        recording = _Recording(replay, pool, queue, copies, fixed, at, tensors, others, memory)
        self._recordings.append(recording)
        return recording.run(inputs, self.mutated)


def _select(values: tuple[int, ...], positions: tuple[int, ...]) -> tuple[int, ...]:
    if len(positions) == len(values):
        return values
    return tuple(map(values.__getitem__, positions))


def _warn_uncaptured(error: RuntimeError) -> None:
    reason = str(error).partition("\n")[0]
    help = "results are the same without it; report the op that cannot be captured"
    warn("GY-RUNTIME-004", f"a program, or part of one, runs without a graph: {reason}", help)


def _as_output(result: Any, arguments: Sequence[Any]) -> Any:
    for k, value in enumerate(arguments):
        if result is value:
            return _Input(k)
    return result


def _track(tensors: Sequence[torch.Tensor]) -> _Results:
    """Return the storages of results, with their reference counts while no caller has a result."""
    storages = {_key(s): s for s in (t.untyped_storage() for t in tensors)}
    return _Results(tuple(storages.values()), tuple(storages), tuple(map(_uses, storages)))


def _key(storage: torch.UntypedStorage) -> int:
    return int(storage._cdata)
