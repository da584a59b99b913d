"""The invariants of kernels and schedules, checked at every stage boundary.

GY-KERNEL-001 to 010 are those of bodies, see `gyrator_ir.body.verify`. 011 to 019 apply to nodes of
a schedule as in Loop IR, see `gyrator_ir.loop.verify` (012 does not apply to kernels). The others
are:

GY-KERNEL-021  parameters are the buffers used: those loaded from, then the others, by first use
GY-KERNEL-022  `sizes` are the size symbols that occur in extents, addresses and values
GY-KERNEL-023  collectives occur in inner stages only (007 forbids inner axes in outer stages)
GY-KERNEL-024  a local is stored to before it is loaded from, and is not also a parameter
GY-KERNEL-025  parameters match the buffers of the schedule and are on the kernel's device
GY-KERNEL-026  every created buffer has one lifetime, which covers its uses
GY-KERNEL-027  a buffer reuses only storage that is dead by then or that its call accumulates into,
               that is large enough, and that no other buffer reuses
GY-KERNEL-028  partitions are ordered and disjoint ranges of nodes; the captured nodes use buffers
               of the graph's device only, and include no call that cannot be captured
GY-KERNEL-029  kernels that share a launch are on one device, and none writes storage that another
               accesses; groups are ordered and disjoint
GY-KERNEL-030  totals are unmasked stores of inner stages, to buffers that the kernel does not
               access otherwise; their indices depend on the same first axes, and on no loaded value
GY-KERNEL-031  what a launch may read before the previous one ends are parameters that the kernel
               does not write

Values of an inner stage are visible only there; results of a `Reduce` only after its stage (003).
"""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from gyrator_ir.body.nodes import Load, Reduce, ScanStep, SortStep, Store
from gyrator_ir.body.print import show_statement
from gyrator_ir.body.rewrite import AnyStatement, expressions
from gyrator_ir.body.verify import SIZE_KINDS, Checker, Scope, Storage, Where, storage_of
from gyrator_ir.expr import Const as ConstExpr
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import (
    Kernel,
    KernelGroup,
    Launchable,
    Level,
    Lifetime,
    Partition,
    Schedule,
    ScheduleNode,
    Stage,
    TemplateKernel,
    Together,
)
from gyrator_ir.kernel.print import show_kernel, show_line, show_node
from gyrator_ir.loop.capture import uncaptured
from gyrator_ir.loop.formulas import check_formulas, sizes_in
from gyrator_ir.loop.nodes import Buffer, Constant, Extern, TensorRef
from gyrator_ir.loop.templates import template_error
from gyrator_ir.loop.uses import buffers_of
from gyrator_ir.loop.verify import CallChecker, DataFlow, check_classes
from gyrator_ir.provenance import Origin
from gyrator_ir.text.scanner import Writer
from gyrator_ir.types import Device, DType

__all__ = ["verify"]

_Launchable = TypeVar("_Launchable", Kernel, TemplateKernel, KernelGroup, Launchable)


def verify(schedule: Schedule) -> Schedule:
    """Return `schedule` unchanged, or raise `VerifyError` for the first violation."""
    _Verifier(schedule).run()
    for sub in schedule.subschedules:
        verify(sub)
    return schedule


def verify_kernel(kernel: _Launchable, origins: Sequence[Origin] = ()) -> _Launchable:
    """Return `kernel` unchanged, or raise `VerifyError`. The kernel is checked by itself, without
    a schedule."""
    checker = Checker("KERNEL", {}, origins)
    if isinstance(kernel, Kernel):
        _check_kernel(kernel, checker)
    elif isinstance(kernel, KernelGroup):
        _check_group(kernel, checker)
    else:
        _check_template(kernel, checker)
    return kernel


# Kernels --------------------------------------------------------------------------------------


