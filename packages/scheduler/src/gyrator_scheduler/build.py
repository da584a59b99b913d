"""From an optimised Loop IR program to a schedule: fusion, order, lifetimes, partitions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum, auto
from itertools import chain

from attrs import evolve

from gyrator_ir.body.nodes import Reduce, ReduceKind, Store
from gyrator_ir.deadline import NEVER, Deadline
from gyrator_ir.define import frozen
from gyrator_ir.kernel.nodes import Kernel, Lifetime, Refusal, Schedule, ScheduleNode, Together
from gyrator_ir.loop.contraction import needed_for, roles, symbols_of
from gyrator_ir.loop.nodes import Buffer, LoopOperation, LoopProgram, TensorRef
from gyrator_ir.loop.uses import statements_of
from gyrator_ir.target import Heuristics, Target
from gyrator_ir.types import Device
from gyrator_scheduler.dependences import Dependences, dependences
from gyrator_scheduler.errors import target_for
from gyrator_scheduler.fusion.axes import guess
from gyrator_scheduler.fusion.cluster import Cluster
from gyrator_scheduler.fusion.fuse import Fusion, fuse
from gyrator_scheduler.fusion.kernel_cache import KernelCache
from gyrator_scheduler.fusion.kernels import canonical, kernel_of, numbered, short_name
from gyrator_scheduler.fusion.staging import assemble
from gyrator_scheduler.memory import (
    Uses,
    buffers_counted,
    in_place,
    lifetimes,
    lives_of_inputs,
    peak_at,
    sizes_of_buffers,
    touched,
    with_results_in_place,
    with_reuse,
)
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.order import (
    backwards,
    first_member,
    gathered,
    last_member,
    ordered,
    sources_late,
    within,
)
from gyrator_scheduler.partitions import Fit, fits, planned
from gyrator_scheduler.ranges import Ranges
from gyrator_scheduler.together import Sharing, launches, ranges, widened

ATTEMPTS = 6
"""Maximum number of schedules built in search of one that fits the memory limit."""
BOUNDS = 3
"""Maximum number of bounds of memory within which an order is looked for."""


@frozen
class _Context:
    """Inputs shared by all steps of `build`."""

    program: LoopProgram
    options: SchedulerOptions
    targets: Mapping[str, Target]
    buffers: Mapping[str, Buffer]
    devices: tuple[Device | None, ...]
    """Device of each loop operation; None for calls."""
    dependences: Dependences
    ranges: Ranges
    sizes: Mapping[str, int]
    """Size of each created buffer, and of each released parameter, in bytes, for typical symbol
    values."""
    kernels: KernelCache
    deadline: Deadline

    def heuristics(self, index: int) -> Heuristics | None:
        """Return the heuristics for the device of an operation; None for calls."""
        device = self.devices[index]
        return None if device is None else target_for(device, self.targets).heuristics

    def inputs(self, uses: Iterable[Uses]) -> tuple[Lifetime, ...]:
        """Return the lifetimes of the parameters that count as memory of the plan."""
        return lives_of_inputs(uses, self.options.released)


def choices(options: SchedulerOptions) -> Iterator[SchedulerOptions]:
    """Yield the options unchanged, then variants that need less and less memory."""
    yield options
    if options.keep_peak and options.fusion:
        yield evolve(options, hold_operands=False)
        yield evolve(options, hold_operands=False, reach=min(options.reach, 16))
        yield evolve(options, hold_operands=False, fusion=False)


def build(
    program: LoopProgram,
    options: SchedulerOptions,
    targets: Mapping[str, Target],
    limit: int | None = None,
    kernels: KernelCache | None = None,
    deadline: Deadline = NEVER,
) -> Schedule:
    """Fuse operations, order the kernels, and plan memory.

    While the plan needs more than `limit` bytes, operations are taken out of the fused kernel at
    the peak and the plan is built again, at most `ATTEMPTS` times: first those that access a large
    buffer that others do not need, later all. `kernels` caches kernels built for other `choices` of
    the same program.

    Raises:
        LateError: GY-COMPILE-003, when the deadline has passed.
    """
    buffers = {b.name: b for b in program.all_buffers}
    context = _Context(
        program,
        options,
        targets,
        buffers,
        tuple(_device(op, buffers) for op in program.operations),
        dependences(program.operations, program.all_buffers),
        Ranges(program.facts),
        sizes_of_buffers(
            buffers_counted(program.buffers, program.inputs, options.released), program.facts
        ),
        KernelCache() if kernels is None else kernels,
        deadline,
    )
    plan, lives = _within(context, limit)
    alive = {life.buffer for life in lives}
    created = tuple(b for b in program.buffers if b.name in alive)
    inner = evolve(options, device_graphs=False, released=())
    result = Schedule(
        name=program.name,
        inputs=program.inputs,
        constants=program.constants,
        buffers=created,
        nodes=plan.nodes,
        outputs=program.outputs,
        lifetimes=lives,
        together=plan.together,
        facts=program.facts,
        origins=program.origins,
        subschedules=tuple(
            build(p, inner, targets, deadline=deadline) for p in program.subprograms
        ),
        user_kernels=program.user_kernels,
    )
    return planned(result, plan.fits, options.graph_parts) if options.device_graphs else result


def _within(context: _Context, limit: int | None) -> tuple["_Plan", tuple[Lifetime, ...]]:
    """Return the plan and its lifetimes, with fewer operations fused if that needs less memory than
    `limit`."""
    apart: set[int] = set()
    for attempt in range(ATTEMPTS):
        plan = _nodes(context, _fusion(context, apart), limit)
        lives, inputs = plan.lives, context.inputs(map(touched, plan.nodes))
        if context.options.reuse:
            lives = with_reuse(lives, plan.nodes, context.buffers, context.sizes, inputs)
        if limit is None or attempt == ATTEMPTS - 1:
            break
        most, position = peak_at((*lives, *inputs), context.sizes)
        near = (c.members for c in plan.order[position : position + 3] if len(c.members) > 1)
        joined = next(near, None) if most > limit else None
        if joined is None:
            break
        members: Sequence[int] = [m.index for m in joined]
        if attempt < ATTEMPTS // 2:
            alive = {x.buffer for x in (*lives, *inputs) if x.first <= position <= x.last}
            members = _raising(context, members, alive)
        apart.update(members)
    return plan, lives


def _raising(context: _Context, members: Sequence[int], alive: Set[str]) -> Sequence[int]:
    """Return the operations of a kernel that access the largest of the buffers which are alive
    because of some operations but not of all; all operations if there is no such buffer."""
    users: dict[str, list[int]] = {}
    for index in members:
        used = context.dependences.accesses[index]
        for name in alive & {*used.reads, *used.writes}:
            users.setdefault(name, []).append(index)
    parts = {name: own for name, own in users.items() if len(own) < len(members)}
    largest = max(parts, key=lambda n: (context.sizes[n], -len(parts[n]), n), default=None)
    return members if largest is None else parts[largest]


def _device(op: object, buffers: Mapping[str, Buffer]) -> Device | None:
    if not isinstance(op, LoopOperation):
        return None
    stored = next(s.buffer for s in statements_of(op) if isinstance(s, Store))
    return buffers[stored].device


def _fusion(context: _Context, apart: set[int]) -> Fusion:
    count = len(context.program.operations)
    return fuse(
        context.program.operations,
        context.dependences,
        [None if n in apart else context.heuristics(n) for n in range(count)],
        context.options,
        context.ranges,
        context.kernels.matches,
        context.deadline,
    )


@frozen
class _Plan:
    """Clusters in execution order, and their schedule nodes."""

    order: Sequence[Cluster]
    nodes: tuple[ScheduleNode, ...]
    lives: tuple[Lifetime, ...]
    together: tuple[Together, ...]
    fits: tuple[Fit, ...]
    """The device whose graph can capture each node; empty without device graphs."""


def _nodes(context: _Context, fusion: Fusion, limit: int | None) -> _Plan:
    """Convert clusters to nodes, in the candidate order with the lowest peak. Group launches; with
    a limit, only if that raises the peak by little."""
    exported = _exported(context, fusion.clusters)
    nodes = {c.id: _node(context, c, exported[c.id]) for c in fusion.clusters}
    uses = {n: touched(node) for n, node in nodes.items()}
    clusters = fusion.clusters
    orders: tuple[Sequence[Cluster], ...] = (clusters,)
    if context.options.reorder:
        by_first, by_last = ordered(clusters, first_member), ordered(clusters, last_member)
        orders = (by_first, by_last, backwards(clusters), sources_late(by_first))
    best: tuple[int, Sequence[Cluster], tuple[Lifetime, ...]] | None = None
    seen_orders: list[list[int]] = []
    program = context.program
    fit_of = _fits(context, nodes) if context.options.device_graphs else {}
    kinds = {n: fit.device for n, fit in fit_of.items()}
    created = {b.name for b in program.buffers} if context.options.reuse else set[str]()
    shared = {n: in_place(node, created, context.buffers) for n, node in nodes.items()}

    def postponing() -> Iterator[Sequence[Cluster]]:
        """Yield orders for bounds closer and closer to the least that suffices, while that may save
        more than the slack."""
        if best is None or not context.options.reorder:
            return
        _, order, lives = best
        inputs = [x.buffer for x in context.inputs(uses[c.id] for c in order)]
        outputs = [x.buffer for x in lives if x.last == len(order)]
        sizes = context.sizes
        bound = low = max(sum(map(sizes.__getitem__, names)) for names in (inputs, outputs))
        for _ in range(BOUNDS):
            if best[0] <= low + slack(program, context.targets, best[0]):
                break
            yield within(clusters, bound, uses, sizes, frozenset(outputs), inputs, shared)
            if best[0] > bound:
                low = bound
            bound = (low + best[0]) // 2

    for candidate in chain(orders, postponing()):
        grouped = gathered(candidate, kinds) if kinds else candidate
        order: Sequence[Cluster] = [c for c in grouped if not _is_empty(nodes[c.id])]
        ids = [c.id for c in order]
        if ids in seen_orders:
            continue
        seen_orders.append(ids)
        listed = [nodes[n] for n in ids]
        used = [uses[n] for n in ids]
        lives = lifetimes(listed, used, program.buffers, program.outputs)
        placed = with_results_in_place(lives, [shared[n] for n in ids])
        most, _ = peak_at((*placed, *context.inputs(used)), context.sizes)
        if best is None or most < best[0]:
            best = most, order, lives
    assert best is not None
    _, order, lives = best
    together: tuple[Together, ...] = ()
    if context.options.together and context.options.fusion:
        limited = limit is not None
        order, lives, together = _launched(
            context, order, lives, clusters, nodes, uses, kinds, limited
        )
    fit = tuple(fit_of[c.id] for c in order) if fit_of else ()
    return _Plan(order, _with_names(context, order, nodes), lives, together, fit)


def _peak(
    context: _Context, lives: Sequence[Lifetime], nodes: Sequence[ScheduleNode]
) -> tuple[int, int]:
    """Return the peak of a plan that may reuse storage in bytes, and the first node there."""
    inputs = context.inputs(map(touched, nodes))
    if context.options.reuse:
        lives = with_reuse(lives, nodes, context.buffers, context.sizes, inputs)
    return peak_at((*lives, *inputs), context.sizes)


def slack(program: LoopProgram, targets: Mapping[str, Target], peak: int = 0) -> int:
    """Return the number of bytes by which a plan may exceed the `peak` of the program order."""
    devices = {b.device.type for b in program.buffers}
    known = (targets[d].heuristics for d in devices if d in targets)
    sizes = (h.slack_bytes + (peak // h.slack_parts if h.slack_parts else 0) for h in known)
    return max(sizes, default=0)


def _launched(
    context: _Context,
    order: Sequence[Cluster],
    lives: tuple[Lifetime, ...],
    clusters: Sequence[Cluster],
    nodes: Mapping[int, ScheduleNode],
    uses: Mapping[int, Uses],
    kinds: Mapping[int, Device | None],
    limited: bool,
) -> tuple[Sequence[Cluster], tuple[Lifetime, ...], tuple[Together, ...]]:
    """Return the order, the lifetimes and the shared launches of a plan with grouped launches.

    If memory is `limited`, a group whose results wait at a peak above that of the plan without
    groups, and above the slack, is launched kernel by kernel.
    """
    program, apart = context.program, set[int]()
    bound: int | None = None
    for _ in range(ATTEMPTS):
        groups = _launches(context, order, clusters, nodes, kinds, apart)
        shared = ranges(groups)
        if not shared:
            break
        grouped = [c for group in groups for c in group]
        listed, used = [nodes[c.id] for c in grouped], [uses[c.id] for c in grouped]
        longer = lifetimes(listed, used, program.buffers, program.outputs)
        longer = widened(longer, shared, len(grouped))
        if not limited:
            return grouped, longer, shared
        if bound is None:
            most, _ = _peak(context, lives, [nodes[c.id] for c in order])
            bound = max(most, slack(program, context.targets))
        needed, position = _peak(context, longer, listed)
        if needed <= bound:
            return grouped, longer, shared
        waiting = {x.buffer for x in longer if x.first <= position <= x.last}
        raising = {c.id for g in groups if len(g) > 1 for c in g if waiting & c.stores.keys()}
        if not raising:
            break
        apart |= raising
    return order, lives, ()


def _launches(
    context: _Context,
    order: Sequence[Cluster],
    clusters: Sequence[Cluster],
    nodes: Mapping[int, ScheduleNode],
    kinds: Mapping[int, Device | None],
    apart: Set[int],
) -> list[list[Cluster]]:
    """Return groups of clusters to launch together, all but those `apart`. `kinds` separates
    clusters that one graph cannot capture together."""
    facts = context.program.facts

    def elements(kernel: Kernel) -> int:
        total = 1
        for axis in (*kernel.axes, *kernel.inner):
            hint = facts.hint(axis.extent)
            total *= guess(axis.extent) if hint is None else hint
        return total

    def sharing(c: Cluster) -> Sharing | None:
        node = nodes[c.id]
        heuristics = context.heuristics(c.members[0].index) if c.members else None
        if not isinstance(node, Kernel) or heuristics is None or c.id in apart:
            return None
        most, kinds_most = heuristics.together_elements, heuristics.together_kinds or len(order)
        work, products = elements(node), _products(node)
        if _Product.MATRICES in products or (products and not heuristics.thin_products):
            return None  # it occupies the whole device
        if products == {_Product.VECTOR}:
            most *= 4  # each element of the matrix is read once, and few are stored
        elif heuristics.together_kinds and work > most // _SMALL:
            kinds_most = 1
        if not node.parameters or work > most or node.totals:
            return None
        return Sharing(
            device=(node.device, kinds.get(c.id)),
            kind=canonical(node)[0] if heuristics.together_kinds else None,
            tensors=len(node.parameters),
            max_tensors=heuristics.together_tensors,
            max_kinds=kinds_most,
        )

    return launches(order, clusters, sharing)


_SMALL = 8
"""Where the number of different kernels of a launch is limited, those of more than this fraction of
`together_elements` only join identical ones: all programs of a launch reserve the registers that
the largest kernel needs."""


class _Product(Enum):
    """The forms of a dot reduction."""

    MATRICES = auto()
    VECTOR = auto()
    """One of its values is the same for all points."""
    ELEMENTS = auto()


def _products(kernel: Kernel) -> set[_Product]:
    """Return the forms of a kernel's dot reductions."""
    points = {a.symbol for a in kernel.axes}
    forms: set[_Product] = set()
    for stage in kernel.stages:
        for s in stage.body:
            if not isinstance(s, Reduce) or s.kind is not ReduceKind.DOT:
                continue
            if roles(kernel.axes, stage.body, s) is not None:
                forms.add(_Product.MATRICES)
                continue
            operands = (symbols_of(needed_for(stage.body, name)) for name in s.args)
            same = any(points.isdisjoint(o) for o in operands)
            forms.add(_Product.VECTOR if same else _Product.ELEMENTS)
    return forms


