"""Expansion of producers in the bodies of their readers."""

from collections.abc import Iterator, Mapping

from attrs import evolve

from gyrator_ir.body.nodes import Axis, Bind, Const, IndexValue, Let, Load, Statement, Store
from gyrator_ir.body.rewrite import live, named, renamed, used, value_key
from gyrator_ir.define import define
from gyrator_ir.expr import Expr, Sym, subs
from gyrator_ir.loop.nodes import (
    Buffer,
    LoopOperation,
    LoopProgram,
    Operation,
    Reduction,
    Scan,
    Sort,
)
from gyrator_ir.loop.uses import collective_of, inner_of
from gyrator_ir.types import DType
from gyrator_scheduler.passes.inlining.choose import Producer
from gyrator_scheduler.passes.rewriting import with_collective, with_operations
from gyrator_scheduler.ranges import Ranges


def expand(program: LoopProgram, producers: Mapping[str, Producer]) -> LoopProgram:
    """Return the program with the producers, by buffer, inlined into every reader, and removed."""
    ranges = Ranges(program.facts)
    buffers = {b.name: b for b in program.all_buffers}
    index_of = {id(op): n for n, op in enumerate(program.operations)}
    inlined = {id(p.op) for p in producers.values()}
    operations: list[Operation] = []
    for n, op in enumerate(program.operations):
        if id(op) in inlined:
            continue
        if not isinstance(op, LoopOperation) or not _reads(op, producers):
            operations.append(op)
            continue
        operations.append(_Expander(op, producers, buffers, ranges, index_of).run(n))
    return with_operations(program, operations)


def _reads(op: LoopOperation, producers: Mapping[str, Producer]) -> bool:
    return any(isinstance(s, Load) and s.buffer in producers for s in op.body)


@define(eq=False)
class _Frame:
    """A body being copied: that of the operation itself, or of a producer at one use."""

    index: int
    statements: Iterator[Statement]
    names: dict[str, str]
    symbols: dict[Sym, Expr]
    mask: str | None
    load: Load | None = None
    """The load that the producer replaces, which belongs to the frame `outer`."""
    outer: "_Frame | None" = None
    key: object = None


