"""From a cluster to a kernel: operations are assigned to stages, and values passed between them."""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, field

from gyrator_ir.body.nodes import (
    Axis,
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ScanStep,
    SortStep,
    Store,
    StoreMode,
)
from gyrator_ir.body.ops import OPS
from gyrator_ir.body.rewrite import defined, expressions, named, renamed, used
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import ZERO, Expr, Sym, SymKind, product_of, subs, sum_of
from gyrator_ir.kernel.nodes import KernelStatement, Level, Local, Stage
from gyrator_ir.loop.nodes import Buffer, Reduction
from gyrator_ir.loop.uses import statements_of
from gyrator_ir.target import Heuristics
from gyrator_ir.types import DType
from gyrator_scheduler.access import is_indirect
from gyrator_scheduler.fusion.cluster import Cluster, Member
from gyrator_scheduler.ranges import Ranges

_NEVER = 1 << 30
"""Cost of statements that must not be recomputed."""
_CHEAP = 10
"""Maximum cost at which a later stage recomputes a value instead of loading it."""


@frozen
class Assembled:
    """The axes, stages and locals of a kernel, in the symbols of its cluster."""

    points: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    locals: tuple[Local, ...]
    spilled: tuple[str, ...]
    """Internal buffers that must be stored in memory nevertheless."""


@define(eq=False)
class _Part:
    """The statements of one operation that run at one level."""

    member: Member
    inner: bool
    body: tuple[KernelStatement, ...]
    stage: int = 0
    collective: bool = False


@define(eq=False)
class _Produced:
    """The value stored in a buffer: its name, its stage, and its address in the buffer."""

    name: str
    stage: int
    address: Expr


def assemble(
    cluster: Cluster,
    exported: set[str],
    buffers: Mapping[str, Buffer],
    heuristics: Heuristics,
    ranges: Ranges,
) -> Assembled:
    """Assign a cluster's operations to stages.

    `exported` has the buffers that are read outside of the cluster. Only these are stored, and
    buffers whose values cannot reach a later stage in another way.
    """
    parts = _parts(cluster)
    _assign_stages(parts)
    builder = _Builder(cluster, exported, buffers, heuristics, ranges, _uses(parts))
    for part in parts:
        builder.emit(part)
    return builder.finish()


def _parts(cluster: Cluster) -> list[_Part]:
    """Split members into parts, in program order. A reduction stores its results at outer level,
    but totals at inner level."""
    parts: list[_Part] = []
    for m in sorted(cluster.members, key=lambda m: m.index):
        if isinstance(m.op, Reduction) and m.total:
            terms = dict(zip(m.op.reduce.names, m.op.reduce.args, strict=True))
            totals = (evolve(s, value=terms[s.value], mode=StoreMode.TOTAL) for s in m.op.stores)
            parts.append(_Part(m, True, (*m.op.body, *totals)))
        elif isinstance(m.op, Reduction):
            parts.append(_Part(m, True, (*m.op.body, m.op.reduce), collective=True))
            parts.append(_Part(m, False, m.op.stores))
        else:
            body = statements_of(m.op)
            collective = any(isinstance(s, (ScanStep, SortStep)) for s in body)
            parts.append(_Part(m, m.inner, body, collective=collective))
    return parts


def _assign_stages(parts: list[_Part]) -> None:
    """Assign stage numbers: even for inner, odd for outer stages. Each part is placed as early as
    possible, then pointwise inner parts as late as their readers allow."""
    writer: dict[str, _Part] = {}
    readers: dict[str, list[_Part]] = {}
    reductions: dict[int, _Part] = {}
    followers: dict[int, list[_Part]] = {}
    for p in parts:
        before: list[_Part] = []
        for s in p.body:
            match s:
                case Load(buffer=b):
                    if b in writer:
                        before.append(writer[b])
                    readers.setdefault(b, []).append(p)
                case Store(buffer=b):
                    before.extend(q for q in readers.get(b, ()) if q is not p)
                    writer[b] = p
                case _:
                    pass
        p.stage = 0 if p.inner else -1
        if p.member.index in reductions:
            p.stage = reductions[p.member.index].stage + 1
        for q in before:
            p.stage = max(p.stage, q.stage if q.inner is p.inner else q.stage + 1)
            followers.setdefault(id(q), []).append(p)
        if p.collective and isinstance(p.member.op, Reduction):
            reductions[p.member.index] = p
    for p in reversed(parts):
        if p.inner and not p.collective and id(p) in followers:
            p.stage = min(q.stage if q.inner else q.stage - 1 for q in followers[id(p)])


