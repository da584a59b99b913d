"""Targets: each binds a kernel language, a device interface and a loader for one device type.

A vendor advertises a `TargetDefinition` under the entry-point group `gyrator.targets`:

    [project.entry-points."gyrator.targets"]
    mydev = "gyrator_mydev:TARGET"
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from attrs import field

from gyrator.config import Config
from gyrator.targets.loaders import (
    Building,
    ClosingLoader,
    KernelLoader,
    LoaderContext,
    PartialBuilding,
    PollableBuilding,
    WarmLoader,
)
from gyrator.targets.vendor import TargetError, has, named, needs, probed_target
from gyrator_ir.backend import KernelBackend
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.target import Target
from gyrator_runtime.artifact import LibraryLoader
from gyrator_runtime.build import load_library
from gyrator_runtime.device import DeviceInterface
from gyrator_runtime.warn import warn

__all__ = [
    "API", "GROUP", "OPTIONAL", "Building", "ClosingLoader", "KernelLoader", "LoaderContext",
    "PartialBuilding", "PollableBuilding", "TargetDefinition", "TargetError", "WarmLoader",
    "discover", "installed", "probed",
]  # fmt: skip

API = 1
"""Version of the interface, incremented when a field of `TargetDefinition` changes meaning."""
GROUP = "gyrator.targets"
OPTIONAL = "gyrator.optional_targets"
"""Group of entry points that are imported only if `GYRATOR_TARGETS` names them."""


_FUNCTION = needs("a function", callable)


@frozen(kw_only=True, eq=False)
class TargetDefinition:
    """Everything the pipeline needs to know about a device type. Adding a device adds one of these.

    Raises:
        TargetError: GY-TARGET-004 for an invalid field.
    """

    name: str = field(validator=needs("a name", lambda v: isinstance(v, str) and bool(v)))
    api: int = field(validator=needs("`gyrator.targets.API`", lambda v: isinstance(v, int)))
    probe: Callable[[Config], Target | None] = field(validator=_FUNCTION)
    """Describe this machine's device; None if there is none."""
    kernels: KernelBackend = field(
        validator=needs(
            "a `KernelBackend`, an object with `name`, `content_hash`, `refuses` and `emit`",
            has("name", "content_hash", "refuses", "emit"),
        )
    )
    device: Callable[[Target], DeviceInterface] = field(validator=_FUNCTION)
    loader: Callable[[Target, LoaderContext], KernelLoader] = field(validator=_FUNCTION)
    """May raise a `GyratorError`, for example for a missing compiler: graphs then run eagerly."""
    variants: Callable[[Target], tuple[Target, ...]] = field(
        default=lambda target: (target,), validator=_FUNCTION
    )
    """Alternative targets whose kernels run on the same device, measured by `max_autotune`."""
    load: LibraryLoader = field(default=load_library, validator=_FUNCTION)
    """Load a `Library` from a cache entry, without a compiler; by default, a shared library."""
    uninitialised: Callable[[], bool] = field(default=lambda: False, validator=_FUNCTION)
    """Return whether this process has not used the device, so that probing would initialise it: a
    process with an initialised device cannot fork."""
    machine: Callable[[], str] = field(default=str, validator=_FUNCTION)
    """Identify this machine and the configuration of its libraries among others that share a cache:
    measurements are stored by this text. Empty if nothing is measured."""
    aten_bits: Callable[[], frozenset[str]] = field(default=frozenset, validator=_FUNCTION)
    """Return the `aten_bits` of the target's capabilities, which only sessions with
    `numerics="bitwise"` ask for."""
    elsewhere: Callable[[str], Target | None] = field(
        default=lambda arch: None, validator=_FUNCTION
    )
    """Describe a device by the name of its architecture, which need not be this machine's, as the
    target of a package. None for an unknown name, or if packages do not support its kernels."""
    usual: tuple[str, ...] = ()
    """The default architectures of packages for this target."""
    instead: Callable[[GyratorError], "TargetDefinition | None"] | None = field(
        default=None,
        validator=needs("a function or None", lambda value: value is None or callable(value)),
    )
    """Return the target that compiles the programs that are not in the cache where `loader` raises
    this error, such as that of a missing compiler; None to use this one. Not called if
    `GYRATOR_TARGETS` names this one."""
    optional: bool = False
    """Whether the target is used only if `GYRATOR_TARGETS` names it: an alternative kernel language
    for a device that has one."""


