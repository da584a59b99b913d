"""`max_autotune`: build all candidates of each kernel, and its default candidate for each
alternative target of the device, and use the fastest."""

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from attrs import evolve, field
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.targets import Building, PartialBuilding
from gyrator_ir.define import define, frozen
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Kernel, Launchable
from gyrator_ir.source import Configuration, KernelSource, TranslationUnit
from gyrator_ir.text.scanner import Writer
from gyrator_ir.tile.choices import candidates_of, name_of, only, with_candidates
from gyrator_ir.tile.nodes import Repeat, Tiled, TiledGroup, TiledKernel, TiledTemplate, TileProgram
from gyrator_ir.tile.print import show_tiled
from gyrator_runtime.build import Library
from gyrator_runtime.cache import Cache, CacheKey, make_key
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.host import DTYPES
from gyrator_runtime.native import KernelFunction, Runner
from gyrator_runtime.native.program import Buffer, Launch, PlanProgram
from gyrator_runtime.tuning import Candidate, choose

_FILE = "choice.json"
_SAMPLES = 9
_GAIN = 1.02
"""The minimum speedup over the first candidate, to exclude measurement noise."""
_SAMPLE_SECONDS = 2e-4  # a device's queue takes a while to start


def _limit(seconds: float) -> float:
    return seconds or math.inf


@define
class Budget:
    """Time limit of measurements for one graph, in seconds; 0 means no limit."""

    seconds: float = field(converter=_limit)
    _used: float = 0.0
    _since: float | None = None

    @property
    def left(self) -> float:
        """Seconds left."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return max(self.seconds - self._used - running, 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a `with` block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._used += time.monotonic() - self._since
            self._since = None

    def each(self, items: Iterable[Any], expected: float = 0.0) -> Iterator[Any]:
        """Yield items, counting the time between them, as long as another is expected to finish
        in time: the first in `expected` seconds, each later one in the longest time so far."""
        longest = 0.0
        for number, item in enumerate(items):
            before = self.left
            if before <= (longest if number else expected):
                return
            with self.running():
                yield item
            longest = max(longest, before - self.left)


@frozen
class Winner:
    """The fastest candidate of a kernel."""

    arch: str
    """The architecture of the target that it was emitted for."""
    configuration: Configuration

    def data(self) -> dict[str, Any]:
        """Return the data to store."""
        return {"arch": self.arch, "values": dict(self.configuration.values)}


_PLAIN = Configuration(())


@frozen(eq=False)
class Variant:
    """One version of the kernels, or of some of them: their text, and the running build."""

    arch: str
    program: TileProgram | None
    """The kernels with one candidate each; None if their language does not use Tile IR."""
    units: tuple[TranslationUnit, ...]
    building: Building

    def winner(self, name: str) -> Winner:
        """Return the result to store for a kernel that is fastest in this variant."""
        kernels = () if self.program is None else self.program.kernels
        candidates = next((candidates_of(k) for k in kernels if name_of(k) == name), ())
        return Winner(self.arch, next(iter(candidates), _PLAIN))


@frozen(eq=False)
class Chosen:
    """The fastest function of each kernel; a `Building` composed of several builds."""

    variants: tuple[Variant, ...]
    winners: Mapping[str, int]
    """The index of the variant with the fastest function of each symbol."""
    measured: Mapping[str, Winner]
    """The results to store, by kernel, for kernels whose functions were all measured."""

    def libraries(self) -> tuple[Library, ...]:
        """Return every library that contains a winner, restricted to the winning symbols."""
        libraries: list[Library] = []
        for building, winners in self._parts():
            for library in building.libraries():
                symbols = tuple(s for s in library.symbols if s in winners)
                if symbols:
                    libraries.append(evolve(library, symbols=symbols))
        return tuple(libraries)

    def addresses(self) -> Mapping[str, KernelFunction]:
        """Return the winners' functions by symbol."""
        functions: dict[str, KernelFunction] = {}
        for building, winners in self._parts():
            table = building.addresses()
            functions |= {symbol: table[symbol] for symbol in winners}
        return functions

    def _parts(self) -> Iterator[tuple[Building, frozenset[str]]]:
        """Yield the builds that have winners, with these; the other builds may never finish."""
        for number, variant in enumerate(self.variants):
            winners = frozenset(s for s, n in self.winners.items() if n == number)
            if winners:
                building = variant.building
                if isinstance(building, PartialBuilding):
                    building = building.only(winners)
                yield building, winners


Choose = Callable[[TileProgram], TileProgram]
"""Restricts a program to some kernels and candidates."""


def first(winners: Mapping[str, Winner], arch: str) -> Choose:
    """Keep each kernel's winner if it belongs to this target, else its default candidate."""

    def chosen(program: TileProgram) -> TileProgram:
        return _narrowed(program, [(k, _best(k, winners, arch)) for k in program.kernels])

    return chosen


