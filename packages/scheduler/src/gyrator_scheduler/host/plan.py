"""Construction of the host program, node by node."""

from collections.abc import Mapping, Sequence

from attrs import evolve

from gyrator_ir.host import nodes as h
from gyrator_ir.kernel.nodes import Kernel, Lifetime, Schedule, ScheduleNode
from gyrator_ir.loop.nodes import Buffer, CallOperation, Extern, Template, TensorInput, TensorRef
from gyrator_ir.loop.uses import defined_symbols
from gyrator_ir.target import Target
from gyrator_ir.types import Device
from gyrator_scheduler.host.calls import CallWriter, conformity, separation
from gyrator_scheduler.host.inputs import (
    bind_inputs,
    bind_results,
    check_inputs,
    needed_checks,
    parameters,
)
from gyrator_scheduler.host.kernels import KernelTable
from gyrator_scheduler.host.memory import Placement, place_in_pools
from gyrator_scheduler.host.names import Names
from gyrator_scheduler.host.offsets import OpenKernel, open_kernels, with_offsets
from gyrator_scheduler.host.overlap import overlapped
from gyrator_scheduler.host.partitioning import Region, partitioned
from gyrator_scheduler.memory import allocated, touched
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.partitions import captured, captured_device
from gyrator_scheduler.templates import template_kernel
from gyrator_scheduler.together import step_of


def host_program(
    schedule: Schedule, options: SchedulerOptions, targets: Mapping[str, Target], stem: str = ""
) -> h.HostProgram:
    """Return the host program of a schedule, with those of its subschedules.

    Kernel names start with `stem` and are unique among all programs of the result.
    """
    return _Planner(schedule, options, targets, stem).plan()


