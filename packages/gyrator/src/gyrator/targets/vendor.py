"""Validation of the results of third-party targets, and attribution of their failures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.target import Target

if TYPE_CHECKING:
    from gyrator.targets.loaders import Building
    from gyrator_ir.backend import KernelBackend
    from gyrator_runtime.build import Library
    from gyrator_runtime.native import KernelFunction


class Definition(Protocol):
    """The part of a `TargetDefinition` used here."""

    @property
    def name(self) -> str:
        """The name of the target in messages."""
        ...

    @property
    def kernels(self) -> KernelBackend:
        """The target's kernel language."""
        ...


class TargetError(GyratorError):
    """An installed target cannot be used."""


def needs(expected: str, good: Callable[[Any], bool]) -> Callable[[Any, Any, Any], None]:
    """Return a validator for a field of `TargetDefinition`.

    It raises TargetError (GY-TARGET-004) for an invalid value, naming the target and the field.
    """

    def check(definition: Any, attribute: Any, value: Any) -> None:
        if not good(value):
            name = getattr(definition, "name", "")
            target = f"the target {name!r}" if isinstance(name, str) and name else "a target"
            message = f"`{attribute.name}` of {target} is {value!r}, but must be {expected}"
            raise TargetError.of("GY-TARGET-004", message, help=_HELP)

    return check


_HELP = "docs/how-to/add-a-target.md lists the fields"


def has(*methods: str) -> Callable[[Any], bool]:
    """Return a predicate that checks whether a value has methods or properties of these names."""
    return lambda value: not isinstance(value, type) and all(name in dir(value) for name in methods)


def probed_target(definition: Definition, result: object) -> Target | None:
    """Validate the result of a probe.

    Raises:
        TargetError: GY-TARGET-004 if it is neither a `Target` nor None.
    """
    if result is None or isinstance(result, Target):
        return result
    message = f"`probe` of the target {definition.name!r} returned a {type(result).__name__}"
    help = "return a `gyrator_ir.target.Target`, or None if there is no such device"
    raise TargetError.of("GY-TARGET-004", message, help=help)


@contextmanager
def named(definition: Definition, doing: str) -> Iterator[None]:
    """Attribute errors of a target's code to the target.

    Raises TargetError (GY-TARGET-006) for any exception of a third-party target that is not a
    `GyratorError`.
    """
    try:
        yield
    except GyratorError:
        raise
    except Exception as error:
        if ours(definition):
            raise
        package = made_by(definition)
        cause = f"{type(error).__name__}: {error}"
        message = f"the target {definition.name!r} failed in `{doing}`: {cause}"
        help = f"the target comes from the package {package}: report it there"
        raise TargetError.of("GY-TARGET-006", message, help=help) from error


def made_by(definition: Definition) -> str:
    """Return the package that provides a target's kernel language."""
    return type(definition.kernels).__module__.partition(".")[0]


def ours(definition: Definition) -> bool:
    """Return whether a target is part of Gyrator."""
    return made_by(definition) == "gyrator"


@frozen(eq=False)
class VendorBuilding:
    """A build by a third-party target, validated when its results are requested."""

    definition: Definition
    building: Building
    units: tuple[TranslationUnit, ...]

    def libraries(self) -> tuple[Library, ...]:
        """Wait, and return the libraries to store in a cache entry."""
        with named(self.definition, "libraries"):
            return self.building.libraries()

    def addresses(self) -> Mapping[str, KernelFunction]:
        """Wait, load, and return each kernel's function by its symbol."""
        with named(self.definition, "addresses"):
            functions = self.building.addresses()
        return checked_functions(functions, self.units, self.definition)


def checked_units(
    units: object, kernels: Collection[str], language: str
) -> tuple[TranslationUnit, ...]:
    """Validate the result of an emitter.

    Args:
        units: the result of `emit`.
        kernels: the names of the kernels passed to it.
        language: the name of the kernel language.

    Raises:
        TargetError: GY-TARGET-007 unless it is a tuple of units that contains each kernel once,
            with a unique symbol and its text.
    """

    def wrong(problem: str, help: str) -> TargetError:
        message = f"`emit` of the kernel language {language!r} {problem}"
        return TargetError.of("GY-TARGET-007", message, help=help)

    if not isinstance(units, tuple):
        raise wrong(f"returned a {type(units).__name__}", "return a tuple of `TranslationUnit`s")
    for unit in units:
        if not isinstance(unit, TranslationUnit):
            problem = f"returned a tuple with a {type(unit).__name__}"
            raise wrong(problem, "return a tuple of `gyrator_ir.source.TranslationUnit`s")
        if not all(isinstance(k, KernelSource) for k in unit.kernels):
            problem = f"returned the unit {unit.name!r} with kernels that are not `KernelSource`s"
            raise wrong(problem, "describe each kernel of the unit by a `KernelSource`")
    written = [k.kernel for u in units for k in u.kernels]
    for kind, names in (
        ("units", [u.name for u in units]),
        ("kernels", written),
        ("symbols", [k.symbol for u in units for k in u.kernels]),
    ):
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            problem = f"returned two {kind} with the name {twice[0]!r}"
            raise wrong(problem, "derive names from those of the kernels, which are unique")
    strange = sorted({*written} - {*kernels})
    if strange:
        problem = f"returned the kernel {strange[0]!r}, which was not requested"
        raise wrong(problem, "set `KernelSource.kernel` to `Kernel.name`")
    lacking = sorted({*kernels} - {*written})
    if lacking:
        problem = f"omitted the kernel {lacking[0]!r}"
        raise wrong(problem, "emit every kernel that `refuses` does not refuse")
    return units


def checked_functions(
    functions: object, units: Sequence[TranslationUnit], definition: Definition
) -> Mapping[str, Any]:
    """Validate the result of a loader's `addresses`.

    Raises:
        TargetError: GY-TARGET-007 if a symbol has no function.
    """
    if isinstance(functions, Mapping):
        missing = [s for u in units for s in u.symbols if not functions.get(s)]
        if not missing:
            return functions
        problem = f"have no function for the symbol {missing[0]!r}"
    else:
        problem = f"are a {type(functions).__name__}"
    message = f"the `addresses` from the loader of the target {definition.name!r} {problem}"
    help = "return a mapping from every symbol of the units to the address of its function"
    raise TargetError.of("GY-TARGET-007", message, help=help)
