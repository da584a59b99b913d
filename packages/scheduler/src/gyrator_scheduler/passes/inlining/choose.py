"""Which producers are computed in their readers."""

from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from gyrator_ir.body.nodes import Axis, Bind, IndexValue, Let, Load, ReduceKind, Store, StoreMode
from gyrator_ir.body.ops import OPS
from gyrator_ir.expr import ONE, Expr, ShapeFacts, Sym, stride_of, subs
from gyrator_ir.loop.contraction import roles
from gyrator_ir.loop.nodes import Buffer, LoopProgram, Operation, Pointwise, Reduction, TensorRef
from gyrator_scheduler.access import LOOPS, access, inner_of, is_indirect, statements_of
from gyrator_scheduler.fusion.axes import space
from gyrator_scheduler.memory import guessed_bytes
from gyrator_scheduler.passes.inlining.parts import Part, Parts, solve_within
from gyrator_scheduler.ranges import Ranges, divides

EXPENSIVE = 10
"""An op that costs at least this is not computed more often than it was."""
PADDED = 1.125
"""A reader with so many times the producer's points pads it: it computes little more."""
LAID_OUT = 64
"""A copy in another order is kept where a reader has so many times its points."""
MAX_USES = 16
"""A value with more uses is stored."""
Points = Mapping[Sym, Expr]


@frozen
class Producer:
    """A pointwise operation that is computed in its readers."""

    op: Pointwise
    value: str
    """The value that it stores."""
    uses: Mapping[tuple[int, Expr], Points]
    """Its axes, for each reader (by position in the program) and address."""


@frozen
class Chosen:
    """Producers by the buffer that they store."""

    producers: Mapping[str, Producer]


@define(eq=False)
class _Reader:
    """Uses of a buffer by one operation."""

    index: int
    addresses: dict[Expr, Part] = field(factory=dict)
    """With the part of the reader's points of which some load has them."""

    @property
    def parts(self) -> bool:
        """Whether every load is of a part of the points only."""
        return all(self.addresses.values())


@define(eq=False)
class _Weight:
    """What an operation is, with what is inlined into it."""

    cost: int
    dearest: int
    loads: dict[str, None]
    size: int
    checks: bool
    """Some index is checked, so that every point must be computed somewhere."""


def choose(program: LoopProgram, cost: int, statements: int, keep_memory: bool) -> Chosen:
    """Choose in program order, so that a reader's price includes what it took in."""
    facts = program.facts
    ranges = Ranges(facts)
    buffers = {b.name: b for b in program.all_buffers}
    created = {b.name for b in program.buffers}
    operations = program.operations
    readers, blocked, mutable = _survey(program, created)
    weights = [_weight(op) for op in operations]
    producers: dict[str, Producer] = {}
    for index, op in enumerate(operations):
        if not isinstance(op, Pointwise):
            continue
        store = _only_store(op)
        if store is None or store.buffer in blocked or store.buffer not in created:
            continue
        found = readers.get(store.buffer, [])
        mine = weights[index]
        if not found or len(found) > MAX_USES or not mutable.isdisjoint(mine.loads):
            continue
        uses = _uses(op, store, found, operations, ranges)
        if uses is None or (mine.checks and not _covered(op, found, uses, operations)):
            continue
        if any(weights[r.index].size + mine.size * len(r.addresses) > statements for r in found):
            continue
        repeats = max(_repetition(op, operations[r.index]) for r in found)
        if all(r.parts for r in found) and _cheap(mine, cost):
            repeats = 1  # what a mask leaves out, nothing is read for
        if not _worthwhile(mine, len(uses), repeats, cost):
            continue
        if mine.cost and any(_is_factor(op, operations[r.index]) for r in found):
            continue
        if any(_lies_better(op, store, operations[r.index]) for r in found):
            continue
        if (keep_memory or len(uses) > 1) and not _frees(
            mine, store.buffer, buffers, created, facts
        ):
            continue
        producers[store.buffer] = Producer(op, store.value, uses)
        for r in found:
            _take_in(weights[r.index], mine, store.buffer, len(r.addresses))
    return Chosen(producers)


def _survey(
    program: LoopProgram, created: set[str]
) -> tuple[dict[str, list[_Reader]], set[str], set[str]]:
    """Return readers of each buffer, buffers that must be in memory, and buffers that change."""
    readers: dict[str, list[_Reader]] = {}
    blocked = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
    writes: dict[str, int] = {}
    for index, op in enumerate(program.operations):
        found = access(op, {})
        for name in found.writes:
            writes[name] = writes.get(name, 0) + 1
        if not isinstance(op, LOOPS):
            blocked.update(found.reads)
            continue
        mine: dict[str, _Reader] = {}
        part = Parts(statements_of(op))
        for s in statements_of(op):
            if isinstance(s, Load):
                addresses = mine.setdefault(s.buffer, _Reader(index)).addresses
                found_part = part.of(s.mask)
                if addresses.setdefault(s.index, found_part) != found_part:
                    addresses[s.index] = {}
                if s.buffer in found.writes:
                    blocked.add(s.buffer)
        for name, r in mine.items():
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
    if not isinstance(op, LOOPS):
        return _Weight(0, 0, {}, 0, False)
    total = dearest = 0
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
        dearest = max(dearest, price)
    return _Weight(total, dearest, loads, len(body), checks)


