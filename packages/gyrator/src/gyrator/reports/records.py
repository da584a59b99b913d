"""Records of one compile, for `explain`, reports and tests."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve, field

from gyrator_ir.deadline import Deadline
from gyrator_ir.define import define, frozen
from gyrator_ir.passes import Step, Tracer


@define
class Stopwatch:
    """Seconds of each named stage, and the steps of passes."""

    seconds: dict[str, float] = field(factory=dict)
    tracer: Tracer = field(factory=Tracer)
    limit: float = math.inf
    """Time limit of one stage, in seconds."""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a `with` block, also for Dynamo's metrics and PyTorch's compile traces, and set
        the tracer's deadline for it."""
        from torch._dynamo.utils import dynamo_timed

        start = time.perf_counter()
        before, self.tracer.deadline = self.tracer.deadline, Deadline.after(self.limit, name)
        try:
            with dynamo_timed(f"gyrator.{name}", log_pt2_compile_event=True):
                yield
        finally:
            self.tracer.deadline = before
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@frozen
class ExternRecord:
    """A call of an ATen op, and the reason for it."""

    target: str
    node: str
    """The FX node."""
    reason: str
    """`library` for dense products and attention, else a sentence."""
    source: str = ""
    """The user's line."""
    module: str = ""
    """The path of the `nn.Module` that calls it."""
    bytes_moved: int = 0
    """Bytes of its arguments and results, for the size hints."""
    flops: int = 0
    """Floating-point operations of a product or convolution, for the size hints; 0 for other
    ops."""


@frozen
class KernelRecord:
    """A generated kernel."""

    name: str
    language: str
    text: str
    nodes: tuple[str, ...]
    """FX nodes fused into it at its first launch; the next three fields are derived from them."""
    ops: tuple[str, ...]
    """The ATen ops of the nodes."""
    sources: tuple[str, ...]
    """The user's lines of the nodes."""
    modules: tuple[str, ...] = ()
    """Paths of the `nn.Module`s that run these lines."""
    bytes_moved: int = 0
    """Bytes read and written by one run, for the size hints."""
    flops: int = 0
    """Floating-point operations in one run, for the size hints; a function such as `exp` counts as
    one. 0 for a template."""
    launches: int = 1
    """Number of launches in one run of the graph; a launch in a loop body is counted once."""
    refusals: tuple[str, ...] = ()
    """Why adjacent operations were not fused into it."""
    verified: str = ""
    """With the option `verify`: the number of comparisons with its IR, `4 runs`, or why there were
    none."""

    @property
    def agrees(self) -> bool:
        """Whether it was compared with its IR and matched."""
        return self.verified.endswith(" runs")


@frozen
class PartitionRecord:
    """Kernels and calls that one device graph captures, or that are not captured."""

    nodes: tuple[str, ...]
    """Kernels by name, calls by their op."""
    device: str
    """The device of the graph; empty if they are not captured."""
    reason: str
    """Why they are not captured."""


@frozen
class StorageRecord:
    """Memory that one run of a program allocates, with its lifetime. Steps are launches and
    calls, counted from 0."""

    bytes: int
    """The size, for the size hints."""
    device: str
    first: int
    last: int
    """The last step that may use it; one past the last step of the program for a result."""
    owners: tuple[str, ...]
    """The tensors stored in it, sequentially or side by side."""
    nodes: tuple[str, ...] = ()
    """The kernels and calls that use it."""
    pool: bool = False
    """Whether it is a pool in which the program places tensors."""


@frozen
class Cost:
    """The static cost of a kernel or an ATen call in one run of its graph, for the size hints."""

    name: str
    """The name of the kernel or the op."""
    kernel: bool
    """Whether it is a generated kernel."""
    launches: int
    bytes: int
    """Bytes read and written by one launch."""
    flops: int
    """Floating-point operations of one launch: see `KernelRecord` and `ExternRecord`."""


@frozen
class MemoryStep:
    """The live memory from one step of a run on. Steps are launches and calls, counted from 0."""

    step: int
    bytes: int
    storages: tuple[StorageRecord, ...]


@frozen
class GraphRecord:
    """One compiled graph."""

    name: str
    phase: str
    nodes: int
    """Calls in the ATen graph."""
    kernels: tuple[KernelRecord, ...] = ()
    externs: tuple[ExternRecord, ...] = ()
    partitions: tuple[PartitionRecord, ...] = ()
    """With the option `device_graphs`: the captured and uncaptured parts, in execution order."""
    storages: tuple[StorageRecord, ...] = ()
    """Its allocations in order, excluding the internal allocations of ATen calls."""
    launches: int = 0
    """Kernel launches in one run; a kernel may be launched several times."""
    cached: bool = False
    """Loaded from the cache: no pass and no compiler ran."""
    missed: Callable[[], tuple[str, ...] | None] = field(default=lambda: None, eq=False)
    """Returns the fields of the cache key that differ from the most similar stored program,
    preferably of the same graph; None if the cache is empty or was not used."""
    fallback: str = ""
    """Why the whole graph runs eagerly; empty if it does not."""
    seconds: tuple[tuple[str, float], ...] = ()
    """Seconds of each stage."""
    passes: tuple[Step, ...] = ()
    """The steps of the passes in order; with the option `pass_texts`, including the text before and
    after."""
    host_text: str = ""
    levels: Mapping[str, Any] = field(factory=dict, eq=False)
    """The outputs of the stages: the ATen graph after its passes (`fx`), and the programs `loop`,
    `kernel`, `host` and `tile` (`tile_sub0` and so on for kernels of other devices and of
    subprograms). For a graph from the cache, at most `fx`."""
    timings: Callable[[], dict[str, tuple[int, int]]] | None = field(default=None, eq=False)
    """With the option `timed`: calls and total nanoseconds of each kernel so far."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes that one run has allocated at any time, excluding its arguments."""
        return self.peak.bytes

    @property
    def peak(self) -> MemoryStep:
        """The first step with the most allocated bytes."""
        return max(self.memory(), key=lambda m: m.bytes, default=MemoryStep(0, 0, ()))

    def memory(self) -> tuple[MemoryStep, ...]:
        """Return the steps at which the allocated memory changes."""
        steps = sorted({s.first for s in self.storages} | {s.last + 1 for s in self.storages})
        steps_ = []
        for step in steps:
            live = tuple(s for s in self.storages if s.first <= step <= s.last)
            steps_.append(MemoryStep(step, sum(s.bytes for s in live), live))
        return tuple(steps_)

    def cost(self) -> tuple[Cost, ...]:
        """Return the cost of each kernel, then of each ATen call."""
        kernels = (Cost(k.name, True, k.launches, k.bytes_moved, k.flops) for k in self.kernels)
        calls = (Cost(e.target, False, 1, e.bytes_moved, e.flops) for e in self.externs)
        return (*kernels, *calls)

    def from_now(self) -> "GraphRecord":
        """Return this record with timings that exclude the calls so far."""
        if self.timings is None:
            return self
        read, before = self.timings, self.timings()

        def since() -> dict[str, tuple[int, int]]:
            now = read()
            none = (0, 0)
            return {n: (c - before.get(n, none)[0], t - before.get(n, none)[1])
                    for n, (c, t) in now.items()}  # fmt: skip

        return evolve(self, timings=since)


Observer = Callable[[GraphRecord], Any]
"""Called after every compiled graph."""


def ignore_record(record: GraphRecord) -> None:
    """The default observer."""
