"""Targets: what binds a kernel language, a device and its loader for one device type.

A vendor advertises a `TargetDefinition` under the entry-point group `gyrator.targets`:

    [project.entry-points."gyrator.targets"]
    mydev = "gyrator_mydev:TARGET"
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from attrs import field, frozen

from gyrator.config import Config
from gyrator.targets.vendor import TargetError, has, named, needs, probed_target
from gyrator_ir.backend import KernelBackend
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_runtime.artifact import Library, LibraryLoader
from gyrator_runtime.build import load_library
from gyrator_runtime.cache import Cache
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.native import KernelFunction
from gyrator_runtime.progress import ProgressReporter
from gyrator_runtime.warn import warn

__all__ = [
    "API",
    "GROUP",
    "OPTIONAL",
    "AskedBuilding",
    "Building",
    "ClosingLoader",
    "KernelLoader",
    "LoaderContext",
    "PartialBuilding",
    "TargetDefinition",
    "TargetError",
    "WarmLoader",
    "discover",
    "installed",
    "probed",
]

API = 1
"""Raised when a field of `TargetDefinition` changes meaning."""
GROUP = "gyrator.targets"
OPTIONAL = "gyrator.optional_targets"
"""Entry points that are not even imported unless `GYRATOR_TARGETS` names them."""


class Building(Protocol):
    """Units being built, perhaps in other processes."""

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return what a cache entry needs to hold."""
        ...

    def addresses(self) -> Mapping[str, KernelFunction]:
        """Wait, load, and return each kernel's function by its symbol."""
        ...


@runtime_checkable
class PartialBuilding(Protocol):
    """Units being built of which parts can be had; may be further methods of a `Building`."""

    def within(self, seconds: float) -> Mapping[str, KernelFunction]:
        """Wait so long at most, give up what has not begun by then, and return the functions of
        the kernels that are built, by symbol. Those that cannot be built are left out."""
        ...

    def only(self, symbols: Collection[str]) -> Building:
        """Return the build of these kernels."""
        ...


@runtime_checkable
class AskedBuilding(Protocol):
    """Units that tell whether they are built; may be a further method of a `Building`."""

    def done(self) -> bool:
        """Whether `addresses` would return at once."""
        ...


class KernelLoader(Protocol):
    """Turns a kernel language's text into functions in memory."""

    @property
    def identity(self) -> bytes:
        """Bytes that differ where the same text may give other machine code."""
        ...

    def submit(self, units: Sequence[TranslationUnit]) -> Building:
        """Start building."""
        ...


@runtime_checkable
class WarmLoader(Protocol):
    """A loader whose compilers take a while to start; may be another method of a `KernelLoader`."""

    def warm(self, count: int) -> None:
        """Start compilers for about so many kernels, which will be submitted soon."""
        ...


@runtime_checkable
class ClosingLoader(Protocol):
    """A loader that keeps processes for what comes next; may be another method of a
    `KernelLoader`."""

    def close(self) -> None:
        """Wait for what is being built, and end the processes. The loader stays usable."""
        ...


@frozen(kw_only=True)
class LoaderContext:
    """What a session lends to a loader."""

    cache: Cache
    progress: ProgressReporter
    threads: int
    """Compiler processes at once; 0 means one a core."""
    seconds: float = 300.0
    """How long one call of a compiler may take."""
    complete: bool = False
    """Where the kernels run there is no compiler: what is built for some arguments when there are
    such has to be built at once."""


_FUNCTION = needs("a function", callable)


@frozen(kw_only=True, eq=False)
class TargetDefinition:
    """Everything the pipeline asks of a device type. Adding a device adds one of these.

    Raises:
        TargetError: GY-TARGET-004 for a field that is not what it has to be.
    """

    name: str = field(validator=needs("a name", lambda v: isinstance(v, str) and bool(v)))
    api: int = field(validator=needs("`gyrator.targets.API`", lambda v: isinstance(v, int)))
    probe: Callable[[Config], Target | None] = field(validator=_FUNCTION)
    """Describe the device as this machine has it; None if there is none."""
    kernels: KernelBackend = field(
        validator=needs(
            "a `KernelBackend`, an object with `name`, `content_hash`, `refuses` and `emit`",
            has("name", "content_hash", "refuses", "emit"),
        )
    )
    device: Callable[[Target], DeviceInterface] = field(validator=_FUNCTION)
    loader: Callable[[Target, LoaderContext], KernelLoader] = field(validator=_FUNCTION)
    """May raise a `GyratorError`, as for a missing compiler: the session then runs eagerly."""
    variants: Callable[[Target], tuple[Target, ...]] = field(
        default=lambda target: (target,), validator=_FUNCTION
    )
    """Targets whose kernels the same device runs too: what `max_autotune` measures."""
    load: LibraryLoader = field(default=load_library, validator=_FUNCTION)
    """Read a `Library` that a cache entry holds. Needs no compiler; the default takes it for a
    shared library."""
    uninitialised: Callable[[], bool] = field(default=lambda: False, validator=_FUNCTION)
    """Whether this process has not used the device yet, and probing would start it up: a process
    that has done so can no longer fork."""
    machine: Callable[[], str] = field(default=str, validator=_FUNCTION)
    """What tells this machine, and how its libraries are set up, from others that may share a
    cache: what was measured is kept by it. Empty where nothing is measured."""
    elsewhere: Callable[[str], Target | None] = field(
        default=lambda arch: None, validator=_FUNCTION
    )
    """Describe a device by its architecture's name, which need not be of this machine: what a
    package is made for. None for a name that is none, or where packages cannot hold its kernels."""
    usual: tuple[str, ...] = ()
    """The architectures of packages that are made for the target by its name."""
    optional: bool = False
    """Serve the device type only where `GYRATOR_TARGETS` names this target: a further kernel
    language for a device that has one."""


