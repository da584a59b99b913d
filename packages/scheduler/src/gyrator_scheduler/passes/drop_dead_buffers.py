"""`drop-dead-buffers`: remove what nobody reads."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_ir.body.nodes import Bind, Store
from gyrator_ir.body.rewrite import live
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
from gyrator_scheduler.access import LOOPS, access
from gyrator_scheduler.dependences import has_effects
from gyrator_scheduler.passes.rewriting import each_subprogram


@frozen
class DropDeadBuffers:
    """Remove stores to buffers that no operation reads and no output shows, then operations without
    stores, effects or checks, then statements that feed nothing, then unused buffers. A call stays
    if its results have sizes that nothing else determines."""

    name: ClassVar[str] = "drop-dead-buffers"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program without dead work, subprograms included."""
        return each_subprogram(self._one(program), self.run)

    def _one(self, program: LoopProgram) -> LoopProgram:
        created = {b.name: b for b in program.buffers}
        needed = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
        kept: list[Operation] = []
        changed = False
        for op in reversed(program.operations):
            found = access(op, {})
            new: Operation | None = op
            if isinstance(op, LOOPS):
                dead = {b for b in found.writes if b in created and b not in needed}
                new = _without(op, dead) if dead else op
                if new is not None and new is not op:
                    found = access(new, {})
            elif isinstance(op, Extern) and not (has_effects(op) or op.mutates or found.defines):
                unread = needed.isdisjoint(found.writes)
                new = None if unread and not _tells(created, found.writes) else op
            changed = changed or new is not op
            if new is None:
                continue
            needed.update(found.reads)
            needed.update(found.writes)
            kept.append(new)
        if not changed and needed >= created.keys():
            return program
        return evolve(
            program,
            operations=tuple(reversed(kept)),
            buffers=tuple(b for b in program.buffers if b.name in needed),
        )


def _tells(buffers: Mapping[str, Buffer], names: Iterable[str]) -> bool:
    """Whether a size of one of these buffers is a number that a call determines."""
    sizes = (e for name in names if name in buffers for e in buffers[name].shape)
    return any(isinstance(e, Sym) and e.kind is SymKind.UNBACKED for e in sizes)


def _without(op: LoopOperation, dead: set[str]) -> LoopOperation | None:
    """Return the operation without stores to `dead` buffers and what fed them, or None if nothing
    is left of it."""
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
