"""Buffer lifetimes, and which buffers can share storage."""

from collections.abc import Mapping, Sequence

from attrs import define, field

from gyrator_ir.body.nodes import Load, Store, StoreMode
from gyrator_ir.expr import ONE, ZERO, Const, Expr, ShapeFacts, sum_of
from gyrator_ir.kernel.nodes import Kernel, Lifetime, Schedule, ScheduleNode
from gyrator_ir.loop.nodes import (
    Buffer,
    CollectiveCall,
    CollectiveWait,
    DeviceCopy,
    Extern,
    LoopProgram,
    Output,
    RepeatOp,
    Template,
    TensorRef,
)
from gyrator_ir.types import Device
from gyrator_scheduler.access import access
from gyrator_scheduler.fusion.axes import guess


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


def sizes_of_buffers(buffers: Sequence[Buffer], facts: ShapeFacts) -> dict[str, int]:
    """Return the size of each buffer in bytes by name, for typical symbol values."""
    return {b.name: guessed_bytes(b, facts) for b in buffers}


def peak_at(lives: Sequence[Lifetime], sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the peak memory of the created buffers in bytes, and the first node that reaches it. A
    pair of buffers that share storage in place during one node counts once."""
    last = {life.buffer: life.last for life in lives}
    change: dict[int, int] = {}
    for life in lives:
        size = sizes[life.buffer]
        shared = life.reuses is not None and last[life.reuses] == life.first
        start = life.first + 1 if shared else life.first
        change[start] = change.get(start, 0) + size
        change[life.last + 1] = change.get(life.last + 1, 0) - size
    most = now = position = 0
    for n in sorted(change):
        now += change[n]
        if now > most:
            most, position = now, n
    return most, position


def needs(schedule: Schedule) -> int:
    """Return the peak memory of a schedule in bytes, for typical symbol values."""
    return peak_at(schedule.lifetimes, sizes_of_buffers(schedule.buffers, schedule.facts))[0]


def program_peak(program: LoopProgram) -> int:
    """Return the peak memory in bytes of running a program operation by operation, as eager
    execution does."""
    accesses = (access(op, {}) for op in program.operations)
    uses = [(a.reads, a.writes) for a in accesses]
    lives = lifetimes(program.operations, uses, program.buffers, program.outputs)
    return peak_at(lives, sizes_of_buffers(program.buffers, program.facts))[0]


def allocated(node: ScheduleNode, buffer: str) -> bool:
    """Return whether the host, not the callee, allocates a buffer that a node creates."""
    if isinstance(node, RepeatOp):
        return buffer in node.stacks
    if isinstance(node, Extern):
        return node.out is not None
    return isinstance(node, (Kernel, Template, DeviceCopy))


def _owned(node: ScheduleNode, buffer: str) -> bool:
    """Return whether the program exclusively owns the storage of a buffer that a node creates, so
    that other buffers may reuse it. Library calls to ATen return fresh storage; other callees may
    retain a reference to their results."""
    if isinstance(node, Extern) and node.out is None:
        return node.target.startswith("aten.") and node.reason == "library" and not node.mutates
    return allocated(node, buffer)


@define(eq=False)
class _FreeStorages:
    """Storages that are free for reuse, by device and size."""

    free: dict[tuple[Device, Expr], list[str]] = field(factory=dict)

    def release(self, buffer: Buffer, size: Expr) -> None:
        self.free.setdefault((buffer.device, size), []).append(buffer.name)

    def acquire(self, buffer: Buffer, size: Expr) -> str | None:
        names = self.free.get((buffer.device, size))
        return names.pop() if names else None


def with_reuse(
    lives: Sequence[Lifetime], nodes: Sequence[ScheduleNode], buffers: Mapping[str, Buffer]
) -> tuple[Lifetime, ...]:
    """Return lifetimes in which buffers reuse storages of equal size: in place, if a kernel reads
    each element of a dying buffer just before it writes the same address, else that of a buffer
    that is already dead."""
    births: dict[int, list[int]] = {}
    deaths: dict[int, list[int]] = {}
    for n, life in enumerate(lives):
        births.setdefault(life.first, []).append(n)
        deaths.setdefault(life.last, []).append(n)
    sizes = {life.buffer: bytes_of(buffers[life.buffer]) for life in lives}
    result = list(lives)
    storages = _FreeStorages()
    for n, node in enumerate(nodes):
        dying = [
            lives[d].buffer
            for d in deaths.get(n, ())
            if lives[d].first < n and _owned(nodes[lives[d].first], lives[d].buffer)
        ]
        for b in births.get(n, ()):
            buffer = buffers[lives[b].buffer]
            if not allocated(node, buffer.name):
                continue
            source = None
            if isinstance(node, Kernel):
                source = _in_place(node, buffer, dying, buffers, sizes)
            elif isinstance(node, Extern):
                source = _added_to(node, buffer, dying, buffers)
            if source is not None:
                dying.remove(source)
            else:
                source = storages.acquire(buffer, sizes[buffer.name])
            if source is not None:
                life = lives[b]
                result[b] = Lifetime(life.buffer, life.first, life.last, source)
        for name in dying:
            storages.release(buffers[name], sizes[name])
        for d in deaths.get(n, ()):
            name = lives[d].buffer
            if lives[d].first == n and _owned(node, name):
                storages.release(buffers[name], sizes[name])
    return tuple(result)


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
    stored: Store | None = None
    clean = set(options)
    loads: dict[str, list[Load]] = {}
    for stage in kernel.stages:
        for s in stage.body:
            if isinstance(s, Load) and s.buffer in clean:
                if stored is not None:
                    clean.discard(s.buffer)
                loads.setdefault(s.buffer, []).append(s)
            elif isinstance(s, Store):
                if s.buffer in clean:
                    clean.discard(s.buffer)
                if s.buffer == buffer.name:
                    if stored is not None or s.mode is not StoreMode.SET or s.mask is not None:
                        return None
                    stored = s
    if stored is None:
        return None
    for x in options:
        if x in clean and all(s.index is stored.index for s in loads.get(x, ())):
            return x
    return None