def installed(
    config: Config, found: Iterable[EntryPoint] | None = None
) -> tuple[tuple[EntryPoint, TargetDefinition], ...]:
    """Load every installed target in name order, or those that `found` advertises.

    Raises:
        TargetError: GY-TARGET-001 for a target of another API version, GY-TARGET-004 for what is
            no target.
    """
    points = found
    if points is None:
        every = entry_points()  # reads the metadata of all that is installed
        asked = (e for e in every.select(group=OPTIONAL) if e.name in config.targets)
        points = (*every.select(group=GROUP), *asked)
    loaded: list[tuple[EntryPoint, TargetDefinition]] = []
    for point in sorted(points, key=lambda e: (e.name, e.value)):
        definition = _loaded(point)
        if definition is None:
            continue
        if definition.api != API:
            why = f"target {point.name!r} speaks API {definition.api}; this gyrator speaks {API}"
            raise TargetError.of("GY-TARGET-001", why, point.value, help="upgrade the older")
        loaded.append((point, definition))
    return tuple(loaded)


def _loaded(point: EntryPoint) -> TargetDefinition | None:
    """Return what an entry point names; None, with a warning (GY-TARGET-005), where its package
    cannot be imported: other devices have nothing to do with that."""
    try:
        definition = point.load()
    except TargetError:
        raise
    except Exception as error:
        said = f"the target {point.name!r} cannot be imported: {type(error).__name__}: {error}"
        help = f"mend or uninstall what `{point.value}` is from; its devices run in eager mode"
        warn("GY-TARGET-005", said, help)
        return None
    if not isinstance(definition, TargetDefinition):
        said = f"the target {point.name!r} is a {type(definition).__name__}"
        help = "let the entry point name a `gyrator.targets.TargetDefinition`"
        raise TargetError.of("GY-TARGET-004", said, point.value, help=help)
    return definition


def _probed(definition: TargetDefinition, config: Config) -> Target | None:
    """Return a target as this machine has it; None, with a warning, where its probe fails."""
    try:
        with named(definition, "probe"):
            return probed_target(definition, definition.probe(config))
    except TargetError as error:
        if error.diagnostic.code != "GY-TARGET-006":
            raise
        said = error.diagnostic
        warn(said.code, f"{said.message}; its devices run in eager mode", said.help)
        return None


def discover(
    config: Config, found: Iterable[EntryPoint] | None = None, *, initialise: bool = True
) -> Mapping[str, tuple[TargetDefinition, Target]]:
    """Load and probe every installed target; see `installed` and `probed`."""
    return probed(config, installed(config, found), initialise=initialise)


def probed(
    config: Config, loaded: Iterable[tuple[EntryPoint, TargetDefinition]], *, initialise: bool
) -> Mapping[str, tuple[TargetDefinition, Target]]:
    """Probe targets in the order given: device type to definition.

    A target that `config.targets` names takes its device type from one that is not named. Devices
    that are uninitialised are left out unless `initialise` is set.

    Raises:
        TargetError: GY-TARGET-002 where two targets claim a device type and the configuration does
            not choose.
    """
    table: dict[str, tuple[TargetDefinition, Target]] = {}
    origin: dict[str, str] = {}
    for point, definition in loaded:
        chosen = definition.name in config.targets
        wanted = (chosen or not definition.optional) and (
            initialise or not definition.uninitialised()
        )
        target = _probed(definition, config) if wanted else None
        if target is None:
            continue
        rival = table.get(target.device)
        rival_chosen = rival is not None and rival[0].name in config.targets
        if rival_chosen and not chosen:
            continue
        if rival is not None and chosen == rival_chosen:
            why = f"two targets claim device type {target.device!r}"
            both = (origin[target.device], point.value)
            help = "uninstall one, or name the one to use in GYRATOR_TARGETS"
            raise TargetError.of("GY-TARGET-002", why, provenance=both, help=help)
        table[target.device], origin[target.device] = (definition, target), point.value
    return MappingProxyType(table)