def _check_kernel(k: Kernel, checker: Checker) -> None:
    where = _check_origins(k, checker)
    _check_overlap(k, checker, where)
    checker.storages = _storages(k, checker, where)
    _check_stages(k, checker, where)
    _check_totals(k, checker)
    _check_parameters(k, checker, where)
    _check_sizes(k, checker, where)


def _check_origins(k: Kernel | TemplateKernel, checker: Checker) -> Where:
    """Check that the origins of a kernel exist; return the text for messages about it."""
    checker.rows = k.origins
    where = partial(_head, k)
    if checker.origins and any(not 0 <= row < len(checker.origins) for row in k.origins):
        checker.fail(17, f"there is no such row among {len(checker.origins)} origins", where)
    return where


def _check_group(k: KernelGroup, checker: Checker) -> None:
    where = partial(_head, k)
    names = {kernel.name for kernel in k.kernels}
    if len(names) != len(k.kernels) or set(k.members) != set(range(len(k.kernels))):
        checker.fail(29, "kernels must have unique names, and each must be a member", where)
    for kernel in k.kernels:
        if kernel.device != k.device:
            checker.fail(29, f"{kernel.name!r} is on {kernel.device}, not {k.device}", where)
        _check_kernel(kernel, checker)


def _check_overlap(k: Kernel | TemplateKernel, checker: Checker, where: Where) -> None:
    for name in k.overlap or ():
        if name not in k.reads or name in k.writes:
            checker.fail(31, f"{name!r} is not a parameter that is only read", where)


def _check_template(k: TemplateKernel, checker: Checker) -> None:
    where = _check_origins(k, checker)
    _check_overlap(k, checker, where)
    message = template_error(k.kind, k.inputs, k.outputs, k.attributes)
    if message:
        checker.fail(19, message, where)
    tensors = (*k.inputs, *k.outputs)
    expected = list(dict.fromkeys(t.buffer for t in tensors))
    if [p.name for p in k.parameters] != expected:
        got = [p.name for p in k.parameters]
        checker.fail(21, f"parameters must be {expected}, got {got}", where)
    _check_layouts(k, checker, where)
    checker.storages = {p.name: storage_of(p) for p in k.parameters}
    check_formulas(k.kind, k.formulas, k.reads, k.sizes, checker, where)
    layouts = (e for t in tensors for e in (*t.shape, *t.strides, t.offset))
    used = {s for e in layouts for s in e.free_symbols}
    _compare_sizes(k, used | set(sizes_in(k.formulas)), checker, where)


def _storages(k: Kernel, checker: Checker, where: Where) -> dict[str, Storage]:
    storages: dict[str, Storage] = {}
    for p in k.parameters:
        if p.name in storages:
            checker.fail(1, f"parameter {p.name!r} is declared twice", where)
        storages[p.name] = storage_of(p)
    for t in k.locals:
        if t.name in storages:
            checker.fail(24, f"local {t.name!r} is declared twice, or also a parameter", where)
        extent = t.extent
        storages[t.name] = Storage(t.dtype, extent.value if type(extent) is ConstExpr else None)
    return storages


def _check_stages(k: Kernel, checker: Checker, where: Where) -> None:
    sizes = set(k.sizes)
    outer = Scope(symbols=sizes)
    checker.axes(k.axes, outer, where)
    inner_axes = Scope(symbols=set(outer.symbols))
    checker.axes(k.inner, inner_axes, where)
    stored: set[str] = set()
    for stage in k.stages:
        _check_locals(stage, {t.name for t in k.locals}, stored, checker)
        if stage.level is Level.OUTER:
            for s in stage.body:
                if isinstance(s, Reduce | ScanStep | SortStep):
                    checker.fail(23, "a collective occurs in an outer stage", _line(s))
            checker.statements(stage.body, outer)
            continue
        scope = outer.copy()
        scope.symbols |= inner_axes.symbols
        scope.extents |= inner_axes.extents
        scope.empty = scope.empty or inner_axes.empty
        _check_inner(stage, k, scope, outer, checker)


