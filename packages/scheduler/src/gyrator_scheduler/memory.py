"""Buffer lifetimes, and which buffers can share storage."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate

from attrs import evolve, field

from gyrator_ir.body.nodes import Load, Store, StoreMode
from gyrator_ir.define import define
from gyrator_ir.expr import ONE, ZERO, Const, Expr, ShapeFacts, sum_of
from gyrator_ir.kernel.nodes import Kernel, Lifetime, Schedule, ScheduleNode
from gyrator_ir.loop.nodes import (
    Buffer,
    CollectiveCall,
    CollectiveWait,
    DeviceCopy,
    Extern,
    Input,
    LoopProgram,
    Output,
    RepeatOp,
    Template,
    TensorInput,
    TensorRef,
)
from gyrator_ir.types import Device
from gyrator_scheduler.access import access
from gyrator_scheduler.fusion.axes import guess

LONGEST_WAIT = 256
"""Maximum number of nodes for which a free storage waits for its reuse."""
_LIBRARIES = ("aten.", "mkl.", "mkldnn.", "onednn.")
"""The namespaces of PyTorch's own library calls."""


def span(buffer: Buffer) -> Expr:
    """Return the number of elements in a buffer's storage, assuming that no symbolic size is 0."""
    total = 1
    for n, s in zip(buffer.shape, buffer.strides, strict=True):
        if n is ZERO:
            return ZERO
        if type(n) is not Const or type(s) is not Const:
            break
        total += (n.value - 1) * s.value
    else:
        return Const(total)
    if ZERO in buffer.shape:
        return ZERO
    return sum_of([ONE, *((n - 1) * s for n, s in zip(buffer.shape, buffer.strides, strict=True))])


def bytes_of(buffer: Buffer) -> Expr:
    """Return the size of a buffer's storage in bytes, assuming that no symbolic size is 0."""
    return span(buffer) * buffer.dtype.size


def guessed_bytes(buffer: Buffer, facts: ShapeFacts) -> int:
    """Return the size of a buffer in bytes for typical symbol values. For comparing plans only,
    never for allocation."""
    size = bytes_of(buffer)
    if type(size) is Const:
        return max(size.value, 0)
    hint = facts.hint(size)
    return max(guess(size) if hint is None else hint, 0)


Uses = tuple[tuple[str, ...], tuple[str, ...]]
"""Buffers that a node reads, and buffers that it writes."""


def touched(node: ScheduleNode) -> Uses:
    """Return the buffers that a node reads, and the buffers that it writes."""
    if isinstance(node, Kernel):
        return node.reads, node.writes
    accesses = access(node, {})
    return accesses.reads, accesses.writes


def lifetimes(
    nodes: Sequence[object],
    uses: Sequence[Uses],
    created: Sequence[Buffer],
    outputs: Sequence[Output],
) -> tuple[Lifetime, ...]:
    """Return the lifetime of each created buffer that some node accesses, in order of `created`.
    `uses` has the accesses of each node."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    inputs_of: dict[str, tuple[str, ...]] = {}
    for n, (reads, writes) in enumerate(uses):
        for name in (*reads, *writes):
            first.setdefault(name, n)
            last[name] = n
        node = nodes[n]
        if isinstance(node, CollectiveCall):
            inputs_of.update(dict.fromkeys(node.results, reads))
        elif isinstance(node, CollectiveWait):
            for name in inputs_of.get(node.buffer, ()):
                last[name] = n
    for out in outputs:
        if isinstance(out, TensorRef) and out.buffer in first:
            last[out.buffer] = len(nodes)
    return tuple(Lifetime(b.name, first[b.name], last[b.name]) for b in created if b.name in first)


def lives_of_inputs(uses: Iterable[Uses], released: Collection[str]) -> tuple[Lifetime, ...]:
    """Return the lifetimes of the parameters that are `released` after their last read: see
    `SchedulerOptions`."""
    last: dict[str, int] = {}
    if names := frozenset(released):
        for n, (reads, _) in enumerate(uses):
            last.update((name, n) for name in reads if name in names)
    return tuple(Lifetime(name, 0, n) for name, n in last.items())


def buffers_counted(
    buffers: Sequence[Buffer], inputs: Sequence[Input], released: Collection[str]
) -> list[Buffer]:
    """Return the buffers of a plan's memory: those it creates, and parameters that are
    `released`."""
    names = frozenset(released)
    parameters = (i.buffer for i in inputs if isinstance(i, TensorInput))
    return [*buffers, *(b for b in parameters if b.name in names)]


def sizes_of_buffers(buffers: Sequence[Buffer], facts: ShapeFacts) -> dict[str, int]:
    """Return the size of each buffer in bytes by name, for typical symbol values."""
    return {b.name: guessed_bytes(b, facts) for b in buffers}


def occupied_by(lives: Sequence[Lifetime], sizes: Mapping[str, int], nodes: int) -> list[int]:
    """Return the bytes of the created buffers during each of `nodes` nodes and the end. A pair of
    buffers that share storage in place during one node counts once."""
    last = {life.buffer: life.last for life in lives}
    change = [0] * (nodes + 2)
    for life in lives:
        size = sizes[life.buffer]
        shared = life.reuses is not None and last[life.reuses] == life.first
        change[life.first + 1 if shared else life.first] += size
        change[life.last + 1] -= size
    return list(accumulate(change[:-1]))


def peak_at(lives: Sequence[Lifetime], sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the peak memory of the created buffers in bytes, and the first node that reaches
    it."""
    occupied = occupied_by(lives, sizes, max((life.last for life in lives), default=0))
    most = max(occupied, default=0)
    return most, occupied.index(most)