def _fits(context: _Context, nodes: Mapping[int, ScheduleNode]) -> dict[int, Fit]:
    """Return, for each node, the device whose graph can capture it."""
    node_fits = fits(nodes.values(), context.buffers, context.targets, context.options)
    return dict(zip(nodes, node_fits, strict=True))


def _is_empty(node: ScheduleNode) -> bool:
    return isinstance(node, Kernel) and not node.stages


def _exported(context: _Context, clusters: Sequence[Cluster]) -> dict[int, set[str]]:
    """Return, for each cluster, the buffers it stores that are needed outside of it."""
    program = context.program
    home: dict[int, int] = {}
    for c in clusters:
        for m in c.members:
            home[m.index] = c.id
    everywhere = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
    created = {b.name for b in program.buffers}
    readers: dict[str, set[int]] = {}
    for index, accesses in enumerate(context.dependences.accesses):
        for name in accesses.reads:
            readers.setdefault(name, set()).add(home.get(index, index))
    writers: dict[str, int] = {}
    for accesses in context.dependences.accesses:
        for name in accesses.writes:
            writers[name] = writers.get(name, 0) + 1
    exported: dict[int, set[str]] = {}
    for c in clusters:
        exported[c.id] = {
            b
            for b in c.stores
            if b in everywhere
            or b not in created
            or writers[b] > 1
            or readers.get(b, set()) - {c.id}
            or not c.stores[b].plain
        }
    return exported


