"""Units of Triton text to built and loaded kernels: one job a kernel, in parallel, cached."""

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_runtime.artifact import Library
from gyrator_runtime.build import finished, wait_for
from gyrator_runtime.cache import Cache, CacheKey, Entry, make_key
from gyrator_runtime.native.kernels import DeviceLaunch
from gyrator_runtime.progress import ProgressReporter, SilentProgress
from gyrator_runtime.triton.binary import Binary, Expression, pack, without_text
from gyrator_runtime.triton.compile import CODE, FACTS, Facts, Job, read_facts
from gyrator_runtime.triton.driver import Driver
from gyrator_runtime.triton.launch import DeviceKernel, for_any, launches
from gyrator_runtime.triton.pool import WorkerPool

if TYPE_CHECKING:
    from gyrator_ir.expr import Sym


@frozen(kw_only=True)
class Language:
    """What kernels are compiled for."""

    backend: str
    """Triton's name of the device language."""
    code: str
    """Triton's name of the machine code."""
    arch: str
    warp: int
    version: str
    """Triton's."""


class TritonBuild:
    """Units being built. Of use in the process that submitted them and in its forks."""

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
        """Whether `binaries` would return at once."""
        built = (*self._sources, *self._others.values())
        return os.getpid() == self._pid and all(f.done() for f in built)

    def binaries(self) -> tuple[Binary, ...]:
        """Wait; BuildError for the first kernel that failed."""
        self._wait()
        return tuple(self._binary(f) for f in self._sources)

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return what a cache entry holds."""
        made = self.binaries()
        symbols = tuple(b.symbol for b in made)
        text = "\n\n".join(unit.text for unit in self._units)
        return (Library("triton", pack(made), symbols, text),)

    def addresses(self) -> Mapping[str, DeviceLaunch]:
        """Wait, and return what launches each kernel, by its symbol."""
        return self._launches(self.binaries())

    def within(self, seconds: float) -> Mapping[str, DeviceLaunch]:
        """Wait so long at most, give up what has not begun by then, and return what launches the
        kernels that are built."""
        self._wait(seconds)
        made = finished(self._sources)
        return self._launches(map(self._binary, made))

    def only(self, symbols: Collection[str]) -> "TritonBuild":
        """Return the build of these kernels."""
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
        made = _binary(source, job, built.result())
        other = self._others.get(source.symbol)
        if other is not None:
            made = evolve(made, general=_built(other.result()))
        return without_text(made) if self._builder.complete else made

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
    """Builds kernels for one device type. Keeps worker processes until it is closed."""

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
        """Make a builder.

        Args:
            language: what kernels are compiled for.
            cache: keeps what is built.
            driver: opens the driver that launches kernels; asked when they are.
            jobs: worker processes at once; 0 for one a core.
            progress: told of what is being built.
            timeout: seconds for one kernel.
            complete: build at once what would be built for arguments that are not aligned, for
                where the kernels run there is no compiler.
        """
        self.language = language
        self.cache = cache
        self.driver = driver
        self.progress: ProgressReporter = progress or SilentProgress()
        self.complete = complete
        self.pool = WorkerPool(jobs, timeout)

    @property
    def identity(self) -> bytes:
        """Bytes that differ where the same text may give other machine code."""
        return repr(self.language).encode()

    def job(self, source: KernelSource) -> Job:
        """Return the job of a kernel's best guess of a configuration."""
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
        """Start processes for so many kernels, which come soon, so that importing overlaps."""
        self.pool.warm(count)

    def submit(self, units: Sequence[TranslationUnit]) -> TritonBuild:
        """Start compiling; kernels that the cache has start no process."""
        jobs = {source.symbol: self.job(source) for unit in units for source in unit.kernels}
        others = {s: for_any(job) for s, job in jobs.items()} if self.complete else {}
        others = {s: job for s, job in others.items() if job != jobs[s]}
        built = self._begun((*jobs.values(), *others.values()))
        sources = {
            built[jobs[source.symbol]]: (source, jobs[source.symbol])
            for unit in units
            for source in unit.kernels
        }
        more = {symbol: built[job] for symbol, job in others.items()}
        return TritonBuild(self, tuple(units), sources, more)

    def _begun(self, jobs: Iterable[Job]) -> "dict[Job, Future[Entry]]":
        """Start jobs, of which the cache has some; return what will be built of each."""
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
        """Wait for running jobs and end the workers. The builder stays usable."""
        self.pool.close()

    def _build(self, job: Job, key: CacheKey) -> Entry:
        return self.cache.get_or_build(key, lambda folder: self.pool.run(job, folder))


def load_binaries(driver: Driver, path: Path, symbols: Sequence[str]) -> Mapping[str, DeviceLaunch]:
    """Return what launches the kernels of a stored file; see `launches`."""
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
    from gyrator_ir.grid import size_symbols  # which loading what is stored does not need
    from gyrator_runtime.plan.sizes import size_code

    places = {s.name: k for k, s in enumerate(size_symbols(source, sizes))}

    def symbol(s: "Sym") -> Expression:
        place = places.get(s.name)
        return (("const", values[s.name]),) if place is None else (("arg", place),)

    return tuple(size_code(e, symbol) for e in source.grid)