def _check_inner(stage: Stage, k: Kernel, scope: Scope, outer: Scope, checker: Checker) -> None:
    reduced: dict[str, DType] = {}
    for s in stage.body:
        checker.statements((s,), scope)
        if type(s) is Reduce:
            # A result is only visible after the stage, but its name may not be defined again.
            for name in s.names:
                if name in reduced:
                    checker.fail(4, f"value {name!r} is defined twice", _line(s))
                reduced[name] = scope.values.pop(name)
    for name, dtype in reduced.items():
        if name in outer.values:
            checker.fail(4, f"value {name!r} is defined twice", partial(_head, k))
        outer.values[name] = dtype


def _check_totals(k: Kernel, checker: Checker) -> None:
    totals = k.totals
    if not totals:
        return
    leading = tuple(a.symbol for a in k.axes[: len(k.axes) - len(k.summed)])
    own = {*leading, *(a.symbol for a in k.inner), *k.sizes}
    accesses = [s.buffer for s in k.statements if isinstance(s, Load | Store)]
    outside = [s for stage in k.stages if stage.level is Level.OUTER for s in stage.body]
    for s in totals:
        symbols = s.index.free_symbols
        if not symbols <= own or not symbols.issuperset(leading):
            checker.fail(30, f"a total must depend on {leading} and inner axes only", _line(s))
        if s.mask is not None or s in outside or not k.inner or accesses.count(s.buffer) > 1:
            message = "a total is stored in an outer stage, masked, or to an accessed buffer"
            checker.fail(30, message, _line(s))


def _check_locals(stage: Stage, names: set[str], stored: set[str], checker: Checker) -> None:
    if not names:
        return
    for s in stage.body:
        if type(s) is Store and s.buffer in names:
            stored.add(s.buffer)
        elif type(s) is Load and s.buffer in names and s.buffer not in stored:
            checker.fail(24, f"local {s.buffer!r} is loaded from before it is stored to", _line(s))


def _check_parameters(k: Kernel, checker: Checker, where: Where) -> None:
    loads, stores = k.reads, k.writes
    expected = list(dict.fromkeys((*loads, *stores)))
    got = [p.name for p in k.parameters]
    if got != expected:
        checker.fail(21, f"parameters must be {expected}, got {got}", where)
    _check_layouts(k, checker, where)


def _check_layouts(k: Launchable, checker: Checker, where: Where) -> None:
    for p in k.parameters:
        if p.device != k.device:
            checker.fail(25, f"{p.name!r} is on {p.device}, the kernel on {k.device}", where)
        if len(p.shape) != len(p.strides):
            checker.fail(
                14, f"{p.name!r} has {len(p.shape)} sizes and {len(p.strides)} strides", where
            )


def _check_sizes(k: Kernel, checker: Checker, where: Where) -> None:
    extents = (*(a.extent for a in (*k.axes, *k.inner)), *(t.extent for t in k.locals))
    exprs = (*extents, *(e for s in k.statements for e in expressions(s)))
    _compare_sizes(k, {symbol for e in exprs for symbol in e.free_symbols}, checker, where)


def _compare_sizes(k: Launchable, used: set[Sym], checker: Checker, where: Where) -> None:
    expected = {symbol for symbol in used if symbol.kind in SIZE_KINDS}
    if set(k.sizes) != expected or len(expected) != len(k.sizes):
        names = sorted(symbol.name for symbol in expected)
        checker.fail(22, f"sizes must be {names}, got {[s.name for s in k.sizes]}", where)


def _head(k: Launchable) -> str:
    return show_kernel(k, Writer())[0]


def _line(s: AnyStatement) -> Where:
    return partial(show_statement, s)


# Schedules ------------------------------------------------------------------------------------


