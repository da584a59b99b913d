"""Operators for libtorch's C ABI: their schemas, and which of them it cannot call."""

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
"""Argument types that the C ABI supports, since torch 2.11."""
_RETURNED = frozenset({"Tensor", "Tensor[]", "int", "bool"})


def called_operators(names: Iterable[str]) -> tuple[CalledOperator, ...]:
    """Return the manifest entries of operators, such as `aten.mm.out`."""
    return tuple(_called(name) for name in sorted(names))


def unsupported_reason(name: str) -> str:
    """Return why the C ABI cannot call an operator; empty if it can.

    Optional arguments are assumed to be None, and lists of them to be empty, as in oneDNN's ops
    without a fused function; actual arguments are checked when the operator is called.
    """
    if name in OPERATORS:
        return ""  # matrix products, for which the ABI has separate functions
    schema = _called(name)
    for argument in schema.arguments:
        base = re.split(r"[\[?]", argument.kind)[0]
        if base not in _PASSED and not argument.kind.endswith(("?", "?[]")):
            return f"its argument {argument.name} is a {argument.kind}"
    for kind in schema.returns:
        if kind not in _RETURNED:
            return f"it returns a {kind}"
    # libtorch reads the types of results in reverse order.
    mixed = schema.returns != schema.returns[::-1]
    return "it returns several types" if mixed else ""


def _called(name: str) -> CalledOperator:
    op: Any = overload(name)
    schema = op._schema
    arguments = tuple(
        OperatorArgument(a.name, _kind(a.real_type, a.N), _default(a)) for a in schema.arguments
    )
    return CalledOperator(name, arguments, tuple(_kind(r.real_type) for r in schema.returns))


def _kind(type_: Any, count: int | None = None) -> str:
    match type_.kind():
        case "OptionalType":
            return f"{_kind(type_.getElementType(), count)}?"
        case "ListType":
            return f"{_kind(type_.getElementType())}[{count or ''}]"
        case "NumberType":
            return "Scalar"
    return str(type_)


def _default(argument: Any) -> Any:
    value = argument.default_value if argument.has_default_value() else None
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, bool | int | float | str) else None
