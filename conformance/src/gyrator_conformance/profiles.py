"""What a target declares to the suite.

A target needs nothing but its `TargetDefinition`. One that cannot run every cell declares it in the
entry-point group `gyrator_conformance.profiles`, by the name of the target:

    [project.entry-points."gyrator_conformance.profiles"]
    mydev = "gyrator_mydev.conformance:PROFILE"
"""

from importlib.metadata import entry_points

from attrs import evolve, field, frozen

from gyrator.config import Config, read_config
from gyrator.targets import GROUP as TARGETS
from gyrator.targets import OPTIONAL, TargetDefinition, discover
from gyrator_conformance.cells import DTYPES, Excuse, Reason
from gyrator_conformance.models.collective import HOST_GROUP
from gyrator_conformance.packages import DRIVEN
from gyrator_ir.target import Target
from gyrator_ir.types import Device

GROUP = "gyrator_conformance.profiles"


class UnknownTargetError(LookupError):
    """No installed target has the name."""


@frozen(kw_only=True)
class Profile:
    """A target's limitations, and how its results are checked."""

    excuses: tuple[Excuse, ...] = ()
    """Every excuse names a `Reason`; there are no others."""
    eager_device: str = ""
    """The device of the eager reference; empty for the target's own device."""
    group: str = ""
    """The backend of process groups that carries messages from the device's memory and from the
    host's, as `torch.distributed.init_process_group` takes it. Empty: `gloo` for a target of the
    host, and none for others, where models of collectives then do not run."""


@frozen(eq=False)
class Chosen:
    """A target that was selected by name, in the form that a session accepts."""

    definition: TargetDefinition
    target: Target
    config: Config
    profile: Profile = field(factory=Profile)

    @property
    def group(self) -> str:
        """The backend of process groups that models of collectives use; empty for none."""
        if self.profile.group or not Device(self.target.device).is_host:
            return self.profile.group
        return HOST_GROUP

    @property
    def excuses(self) -> tuple[Excuse, ...]:
        """The declared excuses, and those that follow from the target's own data."""
        lacking = frozenset(DTYPES) - {d.full_name for d in self.target.capabilities.dtypes}
        excuses = list(self.profile.excuses)
        if not self.group:
            note = "the target declares no process group that carries messages from its memory"
            excuses.append(Excuse(Reason.LIBRARY, note, families=frozenset({"collective"})))
        if not self.target.capabilities.graphs:
            note = "the target declares no graphs"
            excuses.append(Excuse(Reason.GRAPHS, note, graphs=frozenset({"on"})))
        by_c = frozenset({"standalone", "libtorch"})
        packaged = by_c | {"on"}
        if self.definition.elsewhere(self.target.arch) is None:
            note = f"packages do not hold kernels of the target {self.definition.name}"
            excuses.append(Excuse(Reason.EXPORT, note, package=packaged))
        elif not Device(self.target.device).is_host and self.target.device != DRIVEN:
            note = f"packages that C runs are for the host and {DRIVEN}"
            excuses.append(Excuse(Reason.EXPORT, note, package=by_c))
        alone = "a process that loads a package is in no process group"
        collective = frozenset({"collective"})
        excuses.append(Excuse(Reason.LIBRARY, alone, families=collective, package=packaged))
        alone = "libtorch's C ABI does not set the state of random numbers to that of eager mode"
        drawn = frozenset({"vae"})
        excuses.append(Excuse(Reason.LIBRARY, alone, models=drawn, package=frozenset({"libtorch"})))
        alone = "the operator is the suite's own, which imports the compiler"
        excuses.append(
            Excuse(Reason.LIBRARY, alone, models=frozenset({"custom-op"}), package=packaged)
        )
        if lacking:
            excuses.append(
                Excuse(Reason.DTYPE, "kernels lack the element type", dtypes=frozenset(lacking))
            )
        return tuple(excuses)

    def excuses_for(self, wrapper: str) -> tuple[Excuse, ...]:
        """Return the excuses, and one for a host language that the target does not list."""
        if wrapper in self.target.wrapper_backends:
            return self.excuses
        note = f"{self.definition.name} is not driven from {wrapper}"
        return (Excuse(Reason.WRAPPER, note), *self.excuses)


def find_target(name: str) -> Chosen:
    """Return an installed target, for its device type, before any other that serves it.

    Raises:
        UnknownTargetError: There is none of that name, or it is not on this machine.
    """
    config = read_config()
    config = evolve(config, targets=config.targets | {name})
    for definition, target in discover(config).values():
        if definition.name == name:
            return Chosen(definition, target, config, _profile(name))
    installed = {*entry_points(group=TARGETS).names, *entry_points(group=OPTIONAL).names}
    names = ", ".join(sorted(installed))
    raise UnknownTargetError(f"there is no target {name!r} on this machine; installed: {names}")


def _profile(name: str) -> Profile:
    declared = entry_points(group=GROUP)
    if name not in declared.names:
        return Profile()
    loaded = declared[name].load()
    if not isinstance(loaded, Profile):
        raise TypeError(f"the profile of {name!r} is a {type(loaded).__name__}")
    return loaded
