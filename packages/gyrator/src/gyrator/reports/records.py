"""What one compile did, for explain, reports and tests."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import define, evolve, field, frozen

from gyrator_ir.deadline import Deadline
from gyrator_ir.passes import Step, Tracer


@define
class Stopwatch:
    """Seconds of each named stage, and what passes did."""

    seconds: dict[str, float] = field(factory=dict)
    tracer: Tracer = field(factory=Tracer)
    limit: float = math.inf
    """Seconds that one stage may take."""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a `with` block, also for Dynamo's metrics and PyTorch's traces of compiles, and let
        the tracer's deadline be its end."""
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
    """A call into ATen, and why it is one."""

    target: str
    node: str
    """The FX node."""
    reason: str
    """`library` for a dense product or attention, else a sentence."""
    source: str = ""
    """The user's line."""
    module: str = ""
    """Path of the `nn.Module` that calls it."""
    bytes_moved: int = 0
    """Bytes of its arguments and results, sizes at their hints."""
    flops: int = 0
    """Operations on floats of a product or convolution, sizes at their hints; 0 for other ops."""


@frozen
class KernelRecord:
    """A generated kernel."""

    name: str
    language: str
    text: str
    nodes: tuple[str, ...]
    """FX nodes fused into it at its first launch, from which the three below come, too."""
    ops: tuple[str, ...]
    """The ATen ops that those call."""
    sources: tuple[str, ...]
    """The user's lines they came from."""
    modules: tuple[str, ...] = ()
    """Paths of the `nn.Module`s that run those lines."""
    bytes_moved: int = 0
    """Bytes read and written by one run, sizes at their hints."""
    flops: int = 0
    """Operations on floats in one run, a function such as `exp` counting as one; sizes at their
    hints. 0 for a template."""
    launches: int = 1
    """How often one run of the graph launches it; in the body of a loop, counted once."""
    refusals: tuple[str, ...] = ()
    """Why neighbouring work is in other kernels."""
    verified: str = ""
    """With the option `verify`: how often it ran beside its IR, `4 runs`, or why it did not."""

    @property
    def agrees(self) -> bool:
        """Whether it ran beside its IR, and agreed with it."""
        return self.verified.endswith(" runs")


@frozen
class PartitionRecord:
    """Kernels and calls that one device graph captures, or that stay outside of graphs."""

    nodes: tuple[str, ...]
    """Kernels by name, calls by their op."""
    device: str
    """Whose graph it is; empty for what stays outside."""
    reason: str
    """Why it stays outside."""


@frozen
class StorageRecord:
    """Memory that one run of a program takes, from the step that allocates it to the one that gives
    it back; steps are launches and calls, counted from 0."""

    bytes: int
    """Sizes at their hints."""
    device: str
    first: int
    last: int
    """The last step that may touch it; one past the last step for what is returned."""
    owners: tuple[str, ...]
    """The tensors that lie in it, one after another or side by side."""
    nodes: tuple[str, ...] = ()
    """The kernels and calls that use it."""
    pool: bool = False
    """Whether it is one of the pools that the program places tensors in."""


@frozen
class Cost:
    """What a kernel or a call of ATen takes in one run of its graph, known before any ran; sizes at
    their hints."""

    name: str
    """Of the kernel, or of the op."""
    kernel: bool
    """Whether it is a generated kernel."""
    launches: int
    bytes: int
    """Read and written by one launch."""
    flops: int
    """Operations on floats of one launch: see `KernelRecord` and `ExternRecord`."""


@frozen
class MemoryStep:
    """What is held from one step of a run on; steps are launches and calls, counted from 0."""

    step: int
    bytes: int
    held: tuple[StorageRecord, ...]


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
    """With the option `device_graphs`: what is captured, in the order in which it runs."""
    storages: tuple[StorageRecord, ...] = ()
    """What it allocates, in order. What calls of ATen allocate for themselves is not among it."""
    launches: int = 0
    """Kernel launches in one run; a kernel may be launched several times."""
    cached: bool = False
    """Loaded from the cache: no pass and no compiler ran."""
    missed: Callable[[], tuple[str, ...] | None] = field(default=lambda: None, eq=False)
    """Names the parts of the cache's key in which the most similar stored program differs, one of
    the same graph if there is any; None where the cache has none, or was not asked."""
    fallback: str = ""
    """Why the whole graph runs eagerly; empty if it does not."""
    seconds: tuple[tuple[str, float], ...] = ()
    """Time of each stage."""
    passes: tuple[Step, ...] = ()
    """What each pass did, in order; with the option `pass_texts` also the text before and after."""
    host_text: str = ""
    levels: Mapping[str, Any] = field(factory=dict, eq=False)
    """What the stages made, to be printed or read: the ATen graph after the passes over it (`fx`),
    and the programs `loop`, `kernel`, `host` and `tile` (`tile_sub0` and so on for kernels of other
    devices and of subprograms). Of a graph that came from the cache `fx` at the most."""
    timings: Callable[[], dict[str, tuple[int, int]]] | None = field(default=None, eq=False)
    """With the option `timed`: calls and total nanoseconds of each kernel so far."""

    @property
    def peak_bytes(self) -> int:
        """Most bytes that one run holds at a time, beside its arguments."""
        return self.peak.bytes

    @property
    def peak(self) -> MemoryStep:
        """The first step that holds most."""
        return max(self.memory(), key=lambda m: m.bytes, default=MemoryStep(0, 0, ()))

    def memory(self) -> tuple[MemoryStep, ...]:
        """Return the steps at which the bytes held change."""
        steps = sorted({s.first for s in self.storages} | {s.last + 1 for s in self.storages})
        found = []
        for step in steps:
            held = tuple(s for s in self.storages if s.first <= step <= s.last)
            found.append(MemoryStep(step, sum(s.bytes for s in held), held))
        return tuple(found)

    def cost(self) -> tuple[Cost, ...]:
        """Return what each kernel takes, then what each call of ATen does."""
        kernels = (Cost(k.name, True, k.launches, k.bytes_moved, k.flops) for k in self.kernels)
        calls = (Cost(e.target, False, 1, e.bytes_moved, e.flops) for e in self.externs)
        return (*kernels, *calls)

    def from_now(self) -> "GraphRecord":
        """Return this record with timings that count from now on, without the calls so far."""
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
