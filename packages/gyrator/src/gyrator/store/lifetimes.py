"""Which memory a host program takes, how much, from when to when, and what lies in it."""

from collections.abc import Iterable, Sequence
from math import prod

from attrs import define, field

from gyrator.reports.records import StorageRecord
from gyrator_ir.expr import Expr, ShapeFacts
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import bodies, uses
from gyrator_ir.types import Device, DType

_STEPS = (h.Launch, h.ExternCall, h.TritonLaunch, h.Copy, h.CollectiveStart)


def storages(host: h.HostProgram) -> tuple[StorageRecord, ...]:
    """Return what a program allocates, but for its subprograms, in order."""
    walk = _Walk(host.facts)
    walk.run(host.instructions)
    return walk.finished()


@define
class _Storage:
    """A stretch of memory while the program is read."""

    bytes: int
    device: Device
    first: int
    last: int
    owners: list[str] = field(factory=list)
    pool: bool = False
    nodes: dict[str, None] = field(factory=dict)


@define
class _Walk:
    """Goes through instructions as they run."""

    facts: ShapeFacts
    step: int = 0
    made: list[_Storage] = field(factory=list)
    held: dict[str, _Storage] = field(factory=dict)
    """The storage of each name."""

    def run(self, instructions: Iterable[h.Instruction]) -> None:
        """Read a sequence."""
        for instruction in instructions:
            self._one(instruction)
            for body in bodies(instruction):
                self.run(body)

    def _one(self, one: h.Instruction) -> None:
        match one:
            case h.Allocate(name=name, device=device, dtype=dtype, shape=shape, strides=strides):
                self._new(name, strided_bytes(dtype, shape, strides, self.facts), device)
            case h.AllocatePool(name=name, bytes=count, device=device):
                self._new(name, guessed(count, self.facts), device, pool=True)
            case h.AllocateFromPool(name=name, pool=source) | h.Reuse(name=name, source=source):
                self._share(name, source)
            case h.View(name=name, source=source):
                if source in self.held:
                    self.held[name] = self.held[source]
            case h.Free() | h.Return():
                for name in uses(one):
                    if name in self.held and isinstance(one, h.Return):
                        self.held[name].last = self.step
            case _ if isinstance(one, _STEPS):
                self._touch(one)
                self.step += 1

    def _new(self, name: str, size: int, device: Device, pool: bool = False) -> None:
        storage = _Storage(size, device, self.step, self.step, [] if pool else [name], pool)
        self.made.append(storage)
        self.held[name] = storage

    def _share(self, name: str, source: str) -> None:
        if source in self.held:
            self.held[name] = self.held[source]
            self.held[name].owners.append(name)

    def _touch(self, one: h.Instruction) -> None:
        what = one.kernel if isinstance(one, h.Launch | h.TritonLaunch) else ""
        what = what or getattr(one, "target", "") or "copy"
        for name in uses(one):
            if name in self.held:
                self.held[name].last = self.step
                self.held[name].nodes[what] = None

    def finished(self) -> tuple[StorageRecord, ...]:
        """Return what was found."""
        return tuple(
            StorageRecord(
                s.bytes, str(s.device), s.first, s.last, tuple(s.owners), tuple(s.nodes), s.pool
            )
            for s in self.made
        )


def guessed(value: Expr, facts: ShapeFacts) -> int:
    """Return an expression with sizes at their hints; 1 where one has none."""
    found = facts.hint(value)
    return 1 if found is None else found


def strided_bytes(
    dtype: DType, shape: Sequence[Expr], strides: Sequence[Expr], facts: ShapeFacts
) -> int:
    """Return the bytes of the elements of a tensor, broadcast ones counted once."""
    pairs = zip(shape, strides, strict=True)
    return dtype.size * prod(guessed(n, facts) for n, s in pairs if facts.hint(s) != 0)
