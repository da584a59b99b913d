"""Choice of the producers to inline into their readers."""

from collections.abc import Mapping, Sequence

from attrs import field

from gyrator_ir.body.nodes import Axis, Bind, IndexValue, Let, Load, ReduceKind, Store, StoreMode
from gyrator_ir.body.ops import OPS
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import ONE, Expr, Sym, stride_of, subs
from gyrator_ir.loop.contraction import roles
from gyrator_ir.loop.nodes import (
    LoopOperation,
    LoopProgram,
    Operation,
    Pointwise,
    Reduction,
    TensorRef,
)
from gyrator_ir.loop.uses import inner_of, statements_of
from gyrator_scheduler.access import access, is_indirect
from gyrator_scheduler.fusion.axes import space
from gyrator_scheduler.memory import guessed_bytes
from gyrator_scheduler.passes.inlining.masks import Bounds, MaskBounds, solve_within
from gyrator_scheduler.ranges import Ranges, divides

EXPENSIVE = 10
"""Minimum cost of an op that is never recomputed."""
MAX_PADDING = 1.125
"""A reader with at most this many times the producer's points only pads it, at little extra
cost."""
MIN_COPY_REUSE = 64
"""A layout copy is stored if a reader has at least this many times its points."""
MAX_USES = 16
"""Maximum number of readers of an inlined value."""
Points = Mapping[Sym, Expr]


@frozen
class Producer:
    """A pointwise operation to inline into its readers."""

    op: Pointwise
    value: str
    """The name of the value that it stores."""
    uses: Mapping[tuple[int, Expr], Points]
    """For each reader (by program position) and address, its axes as expressions over the reader's
    axes."""


@define(eq=False)
class _Reader:
    """Uses of a buffer by one operation."""

    index: int
    addresses: dict[Expr, Bounds] = field(factory=dict)
    """The addresses of the loads, with the bounds of the mask of a load; empty bounds if loads of
    an address have different masks."""
    all_masked: bool = True
    """Whether every load is masked."""


@define(eq=False)
class _Weight:
    """Cost and accesses of an operation, including the producers inlined into it."""

    cost: int
    costliest: int
    loads: dict[str, None]
    size: int
    checks: bool
    """An index is checked, so that every point must be computed at least once."""


def choose(
    program: LoopProgram, cost: int, statements: int, keep_memory: bool
) -> dict[str, Producer]:
    """Return producers by the buffer that they store to, chosen in program order, so that the cost
    of a reader includes the producers inlined into it."""
    return _Chooser(program, cost, statements, keep_memory).run()


class _Chooser:
    """The choice for one program."""

    def __init__(self, program: LoopProgram, cost: int, statements: int, keep_memory: bool) -> None:
        self._cost, self._statements, self._keep_memory = cost, statements, keep_memory
        self._facts = program.facts
        self._ranges = Ranges(program.facts)
        self._buffers = {b.name: b for b in program.all_buffers}
        self._created = {b.name for b in program.buffers}
        self._operations = program.operations
        self._readers, self._blocked, self._mutable = _survey(program, self._created)
        self._weights = [_weight(op) for op in program.operations]

    def run(self) -> dict[str, Producer]:
        """Return the producers to inline."""
        producers: dict[str, Producer] = {}
        for op, weight in zip(self._operations, self._weights, strict=True):
            store = _only_store(op) if isinstance(op, Pointwise) else None
            if store is None or store.buffer in self._blocked or store.buffer not in self._created:
                continue
            assert isinstance(op, Pointwise)
            readers = self._readers.get(store.buffer, [])
            uses = self._uses(op, store, readers, weight)
            if not uses or not self._pays(op, store, readers, weight, len(uses)):
                continue
            producers[store.buffer] = Producer(op, store.value, uses)
            for r in readers:
                _absorb(self._weights[r.index], weight, store.buffer, len(r.addresses))
        return producers

    def _uses(
        self, op: Pointwise, store: Store, readers: Sequence[_Reader], weight: _Weight
    ) -> dict[tuple[int, Expr], Points] | None:
        """Return the producer's point for every use; None if it cannot be inlined."""
        if len(readers) > MAX_USES or not self._mutable.isdisjoint(weight.loads):
            return None
        uses = _uses(op, store, readers, self._operations, self._ranges)
        if uses and weight.checks and not _covered(op, readers, uses, self._operations):
            return None
        return uses

    def _pays(
        self, op: Pointwise, store: Store, readers: Sequence[_Reader], weight: _Weight, uses: int
    ) -> bool:
        """Return whether inlining saves time, extends no memory and keeps the readers small."""
        sizes = (self._weights[r.index].size + weight.size * len(r.addresses) for r in readers)
        if max(sizes) > self._statements:
            return False
        consumers = [self._operations[r.index] for r in readers]
        repeats = max(_repetition(op, reader) for reader in consumers)
        if all(r.all_masked for r in readers) and _cheap(weight, self._cost):
            repeats = 1  # masked-out points read no operands
        if not _worthwhile(weight, uses, repeats, self._cost):
            return False
        if weight.cost and any(_is_factor(op, reader) for reader in consumers):
            return False
        if any(_improves_layout(op, store, reader) for reader in consumers):
            return False
        needs_none = not self._keep_memory and uses == 1
        return needs_none or self._saves_memory(weight, store.buffer)

    def _saves_memory(self, weight: _Weight, buffer: str) -> bool:
        """Return whether the operands whose lifetimes are extended are no larger than the value."""
        extended = (n for n in weight.loads if n in self._created)
        longer = sum(guessed_bytes(self._buffers[n], self._facts) for n in extended)
        return longer <= guessed_bytes(self._buffers[buffer], self._facts)


