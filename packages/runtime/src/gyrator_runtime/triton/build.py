"""From units of Triton source to loaded kernels: one job per kernel, in parallel, cached."""

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from gyrator_ir.define import frozen
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_runtime.build import Library, finished, wait_for
from gyrator_runtime.cache import Cache, CacheKey, Entry, make_key
from gyrator_runtime.native.kernels import DeviceLaunch
from gyrator_runtime.progress import ProgressReporter
from gyrator_runtime.triton.binary import Binary, Expression, pack, without_text
from gyrator_runtime.triton.compile import CODE, FACTS, Facts, Job, read_facts
from gyrator_runtime.triton.driver import Driver
from gyrator_runtime.triton.launch import DeviceKernel, launches, without_alignment
from gyrator_runtime.triton.pool import WorkerPool

if TYPE_CHECKING:
    from gyrator_ir.expr import Sym


@frozen(kw_only=True)
class Language:
    """The compilation target of kernels."""

    backend: str
    """Triton's name of the device language."""
    code: str
    """Triton's name of the machine code."""
    arch: str
    warp: int
    version: str
    """Triton's version."""


class TritonBuild:
    """Units being built. Usable in the process that submitted them and in its forks."""

    def __init__(
        self,
        builder: "TritonBuilder",
        units: tuple[TranslationUnit, ...],
        sources: dict["Future[Entry]", tuple[KernelSource, Job]],
        others: "Mapping[str, Future[Entry]]",
    ) -> None:
        self._builder = builder
        self._units = units
        self._sources = sources
        self._others = others
        self._pid = os.getpid()

    def done(self) -> bool:
        """Whether `binaries` would return immediately."""
        built = (*self._sources, *self._others.values())
        return os.getpid() == self._pid and all(f.done() for f in built)

    def binaries(self) -> tuple[Binary, ...]:
        """Wait, and return the binaries. BuildError for the first kernel that failed."""
        self._wait()
        return tuple(self._binary(f) for f in self._sources)

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return the libraries for a cache entry."""
        binaries = self.binaries()
        symbols = tuple(b.symbol for b in binaries)
        text = "\n\n".join(unit.text for unit in self._units)
        return (Library("triton", pack(binaries), symbols, text),)

    def addresses(self) -> Mapping[str, DeviceLaunch]:
        """Wait, and return the launchable kernels by symbol."""
        return self._launches(self.binaries())

    def within(self, seconds: float) -> Mapping[str, DeviceLaunch]:
        """Wait for at most `seconds`, cancel the builds that have not started by then, and return
        the finished kernels by symbol."""
        self._wait(seconds)
        futures = finished(self._sources)
        return self._launches(map(self._binary, futures))

    def only(self, symbols: Collection[str]) -> "TritonBuild":
        """Return the build of a subset of the kernels."""
        self._after_fork()
        units = tuple(
            evolve(u, kernels=tuple(k for k in u.kernels if k.symbol in symbols))
            for u in self._units
        )
        sources = {f: s for f, s in self._sources.items() if s[0].symbol in symbols}
        others = {s: f for s, f in self._others.items() if s in symbols}
        return TritonBuild(self._builder, units, sources, others)

    def _binary(self, built: "Future[Entry]") -> Binary:
        source, job = self._sources[built]
        binary = _binary(source, job, built.result())
        other = self._others.get(source.symbol)
        if other is not None:
            binary = evolve(binary, general=_built(other.result()))
        return without_text(binary) if self._builder.complete else binary

    def _wait(self, seconds: float = math.inf) -> None:
        self._after_fork()
        built = (*self._sources, *self._others.values())
        wait_for(built, self._builder.progress, seconds)

    def _after_fork(self) -> None:
        if os.getpid() != self._pid:
            again = self._builder.submit(self._units)
            self._sources, self._others, self._pid = again._sources, again._others, again._pid

    def _launches(self, binaries: Iterable[Binary]) -> Mapping[str, DeviceLaunch]:
        driver = self._builder.driver()
        return {b.symbol: DeviceKernel(driver, b) for b in binaries}


class TritonBuilder:
    """Builds kernels for one device type. Its worker processes run until it is closed."""

    def __init__(
        self,
        language: Language,
        cache: Cache,
        driver: Callable[[], Driver],
        *,
        jobs: int = 0,
        progress: ProgressReporter | None = None,
        timeout: float = 300.0,
        complete: bool = False,
    ) -> None:
        """Create a builder.

        Args:
            language: the compilation target.
            cache: stores built kernels.
            driver: opens the driver that launches kernels; called on first use.
            jobs: number of worker processes; 0 for one per core.
            progress: receives progress of the builds.
            timeout: time limit for one kernel in seconds.
            complete: also build the variants for unaligned arguments now, because there is no
                compiler where the kernels run.
        """
        self.language = language
        self.cache = cache
        self.driver = driver
        self.progress: ProgressReporter = progress or ProgressReporter()
        self.complete = complete
        self.pool = WorkerPool(jobs, timeout)

    @property
    def identity(self) -> bytes:
        """Bytes that differ if the same source may be compiled to different machine code."""
        return repr(self.language).encode()

    def job(self, source: KernelSource) -> Job:
        """Return the job of a kernel's first candidate configuration."""
        return Job(
            text=source.text,
            symbol=source.symbol,
            arguments=tuple((a.name, a.type, a.divisor) for a in source.arguments),
            values=source.candidates[0].values,
            backend=self.language.backend,
            code=self.language.code,
            arch=self.language.arch,
            warp=self.language.warp,
        )

    def warm(self, count: int) -> None:
        """Start workers for `count` kernels that will follow, so that importing Triton overlaps
        with other work."""
        self.pool.warm(count)

    def submit(self, units: Sequence[TranslationUnit]) -> TritonBuild:
        """Start compiling. Kernels in the cache start no process."""
        jobs = {source.symbol: self.job(source) for unit in units for source in unit.kernels}
        others = {s: without_alignment(job) for s, job in jobs.items()} if self.complete else {}
        others = {s: job for s, job in others.items() if job != jobs[s]}
        built = self._start((*jobs.values(), *others.values()))
        sources = {
            built[jobs[source.symbol]]: (source, jobs[source.symbol])
            for unit in units
            for source in unit.kernels
        }
        more = {symbol: built[job] for symbol, job in others.items()}
        return TritonBuild(self, tuple(units), sources, more)

    def _start(self, jobs: Iterable[Job]) -> "dict[Job, Future[Entry]]":
        """Start the jobs that are not cached; return a future of each job's entry."""
        futures: dict[Job, Future[Entry]] = {}
        missing: dict[Job, CacheKey] = {}
        for job in jobs:
            key = make_key("triton", {"job": job.as_json().encode(), "by": self.identity})
            entry = self.cache.get(key)
            if entry is None:
                missing[job] = key
                continue
            futures[job] = Future()
            futures[job].set_result(entry)
        if missing:
            self.pool.warm(len(missing))
        for job, key in missing.items():
            futures[job] = self.pool.executor().submit(self._build, job, key)
        return futures

    def close(self) -> None:
        """Wait for running jobs and end the workers. The builder remains usable."""
        self.pool.close()

    def _build(self, job: Job, key: CacheKey) -> Entry:
        return self.cache.get_or_build(key, lambda folder: self.pool.run(job, folder))