@define(eq=False)
class _Use:
    """The first and last use of a buffer in a kernel, by stage and program position."""

    stage: int
    index: int
    last_stage: int
    last_index: int


def _uses(parts: list[_Part]) -> dict[str, _Use]:
    uses: dict[str, _Use] = {}
    for p in parts:
        index = p.member.index
        for s in p.body:
            if isinstance(s, Store):
                uses[s.buffer] = _Use(p.stage, index, p.stage, index)
            elif isinstance(s, Load) and s.buffer in uses:
                use = uses[s.buffer]
                use.last_stage = max(use.last_stage, p.stage)
                use.last_index = max(use.last_index, index)
    return uses


@define(eq=False)
class _Slot:
    """Memory that passes values from one stage to a later one: a scratch row, or the memory of a
    result that is stored later. `user` is the buffer whose value it holds last."""

    name: str
    address: Expr
    dtype: DType
    user: str
    scratch: bool
    shared: bool = False
    """Reused for several buffers, so that a load from it must not be repeated in a later stage."""
    repeated: bool = False
    """A load from it is repeated in a later stage, so that it must not be reused."""


@define(eq=False)
class _Slots:
    """Chooses the memory that holds values between stages."""

    cluster: Cluster
    exported: set[str]
    produced: Mapping[str, _Produced]
    buffers: Mapping[str, Buffer]
    scratch: int
    """Bytes that are left for scratch rows."""
    ranges: Ranges
    uses: Mapping[str, _Use]
    rows: list[Local] = field(factory=list)
    all: list[_Slot] = field(factory=list)

    def choose(self, buffer: str, p: _Produced) -> _Slot | None:
        """Return a slot for the value of a buffer; None if only the buffer's own memory will do."""
        dtype = self.buffers[buffer].dtype
        slot = self._free_slot(buffer, p, dtype) or self._new_row(buffer, dtype)
        slot = slot or self._result_slot(buffer, p, dtype)
        if slot is not None:
            slot.user = buffer
        return slot

    def _free_slot(self, buffer: str, p: _Produced, dtype: DType) -> _Slot | None:
        """Return a slot whose value is dead when `buffer` is stored."""
        use = self.uses[buffer]
        for slot in self.all:
            old = self.uses[slot.user]
            is_dead = old.last_stage <= p.stage and old.last_index <= use.index
            fits = slot.name not in self.uses or self._outlives(slot.name, buffer, p)
            if is_dead and fits and slot.dtype is dtype and not slot.repeated:
                slot.shared = True
                return slot
        return None

    def _new_row(self, buffer: str, dtype: DType) -> _Slot | None:
        """Return a new scratch row, if it provably fits."""
        extent = product_of(a.extent for a in self.cluster.inner)
        most = self.ranges.facts.bounds(extent)[1]
        if most is None or most * dtype.size > self.scratch:
            return None
        self.scratch -= most * dtype.size
        name = f"row{len(self.rows)}"
        while name in self.buffers:
            name += "_"
        self.rows.append(Local(name, dtype, extent))
        position = sum_of(_weights(self.cluster.inner))
        self.all.append(_Slot(name, position, dtype, buffer, True))
        return self.all[-1]

    def _result_slot(self, buffer: str, p: _Produced, dtype: DType) -> _Slot | None:
        """Return the memory of a result that is stored after the last reader of `buffer`."""
        used_names = {slot.name for slot in self.all}
        for name in sorted(self.exported & set(self.uses) - used_names):
            if self.buffers[name].dtype is dtype and self._outlives(name, buffer, p):
                self.all.append(_Slot(name, p.address, dtype, buffer, False))
                return self.all[-1]
        return None

    def _outlives(self, result: str, buffer: str, p: _Produced) -> bool:
        """Return whether a result is stored at the same address as `buffer`, after the last use of
        `buffer`, and its memory is not read before."""
        written, use, end = self.cluster.stores[result], self.uses[buffer], self.uses[result]
        return (
            written.plain
            and written.inner
            and written.address is p.address
            and result not in self.cluster.loads
            and result not in self.produced
            and use.last_stage <= end.stage
            and use.last_index <= end.index
        )


