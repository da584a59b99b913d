"""What the engine needs of a loader, which builds the kernels of a target, and of its builds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from gyrator_ir.define import frozen
from gyrator_ir.source import TranslationUnit
from gyrator_runtime.build import Library
from gyrator_runtime.cache import Cache
from gyrator_runtime.native import KernelFunction
from gyrator_runtime.progress import ProgressReporter


class Building(Protocol):
    """Translation units being built, possibly in other processes."""

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return the libraries to store in a cache entry."""
        ...

    def addresses(self) -> Mapping[str, KernelFunction]:
        """Wait, load, and return each kernel's function by its symbol."""
        ...


@runtime_checkable
class PartialBuilding(Protocol):
    """A build whose finished parts can be used; optional methods of a `Building`."""

    def within(self, seconds: float) -> Mapping[str, KernelFunction]:
        """Wait for at most this many seconds, cancel builds that have not started by then, and
        return the functions of the kernels that are built, by symbol. Kernels that cannot be
        built are omitted."""
        ...

    def only(self, symbols: Collection[str]) -> Building:
        """Return the build restricted to these kernels."""
        ...


@runtime_checkable
class PollableBuilding(Protocol):
    """A build that can be polled; an optional method of a `Building`."""

    def done(self) -> bool:
        """Return whether `addresses` would return immediately."""
        ...


class KernelLoader(Protocol):
    """Compiles the text of a kernel language and loads its functions."""

    @property
    def identity(self) -> bytes:
        """Bytes that change whenever the same text may give different machine code."""
        ...

    def submit(self, units: Sequence[TranslationUnit]) -> Building:
        """Start building translation units."""
        ...


@runtime_checkable
class WarmLoader(Protocol):
    """A loader whose compilers are slow to start; an optional method of a `KernelLoader`."""

    def warm(self, count: int) -> None:
        """Start compiler processes for about this many kernels, which will be submitted soon."""
        ...


@runtime_checkable
class ClosingLoader(Protocol):
    """A loader that keeps worker processes; an optional method of a `KernelLoader`."""

    def close(self) -> None:
        """Wait for running builds, and stop the processes. The loader remains usable."""
        ...


@frozen(kw_only=True)
class LoaderContext:
    """The resources that a session provides to a loader."""

    cache: Cache
    progress: ProgressReporter
    threads: int
    """Number of parallel compiler processes; 0 means one per core."""
    seconds: float = 300.0
    """Time limit of one compiler call, in seconds."""
    complete: bool = False
    """Whether the kernels will run without a compiler, so that variants specialised to arguments
    have to be built in advance."""
