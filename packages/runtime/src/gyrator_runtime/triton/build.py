"""Units of Triton text to built and loaded kernels: one job a kernel, in parallel, cached."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from attrs import frozen

from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_runtime.artifact import Library
from gyrator_runtime.cache import Cache, CacheKey, Entry, make_key
from gyrator_runtime.native.program import DeviceLaunch
from gyrator_runtime.progress import ProgressReporter, SilentProgress
from gyrator_runtime.triton.binary import Binary, pack, unpack
from gyrator_runtime.triton.compile import CODE, FACTS, Job, read_facts
from gyrator_runtime.triton.driver import Driver
from gyrator_runtime.triton.grid import grid_of
from gyrator_runtime.triton.launch import DeviceKernel
from gyrator_runtime.triton.pool import WorkerPool


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
        futures: list[tuple[KernelSource, Job, "Future[Entry]"]],
    ) -> None:
        self._builder = builder
        self._units = units
        self._futures = futures
        self._pid = os.getpid()

    def binaries(self) -> tuple[Binary, ...]:
        """Wait; BuildError for the first kernel that failed."""
        if os.getpid() != self._pid:
            again = self._builder.submit(self._units)
            self._futures, self._pid = again._futures, again._pid
        report = self._builder.progress
        report.start("compiling kernels", len(self._futures))
        made: list[Binary] = []
        try:
            for source, job, future in self._futures:
                made.append(_binary(source, job, future.result()))
                report.advance(1)
        finally:
            report.finish()
        return tuple(made)

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return what a cache entry holds."""
        made = self.binaries()
        symbols = tuple(b.symbol for b in made)
        text = "\n\n".join(unit.text for unit in self._units)
        return (Library("triton", pack(made), symbols, text),)

    def addresses(self) -> Mapping[str, DeviceLaunch]:
        """Wait, and return what launches each kernel, by its symbol."""
        driver = self._builder.driver()
        return {b.symbol: DeviceKernel(driver, b) for b in self.binaries()}


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
    ) -> None:
        self.language = language
        self.cache = cache
        self.driver = driver
        self.progress: ProgressReporter = progress or SilentProgress()
        self.pool = WorkerPool(jobs)

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
        futures: list[tuple[KernelSource, Job, Future[Entry]]] = []
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
                futures.append((source, job, ready))
        if missing:
            self.pool.warm(len(missing))
        for source, job, key in missing:
            futures.append((source, job, self.pool.executor().submit(self._build, job, key)))
        return TritonBuild(self, tuple(units), futures)

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
        grid=grid_of(source.text, source.symbol, sizes, dict(job.values)),
        code=entry.read(CODE),
    )
