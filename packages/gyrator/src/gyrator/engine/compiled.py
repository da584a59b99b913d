"""What the compiler of ATen graphs gives back."""

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
"""A compiled graph: takes one list of arguments, which it empties, and gives the results."""


Decompositions = Mapping[Any, Callable[..., Any] | None]
"""By op; None keeps it whole."""
NO_DECOMPOSITIONS: Decompositions = MappingProxyType({})

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Keep Dynamo from tracing a function of ours that its own code, or autograd, calls."""
    hidden: F = disable(function, reason="Gyrator's own code is not traced")  # type: ignore[no-untyped-call]
    return hidden


@frozen(eq=False)
class CompiledGraph:
    """A graph made callable."""

    call: Boxed
    key: CacheKey | None = None
    """Under which the cache holds it; None for one that runs eagerly or holds constants."""


class Begun(Protocol):
    """A graph whose stages have run; its kernels may still be being built."""

    def waits(self) -> bool:
        """Whether `finish` would wait for a compiler."""
        ...

    def finish(self) -> CompiledGraph:
        """Wait, and return the callable."""
        ...


class GraphCompiler(Protocol):
    """Compiles ATen graphs, and finds those that were compiled before."""

    @property
    def rules(self) -> LoweringTable | None:
        """Which rule lowers what; None for the table that we ship."""
        ...

    @property
    def decompositions(self) -> Decompositions:
        """What a user changes of the table that takes ops apart."""
        ...

    @property
    def passes(self) -> PassEdits:
        """Which passes the user adds, replaces or drops."""
        ...

    @property
    def by_device(self) -> Mapping[str, Target]:
        """The targets by device type, as torch's settings are now."""
        ...

    @property
    def identity(self) -> Mapping[str, bytes]:
        """Fields of cache keys that differ where the same graph may become another program."""
        ...

    def machine(self, devices: Iterable[str]) -> bytes:
        """Return bytes that differ where other libraries may be quicker on these devices."""
        ...

    def prepare(self, devices: Iterable[str], calls: int) -> None:
        """Start what compiling a graph of so many calls on these devices will need."""
        ...

    def observe(self, record: GraphRecord) -> None:
        """Tell the logs and the observer of a compiled graph."""
        ...

    def libraries(self) -> Libraries | None:
        """Return what knows the libraries that are called; None where none is."""
        ...

    def stopwatch(self) -> Stopwatch:
        """Return what watches one compile."""
        ...

    def compile(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> CompiledGraph:
        """Return a callable for the graph: compiled, or eager with a warning. `watch` has seen what
        was done before."""
        ...

    def begin(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> Begun:
        """Do what `compile` does, but for waiting for the compilers of kernels. What is wrong with
        a graph is raised by `finish`."""
        ...

    def find(self, key: str, phase: Phase) -> Boxed | None:
        """Return the program stored under the hex digest of a key, or None."""
        ...