def installed(
    config: Config, points: Iterable[EntryPoint] | None = None
) -> tuple[tuple[EntryPoint, TargetDefinition], ...]:
    """Load every installed target in name order, or those of `points`. Warns (GY-TARGET-009) if
    `config.targets` names one that is not installed.

    Raises:
        TargetError: GY-TARGET-001 for a target of another API version, GY-TARGET-004 for an entry
            point that is not a target.
    """
    if points is None:
        every = entry_points()  # reads the metadata of all installed packages
        optional = (e for e in every.select(group=OPTIONAL) if e.name in config.targets)
        points = (*every.select(group=GROUP), *optional)
        _warn_of_missing(config, {e.name for g in (GROUP, OPTIONAL) for e in every.select(group=g)})
    loaded: list[tuple[EntryPoint, TargetDefinition]] = []
    for point in sorted(points, key=lambda e: (e.name, e.value)):
        definition = _loaded(point)
        if definition is None:
            continue
        if definition.api != API:
            why = f"target {point.name!r} has API {definition.api}, but this Gyrator has API {API}"
            raise TargetError.of("GY-TARGET-001", why, point.value, help="upgrade the older one")
        loaded.append((point, definition))
    return tuple(loaded)


def _warn_of_missing(config: Config, names: Collection[str]) -> None:
    for name in sorted(config.targets.difference(names)):
        near = get_close_matches(name, names, n=1)
        help = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(names))}"
        warn("GY-TARGET-009", f"GYRATOR_TARGETS names no installed target: {name!r}", help)


def _loaded(point: EntryPoint) -> TargetDefinition | None:
    """Load the target of an entry point; return None, with a warning (GY-TARGET-005), if its
    package cannot be imported, since other devices do not depend on it."""
    try:
        definition = point.load()
    except TargetError:
        raise
    except Exception as error:
        message = f"the target {point.name!r} cannot be imported: {type(error).__name__}: {error}"
        help = f"fix or uninstall the package of `{point.value}`; its devices run in eager mode"
        warn("GY-TARGET-005", message, help)
        return None
    if not isinstance(definition, TargetDefinition):
        message = f"the target {point.name!r} is a {type(definition).__name__}"
        help = "the entry point must refer to a `gyrator.targets.TargetDefinition`"
        raise TargetError.of("GY-TARGET-004", message, point.value, help=help)
    return definition


def _probed(definition: TargetDefinition, config: Config) -> Target | None:
    """Probe a target on this machine; return None, with a warning, if its probe fails."""
    try:
        with named(definition, "probe"):
            return probed_target(definition, definition.probe(config))
    except TargetError as error:
        if error.diagnostic.code != "GY-TARGET-006":
            raise
        failure = error.diagnostic
        warn(failure.code, f"{failure.message}; its devices run in eager mode", failure.help)
        return None


def discover(
    config: Config, points: Iterable[EntryPoint] | None = None, *, initialise: bool = True
) -> Mapping[str, tuple[TargetDefinition, Target]]:
    """Load and probe every installed target; see `installed` and `probed`."""
    return probed(config, installed(config, points), initialise=initialise)


def probed(
    config: Config, loaded: Iterable[tuple[EntryPoint, TargetDefinition]], *, initialise: bool
) -> Mapping[str, tuple[TargetDefinition, Target]]:
    """Probe targets in order; return the usable ones by device type.

    A target that `config.targets` names takes precedence over others for its device type.
    Uninitialised devices are omitted unless `initialise` is set.

    Raises:
        TargetError: GY-TARGET-002 if two targets claim a device type and the configuration does not
            choose one.
    """
    table: dict[str, tuple[TargetDefinition, Target]] = {}
    origin: dict[str, str] = {}
    for point, definition in loaded:
        chosen = definition.name in config.targets
        usable = (chosen or not definition.optional) and (
            initialise or not definition.uninitialised()
        )
        target = _probed(definition, config) if usable else None
        if target is None:
            continue
        rival = table.get(target.device)
        rival_chosen = rival is not None and rival[0].name in config.targets
        if rival_chosen and not chosen:
            continue
        if rival is not None and chosen == rival_chosen:
            why = f"two targets claim device type {target.device!r}"
            both = (origin[target.device], point.value)
            help = "uninstall one, or set GYRATOR_TARGETS to the name of the one to use"
            raise TargetError.of("GY-TARGET-002", why, provenance=both, help=help)
        table[target.device], origin[target.device] = (definition, target), point.value
    return MappingProxyType(table)
