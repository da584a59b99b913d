"""Kernel IR: what runs as one kernel, in which order, and how long each buffer lives.

A kernel has one iteration space, points times inner. `axes` are the points: independent, in
parallel. `inner` axes are walked for each point, by reductions and by the pointwise work that
shares their range. The fused work is a sequence of stages:

    kernel k0 axes (i0 < 4096) inner (r0 < 1024):        softmax of rows
      inner:  a = load x[1024*i0 + r0]; m, n = reduce.online_softmax a
      inner:  b = load x[1024*i0 + r0]; c = sub b, m; d = exp c; e = div d, n; store y[...], e

An OUTER stage runs once a point, an INNER stage once for every value of the inner axes. Values
named in an OUTER stage, and the results of collectives (`Reduce`), are visible in all later stages;
other values of an INNER stage only in it. What one INNER stage hands to a later one goes through
memory: a `Local` (a row of scratch per point), or a buffer written at the same address.
"""

from collections.abc import Sequence
from enum import StrEnum

from attrs import evolve, field, frozen

from gyrator_ir.body.nodes import Axis, Reduce, ScanStep, SortStep, Statement
from gyrator_ir.body.rewrite import reads, writes
from gyrator_ir.checks import a_tuple, exactly, identifier, instance_of
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
"""Collectives occur in INNER stages only. The names a `Reduce` defines are visible after its stage;
those of `ScanStep` and `SortStep` in the rest of their stage, at every point."""


@frozen
class Stage:
    """Statements fused at one level."""

    level: Level = field(validator=exactly(Level))
    body: tuple[KernelStatement, ...] = field(validator=a_tuple)


@frozen
class Local:
    """`local t: f32[1024]`: scratch of one point; loads and stores name it like a buffer.

    Its address is the linear position over the inner axes, row-major.
    """

    name: str = field(validator=identifier)
    dtype: DType = field(validator=exactly(DType))
    extent: Expr = field(validator=instance_of(Expr))


@frozen
class Refusal:
    """Why this kernel and `other` are two."""

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
    """Every buffer that is loaded from or stored to, in the order in which launches pass them:
    those loaded from by first use, then the others by first use."""
    sizes: tuple[Sym, ...] = field(default=(), validator=a_tuple)
    """Size symbols that addresses, extents and values mention, sorted by name: parameters."""
    numerics: Numerics = field(default=Numerics.EAGER, validator=exactly(Numerics))
    refusals: tuple[Refusal, ...] = field(default=(), validator=a_tuple)
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)

    @property
    def storage(self) -> dict[str, DType]:
        """Element types of parameters and locals."""
        types = {b.name: b.dtype for b in self.parameters}
        return types | {t.name: t.dtype for t in self.locals}

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers loaded from, in order of first use."""
        return self._buffers_of(reads([s for stage in self.stages for s in stage.body]))

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers stored to, in order of first use."""
        return self._buffers_of(writes([s for stage in self.stages for s in stage.body]))

    def _buffers_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if not self.locals:
            return names
        local = {scratch.name for scratch in self.locals}
        return tuple(n for n in names if n not in local)


