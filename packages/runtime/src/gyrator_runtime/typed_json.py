"""Reading values of annotated classes from JSON, with checks of types."""

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

Reader: TypeAlias = Callable[[Any], Any]
"""Converts JSON data to a value; TypeError for data of another type.

Tuples are created from lists here and when plans are linked. From an iterator, Python would
allocate a longer tuple and shrink it, and its free lists retain up to 2,000 of each length.
"""

Kind = TypeVar("Kind")


def read(kind: type[Kind], data: object) -> Kind:
    """Return the value of an attrs class whose fields JSON data has; tuples are lists there.

    Raises:
        TypeError, ValueError: for data of other types, and for fields that the class lacks or that
            are missing.
    """
    hashable: Any = kind
    value: Kind = _reader(hashable)(data)
    return value


@functools.cache
def _reader(kind: Any) -> Reader:
    """Return the reader of a type, cached because inspecting a type takes longer than reading."""
    if attrs.has(kind):
        return _class_reader(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _tuple_reader(args)
    if origin is Mapping:
        return _mapping_reader(args[1])
    if origin is Literal:
        return _one_of(args)
    if origin in (Union, types.UnionType):
        return _union_reader(args)
    return _plain_reader(kind)


def _class_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    fields = {name: (_plain(hint), _reader(hint)) for name, hint in hints.items()}

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise TypeError(f"{kind.__name__} of {data!r}")
        if not fields.keys() >= data.keys():
            raise TypeError(f"{kind.__name__} has no {', '.join(data.keys() - fields.keys())}")
        return kind(
            **{n: v if type(v) in (of := fields[n])[0] else of[1](v) for n, v in data.items()}
        )

    return read


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    alike = args[1:] == (...,)
    kinds = [_reader(k) for k in args if k is not ...]
    plain = _plain(args[0]) if alike else frozenset()

    def read(data: Any) -> Any:
        if type(data) is not list:
            raise TypeError(f"a list was expected: {data!r}")
        if alike:
            return tuple(data) if plain.issuperset(map(type, data)) else (*map(kinds[0], data),)
        return (*(reader(item) for reader, item in zip(kinds, data, strict=True)),)

    return read


def _mapping_reader(kind: Any) -> Reader:
    reader = _reader(kind)

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise TypeError(f"a mapping was expected: {data!r}")
        return {k: reader(v) for k, v in data.items()}

    return read


def _one_of(values: tuple[Any, ...]) -> Reader:
    def read(data: Any) -> Any:
        if data not in values:
            raise TypeError(f"one of {values} was expected: {data!r}")
        return data

    return read


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    readers = [_reader(kind) for kind in kinds]

    def read(data: Any) -> Any:
        for reader in readers:
            try:
                return reader(data)
            except (TypeError, ValueError):
                continue
        raise TypeError(f"one of {kinds} was expected: {data!r}")

    return read


def _plain(kind: Any) -> frozenset[type]:
    """Return the JSON types that are values of a type without conversion."""
    union = get_origin(kind) in (Union, types.UnionType)
    kinds = get_args(kind) if union else (kind,)
    return frozenset(kinds) & {bool, int, float, str, type(None)}


def _plain_reader(kind: Any) -> Reader:
    fitting = (float, int) if kind is float else (kind,)

    def read(data: Any) -> Any:
        if type(data) not in fitting:
            raise TypeError(f"{kind.__name__} was expected: {data!r}")
        return data

    return read
