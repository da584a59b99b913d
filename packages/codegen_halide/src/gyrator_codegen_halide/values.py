"""What a kernel's values are made of: in Halide a value is a function of its coordinates, and what
one stage hands to a later one through memory is that function."""

from collections.abc import Iterable, Sequence

from attrs import frozen

from gyrator_ir.body.nodes import Bind, Check, Load, Reduce, ReduceKind, ScanKind, ScanStep, Store
from gyrator_ir.body.rewrite import defined, expressions, used
from gyrator_ir.expr import ONE, ZERO, Expr, ShapeFacts, Sym, linear, maximum, sum_of
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.modes import StoreMode
from gyrator_ir.types import DType


@frozen
class Scheduling:
    """Where a kernel's schedule comes from."""

    autoscheduler: str = ""
    """One of Halide's own instead of the tile loops."""
    blocks: bool = False
    """Steps of grid loops are blocks of a GPU, elements of a step its threads."""

    @property
    def by_tiles(self) -> bool:
        """The tile loops say everything."""
        return not self.autoscheduler


class Values:
    """The statements of a kernel by what they define.

    Attributes:
        types: of values.
        forwarded: loads by name, each with the value that was stored there before.
        lost: loads after a store to another place of the buffer.
        checks: bindings that raise.
        flat: buffers whose stores are no function of coordinates, in order.
        dense: the other stores, by the level of their stage.
        single: there is one loop nest, those of reductions inside of it not counted.
        copied: a buffer that lies where another one is written must be copied first.
    """

    def __init__(self, kernel: Kernel, how: Scheduling) -> None:
        self.kernel = kernel
        self.types: dict[str, DType] = {}
        self.maker: dict[str, tuple[int, KernelStatement]] = {}
        self.binder: dict[Sym, tuple[int, Bind]] = {}
        self.forwarded: dict[str, str] = {}
        self.lost: list[str] = []
        self.checks: list[tuple[int, Bind]] = []
        self.stores: list[tuple[int, Store]] = []
        buffers = {b.name: b.dtype for b in kernel.parameters}
        buffers |= {scratch.name: scratch.dtype for scratch in kernel.locals}
        written: dict[str, Store] = {}
        for number, stage in enumerate(kernel.stages):
            for s in stage.body:
                self._take(number, s, buffers, written)
        local = {scratch.name for scratch in kernel.locals}
        kept = [(n, s) for n, s in self.stores if s.buffer not in local]
        names = [s.buffer for _, s in kept]
        self.flat = tuple(
            dict.fromkeys(
                s.buffer for n, s in kept if names.count(s.buffer) > 1 or not self._dense(n, s)
            )
        )
        self.stores = kept
        self.dense = {
            level: [(n, s) for n, s in kept if s.buffer not in self.flat and self.level(n) is level]
            for level in Level
        }
        groups = [g for g in self.dense.values() if g]
        self.single = len(groups) == 1 and not self.flat and not self.checks
        self.copied = not (self.single and len(kept) == 1 and how.by_tiles and self._in_place())

    def _take(
        self, number: int, s: KernelStatement, buffers: dict[str, DType], written: dict[str, Store]
    ) -> None:
        for name in defined(s):
            self.maker[name] = (number, s)
            self.types[name] = self._type(s, buffers)
        match s:
            case Load(name, buffer, index) if buffer in written:
                before = written[buffer]
                if before.index is index and before.mode is StoreMode.SET and before.mask is None:
                    self.forwarded[name] = before.value
                else:
                    self.lost.append(name)
            case Store():
                written[s.buffer] = s
                self.stores.append((number, s))
            case Bind():
                self.binder[s.symbol] = (number, s)
                if s.check is not Check.NONE:
                    self.checks.append((number, s))

    def _type(self, s: KernelStatement, buffers: dict[str, DType]) -> DType:
        if isinstance(s, Load):
            return buffers[s.buffer]
        positions = (ReduceKind.ARGMIN, ReduceKind.ARGMAX, ScanKind.ARGMIN, ScanKind.ARGMAX)
        if isinstance(s, Reduce | ScanStep) and s.kind in positions:
            return DType.I64
        dtype = getattr(s, "dtype", DType.I64)
        assert isinstance(dtype, DType)
        return dtype

    def level(self, stage: int) -> Level:
        """Return how often a stage runs."""
        return self.kernel.stages[stage].level

    def symbols(self, level: Level) -> tuple[Sym, ...]:
        """Return the coordinates of a stage of this level."""
        inner = self.kernel.inner if level is Level.INNER else ()
        return tuple(a.symbol for a in (*self.kernel.axes, *inner))

    def _dense(self, number: int, s: Store) -> bool:
        """Say whether a store fills a strided tensor of its stage's coordinates."""
        if s.mode is not StoreMode.SET or s.mask is not None:
            return False
        symbols = self.symbols(self.level(number))
        split = linear(s.index, symbols)
        if split is None or any(b in split[1].free_symbols for b in self.binder):
            return False
        known = set(self.kernel.sizes)
        return all(
            c is not ZERO and ShapeFacts().known_nonnegative(c) and c.free_symbols <= known
            for c in split[0].values()
        )

    def _in_place(self) -> bool:
        """Say whether all that is loaded may lie where the one store goes."""
        if not self.stores:
            return True
        store = self.stores[0][1]
        loads = [s for _, s in self.maker.values() if isinstance(s, Load)]
        loads = [s for s in loads if s.name not in self.forwarded]
        return all(s.index is store.index for s in loads if s.buffer == store.buffer)

    def slice(self, wanted: Iterable[str | Sym]) -> list[KernelStatement]:
        """Return the statements that values and bound symbols are made of, reductions and scans
        but for their arguments, in order."""
        found: dict[int, tuple[int, KernelStatement]] = {}
        pending: list[str | Sym] = list(wanted)
        while pending:
            item = pending.pop()
            made = self.binder.get(item) if isinstance(item, Sym) else self.maker[item]
            if made is None or id(made[1]) in found:
                continue
            number, s = made
            found[id(s)] = (number, s)
            if isinstance(s, Reduce | ScanStep):
                continue
            if isinstance(s, Load) and s.name in self.forwarded:
                pending.append(self.forwarded[s.name])
                if s.mask is not None:
                    pending.append(s.mask)
                continue
            pending += used(s)
            for e in expressions(s):
                pending += e.free_symbols
        order = {id(s): n for n, s in enumerate(s for g in self.kernel.stages for s in g.body)}
        return [found[key][1] for key in sorted(found, key=order.__getitem__)]

    def coordinates(self, statements: Sequence[KernelStatement]) -> set[Sym]:
        """Return the axes that statements depend on; all points' where they ask a reduction."""
        found: set[Sym] = set()
        for s in statements:
            for e in expressions(s):
                found |= e.free_symbols
            if isinstance(s, Reduce | ScanStep):
                found |= set(self.symbols(Level.OUTER if isinstance(s, Reduce) else Level.INNER))
        return found & set(self.symbols(Level.INNER))


def reach(kernel: Kernel, buffer: Buffer) -> Expr | None:
    """Return how many elements of a buffer a kernel may touch: its span, or from the addresses
    where the kernel does not know its sizes. None where neither says it."""
    known = set(kernel.sizes)
    layout = (*buffer.shape, *buffer.strides)
    if all(e.free_symbols <= known for e in layout):
        total: Expr = ONE
        for extent, stride in zip(buffer.shape, buffer.strides, strict=True):
            total = total + (extent - 1) * stride
        return total
    axes = {a.symbol: a.extent for a in (*kernel.axes, *kernel.inner)}
    reached: list[Expr] = []
    for stage in kernel.stages:
        for s in stage.body:
            if not isinstance(s, Load | Store) or s.buffer != buffer.name:
                continue
            split = linear(s.index, axes)
            if split is None or not split[1].free_symbols <= known:
                return None
            steps = (c * (axes[a] - 1) for a, c in split[0].items())
            reached.append(sum_of([split[1], ONE, *steps]))
    return maximum(*reached) if reached else None