class _Builder:
    """Emits statements stage by stage, and reuses equal computations that are visible."""

    def __init__(
        self,
        cluster: Cluster,
        exported: set[str],
        buffers: Mapping[str, Buffer],
        heuristics: Heuristics,
        ranges: Ranges,
        uses: Mapping[str, _Use],
    ) -> None:
        self.slot_of: dict[str, _Slot] = {}
        self.points, self.inner = cluster.points, cluster.inner
        self.axes = cluster.axes
        self.exported = set(exported)
        self.buffers = buffers
        self.ranges = ranges
        self.spilled: list[str] = []
        self.stages: dict[int, list[KernelStatement]] = {}
        self.produced: dict[str, _Produced] = {}
        self.emitted: dict[int, dict[Any, Any]] = {}
        self.definitions: dict[str | Sym, tuple[int, int]] = {}
        self.forwarded: dict[tuple[str, int], str] = {}
        self.value_count = 0
        self.symbol_count = 0
        self.names: dict[int, dict[str, str]] = {}
        self.bound: dict[int, dict[Sym, Expr]] = {}
        scratch = heuristics.scratch_bytes
        self.slots = _Slots(cluster, self.exported, self.produced, buffers, scratch, ranges, uses)

    def emit(self, part: _Part) -> None:
        """Emit one part into its stage."""
        key = part.member.index
        names = self.names.setdefault(key, {})
        symbols = self.bound.setdefault(key, dict(part.member.axes))
        for s in part.body:
            match s:
                case Load(name, buffer, _, mask) if buffer in self.produced:
                    value = self._value(buffer, part.stage)
                    if mask is not None:
                        value = self._masked(value, names[mask], buffer, part.stage)
                    names[name] = value
                case Store(buffer, index, value, mode, mask):
                    address, value = self._address(index, symbols), names[value]
                    self.produced[buffer] = _Produced(value, self._stage_of(value, part), address)
                    if buffer in self.exported:
                        mask = None if mask is None else names[mask]
                        self._append(Store(buffer, address, value, mode, mask), part.stage)
                case _:
                    self._translate(s, part.stage, names, symbols)

    def finish(self) -> Assembled:
        """Eliminate dead statements and return the assembled kernel."""
        needed: set[str] = set()
        symbols: set[Sym] = set()
        stages: list[Stage] = []
        for number in sorted(self.stages, reverse=True):
            body: list[KernelStatement] = []
            for s in reversed(self.stages[number]):
                names = defined(s)
                if names and needed.isdisjoint(names):
                    continue
                if isinstance(s, Bind) and not s.check and s.symbol not in symbols:
                    continue
                needed.update(used(s))
                for e in expressions(s):
                    symbols |= e.free_symbols
                body.append(s)
            if body:
                level = Level.INNER if self.inner and number % 2 == 0 else Level.OUTER
                stages.append(Stage(level, tuple(reversed(body))))
        return Assembled(
            self.points,
            self.inner,
            tuple(reversed(stages)),
            tuple(self.slots.rows),
            tuple(self.spilled),
        )

    def _stage_of(self, name: str, part: _Part) -> int:
        """Return the stage that defines a value."""
        return self.definitions[name][0] if name in self.definitions else part.stage

    def _address(self, e: Expr, symbols: Mapping[Sym, Expr]) -> Expr:
        new = subs(e, symbols)
        return new if new is e else self.ranges.simplify(new, self.axes)

    def _append(self, s: KernelStatement, stage: int) -> None:
        body = self.stages.setdefault(stage, [])
        for name in defined(s):
            self.definitions[name] = (stage, len(body))
        if type(s) is Bind:
            self.definitions[s.symbol] = (stage, len(body))
        body.append(s)

    def _lookup(self, key: object, stage: int) -> Any:
        """Return the result of an equal statement that is visible in a stage, or None."""
        local = self.emitted.get(stage)
        if local is not None and key in local:
            return local[key]
        for number, values in self.emitted.items():
            if number % 2 and number < stage and key in values:
                return values[key]
        return None

    def _translate(
        self, s: KernelStatement, stage: int, names: dict[str, str], symbols: dict[Sym, Expr]
    ) -> None:
        """Emit a statement under new names, unless an equal one is visible.

        Operands that are not in `names` are already names of the kernel.
        """
        match s:
            case Let(name, op, args, dtype):
                renamed_args = tuple([names.get(a, a) for a in args])
                names[name] = self._define(Let, (op, renamed_args, dtype), stage)
            case Load(name, buffer, index, mask):
                mask = None if mask is None else names.get(mask, mask)
                names[name] = self._define(
                    Load, (buffer, self._address(index, symbols), mask), stage
                )
            case Const(name, value, dtype):
                names[name] = self._define(Const, (value, dtype), stage, (repr(value), dtype))
            case IndexValue(name, e, dtype):
                names[name] = self._define(IndexValue, (self._address(e, symbols), dtype), stage)
            case Bind():
                self._bind(s, stage, names, symbols)
            case Reduce() | ScanStep() | SortStep():
                self._collective(s, stage, names)
            case Store():
                raise AssertionError("stores are not computed")

    def _bind(
        self, s: Bind, stage: int, names: Mapping[str, str], symbols: dict[Sym, Expr]
    ) -> None:
        value, size = names.get(s.value, s.value), self._address(s.size, symbols)
        mask = None if s.mask is None else names.get(s.mask, s.mask)
        key = (Bind, value, size, s.wrap, s.check, mask)
        symbol = self._lookup(key, stage)
        if symbol is None:
            symbol = Sym(f"t{self.symbol_count}")
            self.symbol_count += 1
            self._append(Bind(symbol, value, size, s.wrap, s.check, mask), stage)
            self.emitted.setdefault(stage, {})[key] = symbol
        symbols[s.symbol] = symbol

    def _collective(
        self, s: Reduce | ScanStep | SortStep, stage: int, names: dict[str, str]
    ) -> None:
        step = renamed(s, names, {})
        # Scans and sorts are never shared: they depend on the order of their body.
        key: tuple[object, ...] = (len(self.definitions), step)
        if isinstance(step, Reduce):
            key = (Reduce, step.kind, step.args, step.dtype)
        results = self._lookup(key, stage)
        if results is None:
            results = tuple(self._fresh() for _ in s.names)
            self._append(named(step, results), stage)
            self.emitted.setdefault(stage, {})[key] = results
        names.update(zip(s.names, results, strict=True))

    def _define(
        self,
        make: Callable[..., KernelStatement],
        parts: tuple[Any, ...],
        stage: int,
        equal: tuple[Any, ...] = (),
    ) -> str:
        """Return the name of the value of a statement, which is appended unless an equal one is
        visible: one of the same class whose parts, or what identifies them (`equal`), are equal."""
        key = (make, equal or parts)
        name: str | None = self._lookup(key, stage)
        if name is None:
            name = self._fresh()
            self._append(make(name, *parts), stage)
            self.emitted.setdefault(stage, {})[key] = name
        return name

    def _fresh(self) -> str:
        self.value_count += 1
        return f"v{self.value_count}"

    def _masked(self, value: str, mask: str, buffer: str, stage: int) -> str:
        """Return the name of `value` where `mask` is true, else 0."""
        dtype = self.buffers[buffer].dtype
        zero: bool | int | float
        zero = False if dtype is DType.BOOL else 0.0 if dtype.is_float else 0
        names: dict[str, str] = {"value": value, "mask": mask}
        self._translate(Const("zero", zero, dtype), stage, names, {})
        self._translate(Let("chosen", "where", ("mask", "value", "zero"), dtype), stage, names, {})
        return names["chosen"]

    def _value(self, buffer: str, stage: int) -> str:
        """Return a name for the value stored in a buffer that is visible in a stage."""
        p = self.produced[buffer]
        if p.stage == stage or not self._inner_only(p):
            return p.name
        key = (buffer, stage)
        if key not in self.forwarded:
            self.forwarded[key] = self._forward(buffer, p, stage)
        return self.forwarded[key]

    def _inner_only(self, p: _Produced) -> bool:
        """Return whether a value is visible only in its own stage."""
        if p.stage % 2:
            return False
        stage, position = self.definitions[p.name]
        return not isinstance(self.stages[stage][position], Reduce)

    def _forward(self, buffer: str, p: _Produced, stage: int) -> str:
        names: dict[str, str] = {}
        if buffer not in self.exported:
            steps = self._cheap_slice(p)
            if steps is not None:
                symbols: dict[Sym, Expr] = {}
                for s in steps:
                    self._translate(s, stage, names, symbols)
                return names[p.name]
            slot = self._slot(buffer, p)
            if slot is not None:
                self._translate(Load("row", slot.name, slot.address), stage, names, {})
                return names["row"]
            self.exported.add(buffer)
            self.spilled.append(buffer)
            self._append(Store(buffer, p.address, p.name), p.stage)
        self._translate(Load("memory", buffer, p.address), stage, names, {})
        return names["memory"]

    def _cheap_slice(self, p: _Produced) -> list[KernelStatement] | None:
        """Return the statements of its stage that compute a value, if recomputing them is cheap."""
        positions: set[int] = set()
        slots: list[_Slot] = []
        stack: list[str | Sym] = [p.name]
        price = 0
        while stack:
            definition = self.definitions.get(stack.pop())
            if definition is None or definition[0] != p.stage or definition[1] in positions:
                continue
            s = self.stages[p.stage][definition[1]]
            if isinstance(s, Reduce):
                continue
            if isinstance(s, Load):
                slots.extend(slot for slot in self.slots.all if slot.name == s.buffer)
            price += _cost(s)
            if price > _CHEAP:
                return None
            positions.add(definition[1])
            stack.extend(used(s))
            for e in expressions(s):
                stack.extend(x for x in e.free_symbols if x.kind is SymKind.INDIRECT)
        if any(slot.shared or not slot.scratch for slot in slots):
            return None
        for slot in slots:
            slot.repeated = True
        return [self.stages[p.stage][n] for n in sorted(positions)]

    def _slot(self, buffer: str, p: _Produced) -> _Slot | None:
        """Return the slot of a value; on first use, choose it and store the value there."""
        if buffer not in self.slot_of:
            slot = self.slots.choose(buffer, p)
            if slot is None:
                return None
            self.slot_of[buffer] = slot
            self._append(Store(slot.name, slot.address, p.name), p.stage)
        return self.slot_of[buffer]


def _weights(axes: tuple[Axis, ...]) -> list[Expr]:
    """Return the terms of the row-major position over a list of axes."""
    terms: list[Expr] = []
    weight: Expr = product_of(())
    for a in reversed(axes):
        terms.append(a.symbol * weight)
        weight = weight * a.extent
    return terms or [ZERO]


def _cost(s: KernelStatement) -> int:
    """Return the cost of one evaluation, relative to an addition."""
    match s:
        case Let(op=op):
            return OPS[op].cost
        case Load(index=index):
            return 4 if is_indirect(index) else 1
        case Bind():
            return 2
        case ScanStep() | SortStep():
            return _NEVER
        case _:
            return 0
