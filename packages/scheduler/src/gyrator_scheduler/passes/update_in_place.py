"""`update-in-place`: update a tensor itself instead of a copy of it.

A functional graph updates a part of a tensor as a copy, a store to a part of the copy, and, if the
tensor is an input, a copy back. Where nothing needs the old values afterwards, the part alone is
stored: a cache of keys and values is not copied for each token.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import evolve, field

from gyrator_ir.body.nodes import Let, Load, Store, StoreMode
from gyrator_ir.body.rewrite import renamed
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import ONE, ZERO, Expr, ShapeFacts, Sym
from gyrator_ir.loop.nodes import (
    Buffer,
    Extern,
    LoopOperation,
    LoopProgram,
    Operation,
    Pointwise,
    Template,
    TensorInput,
    TensorRef,
    UserTritonKernel,
)
from gyrator_ir.loop.rewrite import on_buffers
from gyrator_ir.loop.uses import results_of
from gyrator_scheduler.access import access
from gyrator_scheduler.passes.inlining.masks import MaskBounds
from gyrator_scheduler.passes.rewriting import each_subprogram


@frozen
class UpdateInPlace:
    """Merge a tensor with the copy of it that is updated, if nothing needs the old values later,
    and an input with the tensor that is copied back to it. Of a tensor whose slice is replaced,
    only the slice is stored."""

    name: ClassVar[str] = "update-in-place"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with fewer copies, including subprograms."""
        buffers = {b.name: b for b in program.all_buffers}
        copies = [
            (index, *pair)
            for index, op in enumerate(program.operations)
            if (pair := _copy(op, buffers)) is not None
        ]
        merged = _Merger.of(program, buffers).merged(copies) if copies else program
        return each_subprogram(merged, self.run)


@define(eq=False)
class _Uses:
    """The positions of the operations that use a buffer, ascending."""

    reads: list[int] = field(factory=list)
    writes: list[int] = field(factory=list)
    fixed: bool = False
    """A call creates the buffer, or may return it: its results may share memory with others."""

    @property
    def first(self) -> int:
        return min(self.reads[:1] + self.writes[:1])

    @property
    def last(self) -> int:
        return max(self.reads[-1:] + self.writes[-1:])


@define(eq=False)
class _Merger:
    program: LoopProgram
    buffers: dict[str, Buffer]
    created: set[str]
    returned: set[str]
    uses: dict[str, _Uses]
    names: dict[str, str] = field(factory=dict)
    """The buffer that each merged buffer becomes."""

    @classmethod
    def of(cls, program: LoopProgram, buffers: dict[str, Buffer]) -> "_Merger":
        uses: dict[str, _Uses] = {}
        for index, op in enumerate(program.operations):
            accesses = access(op, {})
            for name in accesses.reads:
                uses.setdefault(name, _Uses()).reads.append(index)
            for name in accesses.writes:
                uses.setdefault(name, _Uses()).writes.append(index)
            if isinstance(op, LoopOperation):
                continue
            plain = isinstance(op, Extern | Template | UserTritonKernel)
            for name in results_of(op) if plain else (*accesses.reads, *accesses.writes):
                uses[name].fixed = True
        returned = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
        return cls(program, buffers, {b.name for b in program.buffers}, returned, uses)

    def merged(self, copies: Sequence[tuple[int, str, str]]) -> LoopProgram:
        """Return the program with the given copies of whole tensors merged where possible."""
        for index, source, copy in copies:
            if self._copy_is_the_last_use(index, source, copy):
                self._merge(copy, self.names.get(source, source))
        inputs = {
            i.buffer.name
            for i in self.program.inputs
            if isinstance(i, TensorInput) and not i.packed
        }
        for index, copy, target in copies:
            copy = self.names.get(copy, copy)
            if target in inputs and self._replaces(index, copy, target):
                self._merge(copy, target)
        return self._renamed() if self.names else self.program

    def _copy_is_the_last_use(self, index: int, source: str, copy: str) -> bool:
        """Return whether an updated copy may take the memory of what it is a copy of."""
        source = self.names.get(source, source)
        if not self.created >= {source, copy} or source in self.returned:
            return False
        old, new = self.uses[source], self.uses[copy]
        if old.fixed or new.fixed or len(new.writes) == 1:
            return False
        return old.last == index == new.first

    def _replaces(self, index: int, copy: str, target: str) -> bool:
        """Return whether the tensor that is copied to an input at the end can be computed in the
        input's memory instead."""
        if copy not in self.created or copy in self.returned:
            return False
        old, new = self.uses[target], self.uses[copy]
        if old.fixed or new.fixed or old.writes != [index] or not new.writes:
            return False
        start = new.writes[0]
        op = self.program.operations[start]
        if new.writes[-1] > index or any(start < r < index for r in old.reads):
            return False
        if not isinstance(op, LoopOperation):
            return False
        updates = start in old.reads
        if updates and not (isinstance(op, Pointwise) and _reads_what_it_stores(op, target)):
            return False
        if len(new.writes) > 1 or any(
            not isinstance(self.program.operations[r], LoopOperation) for r in new.reads
        ):
            return True
        return isinstance(op, Pointwise) and bool(_replaced(op, target, self.program.facts))

    def _merge(self, one: str, into: str) -> None:
        for name, target in self.names.items():
            if target == one:
                self.names[name] = into
        self.names[one] = into
        for kind in ("reads", "writes"):
            both = {*getattr(self.uses[into], kind), *getattr(self.uses[one], kind)}
            setattr(self.uses[into], kind, sorted(both))
        if one in self.returned:
            self.returned.add(into)

    def _renamed(self) -> LoopProgram:
        operations: list[Operation] = []
        for op in self.program.operations:
            new = on_buffers(op, self.names)
            if new is op:
                operations.append(op)
                continue
            pair = _copy(new, self.buffers)
            if pair is not None and pair[0] == pair[1]:
                continue
            operations.append(_narrowed(new, self.program.facts))
        return evolve(
            self.program,
            operations=tuple(operations),
            buffers=tuple(b for b in self.program.buffers if b.name not in self.names),
            outputs=tuple(
                evolve(o, buffer=self.names.get(o.buffer, o.buffer))
                if isinstance(o, TensorRef)
                else o
                for o in self.program.outputs
            ),
        )


