"""attrs validators shared by every IR.

Cheap ones only, since a node is built thousands of times. Our own rather than `attrs.validators`,
whose exceptions carry the Attribute object and so print as tuples.
"""

import struct
from collections.abc import Callable, Collection
from difflib import get_close_matches
from types import MappingProxyType, UnionType
from typing import Any, get_args

import attrs

from gyrator_ir.diagnostics import InputError

Validator = Callable[[object, "attrs.Attribute[Any]", Any], None]


def takes(stage: str, value: object, wanted: type | UnionType) -> None:
    """Accept what a stage takes: an argument of one type, or of one of several.

    Raises:
        InputError: GY-STAGE-001, which says what was given, and what makes the right thing.
    """
    if not isinstance(value, wanted):
        given, name = type(value).__name__, " or ".join(t.__name__ for t in _types(wanted))
        said = f"{stage} takes a {name}, and was given {_article(given)} {given}"
        help = _MAKERS.get(name, f"give it a {name}")
        raise InputError.of("GY-STAGE-001", said, help=help)


def _types(wanted: type | UnionType) -> tuple[type, ...]:
    return get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)


def _article(word: str) -> str:
    return "an" if word[0] in "aeiouAEIOU" else "a"


def _maker(stage: str, level: str) -> str:
    return f"`{stage}` makes one, `gyrator_ir.{level}.parse.parse` reads one"


_MAKERS = MappingProxyType(
    {
        "GraphModule": "AOTAutograd makes ATen graphs, `gyrator_lowering.fx_text.parse` reads one",
        "LoopProgram": _maker("gyrator_lowering.lower", "loop"),
        "Schedule": _maker("gyrator_scheduler.stage.schedule", "kernel"),
        "TileProgram": _maker("tile", "tile"),
        "HostProgram": _maker("gyrator_scheduler.stage.plan_host", "host"),
        "Mapping": "give it the target of each device type: `{target.device: target}`",
        "Sequence": "give it the `kernels` of a host program, or of a schedule",
    }
)
"""Where what stages take comes from."""


def identifier(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Accept a Python identifier, so that every name prints and parses unquoted."""
    if not (type(value) is str and value.isidentifier()):
        raise TypeError(_says(instance, attribute, "an identifier", value))


def natural(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Accept 0, 1, 2, ... and neither `True` nor NumPy's integers, which print differently."""
    if type(value) is not int or value < 0:
        raise TypeError(_says(instance, attribute, "an int >= 0", value))


def exactly(*types: type) -> Validator:
    """Accept an instance of one of `types`, subclasses excluded."""

    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if type(value) not in types:
            raise TypeError(_says(instance, attribute, _any_of(types), value))

    return check


def instance_of(*types: type) -> Validator:
    """Accept an instance of one of `types` or of a subclass."""

    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not isinstance(value, types):
            raise TypeError(_says(instance, attribute, _any_of(types), value))

    return check


def a_tuple(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Accept a tuple, never a list: nodes are hashed. Elements are the verifier's business."""
    if type(value) is not tuple:
        raise TypeError(_says(instance, attribute, "a tuple", value))


def one_of(names: Collection[str]) -> Validator:
    """Accept a member of `names`; suggest the nearest one otherwise."""

    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value not in names:
            near = get_close_matches(str(value), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
            raise TypeError(_says(instance, attribute, "a known name", value) + hint)

    return check


def bits(value: object) -> object:
    """Key by which constants compare: by type and bits, so that 1, 1.0 and True differ, -0.0 is
    not 0.0, and a NaN equals itself. For `field(eq=bits)`."""
    if type(value) is float:
        return struct.pack("<d", value)
    if type(value) is complex:
        return struct.pack("<dd", value.real, value.imag)
    return type(value), value


def _any_of(types: tuple[type, ...]) -> str:
    return " | ".join(t.__name__ for t in types)


def _says(instance: object, attribute: "attrs.Attribute[Any]", wanted: str, got: object) -> str:
    return f"{type(instance).__name__}.{attribute.name} must be {wanted}, got {got!r}"
