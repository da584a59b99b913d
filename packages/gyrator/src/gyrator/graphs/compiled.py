"""Interfaces of compiled ATen graphs and their compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import torch
from attrs import frozen
from torch._dynamo import disable

from gyrator_runtime.cache import CacheKey

if TYPE_CHECKING:
    from gyrator.reports.records import GraphRecord, Stopwatch
    from gyrator_ir.passes import PassEdits
    from gyrator_ir.target import Target
    from gyrator_lowering.fx_passes import Libraries
    from gyrator_lowering.table import LoweringTable

Phase = Literal["inference", "forward", "backward"]
Boxed = Callable[[list[Any]], Sequence[Any]]
"""A compiled graph: takes one list of arguments, which it clears, and returns the results."""


Decompositions = Mapping[Any, Callable[..., Any] | None]
"""Decompositions by op; None disables the op's decomposition."""
NO_DECOMPOSITIONS: Decompositions = MappingProxyType({})

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Keep Dynamo from tracing a function of Gyrator that Dynamo's code or autograd calls."""
    hidden: F = disable(function, reason="Gyrator's own code is not traced")  # type: ignore[no-untyped-call]
    return hidden


@frozen(eq=False)
class CompiledGraph:
    """A compiled graph and its cache key."""

    call: Boxed
    key: CacheKey | None = None
    """The key of its cache entry; None if it runs eagerly or contains constants."""


class PendingGraph(Protocol):
    """A graph whose stages have run; its kernels may still be being built."""

    def is_building(self) -> bool:
        """Return whether `finish` would wait for a compiler."""
        ...

    def finish(self) -> CompiledGraph:
        """Wait for the kernels, and return the callable."""
        ...


class GraphCompiler(Protocol):
    """Compiles ATen graphs, or loads them from the cache."""

    @property
    def packs(self) -> bool:
        """Whether constants may be tensors in library-specific packed layouts."""
        ...

    @property
    def rules(self) -> LoweringTable | None:
        """The lowering rules; None for the default table."""
        ...

    @property
    def decompositions(self) -> Decompositions:
        """The user's changes to the decomposition table."""
        ...

    @property
    def passes(self) -> PassEdits:
        """The passes that the user adds, replaces or drops."""
        ...

    @property
    def by_device(self) -> Mapping[str, Target]:
        """The targets by device type, for torch's current settings."""
        ...

    @property
    def identity(self) -> Mapping[str, bytes]:
        """The fields of cache keys that determine the program generated for a graph."""
        ...

    def machine(self, devices: Iterable[str]) -> bytes:
        """Return bytes that change whenever the choice of libraries on these devices may change."""
        ...

    def prepare(self, devices: Iterable[str], calls: int) -> None:
        """Start the processes that compiling a graph with this many calls on these devices will
        need."""
        ...

    def observe(self, record: GraphRecord) -> None:
        """Pass the record of a compiled graph to the logs and the observer."""
        ...

    def libraries(self) -> Libraries | None:
        """Return the choice among libraries; None if no library is called."""
        ...

    def stopwatch(self) -> Stopwatch:
        """Return a stopwatch for one compile."""
        ...

    def compile(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> CompiledGraph:
        """Return a callable for the graph: compiled, or eager with a warning. `watch` has timed
        the earlier steps."""
        ...

    def begin(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> PendingGraph:
        """Start compiling a graph, without waiting for kernel compilers. Errors are raised by
        `finish` of the result."""
        ...

    def find(self, key: str, phase: Phase) -> Boxed | None:
        """Return the program stored under the hex digest of a key, or None."""
        ...
