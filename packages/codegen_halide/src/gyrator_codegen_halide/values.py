"""The values of a kernel as functions of coordinates. In Halide, a value that one stage passes to a
later one through memory is such a function."""

from collections.abc import Iterable

from attrs import evolve

from gyrator_codegen import Names
from gyrator_ir.body.nodes import Axis, Bind, Check, Load, Reduce, ScanStep, Store
from gyrator_ir.body.rewrite import defined, expressions, rewritten, types_of, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Expr, ShapeFacts, Sym, linear, subs
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level
from gyrator_ir.modes import StoreMode

POINT = Axis(Sym("i_point"), ONE)
"""The axis of a kernel without axes."""


@frozen
class Scheduling:
    """The source of a kernel's schedule."""

    autoscheduler: str = ""
    """One of Halide's autoschedulers, to use instead of the tile loops."""
    blocks: bool = False
    """Map the steps of grid loops to GPU blocks, and the elements of a step to threads."""


def distinct(kernel: Kernel, reserved: frozenset[str]) -> Kernel:
    """Return the kernel with unique names that are not reserved, because all stages share a
    namespace."""
    axes = {a.symbol.name for a in (*kernel.axes, *kernel.inner)}
    names = Names(reserved | axes | {s.name for s in kernel.sizes})
    buffers = {b.name: names.take(b.name) for b in kernel.parameters}
    buffers |= {t.name: names.take(t.name) for t in kernel.locals}
    values: dict[str, str] = {}
    symbols: dict[Sym, Sym] = {}

    def change(e: Expr) -> Expr:
        return subs(e, symbols)

    stages = []
    for stage in kernel.stages:
        body: list[KernelStatement] = []
        for s in stage.body:
            if isinstance(s, Bind):
                symbols[s.symbol] = Sym(names.take(s.symbol.name))
            values |= {name: names.take(name) for name in defined(s)}
            body.append(rewritten(s, values, change, buffers, symbols))
        stages.append(evolve(stage, body=tuple(body)))
    return evolve(
        kernel,
        stages=tuple(stages),
        parameters=tuple(evolve(b, name=buffers[b.name]) for b in kernel.parameters),
        locals=tuple(evolve(t, name=buffers[t.name]) for t in kernel.locals),
    )


class Values:
    """The statements of a kernel by their definitions.

    Attributes:
        kernel: the kernel with distinct names.
        types: dtypes of values.
        forwarded: loads by name, each with the value stored to the same address before.
        lost: loads after a store to another address of the buffer.
        checks: bindings with an index check.
        dense: stores that fill a strided tensor over their coordinates, by the level of their
            stage. flat: the other stores, by buffer. single: whether there is only one loop nest,
            apart from those of reductions inside of it. copied: whether an input that aliases an
            output must be copied first.
    """

    def __init__(
        self, kernel: Kernel, how: Scheduling, reserved: frozenset[str] = frozenset()
    ) -> None:
        self.kernel = kernel = distinct(kernel, reserved)
        self.points = tuple(a.symbol for a in kernel.axes or (POINT,))
        self.inner = tuple(a.symbol for a in kernel.inner)
        self.extents = {a.symbol: a.extent for a in (POINT, *kernel.axes, *kernel.inner)}
        self.types = kernel.storage
        self.forwarded: dict[str, str] = {}
        self.lost: list[str] = []
        self.checks: list[tuple[Level, Bind]] = []
        self.dense: dict[Level, list[Store]] = {}
        self.flat: dict[str, list[tuple[Level, Store]]] = {}
        self._definitions: dict[str | Sym, KernelStatement] = {}
        self._stores: dict[str, Store] = {}
        stores: list[tuple[Level, Store]] = []
        for stage in kernel.stages:
            for s in stage.body:
                self._define(s)
                if isinstance(s, Bind) and s.check is not Check.NONE:
                    self.checks.append((stage.level, s))
                elif isinstance(s, Store) and all(s.buffer != b.name for b in kernel.locals):
                    stores.append((stage.level, s))
        targets = [s.buffer for _, s in stores]
        for level, s in stores:
            if targets.count(s.buffer) == 1 and self._dense(level, s):
                self.dense.setdefault(level, []).append(s)
            else:
                self.flat.setdefault(s.buffer, []).append((level, s))
        self.single = len(self.dense) == 1 and not self.flat and not self.checks
        alone = self.single and len(stores) == 1 and not how.autoscheduler
        self.copied = not (alone and self._in_place(stores[0][1]))

    def _define(self, s: KernelStatement) -> None:
        self._definitions |= dict.fromkeys(defined(s), s)
        self.types |= types_of(s, self.types)
        match s:
            case Load(name, buffer, index) if buffer in self._stores:
                before = self._stores[buffer]
                if before.index is index and before.mode is StoreMode.SET and before.mask is None:
                    self.forwarded[name] = before.value
                else:
                    self.lost.append(name)
            case Store():
                self._stores[s.buffer] = s
            case Bind():
                self._definitions[s.symbol] = s

    def coordinates(self, level: Level) -> tuple[Sym, ...]:
        """Return the coordinates of stages of a level."""
        return self.points + (self.inner if level is Level.INNER else ())

    def _dense(self, level: Level, s: Store) -> bool:
        """Return whether a store fills a strided tensor over its stage's coordinates."""
        split = linear(s.index, self.coordinates(level))
        if s.mode is not StoreMode.SET or s.mask is not None or split is None:
            return False
        sizes = set(self.kernel.sizes)
        return not self.bound(s.index) and all(
            ShapeFacts().known_nonnegative(c)
            and c.free_symbols <= sizes
            and (c is not ZERO or symbol is POINT.symbol)
            for symbol, c in split[0].items()
        )

    def _in_place(self, store: Store) -> bool:
        """Return whether all loads may alias the only store."""
        return all(s.index is store.index for s in self.loads if s.buffer == store.buffer)

    @property
    def loads(self) -> list[Load]:
        """The loads that read memory."""
        statements = self._definitions.values()
        return [s for s in statements if isinstance(s, Load) and s.name not in self.forwarded]

    def bound(self, index: Expr) -> list[Sym]:
        """Return the symbols of an index that are bound to values, in statement order."""
        return [x for x in self._definitions if isinstance(x, Sym) and x in index.free_symbols]

    def slice(self, values: Iterable[str | Sym]) -> list[KernelStatement]:
        """Return, in order, the statements that compute values and bound symbols. The arguments of
        reductions and scans are not followed."""
        statements: set[KernelStatement] = set()
        pending = list(values)
        while pending:
            s = self._definitions.get(pending.pop())
            if s is None or s in statements:
                continue
            statements.add(s)
            if isinstance(s, Load) and s.name in self.forwarded:
                pending += [self.forwarded[s.name], *used(s)]
            elif not isinstance(s, Reduce | ScanStep):
                pending += [*used(s), *(x for e in expressions(s) for x in e.free_symbols)]
        return [s for s in self.kernel.statements if s in statements]

    def needed(self, bind: Bind) -> list[Sym]:
        """Return the coordinates that a bound symbol depends on; for a reduction, those of all
        points."""
        symbols: set[Sym] = set()
        for s in self.slice([bind.symbol]):
            symbols = symbols.union(*(e.free_symbols for e in expressions(s)))
            if isinstance(s, Reduce | ScanStep):
                symbols.update(
                    self.points if isinstance(s, Reduce) else (*self.points, *self.inner)
                )
        return [x for x in (*self.points, *self.inner) if x in symbols]
