"""What a package is made for: instruction set levels, or architectures of one type of device."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from attrs import frozen

from gyrator.options import OptionError, Options
from gyrator.session import Session, default_session
from gyrator.targets import TargetDefinition, installed
from gyrator.targets.cpu import CPU, cpu_target
from gyrator_ir.target import Target
from gyrator_ir.types import HOST
from gyrator_runtime.build import available_cores
from gyrator_runtime.device import ISA_LEVELS, cpu_isa, isa_levels, machine_of


@frozen(eq=False)
class PackageTarget:
    """One level or architecture."""

    definition: TargetDefinition
    target: Target

    @property
    def arch(self) -> str:
        """Its name."""
        return self.target.arch

    @property
    def device(self) -> str:
        """The type of the devices; empty for the CPU."""
        return "" if self.target.device == HOST else self.target.device

    @property
    def machine(self) -> str:
        """Whose code the host's part of it is, as `platform.machine` has it."""
        return platform.machine() if self.device else machine_of(self.arch)

    def session(self, options: Options) -> Session:
        """Return a compiler for it. What a device leaves to the host runs on every processor."""
        targets = {self.target.device: (self.definition, self.target)}
        if self.device:
            targets[HOST] = CPU, cpu_target(isa_levels()[0], available_cores())
        return Session(options=options, config=default_session().config, targets=targets)


def package_targets(named: str | Sequence[str] | None, device: str) -> tuple[PackageTarget, ...]:
    """Return what is asked for, by default this machine's device of a type.

    OptionError (GY-AOT-002) for what there is not, and for devices of several types.
    """
    if named is None:
        return (_own(device),)
    words = (named,) if isinstance(named, str) else tuple(named)
    if not words:
        raise _wrong("there is no target at all")
    found = {made.arch: made for word in words for made in _named(word)}
    if len({made.device for made in found.values()}) > 1:
        raise _wrong(f"{', '.join(words)} are for several types of devices")
    levels = [made for arch, made in found.items() if arch in ISA_LEVELS]
    return tuple(sorted(levels, key=lambda made: ISA_LEVELS.index(made.arch))) or (*found.values(),)


def _named(word: str) -> tuple[PackageTarget, ...]:
    definitions = [d for _, d in installed(default_session().config)]
    for definition in definitions:
        if definition.name == word:
            if not definition.usual:
                return (_own(word),)
            made = {arch: definition.elsewhere(arch) for arch in definition.usual}
            return tuple(PackageTarget(definition, t) for t in made.values() if t is not None)
        target = definition.elsewhere(word)
        if target is not None:
            return (PackageTarget(definition, target),)
    usual = [d.name for d in definitions if d.usual]
    raise _wrong(f"there is no target {word!r}", f" or of {', '.join(usual)}")


def _own(device: str) -> PackageTarget:
    """Return this machine's own."""
    session = default_session()
    if device == HOST:
        isa = cpu_isa(session.config.isa or None)
        return PackageTarget(CPU, cpu_target(isa, available_cores()))
    found = session.targets.get(device)
    if found is None or found[0].elsewhere(found[1].arch) is None:
        raise _wrong(f"this machine has no {device} that packages are made for")
    return PackageTarget(*found)


def _wrong(said: str, more: str = "") -> OptionError:
    help = f"take some of {', '.join(ISA_LEVELS)}{more}"
    return OptionError.of("GY-AOT-002", said, help=help)
