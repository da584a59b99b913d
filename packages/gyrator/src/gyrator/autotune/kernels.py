"""`max_autotune`: build every candidate of each kernel, and the best guess for each target that its
device runs too, and keep the quickest."""

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.targets import Building, PartialBuilding
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Kernel, Launchable
from gyrator_ir.source import Configuration, KernelSource, TranslationUnit
from gyrator_ir.text.scanner import Writer
from gyrator_ir.tile.choices import candidates_of, name_of, only, with_candidates
from gyrator_ir.tile.nodes import (
    Repeat,
    Tiled,
    TiledGroup,
    TiledKernel,
    TiledTemplate,
    TileProgram,
)
from gyrator_ir.tile.print import show_tiled
from gyrator_runtime.artifact import Library
from gyrator_runtime.cache import Cache, CacheKey, make_key
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.host import DTYPES
from gyrator_runtime.native import KernelFunction, Runner
from gyrator_runtime.native.program import Buffer, Launch, PlanProgram
from gyrator_runtime.tuning import Candidate, choose

_FILE = "choice.json"
_SAMPLES = 9
_GAIN = 1.02
"""How much quicker than the first a candidate must be: measurements differ by as much."""
_SAMPLE_SECONDS = 2e-4  # a device's queue takes a while to start


def _limit(seconds: float) -> float:
    return seconds or math.inf


@define
class Budget:
    """Seconds that measuring one graph may take; 0 for as many as it takes."""

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
        """Count what a `with` block takes."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._used += time.monotonic() - self._since
            self._since = None

    def each(self, items: Iterable[Any], expected: float = 0.0) -> Iterator[Any]:
        """Yield items, and count what is done with them, as long as another may end in time: the
        first in `expected` seconds, the others in the most that one took."""
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
    """How a kernel was quickest."""

    arch: str
    """Of the target that it was written for."""
    configuration: Configuration

    def data(self) -> dict[str, Any]:
        """Return what is stored."""
        return {"arch": self.arch, "values": dict(self.configuration.values)}


_PLAIN = Configuration(())


@frozen(eq=False)
class Variant:
    """The same kernels, or some of them, in one way: their text, and the build under way."""

    arch: str
    program: TileProgram | None
    """The kernels with one candidate each; None where their language prints no Tile IR."""
    units: tuple[TranslationUnit, ...]
    building: Building

    def winner(self, name: str) -> Winner:
        """Return what to remember of a kernel that is quickest here."""
        kernels = () if self.program is None else self.program.kernels
        found = next((candidates_of(k) for k in kernels if name_of(k) == name), ())
        return Winner(self.arch, next(iter(found), _PLAIN))


@frozen(eq=False)
class Chosen:
    """The quickest function of each kernel; a `Building` of what several builds gave."""

    variants: tuple[Variant, ...]
    winners: Mapping[str, int]
    """Which variant has a symbol's quickest function."""
    measured: Mapping[str, Winner]
    """What is to be remembered, by kernel: of those all of whose functions were measured."""

    def libraries(self) -> tuple[Library, ...]:
        """Return every library that holds a winner, with those symbols only."""
        found: list[Library] = []
        for building, winners in self._parts():
            for library in building.libraries():
                kept = tuple(s for s in library.symbols if s in winners)
                if kept:
                    found.append(evolve(library, symbols=kept))
        return tuple(found)

    def addresses(self) -> Mapping[str, KernelFunction]:
        """Return the winners' functions by symbol."""
        found: dict[str, KernelFunction] = {}
        for building, winners in self._parts():
            table = building.addresses()
            found |= {symbol: table[symbol] for symbol in winners}
        return found

    def _parts(self) -> Iterator[tuple[Building, frozenset[str]]]:
        """Yield the builds that have winners, and those: the others may never be done."""
        for number, variant in enumerate(self.variants):
            winners = frozenset(s for s, n in self.winners.items() if n == number)
            if winners:
                building = variant.building
                if isinstance(building, PartialBuilding):
                    building = building.only(winners)
                yield building, winners


Choose = Callable[[TileProgram], TileProgram]
"""Leaves kernels out of a program, and candidates."""


def first(known: Mapping[str, Winner], arch: str) -> Choose:
    """Keep each kernel's winner if it is of this target, else its best guess."""

    def chosen(program: TileProgram) -> TileProgram:
        return _narrowed(program, [(k, _best(k, known, arch)) for k in program.kernels])

    return chosen


def elsewhere(known: Mapping[str, Winner], arch: str) -> Choose:
    """Keep the kernels that are to be measured for another target, and those that won there."""

    def chosen(program: TileProgram) -> TileProgram:
        kept = (
            k for k in program.kernels if name_of(k) not in known or known[name_of(k)].arch == arch
        )
        return _narrowed(program, [(k, _best(k, known, arch)) for k in kept])

    return chosen


def alternative(known: Collection[str], number: int) -> Choose:
    """Keep the candidate of this number, of kernels that have so many and are to be measured."""

    def chosen(program: TileProgram) -> TileProgram:
        found = ((k, candidates_of(k)) for k in program.kernels if name_of(k) not in known)
        return _narrowed(program, [(k, c[number]) for k, c in found if number < len(c)])

    return chosen


def most_candidates(program: TileProgram, known: Collection[str]) -> int:
    """Return how many candidates a kernel has at most that is to be measured."""
    kernels = (k for k in program.kernels if name_of(k) not in known)
    return max((len(candidates_of(k)) for k in kernels), default=0)


