"""Text form of pass lists: `fuse{limit=4},drop-dead-buffers`."""

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from gyrator_ir.passes import nearest
from gyrator_ir.text.lines import Line
from gyrator_ir.text.scanner import Scanner, show_number, show_string, show_word


def parse_pipeline(text: str, table: Mapping[str, Any]) -> tuple[Any, ...]:
    """Parse a list of passes: `fuse{limit=4, keep=[a, b]},drop-dead-buffers`.

    Args:
        text: names separated by commas, each with its options (fields of the class) in braces.
            Values are numbers, `true`, `false`, `none`, words, strings, and lists in brackets.
        table: by name, the class of each pass, or an instance that provides the default options.

    Raises:
        ParseError: GY-PARSE-001 for a syntax error, GY-PASS-001 for an unknown pass, GY-PASS-002
            for an unknown option, GY-PASS-003 for an invalid option value.
    """
    s = Scanner(Line(1, text))
    passes: list[Any] = []
    if s.ended():
        return ()
    while True:
        passes.append(_pass(s, table))
        if not s.take(","):
            break
    s.end()
    return tuple(passes)


def show_pipeline(passes: Sequence[Any]) -> str:
    """Return the text of passes, omitting options with default values."""
    return ",".join(map(_show_pass, passes))


def _pass(s: Scanner, table: Mapping[str, Any]) -> Any:
    name = s.word()
    cls = table.get(name)
    if cls is None:
        s.line.fail(f"there is no pass {name!r}", "GY-PASS-001", nearest(name, table))
    options: dict[str, Any] = {}
    if s.take("{") and not s.take("}"):
        while True:
            _option(s, name, cls, options)
            if not s.take(","):
                break
        s.expect("}")
    try:
        return cls(**options) if isinstance(cls, type) else attrs.evolve(cls, **options)
    except (TypeError, ValueError) as error:
        s.line.fail(f"pass {name!r}: {error}", "GY-PASS-003")


def _option(s: Scanner, name: str, cls: Any, options: dict[str, Any]) -> None:
    option = s.name()
    types = _option_types(cls)
    if option not in types:
        message = f"pass {name!r} has no option {option!r}"
        s.line.fail(message, "GY-PASS-002", nearest(option, types))
    s.expect("=")
    value = _value(s)
    try:
        options[option] = _converted(value, types[option])
    except ValueError:
        s.line.fail(f"option {option!r} of {name!r} can't be {value!r}", "GY-PASS-003")


def _option_types(cls: Any) -> dict[str, Any]:
    cls = cls if isinstance(cls, type) else type(cls)
    hints = get_type_hints(cls)
    return {f.name: hints.get(f.name, Any) for f in attrs.fields(cls) if f.init}


def _value(s: Scanner) -> Any:
    if s.take("["):
        items: list[Any] = []
        if s.take("]"):
            return ()
        while True:
            items.append(_value(s))
            if not s.take(","):
                break
        s.expect("]")
        return tuple(items)
    if s.take("none"):
        return None
    first = s.text[s.at : s.at + 1]
    if (first and first in "-0123456789") or s.looks("true") or s.looks("false"):
        return s.number()
    return s.word()


def _converted(value: Any, type_: Any) -> Any:
    """Return a parsed value as the type of a field, or raise ValueError."""
    origin, args = get_origin(type_), get_args(type_)
    if type_ is Any:
        return value
    if origin in (Union, UnionType):
        for choice in args:
            try:
                return _converted(value, choice)
            except ValueError:
                continue
    elif origin in (tuple, frozenset) and isinstance(value, tuple):
        fixed = origin is tuple and args[-1:] != (...,)
        kinds = args if fixed else args[:1] * len(value)
        return origin([_converted(item, kind) for item, kind in zip(value, kinds, strict=True)])
    elif origin is Literal and value in args:
        return value
    elif type_ in (NoneType, None) and value is None:
        return None
    elif isinstance(type_, type):
        if issubclass(type_, Enum) and isinstance(value, str):
            return type_(value)
        if type_ is float and type(value) is int:
            return float(value)
        if type_ is float and value == "inf":  # `inf` is scanned as a word
            return math.inf
        if type(value) is type_:
            return value
    raise ValueError(value)


def _show_pass(p: Any) -> str:
    changed = [
        f"{f.name}={_show_value(getattr(p, f.name))}"
        for f in attrs.fields(type(p))
        if f.init and getattr(p, f.name) != _default(f)
    ]
    return f"{p.name}{{{', '.join(changed)}}}" if changed else str(p.name)


def _default(f: "attrs.Attribute[Any]") -> Any:
    factory = getattr(f.default, "factory", None)
    return f.default if factory is None else factory()


def _show_value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case Enum():
            return show_word(str(value.value))
        case bool() | int() | float():
            return show_number(value)
        case tuple():
            return f"[{', '.join(map(_show_value, value))}]"
        case frozenset():
            return f"[{', '.join(sorted(map(_show_value, value)))}]"
    text = str(value)
    return show_string(text) if text in ("none", "true", "false") else show_word(text)
