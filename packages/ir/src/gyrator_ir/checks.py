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


def takes(stage: str, value: object, expected: type | UnionType) -> None:
    """Check the type of an argument of a stage.

    Raises:
        InputError: GY-STAGE-001, if it is not of the expected type or union; the help text says how
            to get one.
    """
    if not isinstance(value, expected):
        actual, name = type(value).__name__, " or ".join(t.__name__ for t in _types(expected))
        article = "an" if actual[0] in "aeiouAEIOU" else "a"
        message = f"{stage} takes a {name}, not {article} {actual}"
        help = _MAKERS.get(name, f"pass a {name}")
        raise InputError.of("GY-STAGE-001", message, help=help)


def _types(expected: type | UnionType) -> tuple[type, ...]:
    return get_args(expected) if isinstance(expected, UnionType) else (expected,)


def _maker(stage: str, level: str) -> str:
    return f"`{stage}` creates one, `gyrator_ir.{level}.parse.parse` reads one from text"


_MAKERS = MappingProxyType(
    {
        "GraphModule": "AOTAutograd creates ATen graphs, `gyrator_lowering.fx_text.parse` reads "
        "one from text",
        "LoopProgram": _maker("gyrator_lowering.lower", "loop"),
        "Schedule": _maker("gyrator_scheduler.stage.schedule", "kernel"),
        "TileProgram": _maker("tile", "tile"),
        "HostProgram": _maker("gyrator_scheduler.stage.plan_host", "host"),
        "LoweringTable": "to add rules to Gyrator's, pass `LoweringTable({**default_table().rules, "
        "**rules})`; both are in `gyrator_lowering`, in `table` and `default`",
        "Mapping": "pass the target of each device type: `{target.device: target}`",
        "Sequence": "pass the `kernels` of a host program or of a schedule",
    }
)
"""For each argument type of a stage, how to get a value of it."""


def identifier(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Accept a Python identifier, so that every name prints and parses unquoted."""
    if not (type(value) is str and value.isidentifier()):
        raise TypeError(_message(instance, attribute, "an identifier", value))


def natural(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Accept a nonnegative `int`, but not `True` or a NumPy integer, which print differently."""
    if type(value) is not int or value < 0:
        raise TypeError(_message(instance, attribute, "an int >= 0", value))


def exactly(*types: type) -> Validator:
    """Accept an instance of one of `types`, subclasses excluded."""

    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if type(value) not in types:
            raise TypeError(_message(instance, attribute, _any_of(types), value))

    return check


def instance_of(*types: type) -> Validator:
    """Accept an instance of one of `types` or of a subclass."""

    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not isinstance(value, types):
            raise TypeError(_message(instance, attribute, _any_of(types), value))

    return check


def a_tuple(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Accept a tuple but not a list, since nodes are hashed. The verifier checks its elements."""
    if type(value) is not tuple:
        raise TypeError(_message(instance, attribute, "a tuple", value))


def one_of(names: Collection[str]) -> Validator:
    """Accept a member of `names`; suggest the nearest one otherwise."""

    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value not in names:
            near = get_close_matches(str(value), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
            raise TypeError(_message(instance, attribute, "a known name", value) + hint)

    return check


def bits(value: object) -> object:
    """Return a key that compares constants by type and bits, for `field(eq=bits)`: 1, 1.0 and True
    differ, -0.0 differs from 0.0, and a NaN equals itself."""
    if type(value) is float:
        return struct.pack("<d", value)
    if type(value) is complex:
        return struct.pack("<dd", value.real, value.imag)
    return type(value), value


def _any_of(types: tuple[type, ...]) -> str:
    return " | ".join(t.__name__ for t in types)


def _message(
    instance: object, attribute: "attrs.Attribute[Any]", expected: str, value: object
) -> str:
    return f"{type(instance).__name__}.{attribute.name} must be {expected}, got {value!r}"