def load_binaries(driver: Driver, path: Path, symbols: Sequence[str]) -> Mapping[str, DeviceLaunch]:
    """Return the launchable kernels of a stored file; see `launches`."""
    return launches(driver, path.read_bytes(), symbols)


def _binary(source: KernelSource, job: Job, entry: Entry) -> Binary:
    sizes = sum(not a.type.startswith("*") for a in source.arguments)
    facts, code = _built(entry)
    return Binary(
        symbol=source.symbol,
        job=job,
        facts=facts,
        grid=grid_code(source, sizes, dict(job.values)),
        code=code,
    )


def _built(entry: Entry) -> tuple[Facts, bytes]:
    return read_facts(entry.read(FACTS)), entry.read(CODE)


def grid_code(
    source: KernelSource, sizes: int, values: Mapping[str, int]
) -> tuple[Expression, ...]:
    """Return a kernel's grid as programs over its sizes, for a configuration's values."""
    from gyrator_ir.grid import size_symbols  # not needed to load stored kernels
    from gyrator_runtime.plan.sizes import size_code

    positions = {s.name: k for k, s in enumerate(size_symbols(source, sizes))}

    def symbol(s: "Sym") -> Expression:
        place = positions.get(s.name)
        return (("const", values[s.name]),) if place is None else (("arg", place),)

    return tuple(size_code(e, symbol) for e in source.grid)
