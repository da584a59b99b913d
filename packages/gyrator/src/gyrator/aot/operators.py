"""Operators as libtorch's C ABI calls them: their schemas, and which it cannot."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gyrator_runtime.host.externs import overload
from gyrator_runtime.native.shim import OPERATORS
from gyrator_runtime.package.manifest import CalledOperator, OperatorArgument

_PASSED = frozenset(
    {"Tensor", "int", "bool", "float", "str", "ScalarType", "Layout", "MemoryFormat", "Device"}
)
"""Types of arguments that the C ABI passes, from torch 2.11 on."""
_RETURNED = frozenset({"Tensor", "Tensor[]", "int", "bool"})


def called_operators(names: Iterable[str]) -> tuple[CalledOperator, ...]:
    """Return what a package says of operators, `aten.mm.out` for example."""
    return tuple(_called(name) for name in sorted(names))


def unpassed(name: str) -> str:
    """Return why the C ABI cannot call an operator; empty where it can.

    An argument that may be None is held to be, a list of such to be empty, as those of oneDNN's ops
    are without a function after them; what is given is checked when the operator is called.
    """
    if name in OPERATORS:
        return ""  # products of matrices, which the ABI has one by one
    schema = _called(name)
    for argument in schema.arguments:
        base = re.split(r"[\[?]", argument.kind)[0]
        if base not in _PASSED and not argument.kind.endswith(("?", "?[]")):
            return f"its argument {argument.name} is a {argument.kind}"
    for kind in schema.returns:
        if kind not in _RETURNED:
            return f"it gives a {kind}"
    # libtorch takes the types of results in the opposite order.
    mixed = schema.returns != schema.returns[::-1]
    return "its results are of several types" if mixed else ""


def _called(name: str) -> CalledOperator:
    found: Any = overload(name)
    schema = found._schema
    arguments = tuple(
        OperatorArgument(a.name, _kind(a.real_type, a.N), _default(a)) for a in schema.arguments
    )
    return CalledOperator(name, arguments, tuple(_kind(r.real_type) for r in schema.returns))


def _kind(found: Any, count: int | None = None) -> str:
    match found.kind():
        case "OptionalType":
            return f"{_kind(found.getElementType(), count)}?"
        case "ListType":
            return f"{_kind(found.getElementType())}[{count or ''}]"
        case "NumberType":
            return "Scalar"
    return str(found)


def _default(argument: Any) -> Any:
    value = argument.default_value if argument.has_default_value() else None
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, bool | int | float | str) else None
