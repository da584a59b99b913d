"""Kernel IR: which operations are fused into one kernel, their order, and buffer lifetimes.

A kernel has one iteration space, the product of `axes` and `inner`. An index tuple of `axes` is
called a point; points are independent and may run in parallel. The `inner` axes are iterated over
for each point, by reductions and by pointwise work of the same range. The fused work is a sequence
of stages:

    kernel k0 axes (i0 < 4096) inner (r0 < 1024):        softmax of rows
      inner:  a = load x[1024*i0 + r0]; m, n = reduce.online_softmax a
      inner:  b = load x[1024*i0 + r0]; c = sub b, m; d = exp c; e = div d, n; store y[...], e

An OUTER stage runs once per point, an INNER stage once per element of the inner axes. Values
defined in an OUTER stage, and the results of a `Reduce`, are visible in all later stages; other
values of an INNER stage are visible only there. An INNER stage passes elements to a later one
through memory: a `Local` (one row of scratch per point), or a buffer accessed at the same address.

A `store.total` in an INNER stage sums values over points. Its index depends on the first axes and
on inner axes, and each element of its buffer is the sum over the remaining axes:

    kernel k0 axes (i0 < 128, i1 < 64) inner (r0 < 1024):    column sums of 128 parts of the rows
      inner:  a = load x[65536*i0 + 1024*i1 + r0]; store.total part[1024*i0 + r0], a
"""

from collections.abc import Sequence
from enum import StrEnum

from attrs import evolve, field

from gyrator_ir.body.nodes import Axis, Reduce, ScanStep, SortStep, Statement, Store, StoreMode
from gyrator_ir.body.rewrite import reads, writes
from gyrator_ir.checks import a_tuple, exactly, identifier, instance_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import Expr, ShapeFacts, Sym
from gyrator_ir.loop.nodes import (
    Arg,
    Buffer,
    CallOperation,
    Constant,
    Formula,
    Input,
    Output,
    TemplateKind,
    TensorRef,
    UserKernel,
    declared,
)
from gyrator_ir.modes import Numerics as Numerics
from gyrator_ir.provenance import Origin
from gyrator_ir.text.shown import Shown
from gyrator_ir.types import Device, DType


class Level(StrEnum):
    """How often a stage runs."""

    OUTER = "outer"
    INNER = "inner"


KernelStatement = Statement | Reduce | ScanStep | SortStep
"""Collectives occur in INNER stages only. The results of a `Reduce` are visible after its stage;
those of `ScanStep` and `SortStep` in the rest of their stage, one value per inner element."""


@frozen
class Stage:
    """Statements fused at one level."""

    level: Level = field(validator=exactly(Level))
    body: tuple[KernelStatement, ...] = field(validator=a_tuple)


@frozen
class Local:
    """`local t: f32[1024]`: scratch memory of one point, loaded from and stored to like a buffer.

    It is addressed by the row-major linear index over the inner axes.
    """

    name: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    extent: Expr = field(validator=instance_of(Expr))


@frozen
class Refusal:
    """Why this kernel was not fused with `other`."""

    other: str = field(validator=exactly(str))
    reason: str = field(validator=exactly(str))


@frozen
class Kernel:
    """One fused loop nest."""

    name: str = field(validator=identifier)
    device: Device = field(validator=exactly(Device))
    axes: tuple[Axis, ...] = field(validator=a_tuple)
    inner: tuple[Axis, ...] = field(validator=a_tuple)
    stages: tuple[Stage, ...] = field(validator=a_tuple)
    locals: tuple[Local, ...] = field(default=(), validator=a_tuple)
    parameters: tuple[Buffer, ...] = field(default=(), validator=a_tuple)
    """All buffers that the kernel accesses, in the order in which launches pass them: those it
    loads from in order of first use, then those it only stores to in order of first use."""
    sizes: tuple[Sym, ...] = field(default=(), validator=a_tuple)
    """The integer parameters: size symbols that occur in addresses, extents and values, sorted by
    name."""
    numerics: Numerics = field(default=Numerics.EAGER, validator=exactly(Numerics))
    refusals: tuple[Refusal, ...] = field(default=(), validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)
    overlap: tuple[str, ...] | None = field(default=None, validator=exactly(tuple, type(None)))
    """If a launch may start before the previous one ends: the parameters that it may read before
    that, because no launch of the program writes them. None if it may not."""

    @property
    def storage(self) -> dict[str, DType]:
        """Element types of parameters and locals."""
        types = {b.name: b.dtype for b in self.parameters}
        return types | {t.name: t.dtype for t in self.locals}

    @property
    def statements(self) -> tuple[KernelStatement, ...]:
        """The statements of all stages, in order."""
        return tuple([s for stage in self.stages for s in stage.body])

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers loaded from, in order of first use."""
        return self._buffers_of(reads(self.statements))

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers stored to, in order of first use."""
        return self._buffers_of(writes(self.statements))

    @property
    def totals(self) -> tuple[Store, ...]:
        """The stores of sums over points."""
        return tuple(
            s for s in self.statements if isinstance(s, Store) and s.mode is StoreMode.TOTAL
        )

    @property
    def summed(self) -> tuple[Axis, ...]:
        """The last axes, which the kernel's totals sum over; none if it has no totals."""
        totals = self.totals
        if not totals:
            return ()
        leading = totals[0].index.free_symbols
        return tuple(a for a in self.axes if a.symbol not in leading)

    def _buffers_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if not self.locals:
            return names
        local = {scratch.name for scratch in self.locals}
        return tuple(n for n in names if n not in local)