class _Planner:
    """Builds one host program."""

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
        self.buffers = {b.name: b for b in schedule.all_buffers}
        self.parts = captured(schedule)
        # A graph owns its memory, so no pool may contain buffers from inside and outside of it.
        pooled = options.pool and not self.parts
        self.start, self.checks, self.bound = bind_inputs(schedule.inputs)
        self.placement = (
            place_in_pools(schedule, targets, self.bound) if pooled else Placement((), {})
        )
        self.names = Names(self.buffers, {p.name for p in self.placement.pools})
        self.kernels = KernelTable(stem)
        self.steps = step_of(schedule.together, len(schedule.nodes))
        alone = zip(schedule.nodes, self.steps, strict=False)  # the last step is the end
        self.opened = open_kernels([k for k, (a, b) in alone if a == b and isinstance(k, Kernel)])
        self.pending: list[tuple[Kernel, tuple[str, ...]]] = []
        """Kernels of the current group launch, with their tensors."""
        self.pending_checks: list[h.Instruction] = []
        """Checks of their results, emitted after the launch."""
        self.packed = {
            g.buffer.name for g in schedule.inputs if isinstance(g, TensorInput) and g.packed
        }
        """Inputs in a library's packed format, which have no storage."""
        self.several = len({b.device for b in self.buffers.values() if not b.device.is_host}) > 1

    def plan(self) -> h.HostProgram:
        """Return the program."""
        schedule, out = self.schedule, self.start
        start = len(out)
        ends = self._last_uses()
        used = {name for node in schedule.nodes for part in touched(node) for name in part}
        used |= {o.buffer for o in schedule.outputs if isinstance(o, TensorRef)}
        if self.options.inputs_checked:
            written = self._written(0, len(schedule.nodes))
            out.extend(check_inputs(schedule.inputs, self.bound, used, written))
        constants = tuple(c for c in schedule.constants if c.buffer.name in used)
        out.extend(h.BindConstant(c.buffer.name, c.key) for c in constants)
        out.extend(h.Free(name) for name in ends.get(-1, ()))
        positions = self._nodes(ends, out)
        values = tuple(self.names.value(o, out) for o in schedule.outputs)
        out.append(h.Return(values))
        checks = needed_checks(schedule.inputs, self.checks, out)
        out[start:start] = checks
        inner = evolve(self.options, inputs_checked=False)
        program = h.HostProgram(
            name=schedule.name,
            parameters=parameters(schedule.inputs),
            constants=constants,
            kernels=self.kernels.kernels,
            instructions=tuple(out),
            facts=with_offsets(schedule.facts, self.opened.values()),
            origins=schedule.origins,
            subprograms=tuple(
                host_program(s, inner, self.targets, f"{self.stem}{s.name}_")
                for s in schedule.subschedules
            ),
            user_kernels=schedule.user_kernels,
            capture=self._capture(),
        )
        regions = [
            Region(
                positions[p.start] + len(checks),
                positions[p.end] + len(checks),
                p.device,
                self._written(p.start, p.end),
            )
            for p in self.parts
            if p.device is not None
        ]
        program = partitioned(program, regions)
        written = self._written(0, len(schedule.nodes))
        parts = {p.name for p in schedule.subschedules}
        return evolve(
            overlapped(program, self.targets, written),
            subprograms=tuple(
                p if p.name in parts else overlapped(p, self.targets, written)
                for p in program.subprograms
            ),
        )

    def _nodes(self, ends: Mapping[int, Sequence[str]], out: list[h.Instruction]) -> dict[int, int]:
        """Append the instructions of all nodes. Return the positions of the borders of partitions,
        by the number of the node there."""
        schedule = self.schedule
        births: dict[int, list[Lifetime]] = {}
        for life in schedule.lifetimes:
            births.setdefault(life.first, []).append(life)
        reused = {life.reuses for life in schedule.lifetimes if life.reuses is not None}
        borders = {n for p in self.parts for n in (p.start, p.end)}
        positions: dict[int, int] = {}

        def border(n: int) -> None:
            if n in borders:
                out.extend(h.Free(view) for view in self.names.forget_all())
                positions[n] = len(out)

        for n, node in enumerate(schedule.nodes):
            border(n)
            self._node(n, node, births.get(n, []), out)
            for name in ends.get(n, ()):
                out.extend(h.Free(view) for view in self.names.forget_views(name))
                if name not in reused or name in self.placement.offsets:
                    out.append(h.Free(name))
            out.extend(h.Free(p.name) for p in self.placement.pools if p.last == n)
        border(len(schedule.nodes))
        return positions

    def _capture(self) -> h.Capture | None:
        """Return how a graph captures the whole program, or None."""
        device = captured_device(self.schedule)
        if device is None:
            return None
        written = self._written(0, len(self.schedule.nodes))
        inputs = [i.buffer.name for i in self.schedule.inputs if isinstance(i, TensorInput)]
        return h.Capture(device, tuple(k for k, name in enumerate(inputs) if name in written))

    def _written(self, start: int, end: int) -> frozenset[str]:
        """Return the tensors that the nodes `start` to `end` (exclusive) write."""
        nodes = self.schedule.nodes[start:end]
        return frozenset(name for node in nodes for name in touched(node)[1])

    def _last_uses(self) -> dict[int, list[str]]:
        """Return the tensors that each node uses last. -1 has the parameters that no node uses."""
        outputs = {o.buffer for o in self.schedule.outputs if isinstance(o, TensorRef)}
        last = {i.buffer.name: -1 for i in self.schedule.inputs if isinstance(i, TensorInput)}
        inputs = set(last)
        for n, node in enumerate(self.schedule.nodes):
            for part in touched(node):
                for name in part:
                    if name in inputs:
                        last[name] = self.steps[n][1]
        for life in self.schedule.lifetimes:
            last[life.buffer] = life.last
        result: dict[int, list[str]] = {}
        for name, n in last.items():
            if name not in outputs:
                result.setdefault(n, []).append(name)
        return result

    def _node(
        self, n: int, node: ScheduleNode, births: list[Lifetime], out: list[h.Instruction]
    ) -> None:
        """Emit the allocations and instructions of one node."""
        if self.options.comments:
            text = self._remark(node)
            if text:
                out.append(h.Comment(text))
        for p in self.placement.pools:
            if p.first == n:
                out.append(h.AllocatePool(p.name, p.bytes, p.device))
        unallocated: list[Buffer] = []
        for life in births:
            if allocated(node, life.buffer):
                out.extend(self._storage(life))
            else:
                unallocated.append(self.buffers[life.buffer])
        work = self._work(n, node, births, out)
        after: list[h.Instruction] = bind_results(unallocated, self.bound)
        if not isinstance(node, Kernel | Template):
            work.extend(separation(work, self.packed))
            # Sizes are bound outside of device guards and profile ranges: later nodes need them.
            (after or work).extend(conformity(node, self.buffers, self.options.size_asserts))
        if self.options.nan_asserts:
            for name in touched(node)[1]:
                dtype = self.buffers[name].dtype if name in self.buffers else None
                if dtype is not None and dtype.part.is_float:
                    after.append(h.AssertNoNan(name, self._description(node)))
        if not work:
            self.pending_checks.extend(after)
            return
        if self.several and (device := self._device_of(node)) is not None:
            work = [h.WithDevice(device, tuple(work))]
        if self.options.profile:
            work = [h.ProfileRange(node.name, tuple(work))]
        out.extend(work)
        out.extend(self.pending_checks)
        out.extend(after)
        self.pending_checks.clear()

    def _work(
        self, n: int, node: ScheduleNode, births: Sequence[Lifetime], out: list[h.Instruction]
    ) -> list[h.Instruction]:
        """Return the launch or call of a node, after emitting what prepares it."""
        if isinstance(node, Kernel):
            heirs = {life.reuses: life.buffer for life in births}
            tensors = (b.name for b in node.parameters)
            offsets = self.placement.offsets
            return self._launch(
                n, node, tuple(t if t in offsets else heirs.get(t, t) for t in tensors)
            )
        if isinstance(node, Template):
            return [self._template(n, node)]
        work: list[h.Instruction] = []
        CallWriter(self.names, out, work).write(_in_place(node, births))
        self.bound.update(defined_symbols(node))
        return work

    def _description(self, node: ScheduleNode) -> str:
        """Return the name of a node and the user's source lines that it comes from."""
        origins = (self.schedule.origins[o] for o in node.origins)
        lines = dict.fromkeys(f"{o.location}: {o.code}" for o in origins if o.location)
        return f"{node.name}, of {'; '.join(lines)}," if lines else node.name

    def _device_of(self, node: ScheduleNode) -> Device | None:
        for part in touched(node)[::-1]:
            for name in part:
                if name in self.buffers and not self.buffers[name].device.is_host:
                    return self.buffers[name].device
        return None

    def _storage(self, life: Lifetime) -> list[h.Instruction]:
        """Return the instructions that allocate or reuse the storage of a buffer."""
        b = self.buffers[life.buffer]
        if b.name in self.placement.offsets:
            pool, offset = self.placement.offsets[b.name]
            return [h.AllocateFromPool(b.name, pool, offset, b.dtype, b.shape, b.strides)]
        if life.reuses is not None:
            views = [h.Free(view) for view in self.names.forget_views(life.reuses)]
            return [*views, h.Reuse(b.name, life.reuses, b.dtype, b.shape, b.strides)]
        return [h.Allocate(b.name, b.dtype, b.device, b.shape, b.strides)]

    def _launch(self, n: int, kernel: Kernel, tensors: tuple[str, ...]) -> list[h.Instruction]:
        """Return the launch of a kernel. Kernels of a group are launched with its last one."""
        first, last = self.steps[n]
        if first == last:
            opened = self.opened.get(kernel.name, OpenKernel(kernel, {}))
            return [h.Launch(self.kernels.kernel(opened.kernel).name, tensors, opened.sizes)]
        self.pending.append((kernel, tensors))
        if n < last:
            return []
        members, self.pending = self.pending, []
        group = self.kernels.group([k for k, _ in members])
        return [h.Launch(group.name, tuple(t for _, ts in members for t in ts), group.sizes)]

    def _template(self, n: int, node: Template) -> h.Launch:
        """Return the launch of a template's kernel."""
        kernel, tensors = template_kernel(node, f"t{n}_{node.kind.value}", self.buffers)
        launchable = self.kernels.template(kernel)
        return h.Launch(launchable.name, tensors, launchable.sizes)

    def _remark(self, node: ScheduleNode) -> str:
        """Return the operations and source lines that a node comes from, for a comment."""
        table = self.schedule.origins
        rows = [table[o] for o in node.origins[:8] if o < len(table)]
        nodes = ", ".join(f"%{r.node}" for r in rows)
        locations = dict.fromkeys(r.location for r in rows if r.location)
        more = ", ..." if len(node.origins) > 8 else ""
        suffix = f" ({'; '.join(list(locations)[:2])})" if locations else ""
        return f"{nodes}{more}{suffix}" if nodes else ""


def _in_place(node: CallOperation, births: Sequence[Lifetime]) -> CallOperation:
    """If the result of an accumulating call reuses its accumulator's storage, return a call that
    reads the accumulator under the result's name."""
    if not isinstance(node, Extern):
        return node
    heir = next((x for x in births if x.reuses is not None and x.reuses == node.accumulator), None)
    if heir is None:
        return node
    first, *rest = node.args
    assert isinstance(first, TensorRef)
    return evolve(node, args=(evolve(first, buffer=heir.buffer), *rest))