class _Verifier:
    """Verifies one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.checker = Checker("KERNEL", {}, schedule.origins)
        check_classes(self.checker, Constant, schedule.constants)
        check_classes(self.checker, Buffer, schedule.buffers)
        check_classes(self.checker, ScheduleNode, schedule.nodes)
        self.buffers = {b.name: b for b in schedule.all_buffers}
        self.storages = {b.name: storage_of(b) for b in schedule.all_buffers}
        self.checker.storages = self.storages
        self.flow = DataFlow(self.checker, schedule.inputs, schedule.constants, schedule.buffers)
        programs = {s.name: (len(s.inputs), len(s.outputs)) for s in schedule.subschedules}
        if len(programs) != len(schedule.subschedules):
            self.checker.fail(1, "two subschedules have the same name")
        self.calls = CallChecker(self.flow, programs, (k.key for k in schedule.user_kernels))
        self.uses: dict[str, list[int]] = {}

    def run(self) -> None:
        names: set[str] = set()
        for position, node in enumerate(self.schedule.nodes):
            where = partial(_first_line, node, self.flow.writer)
            if isinstance(node, Kernel):
                _check_kernel(node, self.checker)
                self.checker.storages = self.storages
                self._kernel(node)
            else:
                self.checker.rows = getattr(node, "origins", ())
                self.calls.check(node, where)
            for name in accessed(node):
                self.uses.setdefault(name, []).append(position)
            if node.name in names:
                self.checker.fail(1, f"two nodes are called {node.name!r}", where)
            names.add(node.name)
        self.checker.rows = ()
        self.flow.finish(self.schedule.outputs)
        for output in self.schedule.outputs:
            if isinstance(output, TensorRef):
                self.uses.setdefault(output.buffer, []).append(len(self.schedule.nodes))
        if self.schedule.lifetimes:
            self._lifetimes()
        self._partitions()
        self._together()

    def _kernel(self, k: Kernel) -> None:
        flow, where = self.flow, partial(_head, k)
        for p in k.parameters:
            declared = self.buffers.get(p.name)
            if declared is None:
                self.checker.fail(2, f"buffer {p.name!r} is not declared", where)
            if p != declared.parts:
                self.checker.fail(25, f"{p.name!r} is not as declared in the schedule", where)
        local = {t.name for t in k.locals}
        flow.check_sizes(k.sizes, where)
        stored: set[str] = set()
        for s in k.statements:
            if type(s) is Load and s.buffer not in local and s.buffer not in stored:
                flow.read(s.buffer, _line(s))
            elif type(s) is Store and s.buffer not in local:
                stored.add(s.buffer)
        for name in sorted(stored):
            flow.write(name, where, again=True)

    def _lifetimes(self) -> None:
        count = len(self.schedule.nodes)
        lifetimes: dict[str, Lifetime] = {}
        for life in self.schedule.lifetimes:
            where = partial(show_line, life)
            if life.buffer in lifetimes:
                self.checker.fail(26, f"{life.buffer!r} has two lifetimes", where)
            if life.buffer not in self.flow.created:
                self.checker.fail(26, f"{life.buffer!r} is not a created buffer", where)
            lifetimes[life.buffer] = life
            if not 0 <= life.first <= life.last <= count:
                self.checker.fail(26, f"the range exceeds the {count} nodes", where)
            uses = self.uses.get(life.buffer, [life.first])
            if not life.first <= min(uses) <= max(uses) <= life.last:
                self.checker.fail(
                    26, f"{life.buffer!r} is used from {min(uses)} to {max(uses)}", where
                )
        for name in self.flow.created:
            if name not in lifetimes:
                self.checker.fail(26, f"{name!r} has no lifetime")
        self._reuses(lifetimes)

    def _reuses(self, lifetimes: dict[str, Lifetime]) -> None:
        successors: dict[str, str] = {}
        for life in lifetimes.values():
            if life.reuses is None:
                continue
            where = partial(show_line, life)
            source = lifetimes.get(life.reuses)
            if source is None:
                self.checker.fail(27, f"{life.reuses!r} is not a created buffer", where)
            if life.reuses in successors:
                self.checker.fail(
                    27, f"{life.reuses!r} was already reused by {successors[life.reuses]!r}", where
                )
            successors[life.reuses] = life.buffer
            if source is life or source.last > life.first:
                self.checker.fail(27, f"{life.reuses!r} is live until {source.last}", where)
            node = self.schedule.nodes[life.first]
            adds = isinstance(node, Extern) and node.accumulator == life.reuses
            if source.last == life.first and not adds and not isinstance(node, Kernel):
                self.checker.fail(27, f"{life.reuses!r} is in use by the call that writes", where)
            self._fits(self.buffers[life.buffer], self.buffers[life.reuses], where)

    def _fits(self, new: Buffer, old: Buffer, where: Where) -> None:
        if new.device != old.device:
            self.checker.fail(27, f"{old.name!r} is on {old.device}, not {new.device}", where)
        needed, available = storage_of(new).size, storage_of(old).size
        if needed is not None and available is not None and needed > available:
            message = f"{old.name!r} has {available} bytes, {new.name!r} needs {needed}"
            self.checker.fail(27, message, where)

    def _partitions(self) -> None:
        position = 0
        for p in self.schedule.partitions:
            if not position <= p.start < p.end <= len(self.schedule.nodes):
                self.checker.fail(
                    28,
                    f"expected a partition between {position} and {len(self.schedule.nodes)}",
                    partial(show_line, p),
                )
            position = p.end
            if p.device is not None:
                self._captured(p, p.device)

    def _captured(self, p: Partition, device: Device) -> None:
        for node in self.schedule.nodes[p.start : p.end]:
            if not isinstance(node, Kernel) and (reason := uncaptured(node)):
                message = f"{node.name!r} cannot be captured in a graph: {reason}"
                self.checker.fail(28, message, partial(show_line, p))
            for name in sorted(accessed(node)):
                if self.buffers[name].device != device:
                    message = f"{name!r} is on {self.buffers[name].device}"
                    self.checker.fail(28, message, partial(show_line, p))

    def _together(self) -> None:
        position = 0
        for t in self.schedule.together:
            where = partial(show_line, t)
            if not position <= t.start or not t.start + 1 < t.end <= len(self.schedule.nodes):
                self.checker.fail(29, f"expected at least two nodes, from {position} on", where)
            position = t.end
            self._group(t, where)

    def _group(self, t: Together, where: Where) -> None:
        nodes = self.schedule.nodes[t.start : t.end]
        devices = {n.device for n in nodes if isinstance(n, Kernel)}
        if len(devices) != 1 or not all(isinstance(n, Kernel) for n in nodes):
            self.checker.fail(29, "expected kernels of one device", where)
        roots = {life.buffer: life.buffer for life in self.schedule.lifetimes}
        for life in self.schedule.lifetimes:
            if life.reuses is not None:
                roots[life.buffer] = roots[life.reuses]
        users: dict[str, set[str]] = {}
        writers: dict[str, set[str]] = {}
        for n in nodes:
            assert isinstance(n, Kernel)
            for name in accessed(n):
                users.setdefault(roots.get(name, name), set()).add(n.name)
            for name in n.writes:
                writers.setdefault(roots.get(name, name), set()).add(n.name)
        for name, nodes_writing in writers.items():
            if len(users[name]) > 1:
                message = (
                    f"{sorted(nodes_writing)} write {name!r}, which {sorted(users[name])} access"
                )
                self.checker.fail(29, message, where)


def _first_line(node: ScheduleNode, writer: Writer) -> str:
    return show_node(node, writer)[0]


def accessed(node: ScheduleNode) -> set[str]:
    """Return the buffers that a node of a schedule reads or writes."""
    if isinstance(node, Kernel):
        return {p.name for p in node.parameters}
    return buffers_of(node)