def _survey(
    program: LoopProgram, created: set[str]
) -> tuple[dict[str, list[_Reader]], set[str], set[str]]:
    """Return the readers of each buffer, the buffers that must be in memory, and the buffers that
    are overwritten."""
    readers: dict[str, list[_Reader]] = {}
    blocked = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
    writes: dict[str, int] = {}
    for index, op in enumerate(program.operations):
        accesses = access(op, {})
        for name in accesses.writes:
            writes[name] = writes.get(name, 0) + 1
        if not isinstance(op, LoopOperation):
            blocked.update(accesses.reads)
            continue
        own_readers: dict[str, _Reader] = {}
        masks = MaskBounds(statements_of(op))
        for s in statements_of(op):
            if isinstance(s, Load):
                reader = own_readers.setdefault(s.buffer, _Reader(index))
                reader.all_masked = reader.all_masked and s.mask is not None
                addresses = reader.addresses
                bounds = masks.of(s.mask)
                if addresses.setdefault(s.index, bounds) != bounds:
                    addresses[s.index] = {}
                if s.buffer in accesses.writes:
                    blocked.add(s.buffer)
        for name, r in own_readers.items():
            readers.setdefault(name, []).append(r)
    mutable = {n for n, count in writes.items() if count > 1 or n not in created}
    return readers, blocked | {n for n in mutable if n in created}, mutable


def _only_store(op: Pointwise) -> Store | None:
    stores = [s for s in op.body if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].mode is not StoreMode.SET or stores[0].mask is not None:
        return None
    if is_indirect(stores[0].index):
        return None
    return stores[0]


def _weight(op: Operation) -> _Weight:
    if not isinstance(op, LoopOperation):
        return _Weight(0, 0, {}, 0, False)
    total = costliest = 0
    loads: dict[str, None] = {}
    checks = indirect = False
    body = statements_of(op)
    for s in body:
        price = 0
        if isinstance(s, Let):
            price = OPS[s.op].cost
        elif isinstance(s, Load):
            loads[s.buffer] = None
            if indirect and is_indirect(s.index):
                price = 3
        elif isinstance(s, Bind):
            indirect = True
            checks = checks or bool(s.check)
        total += price
        costliest = max(costliest, price)
    return _Weight(total, costliest, loads, len(body), checks)


def _uses(
    op: Pointwise,
    store: Store,
    readers: Sequence[_Reader],
    operations: Sequence[Operation],
    ranges: Ranges,
) -> dict[tuple[int, Expr], Points] | None:
    """Return the producer's point for every use, or None if one cannot be determined."""
    uses: dict[tuple[int, Expr], Points] = {}
    for r in readers:
        reader = operations[r.index]
        assert isinstance(reader, LoopOperation)
        around = (*reader.axes, *inner_of(reader))
        if len(reader.body) > len(r.addresses):
            bound = (s for s in reader.body if isinstance(s, Bind))
            around = (*around, *(Axis(s.symbol, s.size) for s in bound))
        for address, part in r.addresses.items():
            points = solve_within(store.index, op.axes, address, around, part, ranges)
            if points is None or not _adds_no_division(op, address, points):
                return None
            uses[r.index, address] = points
    return uses


