"""`max_autotune`: build each kernel for every target its device runs, and keep the quickest."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.targets import Building, PartialBuilding
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Launchable
from gyrator_ir.source import Configuration, KernelSource, TranslationUnit
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


@frozen(eq=False)
class Variant:
    """The same kernels for one target: their text, and the build under way."""

    units: tuple[TranslationUnit, ...]
    building: Building


@frozen(eq=False)
class Chosen:
    """The quickest function of each kernel; a `Building` of what several builds gave."""

    variants: tuple[Variant, ...]
    winners: Mapping[str, int]
    """Which variant has a symbol's quickest function."""
    measured: frozenset[str]
    """Symbols all of whose functions were measured."""

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


def alternatives(
    units: Sequence[TranslationUnit],
) -> tuple[tuple[TranslationUnit, ...], ...]:
    """Return the units with each kernel's second candidate, then with each one's third, ...

    A kernel with fewer candidates keeps its first.
    """
    most = max((len(k.candidates) for u in units for k in u.kernels), default=0)
    return tuple(
        tuple(evolve(u, kernels=tuple(_nth(k, number) for k in u.kernels)) for u in units)
        for number in range(1, most)
    )


def _nth(kernel: KernelSource, number: int) -> KernelSource:
    if number >= len(kernel.candidates):
        return kernel
    return evolve(kernel, candidates=(kernel.candidates[number],))


def tune(
    host: HostProgram,
    variants: Sequence[Variant],
    device: DeviceInterface,
    device_type: str,
    runner: Runner,
    budget: Budget,
) -> Chosen:
    """Time every kernel of each variant in turn, on data of the sizes that the program expects.

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
    # Kernels of subprograms are not measured.
    winners = {k.symbol: 0 for u in variants[0].units for k in u.kernels}
    measured: set[str] = set()
    here = [k for k in host.kernels if k.device.type == device_type]
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
                measured.add(symbol)
    return Chosen(tuple(variants), winners, frozenset(measured))


def _functions(building: Building, seconds: float) -> Mapping[str, KernelFunction]:
    """Return what a variant has built after so many seconds, if it can be left at that."""
    if isinstance(building, PartialBuilding):
        return building.within(seconds)
    return building.addresses()


def _distinct(written: Sequence[Mapping[str, KernelSource]], name: str) -> tuple[int, ...]:
    """Return the variants in which a kernel is another than in those before."""
    found: dict[tuple[str, Configuration | None], int] = {}
    for number, sources in enumerate(written):
        source = sources[name]
        found.setdefault((source.text, next(iter(source.candidates), None)), number)
    return tuple(found.values())


def quickest(
    runs: Mapping[Candidate, Callable[[], object]], device: DeviceInterface, gain: float
) -> Candidate:
    """Return the candidate of least time, the first unless it takes `gain` times as long."""
    return choose(runs, device, samples=_SAMPLES, sample_seconds=_SAMPLE_SECONDS, gain=gain)


def remember(cache: Cache, key: CacheKey, best: int | str) -> None:
    """Store what was the quickest."""
    cache.keep(key, {_FILE: json.dumps({"best": best}).encode()})


def remembered(cache: Cache, key: CacheKey) -> Any:
    """Return what was stored as the quickest; None for nothing."""
    entry = cache.get(key)
    return None if entry is None else json.loads(entry.read(_FILE))["best"]


@frozen
class Memory:
    """Which configuration was each kernel's quickest, for programs that have the same kernel.

    Args:
        cache: where it is stored.
        by: bytes that differ where the same text may become another kernel.
        host: the program whose kernels are looked up.
    """

    cache: Cache
    by: bytes
    host: HostProgram

    def applied(self, units: Sequence[TranslationUnit]) -> tuple[TranslationUnit, ...]:
        """Return the units, kernels that were measured before with their winner alone."""
        return tuple(evolve(u, kernels=tuple(map(self._chosen, u.kernels))) for u in units)

    def add(self, chosen: Chosen) -> None:
        """Store what was measured; all variants are of one target."""
        for source in (k for u in chosen.variants[0].units for k in u.kernels):
            if source.symbol in chosen.measured and (key := self._key(source)) is not None:
                number = chosen.winners[source.symbol]
                best = number if number < len(source.candidates) else 0
                remember(self.cache, key, best)

    def _chosen(self, source: KernelSource) -> KernelSource:
        key = self._key(source) if len(source.candidates) > 1 else None
        best = None if key is None else remembered(self.cache, key)
        if best is None:
            return source
        return evolve(source, candidates=(source.candidates[best],))

    def _key(self, source: KernelSource) -> CacheKey | None:
        """Return the key of a kernel, whatever it is called; None for one of a subprogram."""
        kernel = next((k for k in self.host.kernels if k.name == source.kernel), None)
        if kernel is None:
            return None
        lines = source.text.replace(source.symbol, "kernel").splitlines()
        remarks = {line for line, _ in source.source_map}
        text = "\n".join(line for k, line in enumerate(lines, 1) if k not in remarks)
        hint = self.host.facts.hint
        sizes = [[hint(e) for e in (*p.shape, *p.strides)] for p in kernel.parameters]
        sizes.append([hint(s) for s in kernel.sizes])
        form = repr((source.arguments, source.candidates, sizes))
        return make_key("tuned", {"text": text.encode(), "form": form.encode(), "by": self.by})


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