@frozen
class TemplateKernel:
    """A template as a launchable kernel, whose tensors are views of its parameters."""

    name: str = field(validator=identifier)
    device: Device = field(validator=exactly(Device))
    kind: TemplateKind = field(validator=exactly(TemplateKind))
    inputs: tuple[TensorRef, ...] = field(validator=a_tuple)
    outputs: tuple[TensorRef, ...] = field(validator=a_tuple)
    attributes: tuple[tuple[str, Arg], ...] = field(validator=a_tuple)
    parameters: tuple[Buffer, ...] = field(validator=a_tuple)
    """The buffers of the inputs, then those of the outputs, without repeats, in launch order."""
    sizes: tuple[Sym, ...] = field(default=(), validator=a_tuple)
    """The integer parameters: size symbols of the tensors and formulas, sorted by name."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)
    formulas: tuple[Formula, ...] = field(default=(), validator=a_tuple)
    """Their loads name buffers of `parameters`."""
    overlap: tuple[str, ...] | None = field(default=None, validator=exactly(tuple, type(None)))
    """As in a `Kernel`."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers of the inputs, in order of first use."""
        return tuple(dict.fromkeys(t.buffer for t in self.inputs))

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers of the outputs."""
        return tuple(o.buffer for o in self.outputs)


@frozen
class KernelGroup:
    """Independent kernels that share one launch and run in any order or concurrently.

    No member writes a tensor that another accesses. Each member is an instance of one of `kernels`
    with its own tensors, so identical kernels are stored once.
    """

    name: str = field(validator=identifier)
    device: Device = field(validator=exactly(Device))
    kernels: tuple[Kernel, ...] = field(validator=a_tuple)
    members: tuple[int, ...] = field(validator=a_tuple)
    """For each member, its index in `kernels`."""

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """The parameters of all members, in member order: `m0_p0`, `m0_p1`, `m1_p0`, ..."""
        return tuple(
            evolve(b, name=self.parameter(member, b.name))
            for member, kernel in enumerate(self.members)
            for b in self.kernels[kernel].parameters
        )

    def parameter(self, member: int, name: str) -> str:
        """Return the group's name for the parameter `name` of a member."""
        return f"m{member}_{name}"

    @property
    def sizes(self) -> tuple[Sym, ...]:
        """Size symbols of all kernels, sorted by name. A symbol has one value in all kernels."""
        return tuple(sorted({s for k in self.kernels for s in k.sizes}, key=lambda s: s.name))

    @property
    def reads(self) -> tuple[str, ...]:
        """Parameters loaded from."""
        return self._parameters_of([k.reads for k in self.kernels])

    @property
    def writes(self) -> tuple[str, ...]:
        """Parameters stored to."""
        return self._parameters_of([k.writes for k in self.kernels])

    def _parameters_of(self, names: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        members = enumerate(self.members)
        return tuple(self.parameter(m, name) for m, kernel in members for name in names[kernel])

    @property
    def origins(self) -> tuple[int, ...]:
        """Origins of all kernels, sorted."""
        return tuple(sorted({row for k in self.kernels for row in k.origins}))


Launchable = Kernel | TemplateKernel | KernelGroup
"""Kernels that a host program can launch."""

ScheduleNode = Kernel | CallOperation


@frozen
class Lifetime:
    """A created buffer is live from node `first` to node `last` of the schedule, both included.

    `reuses` names the dead buffer whose storage it reuses.
    """

    buffer: str = field(validator=identifier)
    first: int = field(validator=exactly(int))
    last: int = field(validator=exactly(int))
    """`len(nodes)` for buffers that the program returns."""
    reuses: str | None = field(default=None, validator=exactly(str, type(None)))


@frozen
class Partition:
    """Nodes `start` to `end` (not included), captured in one device graph or in none."""

    start: int = field(validator=exactly(int))
    end: int = field(validator=exactly(int))
    device: Device | None = field(default=None, validator=exactly(Device, type(None)))
    """The device of the graph; None for nodes that are not captured."""
    reason: str = field(default="", validator=exactly(str))
    """Why the nodes are not captured."""


@frozen
class Together:
    """Nodes `start` to `end` (not included) are kernels that share one launch (`KernelGroup`)."""

    start: int = field(validator=exactly(int))
    end: int = field(validator=exactly(int))


@frozen
class Schedule(Shown):
    """Kernels and calls in execution order, with the lifetime of each buffer."""

    name: str = field(validator=identifier)
    inputs: tuple[Input, ...] = field(validator=a_tuple)
    constants: tuple[Constant, ...] = field(validator=a_tuple)
    buffers: tuple[Buffer, ...] = field(validator=a_tuple)
    """Buffers that nodes create in memory; fusion may have eliminated others."""
    nodes: tuple[ScheduleNode, ...] = field(validator=a_tuple)
    outputs: tuple[Output, ...] = field(validator=a_tuple)
    lifetimes: tuple[Lifetime, ...] = field(default=(), validator=a_tuple)
    partitions: tuple[Partition, ...] = field(default=(), validator=a_tuple)
    """How the nodes are split into captured and uncaptured ranges; empty if device graphs are off.
    """
    facts: ShapeFacts = field(factory=ShapeFacts, validator=instance_of(ShapeFacts))
    origins: tuple[Origin, ...] = field(default=(), validator=a_tuple)
    subschedules: tuple["Schedule", ...] = field(default=(), validator=a_tuple)
    user_kernels: tuple[UserKernel, ...] = field(default=(), validator=a_tuple)
    together: tuple[Together, ...] = field(default=(), validator=a_tuple)

    @property
    def all_buffers(self) -> tuple[Buffer, ...]:
        """Inputs, constants and created buffers, in that order."""
        return declared(self.inputs, self.constants, self.buffers)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels among the nodes, in order."""
        return tuple(n for n in self.nodes if isinstance(n, Kernel))