@frozen
class TemplateKernel:
    """A template as a kernel that can be launched: its tensors are views of its parameters."""

    name: str = field(validator=identifier)
    device: Device = field(validator=exactly(Device))
    kind: TemplateKind = field(validator=exactly(TemplateKind))
    inputs: tuple[TensorRef, ...] = field(validator=a_tuple)
    outputs: tuple[TensorRef, ...] = field(validator=a_tuple)
    attributes: tuple[tuple[str, Arg], ...] = field(validator=a_tuple)
    parameters: tuple[Buffer, ...] = field(validator=a_tuple)
    """The buffers of the inputs, then those of the outputs, each once, as launches pass them."""
    sizes: tuple[Sym, ...] = field(default=(), validator=a_tuple)
    """Size symbols that the tensors and formulas mention, sorted by name: parameters."""
    origins: tuple[int, ...] = field(default=(), validator=a_tuple)
    formulas: tuple[Formula, ...] = field(default=(), validator=a_tuple)
    """They load from parameters."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers of the inputs, in order of first use."""
        return tuple(dict.fromkeys(t.buffer for t in self.inputs))

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers that it fills."""
        return tuple(o.buffer for o in self.outputs)


@frozen
class KernelGroup:
    """Kernels that one launch runs, in any order or at once: none writes what another touches.

    A member is one of `kernels` over tensors of its own: kernels that do the same occur once.
    """

    name: str = field(validator=identifier)
    device: Device = field(validator=exactly(Device))
    kernels: tuple[Kernel, ...] = field(validator=a_tuple)
    members: tuple[int, ...] = field(validator=a_tuple)
    """Which of `kernels` each member is."""

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """Those of each member after those before: `m0_p0`, `m0_p1`, `m1_p0`, ..."""
        return tuple(
            evolve(b, name=self.parameter(place, b.name))
            for place, number in enumerate(self.members)
            for b in self.kernels[number].parameters
        )

    def parameter(self, member: int, name: str) -> str:
        """Return what a parameter of a member is called."""
        return f"m{member}_{name}"

    @property
    def sizes(self) -> tuple[Sym, ...]:
        """Size symbols of all kernels, sorted by name: a symbol is one value in all of them."""
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
        return tuple(self.parameter(m, name) for m, number in members for name in names[number])

    @property
    def origins(self) -> tuple[int, ...]:
        """Those of all kernels."""
        return tuple(sorted({row for k in self.kernels for row in k.origins}))


Launchable = Kernel | TemplateKernel | KernelGroup
"""What a host program launches."""

ScheduleNode = Kernel | CallOperation


@frozen
class Lifetime:
    """A created buffer lives from node `first` to node `last` of the schedule, both included.

    `reuses` names the dead buffer whose storage it takes over.
    """

    buffer: str = field(validator=identifier)
    first: int = field(validator=exactly(int))
    last: int = field(validator=exactly(int))
    """`len(nodes)` for what the program returns."""
    reuses: str | None = field(default=None, validator=exactly(str, type(None)))


@frozen
class Partition:
    """Nodes `start` to `end` (not included): a stretch that one device graph holds, or none."""

    start: int = field(validator=exactly(int))
    end: int = field(validator=exactly(int))
    device: Device | None = field(default=None, validator=exactly(Device, type(None)))
    """Whose graph captures it; None for what stays outside of graphs."""
    reason: str = field(default="", validator=exactly(str))
    """Why it stays outside."""


@frozen
class Together:
    """Nodes `start` to `end` (not included) are kernels that one launch runs: a `KernelGroup`."""

    start: int = field(validator=exactly(int))
    end: int = field(validator=exactly(int))


@frozen
class Schedule(Shown):
    """Kernels and calls in order, with the life of each buffer."""

    name: str = field(validator=identifier)
    inputs: tuple[Input, ...] = field(validator=a_tuple)
    constants: tuple[Constant, ...] = field(validator=a_tuple)
    buffers: tuple[Buffer, ...] = field(validator=a_tuple)
    """Buffers that nodes create in memory. What fusion keeps inside a kernel is not among them."""
    nodes: tuple[ScheduleNode, ...] = field(validator=a_tuple)
    outputs: tuple[Output, ...] = field(validator=a_tuple)
    lifetimes: tuple[Lifetime, ...] = field(default=(), validator=a_tuple)
    partitions: tuple[Partition, ...] = field(default=(), validator=a_tuple)
    """What device graphs capture, and what not; none where graphs are not wanted."""
    facts: ShapeFacts = field(factory=ShapeFacts, validator=instance_of(ShapeFacts))
    origins: tuple[Origin, ...] = field(default=(), validator=a_tuple)
    subschedules: tuple["Schedule", ...] = field(default=(), validator=a_tuple)
    user_kernels: tuple[UserKernel, ...] = field(default=(), validator=a_tuple)
    together: tuple[Together, ...] = field(default=(), validator=a_tuple)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels among the nodes, in order."""
        return tuple(n for n in self.nodes if isinstance(n, Kernel))
