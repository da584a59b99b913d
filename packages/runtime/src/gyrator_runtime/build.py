"""From translation units to loaded kernels: compile in parallel, cache, and dlopen.

`Builder.submit` returns immediately, so that compilation overlaps with other work of the caller;
`BuildHandle.addresses` waits. Compilers run in their own process groups and write only to a private
temporary folder, so Ctrl-C or kill -9 leaves no partial files in the cache.
"""

import errno
import functools
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.cache import Cache, CacheKey, Entry, make_key
from gyrator_runtime.library import SharedLibrary
from gyrator_runtime.process import Limited
from gyrator_runtime.progress import ProgressReporter
from gyrator_runtime.toolchain import Toolchain

__all__ = ["LIBRARY", "BuildError", "BuildHandle", "Builder", "Library", "finished", "load_library"]

LIBRARY = "kernels.so"
SOURCE = "kernels.cpp"

Result = TypeVar("Result")

_TAIL_LINES = 15

_INTERNAL = re.compile("internal compiler error|PLEASE submit a bug report")
"""What g++ and clang print when they fail because of an error of their own."""
_FEWER_OPTIMISATIONS = ("-O1",)
"""Flags with which a unit is compiled after an internal error; they replace earlier ones."""

_MAX_HANGS = 2
"""Number of units on which a compiler may hang before it is not used any more in this process."""
_HANG_DIVISOR = 10
"""Divisor of the time limit once a compiler has hung."""


class BuildError(GyratorError):
    """A kernel cannot be built or loaded. The caller falls back to eager mode."""


class _TransientError(BuildError):
    """A failure that may not recur on another attempt."""


class _InternalError(_TransientError):
    """An internal error of the compiler, which may not recur with fewer optimisations."""


class Unit(Protocol):
    """A source text compiled as one unit: `TranslationUnit` or `HostUnit` of the IR."""

    @property
    def name(self) -> str:
        """Name of the unit in messages."""
        ...

    @property
    def text(self) -> str:
        """C++ source."""
        ...

    @property
    def symbols(self) -> tuple[str, ...]:
        """Exported functions."""
        ...


@frozen
class BuiltUnit:
    """A unit whose library is in the cache."""

    unit: Unit
    key: CacheKey
    entry: Entry
    isa: str
    """The instruction set level that the library needs."""

    @property
    def library(self) -> Path:
        """The shared library."""
        return self.entry.file(LIBRARY)


@frozen
class Library:
    """Built kernels: their bytes, symbols and source.

    For C++ the bytes are a shared library; other kernel languages choose their own format.
    """

    name: str
    data: bytes
    symbols: tuple[str, ...]
    source: str = ""
    device: str = ""
    """Type of the device whose loader reads the bytes; empty for a shared library."""
    isa: str = "plain"
    """The CPU instruction set level that the code needs."""


def wait_for(
    futures: Collection["Future[Any]"], progress: ProgressReporter, seconds: float = math.inf
) -> None:
    """Wait for builds for at most `seconds`, and report progress."""
    end = time.monotonic() + seconds
    pending = {f for f in futures if not f.done()}
    progress.start("compiling kernels", len(futures))
    progress.advance(len(futures) - len(pending))
    try:
        while pending and (left := end - time.monotonic()) > 0:
            ended, pending = wait(pending, timeout=min(left, 0.1), return_when=FIRST_COMPLETED)
            progress.advance(len(ended))
    finally:
        progress.finish()


def finished(futures: Iterable["Future[Result]"]) -> list["Future[Result]"]:
    """Cancel the builds that have not started, and return those that finished without errors."""
    ended = [f for f in futures if not f.cancel() and f.done()]
    return [f for f in ended if f.exception() is None]


