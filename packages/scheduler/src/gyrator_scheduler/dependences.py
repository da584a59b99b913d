"""Which operation must run before which: by memory, by run-time symbols, by side effects."""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

from attrs import frozen

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
    """What orders two operations."""

    RAW = "reads what the other writes"
    WAR = "overwrites what the other reads"
    WAW = "overwrites what the other writes"
    SYMBOL = "needs a number that the other finds out"
    EFFECT = "both have effects that must stay in order"


@frozen
class Dependence:
    """The operation at `before` must run first; `buffer` is empty unless memory orders them."""

    before: int
    why: Why
    buffer: str = ""


@frozen
class Dependences:
    """For each operation, what it touches and what must run before it."""

    accesses: tuple[Access, ...]
    before: tuple[tuple[Dependence, ...], ...]


_RANDOM_WORDS = ("rand", "dropout", "bernoulli", "normal", "multinomial", "uniform", "exponential",
                 "geometric", "poisson", "cauchy")  # fmt: skip


def has_effects(op: Operation) -> bool:
    """Whether a call must keep its place among calls of this sort: it draws from a generator's
    stream, talks to other processes, or does something that no result shows."""
    match op:
        case CollectiveCall() | CollectiveWait() | CondOp() | WhileOp() | RepeatOp() | CallOp():
            return True
        case Extern(target=target, results=results, mutates=mutates):
            if not results and not mutates:
                return True
            return _draws(target)
        case _:
            return False


@lru_cache(1 << 10)
def _draws(target: str) -> bool:
    """Whether an op draws from a generator's stream, in a cache that nobody can observe."""
    return any(word in target for word in _RANDOM_WORDS)


def unbacked_shapes(buffers: Sequence[Buffer]) -> dict[str, frozenset[Sym]]:
    """Return the unbacked symbols in the shapes of buffers, for those that have some."""
    found: dict[str, frozenset[Sym]] = {}
    for b in buffers:
        symbols = frozenset(
            s for e in (*b.shape, *b.strides) for s in e.free_symbols if s.kind is SymKind.UNBACKED
        )
        if symbols:
            found[b.name] = symbols
    return found


def dependences(operations: Sequence[Operation], buffers: Sequence[Buffer]) -> Dependences:
    """Find what must run before each operation, in one walk.

    A write comes after the last write and after every read since: later readers then need an edge
    from the last writer only, so edges stay linear in the size of the program.
    """
    shapes = unbacked_shapes(buffers)
    symbolic = any(
        (isinstance(op, Extern) and any(isinstance(r, Sym) for r in op.results))
        or hasattr(op, "symbol")
        for op in operations
    )
    watched = shapes if shapes or not symbolic else {"": frozenset[Sym]()}
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    definer: dict[Sym, int] = {}
    effect: int | None = None
    accesses: list[Access] = []
    edges: list[tuple[Dependence, ...]] = []
    for index, op in enumerate(operations):
        touched = access(op, watched)
        mine: dict[tuple[int, Why, str], Dependence] = {}

        def after(other: int, why: Why, buffer: str = "", mine: dict = mine) -> None:  # type: ignore[type-arg]
            mine.setdefault((other, why, buffer), Dependence(other, why, buffer))

        for name in touched.reads:
            if name in writer:
                after(writer[name], Why.RAW, name)
        for name in touched.writes:
            if name in writer:
                after(writer[name], Why.WAW, name)
            for reader in readers.get(name, ()):
                if reader != index:
                    after(reader, Why.WAR, name)
        for symbol in touched.needs:
            if symbol in definer:
                after(definer[symbol], Why.SYMBOL)
        if has_effects(op):
            if effect is not None:
                after(effect, Why.EFFECT)
            effect = index
        for name in touched.reads:
            readers.setdefault(name, []).append(index)
        for name in touched.writes:
            writer[name] = index
            readers[name] = []
        for symbol in touched.defines:
            definer[symbol] = index
        if isinstance(op, (Extern, WhileOp)):
            for name in touched.writes:
                for symbol in shapes.get(name, ()):
                    definer.setdefault(symbol, index)
        accesses.append(touched)
        edges.append(tuple(mine.values()))
    return Dependences(tuple(accesses), tuple(edges))