def _node(context: _Context, c: Cluster, exported: set[str]) -> ScheduleNode:
    if c.call is not None and not isinstance(c.call, LoopOperation):
        return c.call
    index = c.members[0].index
    context.deadline.check(f"the kernel of {c.members[0].op.name}")
    device, heuristics = context.devices[index], context.heuristics(index)
    assert device is not None and heuristics is not None
    origins = tuple(sorted({o for m in c.members for o in m.op.origins}))

    def make() -> Kernel:
        assembled = assemble(c, exported, context.buffers, heuristics, context.ranges)
        return kernel_of("k", device, assembled, context.buffers, origins, context.options.numerics)

    return context.kernels.kernel(c, exported, context.buffers, heuristics, origins, make)


def _with_names(
    context: _Context, order: Sequence[Cluster], nodes: Mapping[int, ScheduleNode]
) -> tuple[ScheduleNode, ...]:
    """Name kernels by position, and record in each why fusion with its neighbours was refused."""
    names: dict[int, str] = {}
    number = 0
    for c in order:
        node = nodes[c.id]
        if isinstance(node, Kernel):
            name = numbered(number, short_name(node.origins, context.program.origins))
            names.update(dict.fromkeys((m.index for m in c.members), name))
            number += 1
    result: list[ScheduleNode] = []
    for c in order:
        node = nodes[c.id]
        if isinstance(node, Kernel):
            name = names[c.members[0].index]
            refused = {names[i]: r for i, r in c.refusals.items() if names.get(i, name) != name}
            refusals = tuple(Refusal(other, reason) for other, reason in refused.items())
            node = evolve(node, name=name, refusals=refusals)
        result.append(node)
    return tuple(result)
