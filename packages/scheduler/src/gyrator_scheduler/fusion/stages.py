"""From a cluster to a kernel: parts of operations are put into stages, values are handed on."""

from collections.abc import Mapping
from typing import Any

from attrs import define, frozen

from gyrator_ir.expr import ZERO, Expr, Sym, SymKind, product_of, sum_of
from gyrator_ir.kernel.nodes import KernelStatement, Level, Local, Stage
from gyrator_ir.loop.body import (
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
)
from gyrator_ir.loop.nodes import Buffer, Reduction
from gyrator_ir.loop.rewrite import defined, expressions, named, renamed, used
from gyrator_ir.target import Heuristics
from gyrator_ir.types import DType
from gyrator_scheduler.access import statements_of
from gyrator_scheduler.fusion.cluster import Cluster, Member
from gyrator_scheduler.fusion.cost import CHEAP, statement_cost
from gyrator_scheduler.ranges import Ranges


@frozen
class Assembled:
    """The inside of a kernel, in the cluster's symbols."""

    points: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    locals: tuple[Local, ...]
    spilled: tuple[str, ...]
    """Buffers that had to go through memory after all."""


@define(eq=False)
class _Part:
    """Statements of one operation that run at one level."""

    member: Member
    inner: bool
    body: tuple[KernelStatement, ...]
    stage: int = 0
    collective: bool = False


@define(eq=False)
class _Produced:
    """Where the value of a buffer is to be found."""

    name: str
    stage: int
    address: Expr


def assemble(
    cluster: Cluster,
    wanted: set[str],
    buffers: Mapping[str, Buffer],
    heuristics: Heuristics,
    ranges: Ranges,
) -> Assembled:
    """Lay a cluster out in stages. `wanted` are the buffers that others read: only those are
    stored, and what passes cannot hand on otherwise."""
    parts = _parts(cluster)
    _place(parts)
    builder = _Builder(cluster, wanted, buffers, heuristics, ranges)
    for part in parts:
        builder.emit(part)
    return builder.finish()


def _parts(cluster: Cluster) -> list[_Part]:
    """Split members into parts, in program order. A fold's results are stored at outer level."""
    parts: list[_Part] = []
    for m in sorted(cluster.members, key=lambda m: m.index):
        if isinstance(m.op, Reduction):
            parts.append(_Part(m, True, (*m.op.body, m.op.reduce), collective=True))
            parts.append(_Part(m, False, m.op.stores))
        else:
            body = statements_of(m.op)
            looks = any(isinstance(s, (ScanStep, SortStep)) for s in body)
            parts.append(_Part(m, m.inner, body, collective=looks))
    return parts


def _place(parts: list[_Part]) -> None:
    """Number stages: inner ones even, outer ones odd; as early as possible, and then pointwise
    inner parts as late as their readers allow."""
    writer: dict[str, _Part] = {}
    readers: dict[str, list[_Part]] = {}
    folding: dict[int, _Part] = {}
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
        if p.member.index in folding:
            p.stage = folding[p.member.index].stage + 1
        for q in before:
            p.stage = max(p.stage, q.stage if q.inner is p.inner else q.stage + 1)
            followers.setdefault(id(q), []).append(p)
        if p.collective and isinstance(p.member.op, Reduction):
            folding[p.member.index] = p
    for p in reversed(parts):
        if p.inner and not p.collective and id(p) in followers:
            p.stage = min(q.stage if q.inner else q.stage - 1 for q in followers[id(p)])


