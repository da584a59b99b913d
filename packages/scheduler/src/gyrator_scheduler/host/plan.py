"""The host program, node by node."""

from collections.abc import Mapping, Sequence

from attrs import evolve

from gyrator_ir.host.nodes import (
    Allocate,
    AllocateFromPool,
    AllocatePool,
    AssertNoNan,
    BindConstant,
    Capture,
    Comment,
    Free,
    HostProgram,
    Instruction,
    Launch,
    ProfileRange,
    Return,
    Reuse,
    WithDevice,
)
from gyrator_ir.kernel.nodes import (
    Kernel,
    KernelGroup,
    Launchable,
    Lifetime,
    Schedule,
    ScheduleNode,
)
from gyrator_ir.loop.nodes import (
    Buffer,
    CallOperation,
    Extern,
    Template,
    TensorInput,
    TensorRef,
)
from gyrator_ir.target import Target
from gyrator_ir.types import Device
from gyrator_scheduler.access import defined_symbols
from gyrator_scheduler.fusion.kernels import canonical
from gyrator_scheduler.host.calls import calls, conformity, separation
from gyrator_scheduler.host.inputs import bind_inputs, bind_results, check_inputs, parameters
from gyrator_scheduler.host.memory import Placement, place_in_pools
from gyrator_scheduler.host.names import Names
from gyrator_scheduler.host.parts import Stretch, partitioned
from gyrator_scheduler.memory import allocated, touched
from gyrator_scheduler.naming import fresh
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.partitions import buffers_of, captured, whole
from gyrator_scheduler.templates import template_kernel
from gyrator_scheduler.together import step_of


def host_program(
    schedule: Schedule, options: SchedulerOptions, targets: Mapping[str, Target], stem: str = ""
) -> HostProgram:
    """Write the host program of a schedule, and those of its subschedules.

    Names of kernels start with `stem`; no two programs of the result share one.
    """
    return _Planner(schedule, options, targets, stem).plan()


