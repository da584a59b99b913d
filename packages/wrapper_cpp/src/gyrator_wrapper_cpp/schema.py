"""Schemas of dispatcher ops, parsed from their text without torch."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from attrs import field

from gyrator_ir.checks import a_tuple, exactly
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import ParseError
from gyrator_ir.host.nodes import CollectiveStart, ExternCall, HostProgram
from gyrator_ir.host.walk import walk

__all__ = ["Schema", "parse_schemas", "targets"]

Default = bool | int | float | str | tuple[bool | int | float | str | None, ...] | None
"""The default of an argument; words such as `contiguous_format` are strings."""


@frozen
class Argument:
    """One argument of a schema."""

    name: str = field(validator=exactly(str))
    kind: str = field(validator=exactly(str))
    """The type without aliasing: `Tensor`, `SymInt[2]?`, `Tensor?[]`, `Scalar`."""
    default: Default = None
    has_default: bool = False


@frozen
class Schema:
    """The arguments and results of a dispatcher op."""

    op: str = field(validator=exactly(str))
    """`aten::add`"""
    overload: str = field(validator=exactly(str))
    """`Tensor`; empty for the default one."""
    arguments: tuple[Argument, ...] = field(validator=a_tuple)
    returns: tuple[str, ...] = field(validator=a_tuple)

    @property
    def target(self) -> str:
        """The name in `ExternCall.target`: `aten.add.Tensor`."""
        return f"{self.op.replace('::', '.')}.{self.overload or 'default'}"


def parse_schema(text: str) -> Schema:
    """Parse `str(torch._C.FunctionSchema)`: `aten::add.Tensor(Tensor self, ...) -> Tensor`.

    Raises:
        ParseError: GY-WCPP-006, if the text is not a schema.
    """
    match = re.fullmatch(r"\s*(\w+::\w+)(?:\.(\w+))?\((.*)\)\s*->\s*(.*?)\s*", text, re.DOTALL)
    if match is None:
        raise _error(text)
    op, overload, inside, after = match.groups()
    arguments = tuple(_argument(part, text) for part in _split(inside) if part != "*")
    if after.startswith("(") and after.endswith(")"):
        after = after[1:-1]
    returns = tuple(_typed(part)[0] for part in _split(after))
    return Schema(op, overload or "", arguments, returns)


def parse_schemas(texts: Iterable[str]) -> dict[str, Schema]:
    """Parse schemas; return them by target."""
    return {s.target: s for s in map(parse_schema, texts)}


def targets(program: HostProgram) -> tuple[str, ...]:
    """Return the ops whose schemas `emit` needs for a program, by first use.

    A caller with torch builds the table from them: the schema of `torch.ops.aten.add.Tensor` is
    `str(torch.ops.aten.add.Tensor._schema)`.
    """
    return tuple(dict.fromkeys(_targets(program)))


def _targets(program: HostProgram) -> Iterator[str]:
    for sub in program.subprograms:
        yield from _targets(sub)
    for i in walk(program.instructions):
        match i:
            case ExternCall(target, out=out):
                yield target if out is None else out
            case CollectiveStart(target):
                yield target


def digest_text(schemas: Mapping[str, Schema]) -> str:
    """Return text that identifies a table."""
    return "\n".join(f"{key}: {schemas[key]!r}" for key in sorted(schemas))


def _error(text: str) -> ParseError:
    return ParseError.of(
        "GY-WCPP-006",
        "this is not an operator schema",
        where=text,
        help="pass the text of a torch._C.FunctionSchema",
    )


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets and strings."""
    parts: list[str] = []
    depth, start, quote = 0, 0, ""
    for k, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[k - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        elif c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:k].strip())
            start = k + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _typed(text: str) -> tuple[str, str]:
    """Split `Tensor(a!)[] name` into the type without its aliasing, and the rest."""
    plain = re.sub(r"\([^()]*\)", "", text, count=1) if re.match(r"\w+\(", text) else text
    match = re.match(r"[\w.]+(?:\[\d*\]|\?)*", plain)
    if match is None:
        return plain, ""
    return match.group(), plain[match.end() :].strip()


def _argument(text: str, schema: str) -> Argument:
    kind, rest = _typed(text)
    name, equals, default = rest.partition("=")
    if not re.fullmatch(r"\w+", name.strip()):
        raise _error(schema)
    if not equals:
        return Argument(name.strip(), kind)
    return Argument(name.strip(), kind, _default(default.strip()), True)


def _default(text: str) -> Default:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        try:
            return float(text)
        except ValueError:
            return text
    if isinstance(value, list):
        return tuple(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return text