def elsewhere(winners: Mapping[str, Winner], arch: str) -> Choose:
    """Keep the kernels that have to be measured for another target, and those that won there."""

    def chosen(program: TileProgram) -> TileProgram:
        kernels = (
            k
            for k in program.kernels
            if name_of(k) not in winners or winners[name_of(k)].arch == arch
        )
        return _narrowed(program, [(k, _best(k, winners, arch)) for k in kernels])

    return chosen


def alternative(measured: Collection[str], number: int) -> Choose:
    """Keep the candidate with this index of the kernels that have that many and have to be
    measured."""

    def chosen(program: TileProgram) -> TileProgram:
        kernels = ((k, candidates_of(k)) for k in program.kernels if name_of(k) not in measured)
        return _narrowed(program, [(k, c[number]) for k, c in kernels if number < len(c)])

    return chosen


def most_candidates(program: TileProgram, measured: Collection[str]) -> int:
    """Return the maximum number of candidates of the kernels that have to be measured."""
    kernels = (k for k in program.kernels if name_of(k) not in measured)
    return max((len(candidates_of(k)) for k in kernels), default=0)


def _best(tiled: Tiled, winners: Mapping[str, Winner], arch: str) -> Configuration | None:
    winner = winners.get(name_of(tiled))
    if winner is not None and winner.arch == arch:
        return winner.configuration
    return next(iter(candidates_of(tiled)), None)


def _narrowed(
    program: TileProgram, chosen: Sequence[tuple[Tiled, Configuration | None]]
) -> TileProgram:
    kernels = [with_candidates(k, () if c is None else (c,)) for k, c in chosen]
    return only(program, kernels)


def tune(
    host: HostProgram,
    variants: Sequence[Variant],
    device: DeviceInterface,
    device_type: str,
    runner: Runner,
    budget: Budget,
    stored: Mapping[str, Winner] = MappingProxyType({}),
) -> Chosen:
    """Time every kernel without a `stored` winner in each variant, on data of the sizes that the
    program expects.

    Waiting for builds may use half of the budget. Kernels that are not measured, or cannot be
    built, stay as in the first variant.
    """
    tables = [variants[0].building.addresses()]
    with budget.running():
        reserve = 0.0 if math.isinf(budget.left) else budget.left / 2
        for variant in variants[1:]:
            tables.append(_functions(variant.building, max(budget.left - reserve, 0.0)))
        complete = budget.left > reserve
    written = [{k.kernel: k for u in v.units for k in u.kernels} for v in variants]
    winners = _settled(variants, written[0], tables, stored)
    measured: dict[str, Winner] = {}
    # The compiler runs while torch traces with fake tensors; kernels need real ones.
    with _disable_current_modes():
        kernels = _measurable(host, variants[0].program, device_type, stored)
        for kernel in budget.each([k for k in kernels if len(_distinct(written, k.name)) > 1]):
            symbol = written[0][kernel.name].symbol
            numbers = _distinct(written, kernel.name)
            built = [n for n in numbers if symbol in tables[n]]
            tensors = _arguments(kernel, host, device_type)
            runs = {n: _run(kernel, host, tables[n][symbol], tensors, runner) for n in built}
            winners[symbol] = quickest(runs, device, _GAIN)
            if complete or len(built) == len(numbers):
                measured[kernel.name] = variants[winners[symbol]].winner(kernel.name)
    return Chosen(tuple(variants), winners, measured)


def _settled(
    variants: Sequence[Variant],
    written: Mapping[str, KernelSource],
    tables: Sequence[Mapping[str, KernelFunction]],
    stored: Mapping[str, Winner],
) -> dict[str, int]:
    """Return the number of a variant for each function: that of a stored winner, if it has built
    the function, or else the first. Functions of subprograms are among them."""
    archs = [v.arch for v in variants]
    numbers = dict.fromkeys((k.symbol for u in variants[0].units for k in u.kernels), 0)
    for name, winner in stored.items():
        number, symbol = archs.index(winner.arch), written[name].symbol
        numbers[symbol] = number if symbol in tables[number] else 0
    return numbers


def _measurable(
    host: HostProgram, program: TileProgram | None, device_type: str, stored: Collection[str]
) -> list[Launchable]:
    """Return the kernels of a device that have no stored winner, without repeats of others."""
    tiled = () if program is None else program.kernels
    settled = {k.name for k in tiled if isinstance(k, Repeat)}.union(stored)
    return [k for k in host.kernels if k.device.type == device_type and k.name not in settled]


def _functions(building: Building, seconds: float) -> Mapping[str, KernelFunction]:
    """Return the functions that a variant has built after this many seconds, or all if it cannot
    be interrupted."""
    if isinstance(building, PartialBuilding):
        return building.within(seconds)
    return building.addresses()