class BuildHandle:
    """Units being built. Usable in the process that submitted them and in its forks."""

    def __init__(
        self, builder: "Builder", units: tuple[Unit, ...], futures: list["Future[BuiltUnit]"]
    ) -> None:
        self._builder = builder
        self._units = units
        self._futures = futures
        self._origin = builder.origin()

    def done(self) -> bool:
        """Whether `addresses` would return immediately."""
        return self._builder.origin() == self._origin and all(f.done() for f in self._futures)

    def built(self) -> tuple[BuiltUnit, ...]:
        """Wait for the libraries and return them.

        KeyboardInterrupt ends this builder's compilers before it propagates; a later call builds
        again.

        Raises:
            BuildError: for the first unit that failed.
        """
        self._wait()
        return tuple(f.result() for f in self._futures)

    def within(self, seconds: float) -> dict[str, int]:
        """Wait for at most `seconds`, cancel the builds that have not started by then, and load the
        finished ones. KeyboardInterrupt is handled as in `built`."""
        self._wait(seconds)
        done_futures = set(finished(self._futures))
        return self._load([n for n, f in enumerate(self._futures) if f in done_futures])

    def only(self, symbols: Collection[str]) -> "BuildHandle":
        """Return a handle of the units that contain these kernels."""
        self._resubmit()
        pairs = zip(self._units, self._futures, strict=True)
        chosen = [(u, f) for u, f in pairs if not set(symbols).isdisjoint(u.symbols)]
        return BuildHandle(self._builder, tuple(u for u, _ in chosen), [f for _, f in chosen])

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return the libraries for a cache entry."""
        return tuple(
            Library(b.unit.name, b.entry.read(LIBRARY), b.unit.symbols, b.unit.text, isa=b.isa)
            for b in self.built()
        )

    def addresses(self) -> dict[str, int]:
        """Wait, load the libraries, and return the address of each kernel by its symbol."""
        self.built()
        return self._load(range(len(self._futures)))

    def _load(self, numbers: Iterable[int]) -> dict[str, int]:
        """Load the units at these indices. A unit whose library does not load is rebuilt."""
        addresses: dict[str, int] = {}
        for number in numbers:
            built = self._futures[number].result()
            try:
                addresses |= load_library(built.library, built.unit.symbols)
            except BuildError as error:
                self._builder.cache.discard(built.key, error.diagnostic.message)
                again = self._builder.submit([built.unit])
                (built,) = again.built()
                self._futures[number] = again._futures[0]
                addresses |= load_library(built.library, built.unit.symbols)
        return addresses

    def _wait(self, seconds: float = math.inf) -> None:
        self._resubmit()
        try:
            wait_for(self._futures, self._builder.progress, seconds)
        except BaseException:
            self._builder.cancel()
            raise

    def _resubmit(self) -> None:
        """Build again after a fork, since the threads that work on our futures exist only in the
        parent, and after the builder has cancelled its builds."""
        if self._builder.origin() != self._origin:
            again = self._builder.submit(self._units)
            self._futures, self._origin = again._futures, again._origin


class Builder:
    """Compiles with one toolchain for one instruction set level, with up to `jobs` in parallel."""

    def __init__(
        self,
        toolchain: Toolchain,
        cache: Cache,
        isa: str,
        *,
        jobs: int | None = None,
        progress: ProgressReporter | None = None,
        timeout: float = 300.0,
    ) -> None:
        self.toolchain = toolchain
        self.cache = cache
        self.isa = isa
        self.progress: ProgressReporter = progress or ProgressReporter()
        self.timeout = timeout
        self._jobs = jobs or available_cores()
        self._pool: ThreadPoolExecutor | None = None
        self._children: set[Limited] = set()
        self._cancelling = False
        self._cancelled = 0
        self._pid = os.getpid()
        self._flags = toolchain.compile_flags(isa)

    def key(self, unit: Unit) -> CacheKey:
        """Return the cache key of a unit. Units with equal texts share a key."""
        fields = {
            "text": unit.text.encode(),
            "compiler": self.toolchain.identity,
            "flags": " ".join(self._flags).encode(),
        }
        return make_key("kernels", fields)

    def submit(self, units: Sequence[Unit]) -> BuildHandle:
        """Start building. Units in the cache are ready immediately and start no compiler."""
        self._after_fork()
        futures: list[Future[BuiltUnit]] = []
        for unit in units:
            key = self.key(unit)
            entry = self.cache.get(key)
            if entry is None:
                futures.append(self._executor().submit(self._build, unit, key))
            else:
                ready: Future[BuiltUnit] = Future()
                ready.set_result(BuiltUnit(unit, key, entry, self.isa or "plain"))
                futures.append(ready)
        return BuildHandle(self, tuple(units), futures)

    def cancel(self) -> None:
        """Cancel waiting builds and kill running compilers. Returns when they have ended."""
        pool, self._pool = self._pool, None
        self._cancelling = True
        self._cancelled += 1
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        for child in tuple(self._children):
            child.kill()
        if pool is not None:
            pool.shutdown(wait=True)
        self._cancelling = False

    def origin(self) -> tuple[int, int]:
        """Return what changes when builds submitted so far are lost: by a fork or by `cancel`."""
        return os.getpid(), self._cancelled

    def close(self) -> None:
        """Wait for running compilers and end the threads. The builder remains usable."""
        self._after_fork()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._jobs, "gyrator-build")
        return self._pool

    def _after_fork(self) -> None:
        if os.getpid() != self._pid:
            self._pool, self._children, self._pid = None, set(), os.getpid()

    def _build(self, unit: Unit, key: CacheKey) -> BuiltUnit:
        entry = self.cache.get_or_build(key, lambda folder: self._compile(unit, key, folder))
        return BuiltUnit(unit, key, entry, self.isa or "plain")

    def _compile(self, unit: Unit, key: CacheKey, folder: Path) -> None:
        try:
            self._compile_once(unit, key, folder)
        except _TransientError as error:
            if self._cancelling:
                raise
            fewer = _FEWER_OPTIMISATIONS if isinstance(error, _InternalError) else ()
            self._compile_once(unit, key, folder, fewer)

    def _compile_once(
        self, unit: Unit, key: CacheKey, folder: Path, flags: tuple[str, ...] = ()
    ) -> None:
        (folder / SOURCE).write_text(unit.text, encoding="utf-8")
        for before in self.toolchain.build_commands(self.isa, SOURCE, LIBRARY):
            command = (*before, *flags)
            status, output = self._run(unit, key, command, folder)
            if status:
                raise _failed(unit, command, status, output)
        (folder / f"{SOURCE}.o").unlink(missing_ok=True)
        if self.toolchain.foreign:
            return
        try:
            load_library(folder / LIBRARY, unit.symbols)
        except BuildError as error:
            raise _TransientError(error.diagnostic) from error

    def _run(
        self, unit: Unit, key: CacheKey, command: tuple[str, ...], folder: Path
    ) -> tuple[int, str]:
        hung = _hangs(self.toolchain.command)
        if key.hex in hung or len(hung) >= _MAX_HANGS:
            raise _not_retried(unit, command)
        seconds = self.timeout / _HANG_DIVISOR if hung else self.timeout
        try:
            child = Limited(command, seconds, folder)
        except OSError as error:
            raise _failed(unit, command, 127, str(error)) from error
        self._children.add(child)
        try:
            if self._cancelling:  # `cancel` may have missed this child
                child.kill()
            ended = child.wait()
        finally:
            self._children.discard(child)
        if child.late:
            hung.add(key.hex)
            raise _timed_out(unit, command, seconds)
        return ended


@functools.cache
def _hangs(command: tuple[str, ...]) -> set[str]:
    """Return the hashes of the units on which a compiler hung in this process, a mutable set."""
    return set()


def load_library(path: Path, symbols: Sequence[str]) -> Mapping[str, int]:
    """Map a library and look up `symbols`.

    It stays mapped as long as one of the addresses is alive: see `library.KernelAddress`.

    Raises:
        BuildError: GY-BUILD-004, when that fails.
    """
    try:
        library = SharedLibrary(path)
        addresses = {s: library.address(s) for s in symbols}
    except OSError as error:
        raise BuildError.of(
            "GY-BUILD-004",
            f"a kernel library cannot be loaded: {error}",
            where=path.name,
            help="import torch first; empty the cache folder if it came from elsewhere",
        ) from error
    return addresses


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _failed(unit: Unit, command: tuple[str, ...], status: int, output: str) -> BuildError | OSError:
    if "No space left on device" in output:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = tuple(output.strip().splitlines()[-_TAIL_LINES:])
    killed = status < 0 or "signal terminated program" in output  # from g++, about its subprocesses
    internal = _INTERNAL.search(output) is not None
    if killed:
        return (_InternalError if internal else _TransientError).of(
            "GY-BUILD-003",
            f"the compiler was ended by {f'signal {-status}' if status < 0 else 'a signal'} "
            f"on unit {unit.name}",
            " ".join(command),
            lines,
            "check that there is memory left",
        )
    return (_InternalError if internal else BuildError).of(
        "GY-BUILD-002",
        f"the compiler failed (status {status}) on unit {unit.name}",
        " ".join(command),
        lines,
        "run `gyrator doctor`; if the compiler is sound, report the unit as a bug",
    )


def _timed_out(unit: Unit, command: tuple[str, ...], seconds: float) -> BuildError:
    return BuildError.of(
        "GY-BUILD-003",
        f"the compiler took more than {seconds:.0f} s on unit {unit.name}",
        " ".join(command),
        help="the machine may be overloaded: try again when it is not",
    )


def _not_retried(unit: Unit, command: tuple[str, ...]) -> BuildError:
    return BuildError.of(
        "GY-BUILD-003",
        "the compiler exceeded its time limit before and is not retried",
        " ".join(command),
        (f"unit {unit.name}",),
        "the machine may be overloaded: try again when it is not",
    )
