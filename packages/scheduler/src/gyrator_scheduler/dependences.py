"""Dependences between operations, through memory, runtime symbols and side effects."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache

from attrs import field

from gyrator_ir.define import define, frozen
from gyrator_ir.expr import Sym, SymKind
from gyrator_ir.loop.nodes import (
    Buffer,
    CallOp,
    CollectiveCall,
    CollectiveWait,
    CondOp,
    Extern,
    Operation,
    RepeatOp,
    WhileOp,
)
from gyrator_scheduler.access import Access, access

__all__ = ["Dependence", "Dependences", "Why", "dependences"]


class Why(Enum):
    """Why one operation must run after another."""

    RAW = "reads what the other writes"
    WAR = "overwrites what the other reads"
    WAW = "overwrites what the other writes"
    SYMBOL = "needs a symbol that the other defines"
    EFFECT = "both have effects that must stay in order"


@frozen
class Dependence:
    """The operation at `before` must run first; `buffer` is empty unless memory orders them."""

    before: int
    why: Why
    buffer: str = ""


@frozen
class Dependences:
    """For each operation, its accesses and its direct predecessors."""

    accesses: tuple[Access, ...]
    before: tuple[tuple[Dependence, ...], ...]


_RANDOM_WORDS = ("rand", "dropout", "bernoulli", "normal", "multinomial", "uniform", "exponential",
                 "geometric", "poisson", "cauchy")  # fmt: skip


def has_effects(op: Operation) -> bool:
    """Return whether a call must stay in order with other such calls: it consumes random numbers,
    communicates with other processes, or has a side effect that no result represents."""
    match op:
        case CollectiveCall() | CollectiveWait() | CondOp() | WhileOp() | RepeatOp() | CallOp():
            return True
        case Extern(target=target, results=results, mutates=mutates):
            if not results and not mutates:
                return True
            return _is_random(target)
        case _:
            return False


@lru_cache(1 << 10)
def _is_random(target: str) -> bool:
    """Return whether an op consumes random numbers. Cached: the result depends on the name only."""
    return any(word in target for word in _RANDOM_WORDS)


def unbacked_shapes(buffers: Sequence[Buffer]) -> dict[str, frozenset[Sym]]:
    """Return the unbacked symbols in each buffer's shape and strides, without empty entries."""
    result: dict[str, frozenset[Sym]] = {}
    for b in buffers:
        symbols = frozenset(
            s for e in (*b.shape, *b.strides) for s in e.free_symbols if s.kind is SymKind.UNBACKED
        )
        if symbols:
            result[b.name] = symbols
    return result


def dependences(operations: Sequence[Operation], buffers: Sequence[Buffer]) -> Dependences:
    """Return the direct predecessors of each operation, computed in one traversal.

    A write depends on the previous write and on every read since. Later readers then need an edge
    from the last writer only, so the number of edges is linear in the size of the program.
    """
    shapes = unbacked_shapes(buffers)
    symbolic = any(
        (isinstance(op, Extern) and any(isinstance(r, Sym) for r in op.results))
        or hasattr(op, "symbol")
        for op in operations
    )
    watched = shapes if shapes or not symbolic else {"": frozenset[Sym]()}
    latest = _Latest(shapes)
    accesses: list[Access] = []
    edges: list[tuple[Dependence, ...]] = []
    for index, op in enumerate(operations):
        touched, effects = access(op, watched), has_effects(op)
        edges.append(tuple(dict.fromkeys(latest.before(touched, effects))))
        latest.add(index, op, touched, effects)
        accesses.append(touched)
    return Dependences(tuple(accesses), tuple(edges))


@define(eq=False)
class _Latest:
    """The operations that the next one may depend on."""

    shapes: Mapping[str, frozenset[Sym]]
    writer: dict[str, int] = field(factory=dict)
    """The last operation that wrote a buffer."""
    readers: dict[str, list[int]] = field(factory=dict)
    """Those that have read it since."""
    definer: dict[Sym, int] = field(factory=dict)
    effect: int | None = None
    """The last operation with an effect."""

    def before(self, touched: Access, effects: bool) -> Iterator[Dependence]:
        """Yield the direct predecessors of the next operation."""
        for name in touched.reads:
            if name in self.writer:
                yield Dependence(self.writer[name], Why.RAW, name)
        for name in touched.writes:
            if name in self.writer:
                yield Dependence(self.writer[name], Why.WAW, name)
            for reader in self.readers.get(name, ()):
                yield Dependence(reader, Why.WAR, name)
        for symbol in touched.needs:
            if symbol in self.definer:
                yield Dependence(self.definer[symbol], Why.SYMBOL)
        if effects and self.effect is not None:
            yield Dependence(self.effect, Why.EFFECT)

    def add(self, index: int, op: Operation, touched: Access, effects: bool) -> None:
        """Add the next operation."""
        if effects:
            self.effect = index
        for name in touched.reads:
            self.readers.setdefault(name, []).append(index)
        for name in touched.writes:
            self.writer[name] = index
            self.readers[name] = []
        for symbol in touched.defines:
            self.definer[symbol] = index
        if isinstance(op, (Extern, CondOp, WhileOp, CallOp)):
            for name in touched.writes:
                for symbol in self.shapes.get(name, ()):
                    self.definer.setdefault(symbol, index)