def needs(schedule: Schedule, released: Collection[str] = ()) -> int:
    """Return the peak memory of a schedule in bytes, for typical symbol values; with that of the
    parameters that are `released` after their last read."""
    inputs = lives_of_inputs(map(touched, schedule.nodes), released)
    counted = buffers_counted(schedule.buffers, schedule.inputs, released)
    sizes = sizes_of_buffers(counted, schedule.facts)
    return peak_at((*schedule.lifetimes, *inputs), sizes)[0]


def program_peak(program: LoopProgram, released: Collection[str] = ()) -> int:
    """Return the peak memory in bytes of running a program operation by operation, as eager
    execution does; with that of the parameters that are `released` after their last read."""
    accesses = (access(op, {}) for op in program.operations)
    uses = [(a.reads, a.writes) for a in accesses]
    lives = lifetimes(program.operations, uses, program.buffers, program.outputs)
    counted = buffers_counted(program.buffers, program.inputs, released)
    sizes = sizes_of_buffers(counted, program.facts)
    return peak_at((*lives, *lives_of_inputs(uses, released)), sizes)[0]


def allocated(node: ScheduleNode, buffer: str) -> bool:
    """Return whether the host, not the callee, allocates a buffer that a node creates."""
    if isinstance(node, RepeatOp):
        return buffer in node.stacks
    if isinstance(node, Extern):
        return node.out is not None
    return isinstance(node, (Kernel, Template, DeviceCopy))


def _owned(node: ScheduleNode, buffer: str) -> bool:
    """Return whether the program exclusively owns the storage of a buffer that a node creates, so
    that other buffers may reuse it. Library calls return fresh storage; other callees may retain a
    reference to their results."""
    if isinstance(node, Extern) and node.out is None:
        return node.target.startswith(_LIBRARIES) and node.reason == "library" and not node.mutates
    return allocated(node, buffer)


@define(eq=False)
class _FreeStorages:
    """Storages that are free for reuse, by device and size.

    A storage that waits for its reuse occupies memory. It is given back instead if the program
    would need more than its peak of `most` bytes otherwise.
    """

    occupied: list[int]
    """The bytes in use during each node."""
    most: int
    free: dict[tuple[Device, Expr], list[tuple[str, int]]] = field(factory=dict)
    """Storages, and the node after which each is free, in this order."""

    def release(self, buffer: Buffer, size: Expr, node: int) -> None:
        self.free.setdefault((buffer.device, size), []).append((buffer.name, node))

    def acquire(self, buffer: Buffer, size: Expr, guess: int, node: int) -> str | None:
        """Return a storage for a buffer that `node` creates, of about `guess` bytes, or None."""
        storages = self.free.get((buffer.device, size))
        if not storages:
            return None
        name, last = storages.pop()
        waiting = range(last + 1, node)
        if len(waiting) > LONGEST_WAIT or any(
            self.occupied[n] + guess > self.most for n in waiting
        ):
            storages.clear()  # those that have been free for longer
            return None
        for n in waiting:
            self.occupied[n] += guess
        return name