class _Expander:
    """Expands one operation, with an explicit stack of frames, because producers nest deeply."""

    def __init__(
        self,
        op: LoopOperation,
        producers: Mapping[str, Producer],
        buffers: Mapping[str, Buffer],
        ranges: Ranges,
        index_of: Mapping[int, int],
    ) -> None:
        self.op = op
        self.producers = producers
        self.buffers = buffers
        self.ranges = ranges
        self.index_of = index_of
        self.axes: tuple[Axis, ...] = (*op.axes, *inner_of(op))
        self.body: list[Statement] = []
        self.values: dict[object, str] = {}
        self.stored = {s.buffer for s in op.body if isinstance(s, Store)}
        self.value_count = 0
        self.index_count = 0
        self.origins: dict[int, None] = dict.fromkeys(op.origins)

    def run(self, index: int) -> LoopOperation:
        """Return the expanded operation."""
        names: dict[str, str] = {}
        top = _Frame(index, iter(self.op.body), names, {}, None)
        stack = [top]
        while stack:
            frame = stack[-1]
            s = next(frame.statements, None)
            if s is None:
                stack.pop()
                continue
            inner = self._step(s, frame)
            if inner is not None:
                stack.append(inner)
        return self._finished(names, tuple(sorted(self.origins)))

    def _step(self, s: Statement, frame: _Frame) -> _Frame | None:
        """Copy one statement. Return the frame to enter if it loads an inlined value."""
        match s:
            case Let(name, op, args, dtype):
                names = frame.names
                frame.names[name] = self._let(op, tuple([names[a] for a in args]), dtype)
            case Load(_, buffer, _, mask) if buffer in self.producers:
                return self._enter(s, frame, self._both(mask and frame.names[mask], frame.mask))
            case Load(name, mask=mask):
                both = self._both(mask and frame.names[mask], frame.mask)
                symbols = frame.symbols
                index = self._simplify(subs(s.index, symbols)) if symbols else s.index
                frame.names[name] = self._emit(Load(name, s.buffer, index, both))
            case Bind(symbol, mask=mask):
                both = self._both(mask and frame.names[mask], frame.mask)
                fresh = Sym(f"t{self.index_count}")
                self.index_count += 1
                frame.symbols[symbol] = fresh
                bound = renamed(evolve(s, mask=None), frame.names, frame.symbols, self._simplify)
                bound = evolve(bound, mask=both)
                self.body.append(bound)
                self.axes = (*self.axes, Axis(fresh, bound.size))
            case Store():
                if frame.load is None:
                    self.body.append(renamed(s, frame.names, frame.symbols, self._simplify))
                else:
                    self._leave(frame, frame.names[s.value])
            case _:
                other = renamed(s, frame.names, frame.symbols, self._simplify)
                frame.names[s.name] = self._emit(other)
        return None

    def _simplify(self, e: Expr) -> Expr:
        return self.ranges.simplify(e, self.axes)

    def _let(self, op: str, args: tuple[str, ...], dtype: DType) -> str:
        """Append a computation, or return the name of an equal one."""
        key = (op, args, dtype)
        name = self.values.get(key)
        if name is None:
            name = self.values[key] = self._fresh()
            self.body.append(Let(name, op, args, dtype))
        return name

    def _emit(self, s: Load | Const | IndexValue) -> str:
        """Append a statement under a new name; return that name, or the name of an equal one."""
        stored = isinstance(s, Load) and s.buffer in self.stored
        key = value_key(s), stored and len(self.body)
        name = self.values.get(key)
        if name is None:
            name = self.values[key] = self._fresh()
            self.body.append(named(s, (name,)))
        return name

    def _fresh(self) -> str:
        self.value_count += 1
        return f"v{self.value_count - 1}"

    def _both(self, a: str | None, b: str | None) -> str | None:
        """Return the conjunction of two optional masks."""
        if a is None or b is None or a == b:
            return a if b is None else b
        return self._let("bit_and", (b, a), DType.BOOL)

    def _enter(self, load: Load, outer: _Frame, mask: str | None) -> _Frame | None:
        """Return the frame that computes the value of a load; None if it is already computed."""
        p = self.producers[load.buffer]
        points = p.uses[outer.index, load.index]
        symbols = {s: self._simplify(subs(e, outer.symbols)) for s, e in points.items()}
        key = (load.buffer, mask, tuple(symbols.values()))
        inner = _Frame(
            self.index_of[id(p.op)], iter(p.op.body), {}, symbols, mask, load, outer, key
        )
        value = self.values.get(key)
        if value is not None:
            outer.names[load.name] = value
            return None
        self.origins.update(dict.fromkeys(p.op.origins))
        return inner

    def _leave(self, frame: _Frame, value: str) -> None:
        """Use a producer's value in place of the load that it replaces."""
        outer = frame.outer
        assert frame.load is not None and outer is not None
        if frame.load.mask is not None:
            dtype = self.buffers[frame.load.buffer].dtype
            nothing: bool | int | float
            nothing = False if dtype is DType.BOOL else 0.0 if dtype.is_float else 0
            zero = self._emit(Const("", nothing, dtype))
            own = outer.names[frame.load.mask]
            value = self._let("where", (own, value, zero), dtype)
        self.values[frame.key] = value
        outer.names[frame.load.name] = value

    def _finished(self, names: Mapping[str, str], origins: tuple[int, ...]) -> LoopOperation:
        """Return the operation with the new body, and names for the results of a reduction, scan or
        sort."""
        op = self.op
        if not isinstance(op, (Reduction, Scan, Sort)):
            return evolve(op, body=live(self.body), origins=origins)
        step = collective_of(op)
        results = {n: f"c{i}" for i, n in enumerate(step.names)}
        stores = tuple(renamed(s, {**names, **results}, {}) for s in op.stores)
        step = evolve(step, names=tuple(results.values()), args=tuple(names[a] for a in step.args))
        body = live(self.body, (*step.args, *(n for s in stores for n in used(s))))
        return evolve(with_collective(op, body, step, stores), origins=origins)