def _best(tiled: Tiled, known: Mapping[str, Winner], arch: str) -> Configuration | None:
    winner = known.get(name_of(tiled))
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
    known: Mapping[str, Winner] = MappingProxyType({}),
) -> Chosen:
    """Time every kernel of each variant in turn, on data of the sizes that the program expects; but
    those that are known.

    Waiting for the variants may take half of the budget. What it leaves unmeasured, and what cannot
    be built, stays as in the first variant.
    """
    tables = [variants[0].building.addresses()]
    with budget.running():
        reserve = 0.0 if math.isinf(budget.left) else budget.left / 2
        for variant in variants[1:]:
            tables.append(_functions(variant.building, max(budget.left - reserve, 0.0)))
        complete = budget.left > reserve
    written = [{k.kernel: k for u in v.units for k in u.kernels} for v in variants]
    archs = [v.arch for v in variants]
    # Kernels of subprograms are not measured.
    winners = dict.fromkeys((k.symbol for u in variants[0].units for k in u.kernels), 0)
    for name, winner in known.items():
        number = archs.index(winner.arch)
        symbol = written[0][name].symbol
        winners[symbol] = number if symbol in tables[number] else 0
    measured: dict[str, Winner] = {}
    repeated = (v.kernels for v in [variants[0].program] if v is not None)
    left_out = {k.name for kernels in repeated for k in kernels if isinstance(k, Repeat)}
    here = [
        k
        for k in host.kernels
        if k.device.type == device_type and k.name not in known and k.name not in left_out
    ]
    # Compilers are called while torch traces with fake tensors; kernels need real ones.
    with _disable_current_modes():
        for kernel in budget.each([k for k in here if len(_distinct(written, k.name)) > 1]):
            symbol = written[0][kernel.name].symbol
            numbers = _distinct(written, kernel.name)
            built = [n for n in numbers if symbol in tables[n]]
            tensors = _arguments(kernel, host, device_type)
            runs = {n: _run(kernel, host, tables[n][symbol], tensors, runner) for n in built}
            winners[symbol] = quickest(runs, device, _GAIN)
            if complete or len(built) == len(numbers):
                measured[kernel.name] = variants[winners[symbol]].winner(kernel.name)
    return Chosen(tuple(variants), winners, measured)


def _functions(building: Building, seconds: float) -> Mapping[str, KernelFunction]:
    """Return what a variant has built after so many seconds, if it can be left at that."""
    if isinstance(building, PartialBuilding):
        return building.within(seconds)
    return building.addresses()


def _distinct(written: Sequence[Mapping[str, KernelSource]], name: str) -> tuple[int, ...]:
    """Return the variants in which a kernel is another than in those before."""
    found: dict[tuple[str, Configuration | None], int] = {}
    for number, sources in enumerate(written):
        source = sources.get(name)
        if source is not None:
            found.setdefault((source.text, next(iter(source.candidates), None)), number)
    return tuple(found.values())


def quickest(
    runs: Mapping[Candidate, Callable[[], object]], device: DeviceInterface, gain: float
) -> Candidate:
    """Return the candidate of least time, the first unless it takes `gain` times as long."""
    return choose(runs, device, samples=_SAMPLES, sample_seconds=_SAMPLE_SECONDS, gain=gain)


def remember(cache: Cache, key: CacheKey, best: int | str | Mapping[str, Any]) -> None:
    """Store what was the quickest."""
    cache.keep(key, {_FILE: json.dumps({"best": best}).encode()})


def remembered(cache: Cache, key: CacheKey) -> Any:
    """Return what was stored as the quickest; None for nothing."""
    entry = cache.get(key)
    return None if entry is None else json.loads(entry.read(_FILE))["best"]


@frozen
class Memory:
    """How each kernel was quickest, for programs that have the same kernel.

    Args:
        cache: where it is stored.
        by: bytes that differ where the same Tile IR may become another kernel, or run elsewhere.
        host: the program whose kernels are looked up.
    """

    cache: Cache
    by: bytes
    host: HostProgram

    def known(self, program: TileProgram) -> dict[str, Winner]:
        """Return how kernels that were measured before are quickest, by name."""
        found: dict[str, Winner] = {}
        for name, key in self._keys(program):
            best = remembered(self.cache, key)
            if best is not None:
                found[name] = Winner(best["arch"], Configuration(tuple(best["values"].items())))
        return found

    def add(self, program: TileProgram, measured: Mapping[str, Winner]) -> None:
        """Store what was measured of the kernels of a program, which has all candidates."""
        for name, key in self._keys(program):
            if name in measured:
                remember(self.cache, key, measured[name].data())

    def _keys(self, program: TileProgram) -> Iterator[tuple[str, CacheKey]]:
        """Yield the keys of kernels that have a launch, whatever they are called there."""
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
    """Return what is launched without its name, and without remarks of where it came from."""
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
    """Return a tensor for each parameter: random floats, and zeros, which index anything."""
    found = []
    for parameter in kernel.parameters:
        elements = 1
        for size, stride in zip(parameter.shape, parameter.strides, strict=True):
            elements += (max(host.facts.hint(size) or 1, 1) - 1) * (host.facts.hint(stride) or 0)
        dtype = DTYPES[parameter.dtype]
        tensor = torch.zeros(elements, dtype=dtype, device=device_type)
        found.append(tensor.uniform_() if parameter.dtype in ("f32", "f64") else tensor)
    return found
