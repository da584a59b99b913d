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
from gyrator_runtime.triton.binary import Binary, Expression, pack, unpack
from gyrator_runtime.triton.compile import CODE, FACTS, Job, read_facts
from gyrator_runtime.triton.driver import Driver
from gyrator_runtime.triton.launch import DeviceKernel
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
    ) -> None:
        self._builder = builder
        self._units = units
        self._sources = sources
        self._pid = os.getpid()

    def binaries(self) -> tuple[Binary, ...]:
        """Wait; BuildError for the first kernel that failed."""
        self._wait()
        return tuple(_binary(*self._sources[f], f.result()) for f in self._sources)

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
        return self._launches([_binary(*self._sources[f], f.result()) for f in made])

    def only(self, symbols: Collection[str]) -> "TritonBuild":
        """Return the build of these kernels."""
        self._after_fork()
        units = tuple(
            evolve(u, kernels=tuple(k for k in u.kernels if k.symbol in symbols))
            for u in self._units
        )
        sources = {f: s for f, s in self._sources.items() if s[0].symbol in symbols}
        return TritonBuild(self._builder, units, sources)

    def _wait(self, seconds: float = math.inf) -> None:
        self._after_fork()
        wait_for(self._sources, self._builder.progress, seconds)

    def _after_fork(self) -> None:
        if os.getpid() != self._pid:
            again = self._builder.submit(self._units)
            self._sources, self._pid = again._sources, again._pid

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
    ) -> None:
        self.language = language
        self.cache = cache
        self.driver = driver
        self.progress: ProgressReporter = progress or SilentProgress()
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
        missing: list[tuple[KernelSource, Job, CacheKey]] = []
        sources: dict[Future[Entry], tuple[KernelSource, Job]] = {}
        for unit in units:
            for source in unit.kernels:
                job = self.job(source)
                key = make_key("triton", {"job": job.as_json().encode(), "by": self.identity})
                entry = self.cache.get(key)
                if entry is None:
                    missing.append((source, job, key))
                    continue
                ready: Future[Entry] = Future()
                ready.set_result(entry)
                sources[ready] = source, job
        if missing:
            self.pool.warm(len(missing))
        for source, job, key in missing:
            sources[self.pool.executor().submit(self._build, job, key)] = source, job
        return TritonBuild(self, tuple(units), sources)

    def close(self) -> None:
        """Wait for running jobs and end the workers. The builder stays usable."""
        self.pool.close()

    def _build(self, job: Job, key: CacheKey) -> Entry:
        return self.cache.get_or_build(key, lambda folder: self.pool.run(job, folder))


def load_binaries(driver: Driver, path: Path, symbols: Sequence[str]) -> Mapping[str, DeviceLaunch]:
    """Return what launches the kernels of a stored library. Needs no compiler."""
    found = unpack(path.read_bytes())
    return {symbol: DeviceKernel(driver, found[symbol]) for symbol in symbols}


def _binary(source: KernelSource, job: Job, entry: Entry) -> Binary:
    sizes = sum(not a.type.startswith("*") for a in source.arguments)
    return Binary(
        symbol=source.symbol,
        job=job,
        facts=read_facts(entry.read(FACTS)),
        grid=grid_code(source, sizes, dict(job.values)),
        code=entry.read(CODE),
    )


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
