"""What comes from a target's own code is checked, and what fails there is named after it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target

if TYPE_CHECKING:
    from gyrator_ir.backend import KernelBackend
    from gyrator_runtime.artifact import Library
    from gyrator_runtime.native import KernelFunction


class Definition(Protocol):
    """What is asked of a `TargetDefinition` here."""

    @property
    def name(self) -> str:
        """How messages call it."""
        ...

    @property
    def kernels(self) -> KernelBackend:
        """Its kernel language."""
        ...


class Built(Protocol):
    """What is asked of a `Building` here."""

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return what a cache entry needs to hold."""
        ...

    def addresses(self) -> Mapping[str, KernelFunction]:
        """Wait, load, and return each kernel's function by its symbol."""
        ...


class TargetError(GyratorError):
    """An installed target cannot be used."""


def needs(wanted: str, good: Callable[[Any], bool]) -> Callable[[Any, Any, Any], None]:
    """Return a validator of a field of `TargetDefinition`.

    TargetError (GY-TARGET-004) says which field of which target is what, and what it has to be.
    """

    def check(definition: Any, attribute: Any, value: Any) -> None:
        if not good(value):
            name = getattr(definition, "name", "")
            called = f"the target {name!r}" if isinstance(name, str) and name else "a target"
            said = f"`{attribute.name}` of {called} is {value!r}, and has to be {wanted}"
            raise TargetError.of("GY-TARGET-004", said, help=_HELP)

    return check


_HELP = "docs/how-to/add-a-target.md lists the fields"


def has(*methods: str) -> Callable[[Any], bool]:
    """Return whether a value has methods or properties of these names."""
    return lambda value: not isinstance(value, type) and all(name in dir(value) for name in methods)


def probed_target(definition: Definition, found: object) -> Target | None:
    """Return what a probe gave.

    Raises:
        TargetError: GY-TARGET-004 for something else than a `Target` or None.
    """
    if found is None or isinstance(found, Target):
        return found
    said = f"`probe` of the target {definition.name!r} gave a {type(found).__name__}"
    help = "return a `gyrator_ir.target.Target`, or None where there is no such device"
    raise TargetError.of("GY-TARGET-004", said, help=help)


@contextmanager
def named(definition: Definition, doing: str) -> Iterator[None]:
    """Name a target in the errors of its code: Gyrator is not at fault there.

    TargetError (GY-TARGET-006) for whatever is no `GyratorError` and comes from a target of
    somebody else's.
    """
    try:
        yield
    except GyratorError:
        raise
    except Exception as error:
        if ours(definition):
            raise
        package = made_by(definition)
        said = (
            f"the target {definition.name!r} failed in `{doing}`: {type(error).__name__}: {error}"
        )
        help = f"it is made by the package {package}: report it there"
        raise TargetError.of("GY-TARGET-006", said, help=help) from error


def made_by(definition: Definition) -> str:
    """Return the package that a target's kernel language is from."""
    return type(definition.kernels).__module__.partition(".")[0]


def ours(definition: Definition) -> bool:
    """Whether a target comes with Gyrator."""
    return made_by(definition) == "gyrator"


@frozen(eq=False)
class VendorBuilding:
    """Units that a target of somebody else's builds, checked when they are asked for."""

    definition: Definition
    building: Built
    units: tuple[TranslationUnit, ...]

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return what a cache entry needs to hold."""
        with named(self.definition, "libraries"):
            return self.building.libraries()

    def addresses(self) -> Mapping[str, KernelFunction]:
        """Wait, load, and return each kernel's function by its symbol."""
        with named(self.definition, "addresses"):
            found = self.building.addresses()
        return checked_functions(found, self.units, self.definition)


def checked_units(
    units: object, kernels: Collection[str], language: str
) -> tuple[TranslationUnit, ...]:
    """Return what an emitter gave.

    Args:
        units: what `emit` returned.
        kernels: the names of the kernels that it was given.
        language: the name of the kernel language.

    Raises:
        TargetError: GY-TARGET-007 for anything but a tuple of units in which each of the kernels
            is once, with a symbol of its own and a text.
    """

    def wrong(said: str, help: str) -> TargetError:
        said = f"`emit` of the kernel language {language!r} {said}"
        return TargetError.of("GY-TARGET-007", said, help=help)

    if not isinstance(units, tuple):
        raise wrong(f"gave a {type(units).__name__}", "return a tuple of `TranslationUnit`s")
    for unit in units:
        if not isinstance(unit, TranslationUnit):
            said = f"gave a tuple with a {type(unit).__name__}"
            raise wrong(said, "return a tuple of `gyrator_ir.source.TranslationUnit`s")
        if not all(isinstance(k, KernelSource) for k in unit.kernels):
            said = f"gave the unit {unit.name!r} with something else than `KernelSource`s"
            raise wrong(said, "describe each kernel of the unit by a `KernelSource`")
    written = [k.kernel for u in units for k in u.kernels]
    for what, names in (
        ("units", [u.name for u in units]),
        ("kernels", written),
        ("symbols", [k.symbol for u in units for k in u.kernels]),
    ):
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            said = f"gave two {what} of the name {twice[0]!r}"
            raise wrong(said, "derive names from those of the kernels, which are unique")
    strange = sorted({*written} - {*kernels})
    if strange:
        said = f"gave the kernel {strange[0]!r}, which it was not asked for"
        raise wrong(said, "set `KernelSource.kernel` to `Kernel.name`")
    lacking = sorted({*kernels} - {*written})
    if lacking:
        said = f"left out the kernel {lacking[0]!r}"
        raise wrong(said, "emit every kernel; what cannot be emitted, `refuses` has to refuse")
    return units


def checked_functions(
    functions: object, units: Sequence[TranslationUnit], definition: Definition
) -> Mapping[str, Any]:
    """Return what a loader's `addresses` gave.

    Raises:
        TargetError: GY-TARGET-007 where a symbol has no function.
    """
    if isinstance(functions, Mapping):
        missing = [s for u in units for s in u.symbols if not functions.get(s)]
        if not missing:
            return functions
        said = f"has no function for the symbol {missing[0]!r}"
    else:
        said = f"is a {type(functions).__name__}"
    said = f"what the loader of the target {definition.name!r} gave as `addresses` {said}"
    help = "return a mapping from every symbol of the units to the address of its function"
    raise TargetError.of("GY-TARGET-007", said, help=help)