class _Planner:
    """Writes one host program; lives as long as that takes."""

    def __init__(
        self,
        schedule: Schedule,
        options: SchedulerOptions,
        targets: Mapping[str, Target],
        stem: str,
    ) -> None:
        self.schedule = schedule
        self.stem = stem
        self.options = options
        self.targets = targets
        self.buffers = buffers_of(schedule)
        self.parts = captured(schedule)
        # Memory of a graph is its own: nothing is placed in a pool that reaches beyond it.
        pooled = options.pool and not self.parts
        self.start, self.bound = bind_inputs(schedule.inputs)
        self.placement = (
            place_in_pools(schedule, targets, self.bound) if pooled else Placement((), {})
        )
        self.names = Names(self.buffers, {p.name for p in self.placement.pools})
        self.kernels: dict[Launchable, Launchable] = {}
        self.kernel_names: set[str] = set()
        self.steps = step_of(schedule.together, len(schedule.nodes))
        self.held: list[tuple[Kernel, tuple[str, ...]]] = []
        """Kernels of a launch that has more of them."""
        self.checks: list[Instruction] = []
        """What is checked of their results."""
        self.packed = {
            g.buffer.name for g in schedule.inputs if isinstance(g, TensorInput) and g.packed
        }
        """Inputs without storage."""
        self.several = len(self._devices()) > 1

    def plan(self) -> HostProgram:
        """Return the program."""
        schedule = self.schedule
        out = self.start
        ends = self._last_uses()
        used = {name for node in schedule.nodes for part in touched(node) for name in part}
        used |= {o.buffer for o in schedule.outputs if isinstance(o, TensorRef)}
        if self.options.inputs_checked:
            written = self._written(0, len(schedule.nodes))
            out.extend(check_inputs(schedule.inputs, self.bound, used, written))
        for c in schedule.constants:
            if c.buffer.name in used:
                out.append(BindConstant(c.buffer.name, c.key))
        out.extend(Free(name) for name in ends.get(-1, ()))
        births: dict[int, list[Lifetime]] = {}
        for life in schedule.lifetimes:
            births.setdefault(life.first, []).append(life)
        taken = {life.reuses for life in schedule.lifetimes if life.reuses is not None}
        borders = {n for p in self.parts for n in (p.start, p.end)}
        places: dict[int, int] = {}
        for n, node in enumerate(schedule.nodes):
            if n in borders:
                out.extend(Free(view) for view in self.names.forget_all())
                places[n] = len(out)
            self._node(n, node, births.get(n, []), out)
            for name in ends.get(n, ()):
                out.extend(Free(view) for view in self.names.forget_views(name))
                if name not in taken or name in self.placement.offsets:
                    out.append(Free(name))
            out.extend(Free(p.name) for p in self.placement.pools if p.last == n)
        if len(schedule.nodes) in borders:
            out.extend(Free(view) for view in self.names.forget_all())
            places[len(schedule.nodes)] = len(out)
        values = tuple(self.names.value(o, out) for o in schedule.outputs)
        out.append(Return(values))
        inner = evolve(self.options, inputs_checked=False)
        program = HostProgram(
            name=schedule.name,
            parameters=parameters(schedule.inputs),
            constants=tuple(c for c in schedule.constants if c.buffer.name in used),
            kernels=tuple(self.kernels.values()),
            instructions=tuple(out),
            facts=schedule.facts,
            origins=schedule.origins,
            subprograms=tuple(
                host_program(s, inner, self.targets, f"{self.stem}{s.name}_")
                for s in schedule.subschedules
            ),
            user_kernels=schedule.user_kernels,
            capture=self._capture(),
        )
        stretches = [
            Stretch(places[p.start], places[p.end], p.device, self._written(p.start, p.end))
            for p in self.parts
            if p.device is not None
        ]
        return partitioned(program, stretches)

    def _capture(self) -> Capture | None:
        """Return how a graph may stand for the program itself."""
        device = whole(self.schedule)
        if device is None:
            return None
        written = self._written(0, len(self.schedule.nodes))
        given = [i.buffer.name for i in self.schedule.inputs if isinstance(i, TensorInput)]
        return Capture(device, tuple(k for k, name in enumerate(given) if name in written))

    def _written(self, start: int, end: int) -> frozenset[str]:
        """Return the tensors that a stretch of nodes writes."""
        nodes = self.schedule.nodes[start:end]
        return frozenset(name for node in nodes for name in touched(node)[1])

    def _devices(self) -> set[Device]:
        devices = {b.device for b in self.buffers.values() if not b.device.is_host}
        return devices

    def _last_uses(self) -> dict[int, list[str]]:
        """Return what each node is the last to use; -1 has parameters that no node uses."""
        kept = {o.buffer for o in self.schedule.outputs if isinstance(o, TensorRef)}
        last = {i.buffer.name: -1 for i in self.schedule.inputs if isinstance(i, TensorInput)}
        given = set(last)
        for n, node in enumerate(self.schedule.nodes):
            for part in touched(node):
                for name in part:
                    if name in given:
                        last[name] = self.steps[n][1]
        for life in self.schedule.lifetimes:
            last[life.buffer] = life.last
        result: dict[int, list[str]] = {}
        for name, n in last.items():
            if name not in kept:
                result.setdefault(n, []).append(name)
        return result

    def _node(
        self, n: int, node: ScheduleNode, births: list[Lifetime], out: list[Instruction]
    ) -> None:
        """Write one node: its memory, then its work."""
        if self.options.comments:
            text = self._remark(node)
            if text:
                out.append(Comment(text))
        for p in self.placement.pools:
            if p.first == n:
                out.append(AllocatePool(p.name, p.bytes, p.device))
        given: list[Buffer] = []
        for life in births:
            if allocated(node, life.buffer):
                out.extend(self._storage(life))
            else:
                given.append(self.buffers[life.buffer])
        work: list[Instruction] = []
        if isinstance(node, Kernel):
            tensors = tuple(b.name for b in node.parameters)
            heirs = {life.reuses: life.buffer for life in births}
            moved = (name not in self.placement.offsets for name in tensors)
            tensors = tuple(
                heirs.get(name, name) if own else name
                for name, own in zip(tensors, moved, strict=True)
            )
            work.extend(self._launch(n, node, tensors))
        elif isinstance(node, Template):
            work.append(self._template(n, node))
        else:
            calls(_in_place(node, births), self.names, out, work)
            self.bound.update(defined_symbols(node))
        after: list[Instruction] = bind_results(given, self.bound)
        if not isinstance(node, Kernel | Template):
            work.extend(separation(work, self.packed))
            # Sizes are bound outside of what work may be wrapped in, for others need them.
            (after or work).extend(conformity(node, self.buffers, self.options.size_asserts))
        if self.options.nan_asserts:
            for name in touched(node)[1]:
                if name in self.buffers and self.buffers[name].dtype.is_float:
                    after.append(AssertNoNan(name, self._told(node)))
        if not work:
            self.checks.extend(after)
            return
        if self.several and (device := self._device_of(node)) is not None:
            work = [WithDevice(device, tuple(work))]
        if self.options.profile:
            work = [ProfileRange(node.name, tuple(work))]
        out.extend(work)
        out.extend(self.checks)
        out.extend(after)
        self.checks.clear()

    def _told(self, node: ScheduleNode) -> str:
        """Return what a node is called, and the user's lines that it comes from."""
        origins = (self.schedule.origins[o] for o in node.origins)
        lines = dict.fromkeys(f"{o.location}: {o.code}" for o in origins if o.location)
        return f"{node.name}, of {'; '.join(lines)}," if lines else node.name

    def _device_of(self, node: ScheduleNode) -> Device | None:
        for part in touched(node)[::-1]:
            for name in part:
                if name in self.buffers and not self.buffers[name].device.is_host:
                    return self.buffers[name].device
        return None

    def _storage(self, life: Lifetime) -> list[Instruction]:
        """Return the instructions that give a buffer its storage."""
        b = self.buffers[life.buffer]
        if b.name in self.placement.offsets:
            pool, offset = self.placement.offsets[b.name]
            return [AllocateFromPool(b.name, pool, offset, b.dtype, b.shape, b.strides)]
        if life.reuses is not None:
            views = [Free(view) for view in self.names.forget_views(life.reuses)]
            return [*views, Reuse(b.name, life.reuses, b.dtype, b.shape, b.strides)]
        return [Allocate(b.name, b.dtype, b.device, b.shape, b.strides)]

    def _launch(self, n: int, kernel: Kernel, tensors: tuple[str, ...]) -> list[Instruction]:
        """Return the launch of a kernel, or nothing until the last that it runs with."""
        first, last = self.steps[n]
        if first == last:
            return [Launch(self._kernel(kernel).name, tensors, kernel.sizes)]
        self.held.append((kernel, tensors))
        if n < last:
            return []
        held, self.held = self.held, []
        group = self._group([k for k, _ in held])
        return [Launch(group.name, tuple(t for _, ts in held for t in ts), group.sizes)]

    def _kernel(self, kernel: Kernel) -> Launchable:
        """Return the program's kernel that does the same."""
        key = canonical(kernel)[0]
        known = self.kernels.get(key)
        if known is None:
            name = self._kernel_name(kernel.name)
            known = evolve(key, name=name, origins=kernel.origins, refusals=kernel.refusals)
            self.kernels[key] = known
        return known

    def _group(self, members: Sequence[Kernel]) -> Launchable:
        """Return the program's group of kernels that does the same as these."""
        numbers: dict[Kernel, int] = {}
        places = tuple(numbers.setdefault(canonical(k)[0], len(numbers)) for k in members)
        named = tuple(evolve(k, name=f"k{n}") for k, n in numbers.items())
        key = KernelGroup("g", members[0].device, named, places)
        known = self.kernels.get(key)
        if known is None:
            name = self._kernel_name(f"g{members[0].name}")
            rows: list[set[int]] = [set() for _ in named]
            for k, number in zip(members, places, strict=True):
                rows[number].update(k.origins)
            kernels = tuple(
                evolve(k, name=f"{name}_{k.name}", origins=tuple(sorted(origins)))
                for k, origins in zip(named, rows, strict=True)
            )
            known = self.kernels[key] = evolve(key, name=name, kernels=kernels)
        return known

    def _template(self, n: int, node: Template) -> Launch:
        """Return the launch of a template's kernel, the program's that does the same."""
        kernel, tensors = template_kernel(node, f"t{n}_{node.kind.value}", self.buffers)
        key = evolve(kernel, name="t", origins=())
        known = self.kernels.get(key)
        if known is None:
            known = self.kernels[key] = evolve(kernel, name=self._kernel_name(kernel.name))
        return Launch(known.name, tensors, known.sizes)

    def _kernel_name(self, wanted: str) -> str:
        return fresh(self.stem + wanted, self.kernel_names)

    def _remark(self, node: ScheduleNode) -> str:
        """Return which operations, on which lines, a node came from."""
        table = self.schedule.origins
        rows = [table[o] for o in node.origins[:8] if o < len(table)]
        nodes = ", ".join(f"%{r.node}" for r in rows)
        places = dict.fromkeys(r.location for r in rows if r.location)
        more = ", ..." if len(node.origins) > 8 else ""
        where = f" ({'; '.join(list(places)[:2])})" if places else ""
        return f"{nodes}{more}{where}" if nodes else ""


def _in_place(node: CallOperation, births: Sequence[Lifetime]) -> CallOperation:
    """Return a call that adds to a buffer whose storage its result has, as adding to the result."""
    if not isinstance(node, Extern):
        return node
    heir = next((x for x in births if x.reuses is not None and x.reuses == node.accumulator), None)
    if heir is None:
        return node
    first, *rest = node.args
    assert isinstance(first, TensorRef)
    return evolve(node, args=(evolve(first, buffer=heir.buffer), *rest))
