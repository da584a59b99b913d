"""Dispatcher operators by name, resolved once to the quickest callable for the operator."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from gyrator_ir.diagnostics import Diagnostic, GyratorError

PUBLIC_ENTRY: Mapping[str, str] = MappingProxyType(
    {
        "aten.mm.default": "mm",
        "aten.mm.out": "mm",
        "aten.bmm.default": "bmm",
        "aten.bmm.out": "bmm",
        "aten.addmm.default": "addmm",
        "aten.addmm.out": "addmm",
        "aten.baddbmm.default": "baddbmm",
        "aten.baddbmm.out": "baddbmm",
        "aten.convolution.default": "convolution",
    }
)
"""Overloads whose generated C binding does the same for 1 to 3 us less than `torch.ops` does.

The binding picks the overload from the arguments, so only names belong here whose arguments
(tensors, and `out=` given or not) leave it no other choice.
"""


class ExternError(GyratorError):
    """An extern call names an operator that this torch does not have."""


def extern(name: str) -> Callable[..., Any]:
    """Return the operator called `namespace.op.overload`, for example "aten.mm.out".

    Custom operators work like torch's own. ExternError (GY-RUNTIME-002) where there is none.
    """
    public = PUBLIC_ENTRY.get(name)
    if public is not None:
        quick: Callable[..., Any] | None = getattr(torch._C._VariableFunctions, public, None)
        if quick is not None:
            return quick
    return overload(name)


def overload(name: str) -> Callable[..., Any]:
    """Return the `torch._ops.OpOverload` called `namespace.op.overload`."""
    parts = name.split(".")
    found: Any = torch.ops
    try:
        if len(parts) != 3:
            raise AttributeError(f"{name!r} is not of the form namespace.op.overload")
        for part in parts:
            found = getattr(found, part)
    except AttributeError as error:
        raise ExternError(
            Diagnostic(
                "GY-RUNTIME-002",
                f"there is no operator {name}: {error}",
                help="import the library that registers it before the compiled program is loaded",
            )
        ) from error
    result: Callable[..., Any] = found
    return result