def with_reuse(
    lives: Sequence[Lifetime],
    nodes: Sequence[ScheduleNode],
    buffers: Mapping[str, Buffer],
    guesses: Mapping[str, int],
    inputs: Sequence[Lifetime] = (),
) -> tuple[Lifetime, ...]:
    """Return lifetimes in which buffers reuse storages of equal size: in place, if a kernel reads
    each element of a dying buffer just before it writes the same address, else that of a buffer
    that is already dead, unless the storage would increase the peak until then. `guesses` are the
    typical sizes of the buffers in bytes, and of the `inputs`, whose storage is counted, but not
    reused."""
    births: dict[int, list[int]] = {}
    deaths: dict[int, list[int]] = {}
    for n, life in enumerate(lives):
        births.setdefault(life.first, []).append(n)
        deaths.setdefault(life.last, []).append(n)
    sizes = {life.buffer: bytes_of(buffers[life.buffer]) for life in lives}
    result = list(lives)
    released: list[list[str]] = []
    for n, node in enumerate(nodes):
        dying = [
            lives[d].buffer
            for d in deaths.get(n, ())
            if lives[d].first < n and _owned(nodes[lives[d].first], lives[d].buffer)
        ]
        for b in births.get(n, ()):
            buffer = buffers[lives[b].buffer]
            source = None
            if isinstance(node, Kernel):
                source = _in_place(node, buffer, dying, buffers, sizes)
            elif isinstance(node, Extern) and allocated(node, buffer.name):
                source = _added_to(node, buffer, dying, buffers)
            if source is not None:
                dying.remove(source)
                result[b] = evolve(lives[b], reuses=source)
        brief = (lives[d].buffer for d in deaths.get(n, ()) if lives[d].first == n)
        released.append([*dying, *(name for name in brief if _owned(node, name))])
    occupied = occupied_by((*result, *inputs), guesses, len(nodes))
    storages = _FreeStorages(occupied, max(occupied, default=0))
    for n, node in enumerate(nodes):
        for b in births.get(n, ()):
            name = lives[b].buffer
            if result[b].reuses is None and allocated(node, name):
                source = storages.acquire(buffers[name], sizes[name], guesses[name], n)
                if source is not None:
                    result[b] = evolve(lives[b], reuses=source)
        for name in released[n]:
            storages.release(buffers[name], sizes[name], n)
    return tuple(result)


def in_place(
    node: ScheduleNode, created: Collection[str], buffers: Mapping[str, Buffer]
) -> dict[str, str]:
    """Return which of the buffers that the program has `created` a kernel can write in the storage
    of which others that it reads, provided that these have no later use."""
    if not isinstance(node, Kernel):
        return {}
    written = [x for x in node.writes if x in created]
    dying = [x for x in node.reads if x in created and x not in written]
    sizes = {x: bytes_of(buffers[x]) for x in (*dying, *written)}
    result: dict[str, str] = {}
    for name in written:
        source = _in_place(node, buffers[name], dying, buffers, sizes)
        if source is not None:
            dying.remove(source)
            result[name] = source
    return result


def with_results_in_place(
    lives: Sequence[Lifetime], pairs: Sequence[Mapping[str, str]]
) -> list[Lifetime]:
    """Return lifetimes in which buffers reuse the storage of those that end when they begin, if
    `in_place` has that for the node."""
    last = {life.buffer: life.last for life in lives}
    result: list[Lifetime] = []
    for life in lives:
        source = pairs[life.first].get(life.buffer)
        shares = source is not None and last[source] == life.first
        result.append(evolve(life, reuses=source) if shares else life)
    return result


def _added_to(
    call: Extern, buffer: Buffer, dying: Sequence[str], buffers: Mapping[str, Buffer]
) -> str | None:
    """Return the dying buffer that a call accumulates into, or None."""
    name = call.accumulator
    if name is None or name not in dying:
        return None
    first, old = call.args[0], buffers[name]
    full_view = TensorRef(name, buffer.dtype, buffer.shape, buffer.strides, ZERO)
    same = first == full_view and (old.dtype, old.shape, old.strides, old.device) == (
        buffer.dtype, buffer.shape, buffer.strides, buffer.device,
    )  # fmt: skip
    return name if same else None


def _in_place(
    kernel: Kernel,
    buffer: Buffer,
    dying: Sequence[str],
    buffers: Mapping[str, Buffer],
    sizes: Mapping[str, Expr],
) -> str | None:
    """Return a dying buffer of which each element is last read by the iteration that then writes
    the same address of `buffer`, or None."""
    size = sizes[buffer.name]
    options = [
        x
        for x in dying
        if sizes[x] is size
        and buffers[x].dtype is buffer.dtype
        and buffers[x].device == buffer.device
    ]
    if not options:
        return None
    accesses = [s for s in kernel.statements if isinstance(s, Load | Store)]
    stores = [k for k, s in enumerate(accesses) if s.buffer == buffer.name and isinstance(s, Store)]
    if len(stores) != 1:
        return None
    (last,) = stores
    stored = accesses[last]
    if not isinstance(stored, Store) or stored.mode is not StoreMode.SET or stored.mask is not None:
        return None
    for x in options:
        uses = [(k, s) for k, s in enumerate(accesses) if s.buffer == x]
        if all(isinstance(s, Load) and k < last and s.index is stored.index for k, s in uses):
            return x
    return None