def _copy(op: Operation, buffers: Mapping[str, Buffer]) -> tuple[str, str] | None:
    """Return the source and the target of an operation that copies a whole tensor to one of the
    same layout, or None."""
    if not isinstance(op, Pointwise) or len(op.body) != 2:
        return None
    load, store = op.body
    if not isinstance(load, Load) or not isinstance(store, Store):
        return None
    plain = load.mask is None and store.mask is None and store.mode is StoreMode.SET
    if not plain or load.index is not store.index or store.value != load.name:
        return None
    source, target = buffers[load.buffer], buffers[store.buffer]
    if evolve(source, name=target.name) != target:
        return None
    whole = target.parts
    dims = [(n, s) for n, s in zip(whole.shape, whole.strides, strict=True) if n is not ONE]
    if [a.extent for a in op.axes if a.extent is not ONE] != [n for n, _ in dims]:
        return None
    symbols = (a.symbol for a in op.axes if a.extent is not ONE)
    address = sum((i * s for i, (_, s) in zip(symbols, dims, strict=True)), ZERO)
    return (source.name, target.name) if address is store.index else None


def _reads_what_it_stores(op: Pointwise, target: str) -> bool:
    """Return whether each point loads only that element of a tensor which it stores to another."""
    stores = [s for s in op.body if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].mode is not StoreMode.SET:
        return False
    loads = (s for s in op.body if isinstance(s, Load) and s.buffer == target)
    return all(s.index is stores[0].index for s in loads)


def _replaced(op: Pointwise, target: str, facts: ShapeFacts) -> dict[Sym, tuple[Expr, Expr]]:
    """Return the ranges of axes outside of which an operation stores elements of a tensor to the
    addresses that they have."""
    (store,) = (s for s in op.body if isinstance(s, Store))
    values = {s.name: s for s in op.body if isinstance(s, Let | Load)}
    match values.get(store.value):
        case Let(op="where", args=(mask, _, other)):
            old = values.get(other)
        case _:
            return {}
    if not isinstance(old, Load) or old.buffer != target or old.mask is not None:
        return {}
    if old.index is not store.index:
        return {}
    bounds = MaskBounds(op.body).of(mask)
    ranges: dict[Sym, tuple[Expr, Expr]] = {}
    for a in op.axes:
        if a.symbol not in bounds:
            continue
        low, high = bounds[a.symbol]
        start, end = ZERO if low is None else low, a.extent if high is None else high
        if all(map(facts.known_nonnegative, (start, a.extent - end, end - start))):
            ranges[a.symbol] = start, end
    return ranges


def _narrowed(op: Operation, facts: ShapeFacts) -> Operation:
    """Return an operation without the points that store what is there already."""
    if not isinstance(op, Pointwise) or sum(isinstance(s, Store) for s in op.body) != 1:
        return op
    (store,) = (s for s in op.body if isinstance(s, Store))
    ranges = _replaced(op, store.buffer, facts)
    if not ranges:
        return op
    axes = (
        evolve(a, extent=ranges[a.symbol][1] - ranges[a.symbol][0]) if a.symbol in ranges else a
        for a in op.axes
    )
    moved = {symbol: symbol + start for symbol, (start, _) in ranges.items()}
    return evolve(op, axes=tuple(axes), body=tuple(renamed(s, {}, moved) for s in op.body))
