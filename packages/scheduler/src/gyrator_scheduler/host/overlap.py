"""Launches that start before the previous one ends.

The programs of a matrix-vector product wait for the memory of the matrix, and between two launches
no program does. A launch that starts early loads its matrix while the previous one ends, and waits
for it before it reads the vector (programmatic dependent launch, CUDA Programming Guide 4.5).

Every launch that starts early waits, so that all earlier ones have ended when a launch ends. The
first launch of a program, and one after anything but a launch, starts after all earlier work. So
does one after a launch that may have no programs, which is not queued then.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from attrs import evolve

from gyrator_ir.body.nodes import Bind, Load, Reduce, ReduceKind
from gyrator_ir.body.rewrite import AnyStatement, defined, expressions, used
from gyrator_ir.expr import ONE, ShapeFacts, Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable
from gyrator_ir.target import Target

_SHARE = 4
"""One of so many launches in a row must read a matrix for the others to start early too, which by
itself gains less than the waiting of their programs costs."""


def overlapped(
    program: h.HostProgram, targets: Mapping[str, Target], written: Collection[str]
) -> h.HostProgram:
    """Return the program with launches that start early where this pays.

    `written` are the tensors that the whole program, of which this one may be a part, writes.
    """
    kernels = {
        k.name: k
        for k in program.kernels
        if targets[k.device.type].capabilities.overlap and _has_programs(k, program.facts)
    }
    if not kernels:
        return program
    outside = {p.name for p in program.parameters if p.kind == "tensor"}
    outside |= {c.buffer.name for c in program.constants}
    unwritten = outside.difference(written)
    early: dict[str, set[str]] = {}
    positions: set[int] = set()
    for row in _rows(program.instructions, kernels):
        parameters = [_named(kernels[i.kernel], i.tensors, unwritten) for _, i in row]
        readers = (
            _reads_matrix(kernels[i.kernel], names)
            for (_, i), names in zip(row, parameters, strict=True)
        )
        if len(row) < 2 or sum(readers) * _SHARE < len(row):
            continue
        positions.update(n for n, _ in row[1:])
        for (_, i), names in zip(row, parameters, strict=True):
            early[i.kernel] = early.get(i.kernel, names) & names
    if not early:
        return program
    instructions = tuple(
        evolve(i, overlap=True) if n in positions and isinstance(i, h.Launch) else i
        for n, i in enumerate(program.instructions)
    )
    marked = tuple(_marked(k, early[k.name]) if k.name in early else k for k in program.kernels)
    return evolve(program, instructions=instructions, kernels=marked)


def _has_programs(kernel: Launchable, facts: ShapeFacts) -> bool:
    """Return whether each launch of a kernel has at least one program, for all sizes."""
    if isinstance(kernel, KernelGroup):
        return any(_has_programs(k, facts) for k in kernel.kernels)
    if isinstance(kernel, Kernel):
        return all(facts.known_positive(a.extent) for a in kernel.axes)
    return all(facts.known_positive(n) for t in kernel.outputs for n in t.shape)


def _rows(
    instructions: tuple[h.Instruction, ...], kernels: Collection[str]
) -> Iterator[list[tuple[int, h.Launch]]]:
    """Yield rows of launches of these kernels, with positions, that no other work separates."""
    row: list[tuple[int, h.Launch]] = []
    for n, i in enumerate(instructions):
        if isinstance(i, h.Launch) and i.kernel in kernels:
            row.append((n, i))
        elif not isinstance(i, h.ASIDE):
            yield row
            row = []
    yield row


def _named(kernel: Launchable, tensors: tuple[str, ...], unwritten: Collection[str]) -> set[str]:
    """Return the parameters through which a launch reads tensors that nothing writes."""
    pairs = zip(kernel.parameters, tensors, strict=True)
    return {p.name for p, tensor in pairs if tensor in unwritten}.difference(kernel.writes)


def _reads_matrix(kernel: Launchable, parameters: Collection[str]) -> bool:
    """Return whether points of a dot reduction share one factor, a vector, and have elements of
    their own of one of these parameters, such as a row of a matrix."""
    if isinstance(kernel, KernelGroup):
        return any(
            _reads_matrix(kernel.kernels[k], _of_member(kernel, member, parameters))
            for member, k in enumerate(kernel.members)
        )
    if not isinstance(kernel, Kernel):
        return False
    body = kernel.statements
    dots = [s for s in body if isinstance(s, Reduce) and s.kind is ReduceKind.DOT]
    if not dots:
        return False
    axes = {a.symbol for a in kernel.axes if a.extent is not ONE}
    symbols = axes | {a.symbol for a in kernel.inner if a.extent is not ONE}
    addresses = _addresses(body)
    return any(not axes <= addresses[factor] for dot in dots for factor in dot.args) and any(
        isinstance(s, Load) and s.buffer in parameters and symbols <= s.index.free_symbols
        for s in body
    )


def _addresses(body: Iterable[AnyStatement]) -> dict[str, frozenset[Sym]]:
    """Return the symbols in the addresses of all loads that each value depends on."""
    table: dict[str, frozenset[Sym]] = {}
    bound: dict[Sym, frozenset[Sym]] = {}
    for s in body:
        own = frozenset[Sym]().union(*(e.free_symbols for e in expressions(s)))
        own = own.union(*(table[name] for name in used(s)), *(bound.get(x, ()) for x in own))
        table |= dict.fromkeys(defined(s), own)
        if isinstance(s, Bind):
            bound[s.symbol] = own
    return table


def _of_member(group: KernelGroup, member: int, parameters: Collection[str]) -> set[str]:
    """Return the names that the kernel of a member has for these parameters of the group."""
    own = group.kernels[group.members[member]].parameters
    return {p.name for p in own if group.parameter(member, p.name) in parameters}


def _marked(kernel: Launchable, parameters: Collection[str]) -> Launchable:
    """Return the kernel with the parameters that it may read before the previous launch ends."""
    if not isinstance(kernel, KernelGroup):
        names = tuple(p.name for p in kernel.parameters if p.name in parameters)
        return evolve(kernel, overlap=names)
    shared = [
        set[str].intersection(
            *(
                _of_member(kernel, member, parameters)
                for member, k in enumerate(kernel.members)
                if k == number
            )
        )
        for number in range(len(kernel.kernels))
    ]
    kernels = tuple(
        evolve(k, overlap=tuple(p.name for p in k.parameters if p.name in names))
        for k, names in zip(kernel.kernels, shared, strict=True)
    )
    return evolve(kernel, kernels=kernels)