class _Builder:
    """Emits statements stage by stage, each computation once where it is visible."""

    def __init__(
        self,
        cluster: Cluster,
        wanted: set[str],
        buffers: Mapping[str, Buffer],
        heuristics: Heuristics,
        ranges: Ranges,
    ) -> None:
        self.points, self.inner = cluster.points, cluster.inner
        self.axes = cluster.axes
        self.wanted = set(wanted)
        self.buffers = buffers
        self.ranges = ranges
        self.scratch = heuristics.scratch_bytes
        self.spilled: list[str] = []
        self.locals: dict[str, Local] = {}
        self.stages: dict[int, list[KernelStatement]] = {}
        self.produced: dict[str, _Produced] = {}
        self.same: dict[int, dict[Any, Any]] = {}
        self.makers: dict[str | Sym, tuple[int, int]] = {}
        self.handed: dict[tuple[str, int], str] = {}
        self.numbers = 0
        self.symbols = 0
        self.names: dict[int, dict[str, str]] = {}
        self.bound: dict[int, dict[Sym, Expr]] = {}
        self.position = sum_of(_weights(self.inner))

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
                case Store(buffer, index, value):
                    address = self._address(index, symbols)
                    self.produced[buffer] = _Produced(
                        names[value], self._home(names[value], part), address
                    )
                    if buffer in self.wanted:
                        self._append(renamed(s, names, symbols, self._simplify), part.stage)
                case _:
                    self._translate(s, part.stage, names, symbols)

    def finish(self) -> Assembled:
        """Drop what nobody needs and return the kernel's inside."""
        needed: set[str] = set()
        symbols: set[Sym] = set()
        stages: list[Stage] = []
        for number in sorted(self.stages, reverse=True):
            kept: list[KernelStatement] = []
            for s in reversed(self.stages[number]):
                names = defined(s)
                if names and needed.isdisjoint(names):
                    continue
                if isinstance(s, Bind) and not s.check and s.symbol not in symbols:
                    continue
                needed.update(used(s))
                for e in expressions(s):
                    symbols |= e.free_symbols
                kept.append(s)
            if kept:
                level = Level.INNER if self.inner and number % 2 == 0 else Level.OUTER
                stages.append(Stage(level, tuple(reversed(kept))))
        return Assembled(
            self.points,
            self.inner,
            tuple(reversed(stages)),
            tuple(self.locals.values()),
            tuple(self.spilled),
        )

    def _home(self, name: str, part: _Part) -> int:
        """Return the stage in which a value lives."""
        return self.makers[name][0] if name in self.makers else part.stage

    def _simplify(self, e: Expr) -> Expr:
        return self.ranges.simplify(e, self.axes)

    def _address(self, e: Expr, symbols: Mapping[Sym, Expr]) -> Expr:
        return expressions(renamed(Store("b", e, "v"), {}, symbols, self._simplify))[0]

    def _append(self, s: KernelStatement, stage: int) -> None:
        body = self.stages.setdefault(stage, [])
        for name in defined(s):
            self.makers[name] = (stage, len(body))
        if isinstance(s, Bind):
            self.makers[s.symbol] = (stage, len(body))
        body.append(s)

    def _known(self, key: object, stage: int) -> Any:
        """Return what an equal statement made, if that is visible in a stage."""
        here = self.same.get(stage)
        if here is not None and key in here:
            return here[key]
        for number, found in self.same.items():
            if number % 2 and number < stage and key in found:
                return found[key]
        return None

    def _translate(
        self,
        s: KernelStatement,
        stage: int,
        names: dict[str, str],
        symbols: dict[Sym, Expr],
    ) -> None:
        """Emit a statement under new names, unless an equal one is visible."""
        new = renamed(s, names, symbols, self._simplify)
        key: tuple[object, ...]
        match new:
            case Load(_, buffer, index, mask):
                key = (Load, buffer, index, mask)
            case Let(_, op, args, dtype):
                key = (Let, op, args, dtype)
            case Const(_, value, dtype):
                key = (Const, repr(value), dtype)
            case IndexValue(_, e, dtype):
                key = (IndexValue, e, dtype)
            case Bind(_, value, size, wrap, check, mask):
                key = (Bind, value, size, wrap, check, mask)
            case Reduce(_, kind, args, dtype):
                key = (Reduce, kind, args, dtype)
            case _:
                key = (len(self.makers), new)
        known = self._known(key, stage)
        if isinstance(s, Bind):
            if known is None:
                known = Sym(f"t{self.symbols}")
                self.symbols += 1
                symbols[s.symbol] = known
                self._append(renamed(s, names, symbols, self._simplify), stage)
                self.same.setdefault(stage, {})[key] = known
            symbols[s.symbol] = known
            return
        if known is None:
            known = tuple(self._fresh() for _ in defined(s))
            self._append(named(new, known), stage)
            self.same.setdefault(stage, {})[key] = known
        names.update(zip(defined(s), known, strict=True))

    def _fresh(self) -> str:
        self.numbers += 1
        return f"v{self.numbers}"

    def _masked(self, value: str, mask: str, buffer: str, stage: int) -> str:
        """Return `value` where `mask` holds, else 0."""
        dtype = self.buffers[buffer].dtype
        zero: bool | int | float
        zero = False if dtype is DType.BOOL else 0.0 if dtype.is_float else 0
        names: dict[str, str] = {"value": value, "mask": mask}
        self._translate(Const("zero", zero, dtype), stage, names, {})
        self._translate(Let("chosen", "where", ("mask", "value", "zero"), dtype), stage, names, {})
        return names["chosen"]

    def _value(self, buffer: str, stage: int) -> str:
        """Return a name for what was stored in a buffer, visible in a stage."""
        p = self.produced[buffer]
        if p.stage == stage or not self._inner_only(p):
            return p.name
        key = (buffer, stage)
        if key not in self.handed:
            self.handed[key] = self._hand_over(buffer, p, stage)
        return self.handed[key]

    def _inner_only(self, p: _Produced) -> bool:
        """Whether a value is visible only in its own stage."""
        if p.stage % 2:
            return False
        stage, place = self.makers[p.name]
        return not isinstance(self.stages[stage][place], Reduce)

    def _hand_over(self, buffer: str, p: _Produced, stage: int) -> str:
        names: dict[str, str] = {}
        if buffer not in self.wanted:
            steps = self._slice(p)
            if steps is not None:
                symbols: dict[Sym, Expr] = {}
                for s in steps:
                    self._translate(s, stage, names, symbols)
                return names[p.name]
            if self._keep(buffer, p):
                self._translate(
                    Load("row", self.locals[buffer].name, self.position), stage, names, {}
                )
                return names["row"]
            self.wanted.add(buffer)
            self.spilled.append(buffer)
            self._append(Store(buffer, p.address, p.name), p.stage)
        self._translate(Load("memory", buffer, p.address), stage, names, {})
        return names["memory"]

    def _slice(self, p: _Produced) -> list[KernelStatement] | None:
        """Return the statements that make a value in its stage, if running them again is cheap."""
        places: set[int] = set()
        stack: list[str | Sym] = [p.name]
        price = 0
        while stack:
            made = self.makers.get(stack.pop())
            if made is None or made[0] != p.stage or made[1] in places:
                continue
            s = self.stages[p.stage][made[1]]
            if isinstance(s, Reduce):
                continue
            price += statement_cost(s)
            if price > CHEAP:
                return None
            places.add(made[1])
            stack.extend(used(s))
            for e in expressions(s):
                stack.extend(x for x in e.free_symbols if x.kind is SymKind.INDIRECT)
        return [self.stages[p.stage][n] for n in sorted(places)]

    def _keep(self, buffer: str, p: _Produced) -> bool:
        """Keep a value in a row of scratch, if the row is known to fit."""
        if buffer in self.locals:
            return True
        extent = product_of(a.extent for a in self.inner)
        dtype = self.buffers[buffer].dtype
        most = self.ranges.facts.bounds(extent)[1]
        if most is None or most * dtype.size > self.scratch:
            return False
        self.scratch -= most * dtype.size
        name = f"row{len(self.locals)}"
        while name in self.buffers:
            name += "_"
        local = Local(name, dtype, extent)
        self.locals[buffer] = local
        self._append(Store(local.name, self.position, p.name), p.stage)
        return True


def _weights(axes: tuple[Axis, ...]) -> list[Expr]:
    """Return the terms of the row-major position over some axes."""
    terms: list[Expr] = []
    weight: Expr = product_of(())
    for a in reversed(axes):
        terms.append(a.symbol * weight)
        weight = weight * a.extent
    return terms or [ZERO]