def _uses(
    op: Pointwise,
    store: Store,
    found: Sequence[_Reader],
    operations: Sequence[Operation],
    ranges: Ranges,
) -> dict[tuple[int, Expr], Points] | None:
    """Return the producer's point for every use, or None if one can't be found."""
    uses: dict[tuple[int, Expr], Points] = {}
    for r in found:
        reader = operations[r.index]
        assert isinstance(reader, LOOPS)
        around = (*reader.axes, *inner_of(reader))
        if len(reader.body) > len(r.addresses):
            bound = (s for s in reader.body if isinstance(s, Bind))
            around = (*around, *(Axis(s.symbol, s.size) for s in bound))
        for address, part in r.addresses.items():
            points = solve_within(store.index, op.axes, address, around, part, ranges)
            if points is None or not _plain(op, address, points):
                return None
            uses[r.index, address] = points
    return uses


def _plain(op: Pointwise, address: Expr, points: Points) -> bool:
    """Whether a use divides for the producer's points only where its own address does.

    A view that merges axes divides where the producer's operands lie otherwise than its result.
    """
    if divides(address) or not any(map(divides, points.values())):
        return True
    indices = (s.index for s in op.body if isinstance(s, Load))
    places = (s.expr for s in op.body if isinstance(s, IndexValue))
    return not any(divides(subs(e, points)) for e in (*indices, *places))


def _covered(
    op: Pointwise,
    found: Sequence[_Reader],
    uses: Mapping[tuple[int, Expr], Points],
    operations: Sequence[Operation],
) -> bool:
    """Whether some use computes every point of the producer, so that no check is lost."""
    for r in found:
        reader = operations[r.index]
        assert isinstance(reader, LOOPS)
        extents = {a.symbol: a.extent for a in (*reader.axes, *inner_of(reader))}
        masked = {s.index for s in reader.body if isinstance(s, Load) and s.mask is not None}
        for address in r.addresses:
            points = uses[r.index, address]
            axes = points_by_axis(op, points)
            walked = [e for _, e in axes]
            whole = all(isinstance(e, Sym) and extents.get(e) is a.extent for a, e in axes)
            if whole and address not in masked and len(set(walked)) == len(walked):
                return True
    return False


def points_by_axis(op: Pointwise, points: Points) -> list[tuple[Axis, Expr]]:
    """Return the axes longer than 1, and where a use evaluates them."""
    return [(a, points[a.symbol]) for a in op.axes if a.extent is not ONE]


def _repetition(op: Pointwise, reader: Operation) -> float:
    """Return how many points of a reader there are for one of the producer, for typical sizes."""
    assert isinstance(reader, LOOPS)
    return space((*reader.axes, *inner_of(reader))) / max(space(op.axes), 1)


def _is_factor(op: Pointwise, reader: Operation) -> bool:
    """Whether a reader is a product that meets each value of a producer many times.

    Only what costs nothing is done there: blocks of factors go to matrix units as they are in
    memory, and the producer rather ends the kernel that computes what it reads.
    """
    return isinstance(reader, Reduction) and _repetition(op, reader) > 1 and _multiplies(reader)


def _multiplies(op: Reduction) -> bool:
    """Whether an operation is a product of matrices."""
    return roles(op.axes, op.body, op.reduce) is not None


def _lies_better(op: Pointwise, store: Store, reader: Operation) -> bool:
    """Whether a reader meets each value of a copy many times, in the order in which the copy lies.

    It is a fold of products that multiplies no matrices: its points read the factors abreast, and
    what lies apart costs them a line of memory each.
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
    return moved and _repetition(op, reader) >= LAID_OUT


def _cheap(mine: _Weight, cost: int) -> bool:
    """Whether a value may be computed more often than it was."""
    return mine.dearest < EXPENSIVE and mine.cost <= cost


def _worthwhile(mine: _Weight, uses: int, repeats: float, cost: int) -> bool:
    """Whether computing at every use costs less than storing once and loading."""
    if uses == 1 and repeats <= PADDED:
        return True
    if not _cheap(mine, cost):
        return False
    loads = len(mine.loads)
    if repeats > 1:
        return loads <= 1 or uses * loads <= uses + 1
    return uses * loads <= loads + 1 + uses


def _frees(
    mine: _Weight, buffer: str, buffers: Mapping[str, Buffer], created: set[str], facts: ShapeFacts
) -> bool:
    """Whether the operands that would live longer are no larger than the value."""
    longer = sum(guessed_bytes(buffers[n], facts) for n in mine.loads if n in created)
    return longer <= guessed_bytes(buffers[buffer], facts)


def _take_in(reader: _Weight, mine: _Weight, buffer: str, times: int) -> None:
    reader.cost += mine.cost * times
    reader.dearest = max(reader.dearest, mine.dearest)
    reader.size += mine.size * times
    reader.checks = reader.checks or mine.checks
    reader.loads.pop(buffer, None)
    reader.loads.update(mine.loads)
