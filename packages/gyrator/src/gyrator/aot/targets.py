"""The targets of a package: instruction set levels, or architectures of one device type."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from attrs import evolve

from gyrator.options import OptionError, Options
from gyrator.session import Session, default_session
from gyrator.targets import TargetDefinition, installed
from gyrator.targets.cpu import CPU, cpu_target, probe
from gyrator_ir.define import frozen
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.target import Target
from gyrator_ir.types import HOST
from gyrator_runtime.build import available_cores
from gyrator_runtime.device import ISA_LEVELS, cpu_isa, isa_levels, machine_of

_WITH_BFLOAT16 = "avx512"
"""The level that implies the instructions that oneDNN needs for `bfloat16`."""


@frozen(eq=False)
class PackageTarget:
    """One instruction set level or architecture."""

    definition: TargetDefinition
    target: Target

    @property
    def arch(self) -> str:
        """The name of the level or architecture."""
        return self.target.arch

    @property
    def device(self) -> str:
        """The device type; empty for the CPU."""
        return "" if self.target.device == HOST else self.target.device

    @property
    def machine(self) -> str:
        """The machine type of its CPU code, in the form of `platform.machine`."""
        return platform.machine() if self.device else machine_of(self.arch)

    def session(self, options: Options) -> Session:
        """Return a session for the target. The CPU part of a device's program runs on any
        processor."""
        targets = {self.target.device: (self.definition, self.target)}
        if self.device:
            targets[HOST] = CPU, cpu_target(isa_levels()[0], available_cores())
        return Session(options=options, config=default_session().config, targets=targets)


def package_targets(named: str | Sequence[str] | None, device: str) -> tuple[PackageTarget, ...]:
    """Return the named targets, by default this machine's device of a type.

    Raises OptionError (GY-AOT-002) for an unknown target, and for several device types.
    """
    if named is None:
        return (_own(device),)
    words = (named,) if isinstance(named, str) else tuple(named)
    if not words:
        raise _wrong("`target` is empty")
    by_arch = {t.arch: t for word in words for t in _named(word)}
    if len({t.device for t in by_arch.values()}) > 1:
        raise _wrong(f"{', '.join(words)} belong to several device types")
    levels = [t for arch, t in by_arch.items() if arch in ISA_LEVELS]
    if len(levels) > 1:
        levels = [PackageTarget(t.definition, _without_packed_weights(t.target)) for t in levels]
    return tuple(sorted(levels, key=lambda t: ISA_LEVELS.index(t.arch))) or (*by_arch.values(),)


def _without_packed_weights(target: Target) -> Target:
    """Return a target whose kernels read no weights in panels, which are as wide as the vectors of
    one level, and compute no depthwise convolutions, which depend on the level too: all levels of a
    package have the same constants."""
    able, panels = target.capabilities, {TemplateKind.CONVOLUTION.value}
    return evolve(
        target,
        capabilities=evolve(able, templates=able.templates - panels),
        heuristics=evolve(target.heuristics, panel_columns=0, depthwise_window=0),
    )


def _named(word: str) -> tuple[PackageTarget, ...]:
    definitions = [d for _, d in installed(default_session().config)]
    for definition in definitions:
        if definition.name == word:
            if not definition.usual:
                return (_own(word),)
            usual = map(definition.elsewhere, definition.usual)
            return tuple(PackageTarget(definition, t) for t in usual if t is not None)
        target = definition.elsewhere(word)
        if target is not None:
            return (PackageTarget(definition, target),)
    names = [d.name for d in definitions if d.usual]
    raise _wrong(f"there is no target {word!r}", f", or of {', '.join(names)}")


def _own(device: str) -> PackageTarget:
    """Return the target for this machine's device."""
    session = default_session()
    if device == HOST:
        isa = cpu_isa(session.config.isa or None)
        if isa == _WITH_BFLOAT16:
            return PackageTarget(CPU, probe(session.config))
        return PackageTarget(CPU, cpu_target(isa, available_cores()))
    entry = session.targets.get(device)
    if entry is None or entry[0].elsewhere(entry[1].arch) is None:
        raise _wrong(f"this machine has no {device} that packages support")
    return PackageTarget(*entry)


def _wrong(message: str, more: str = "") -> OptionError:
    help = f"use one or more of {', '.join(ISA_LEVELS)}{more}"
    return OptionError.of("GY-AOT-002", message, help=help)
