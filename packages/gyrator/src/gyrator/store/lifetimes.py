"""The memory that a host program allocates: sizes, lifetimes, and the tensors stored in it."""

from collections.abc import Iterable, Sequence
from math import prod

from attrs import field

from gyrator.reports.records import StorageRecord
from gyrator_ir.define import define
from gyrator_ir.expr import Expr, ShapeFacts
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import bodies, uses
from gyrator_ir.types import Device, DType

_STEPS = (h.Launch, h.ExternCall, h.TritonLaunch, h.Copy, h.CollectiveStart)


def storages(host: h.HostProgram) -> tuple[StorageRecord, ...]:
    """Return the allocations of a program, excluding its subprograms, in order."""
    walk = _Analysis(host.facts)
    walk.run(host.instructions)
    return walk.finished()


@define
class _Storage:
    """An allocation while the program is analysed."""

    bytes: int
    device: Device
    first: int
    last: int
    owners: list[str] = field(factory=list)
    pool: bool = False
    nodes: dict[str, None] = field(factory=dict)


@define
class _Analysis:
    """Simulates the instructions in order."""

    facts: ShapeFacts
    step: int = 0
    allocations: list[_Storage] = field(factory=list)
    storages: dict[str, _Storage] = field(factory=dict)
    """The storage of each tensor name."""

    def run(self, instructions: Iterable[h.Instruction]) -> None:
        """Process a sequence of instructions."""
        for instruction in instructions:
            self._process(instruction)
            for body in bodies(instruction):
                self.run(body)

    def _process(self, instruction: h.Instruction) -> None:
        match instruction:
            case h.Allocate(name=name, device=device, dtype=dtype, shape=shape, strides=strides):
                self._new(name, strided_bytes(dtype, shape, strides, self.facts), device)
            case h.AllocatePool(name=name, bytes=count, device=device):
                self._new(name, hinted(count, self.facts), device, pool=True)
            case h.AllocateFromPool(name=name, pool=source) | h.Reuse(name=name, source=source):
                self._share(name, source)
            case h.View(name=name, source=source):
                if source in self.storages:
                    self.storages[name] = self.storages[source]
            case h.Free() | h.Return():
                for name in uses(instruction):
                    if name in self.storages and isinstance(instruction, h.Return):
                        self.storages[name].last = self.step
            case _ if isinstance(instruction, _STEPS):
                self._touch(instruction)
                self.step += 1

    def _new(self, name: str, size: int, device: Device, pool: bool = False) -> None:
        storage = _Storage(size, device, self.step, self.step, [] if pool else [name], pool)
        self.allocations.append(storage)
        self.storages[name] = storage

    def _share(self, name: str, source: str) -> None:
        if source in self.storages:
            self.storages[name] = self.storages[source]
            self.storages[name].owners.append(name)

    def _touch(self, instruction: h.Instruction) -> None:
        user = instruction.kernel if isinstance(instruction, h.Launch | h.TritonLaunch) else ""
        user = user or getattr(instruction, "target", "") or "copy"
        for name in uses(instruction):
            if name in self.storages:
                self.storages[name].last = self.step
                self.storages[name].nodes[user] = None

    def finished(self) -> tuple[StorageRecord, ...]:
        """Return the records of the allocations."""
        return tuple(
            StorageRecord(
                s.bytes, str(s.device), s.first, s.last, tuple(s.owners), tuple(s.nodes), s.pool
            )
            for s in self.allocations
        )


def hinted(value: Expr, facts: ShapeFacts) -> int:
    """Return the value of an expression for the size hints; 1 if it has none."""
    hint = facts.hint(value)
    return 1 if hint is None else hint


def strided_bytes(
    dtype: DType, shape: Sequence[Expr], strides: Sequence[Expr], facts: ShapeFacts
) -> int:
    """Return the bytes of the elements of a tensor, counting broadcast elements once."""
    pairs = zip(shape, strides, strict=True)
    return dtype.size * prod(hinted(n, facts) for n, s in pairs if facts.hint(s) != 0)