def _distinct(written: Sequence[Mapping[str, KernelSource]], name: str) -> tuple[int, ...]:
    """Return the indices of the variants in which a kernel differs from those before."""
    variants: dict[tuple[str, Configuration | None], int] = {}
    for number, sources in enumerate(written):
        source = sources.get(name)
        if source is not None:
            variants.setdefault((source.text, next(iter(source.candidates), None)), number)
    return tuple(variants.values())


def quickest(
    runs: Mapping[Candidate, Callable[[], object]], device: DeviceInterface, gain: float
) -> Candidate:
    """Return the fastest candidate, or the first one unless it takes at least `gain` times as
    long."""
    return choose(runs, device, samples=_SAMPLES, sample_seconds=_SAMPLE_SECONDS, gain=gain)


def remember(cache: Cache, key: CacheKey, best: int | str | Mapping[str, Any]) -> None:
    """Store the fastest candidate."""
    cache.try_put(key, {_FILE: json.dumps({"best": best}).encode()})


def remembered(cache: Cache, key: CacheKey) -> Any:
    """Return the stored fastest candidate, or None."""
    entry = cache.get(key)
    return None if entry is None else json.loads(entry.read(_FILE))["best"]


@frozen
class Memory:
    """The stored winners of kernels, for all programs with the same kernels.

    Args:
        cache: the cache that stores them.
        by: bytes that change whenever the same Tile IR may give another kernel, or run elsewhere.
        host: the program whose kernels are looked up.
    """

    cache: Cache
    by: bytes
    host: HostProgram

    def winners(self, program: TileProgram) -> dict[str, Winner]:
        """Return the stored winners of kernels, by name."""
        winners: dict[str, Winner] = {}
        for name, key in self._keys(program):
            best = remembered(self.cache, key)
            if best is not None:
                winners[name] = Winner(best["arch"], Configuration(tuple(best["values"].items())))
        return winners

    def add(self, program: TileProgram, measured: Mapping[str, Winner]) -> None:
        """Store the winners of the kernels of a program that has all candidates."""
        for name, key in self._keys(program):
            if name in measured:
                remember(self.cache, key, measured[name].data())

    def _keys(self, program: TileProgram) -> Iterator[tuple[str, CacheKey]]:
        """Yield the keys of the launched kernels, independent of their names."""
        launched = {k.name: k for k in self.host.kernels}
        hint = self.host.facts.hint
        for tiled in program.kernels:
            name = name_of(tiled)
            if isinstance(tiled, Repeat) or name not in launched:
                continue
            kernel = launched[name]
            sizes = [[hint(e) for e in (*p.shape, *p.strides)] for p in kernel.parameters]
            sizes.append([hint(s) for s in kernel.sizes])
            text = "\n".join(show_tiled(_anonymous(tiled), Writer()))
            parts = {"text": text.encode(), "sizes": repr(sizes).encode(), "by": self.by}
            yield name, make_key("tuned", parts)


def _anonymous(tiled: TiledKernel | TiledGroup | TiledTemplate) -> Tiled:
    """Return a launchable without its name and its origins."""
    if isinstance(tiled, TiledGroup):
        kernels = tuple(evolve(k, kernel=_plain(k.kernel)) for k in tiled.kernels)
        return evolve(tiled, name="group", kernels=kernels)
    if isinstance(tiled, TiledTemplate):
        return evolve(tiled, kernel=evolve(tiled.kernel, name="kernel", origins=()))
    return evolve(tiled, kernel=evolve(_plain(tiled.kernel), name="kernel"))


def _plain(kernel: Kernel) -> Kernel:
    return evolve(kernel, origins=(), refusals=())


def _run(
    kernel: Launchable,
    host: HostProgram,
    function: KernelFunction,
    tensors: Sequence[torch.Tensor],
    runner: Runner,
) -> Callable[[], object]:
    sizes = tuple(host.facts.hint(s) or 1 for s in kernel.sizes)
    buffers = tuple(Buffer(k) for k in range(len(tensors)))
    launch = Launch(function, buffers, sizes, name=kernel.name)
    plan = runner.plan(PlanProgram(len(tensors), len(tensors), (launch,)))
    return lambda: plan(*tensors)


def _arguments(kernel: Launchable, host: HostProgram, device_type: str) -> list[torch.Tensor]:
    """Return a tensor for each parameter: random floats, or zeros, which are valid indices."""
    tensors = []
    for parameter in kernel.parameters:
        elements = 1
        for size, stride in zip(parameter.shape, parameter.strides, strict=True):
            elements += (max(host.facts.hint(size) or 1, 1) - 1) * (host.facts.hint(stride) or 0)
        dtype = DTYPES[parameter.dtype]
        tensor = torch.zeros(elements, dtype=dtype, device=device_type)
        tensors.append(tensor.uniform_() if parameter.dtype in ("f32", "f64") else tensor)
    return tensors
