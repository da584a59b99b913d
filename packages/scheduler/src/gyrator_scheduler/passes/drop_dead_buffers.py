"""`drop-dead-buffers`: eliminate dead stores, operations and buffers."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from attrs import evolve

from gyrator_ir.body.nodes import Bind, Store
from gyrator_ir.body.rewrite import live
from gyrator_ir.define import frozen
from gyrator_ir.expr import Sym, SymKind
from gyrator_ir.loop.nodes import (
    Buffer,
    Extern,
    LoopOperation,
    LoopProgram,
    Operation,
    Reduction,
    Scan,
    Sort,
    TensorRef,
)
from gyrator_scheduler.access import access
from gyrator_scheduler.dependences import has_effects
from gyrator_scheduler.passes.rewriting import each_subprogram


@frozen
class DropDeadBuffers:
    """Eliminate stores to buffers that are neither read nor output, then operations without stores,
    side effects or checks, then dead statements, then unused buffers. A call is kept if its results
    determine an unbacked size."""

    name: ClassVar[str] = "drop-dead-buffers"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program without dead code, including subprograms."""
        return each_subprogram(self._without_dead(program), self.run)

    def _without_dead(self, program: LoopProgram) -> LoopProgram:
        created = {b.name: b for b in program.buffers}
        needed = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
        operations: list[Operation] = []
        changed = False
        for op in reversed(program.operations):
            accesses = access(op, {})
            new: Operation | None = op
            if isinstance(op, LoopOperation):
                dead = {b for b in accesses.writes if b in created and b not in needed}
                new = _without(op, dead) if dead else op
                if new is not None and new is not op:
                    accesses = access(new, {})
            elif isinstance(op, Extern) and not (has_effects(op) or op.mutates or accesses.defines):
                unread = needed.isdisjoint(accesses.writes)
                new = None if unread and not _determines_size(created, accesses.writes) else op
            changed = changed or new is not op
            if new is None:
                continue
            needed.update(accesses.reads)
            needed.update(accesses.writes)
            operations.append(new)
        if not changed and needed >= created.keys():
            return program
        return evolve(
            program,
            operations=tuple(reversed(operations)),
            buffers=tuple(b for b in program.buffers if b.name in needed),
        )


def _determines_size(buffers: Mapping[str, Buffer], names: Iterable[str]) -> bool:
    """Return whether one of these buffers has an unbacked symbol as a size."""
    sizes = (e for name in names if name in buffers for e in buffers[name].shape)
    return any(isinstance(e, Sym) and e.kind is SymKind.UNBACKED for e in sizes)


def _without(op: LoopOperation, dead: set[str]) -> LoopOperation | None:
    """Return the operation without stores to `dead` buffers and the statements that only they
    need; None if nothing remains."""
    if isinstance(op, (Reduction, Scan, Sort)):
        stores = tuple(s for s in op.stores if s.buffer not in dead)
        if stores:
            return op if len(stores) == len(op.stores) else evolve(op, stores=stores)
        if not any(isinstance(s, Bind) and s.check for s in op.body):
            return None
        return op
    body = live(s for s in op.body if not (isinstance(s, Store) and s.buffer in dead))
    if not any(isinstance(s, (Store, Bind)) for s in body):
        return None
    if not any(isinstance(s, Store) for s in body):
        return op
    return evolve(op, body=body)