def _adds_no_division(op: Pointwise, address: Expr, points: Points) -> bool:
    """Return whether inlining adds no integer division to addresses that had none.

    A view that merges axes adds divisions if the producer's operands have another layout than its
    result.
    """
    if divides(address) or not any(map(divides, points.values())):
        return True
    indices = (s.index for s in op.body if isinstance(s, Load))
    indices_used = (s.expr for s in op.body if isinstance(s, IndexValue))
    return not any(divides(subs(e, points)) for e in (*indices, *indices_used))


def _covered(
    op: Pointwise,
    readers: Sequence[_Reader],
    uses: Mapping[tuple[int, Expr], Points],
    operations: Sequence[Operation],
) -> bool:
    """Return whether some use computes every point of the producer, so that no check is lost."""
    for r in readers:
        reader = operations[r.index]
        assert isinstance(reader, LoopOperation)
        extents = {a.symbol: a.extent for a in (*reader.axes, *inner_of(reader))}
        masked = {s.index for s in reader.body if isinstance(s, Load) and s.mask is not None}
        for address in r.addresses:
            points = uses[r.index, address]
            axes = points_by_axis(op, points)
            expressions = [e for _, e in axes]
            covers = all(isinstance(e, Sym) and extents.get(e) is a.extent for a, e in axes)
            if covers and address not in masked and len(set(expressions)) == len(expressions):
                return True
    return False


def points_by_axis(op: Pointwise, points: Points) -> list[tuple[Axis, Expr]]:
    """Return the axes of extent other than 1, with their expressions at a use."""
    return [(a, points[a.symbol]) for a in op.axes if a.extent is not ONE]


def _repetition(op: Pointwise, reader: Operation) -> float:
    """Return the ratio of a reader's points to the producer's, for typical sizes."""
    assert isinstance(reader, LoopOperation)
    return space((*reader.axes, *inner_of(reader))) / max(space(op.axes), 1)


def _is_factor(op: Pointwise, reader: Operation) -> bool:
    """Return whether a reader is a matrix product that uses each value of a producer many times.

    Only free producers are inlined there: blocks of factors are loaded into matrix units directly
    from memory, and the producer is better fused with the kernel that computes its operands.
    """
    return isinstance(reader, Reduction) and _repetition(op, reader) > 1 and _multiplies(reader)


def _multiplies(op: Reduction) -> bool:
    """Return whether an operation is a matrix product."""
    return roles(op.axes, op.body, op.reduce) is not None


def _improves_layout(op: Pointwise, store: Store, reader: Operation) -> bool:
    """Return whether a producer is a layout copy whose values a reader uses many times.

    The reader is a dot product that is not a matrix product: neighbouring points read neighbouring
    factors, and factors that are not contiguous cost a cache line each.
    """
    loads = [s for s in op.body if isinstance(s, Load)]
    if len(loads) != 1 or not isinstance(reader, Reduction):
        return False
    if reader.reduce.kind is not ReduceKind.DOT or _multiplies(reader):
        return False
    moved = any(
        stride_of(store.index, a.symbol) is ONE and stride_of(loads[0].index, a.symbol) is not ONE
        for a in op.axes
    )
    return moved and _repetition(op, reader) >= MIN_COPY_REUSE


def _cheap(weight: _Weight, cost: int) -> bool:
    """Return whether a value may be recomputed."""
    return weight.costliest < EXPENSIVE and weight.cost <= cost


def _worthwhile(weight: _Weight, uses: int, repeats: float, cost: int) -> bool:
    """Return whether recomputing a value at every use costs less than storing and loading it."""
    if uses == 1 and repeats <= MAX_PADDING:
        return True
    if not _cheap(weight, cost):
        return False
    loads = len(weight.loads)
    if repeats > 1:
        return loads <= 1 or uses * loads <= uses + 1
    return uses * loads <= loads + 1 + uses


def _absorb(reader: _Weight, producer: _Weight, buffer: str, times: int) -> None:
    reader.cost += producer.cost * times
    reader.costliest = max(reader.costliest, producer.costliest)
    reader.size += producer.size * times
    reader.checks = reader.checks or producer.checks
    reader.loads.pop(buffer, None)
    reader.loads.update(producer.loads)
