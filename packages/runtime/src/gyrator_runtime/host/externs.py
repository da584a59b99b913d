"""Dispatcher operators by name, resolved once to the fastest callable."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from gyrator_ir.diagnostics import GyratorError

_FLASH_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_DEFAULTS = f"""
    {_FLASH_ATTENTION} _fft_c2c _fft_c2r _fft_r2c _int_mm
    addmv dot histc kthvalue median mv sort topk vdot
""".split()
_FUNCTIONS = """
    acos acosh asin asinh atan atanh cos cosh digamma elu erf erfc erfinv exp exp2 expm1 gelu lgamma
    log log10 log1p log2 mish rsqrt sigmoid silu sin sinh softplus sqrt tan tanh
""".split()

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
        "aten._softmax.out": "_softmax",
        "aten._log_softmax.out": "_log_softmax",
        "aten.sum.default": "sum",
        "aten.sum.IntList_out": "sum",
        "aten.mean.default": "mean",
        "aten.mean.out": "mean",
        "aten.native_layer_norm.default": "native_layer_norm",
        "aten.native_group_norm.default": "native_group_norm",
        "aten.median.dim": "median",
        "aten.mode.default": "mode",
        "aten.nanmedian.dim": "nanmedian",
        **{f"aten.{name}.default": name for name in _DEFAULTS},
        **{f"aten.{name}.out": name for name in _FUNCTIONS},
    }
)
"""Overloads whose generated C binding is 0.3 to 3 us faster than `torch.ops`.

The binding selects the overload from the arguments, so only operators are listed whose arguments
(tensors, dimensions, presence of `out=`) determine the overload.
"""


class ExternError(GyratorError):
    """An extern call names an operator that is not registered."""


def extern(name: str) -> Callable[..., Any]:
    """Return the operator `namespace.op.overload`, for example "aten.mm.out".

    Custom operators work like PyTorch's own. ExternError (GY-RUNTIME-002) if there is none.
    """
    public = PUBLIC_ENTRY.get(name)
    if public is not None:
        for bindings in (torch._C._VariableFunctions, torch._C._nn):
            quick: Callable[..., Any] | None = getattr(bindings, public, None)
            if quick is not None:
                return quick
    return overload(name)


def overload(name: str) -> Callable[..., Any]:
    """Return the `torch._ops.OpOverload` named `namespace.op.overload`."""
    parts = name.split(".")
    value: Any = torch.ops
    try:
        if len(parts) != 3:
            raise AttributeError(f"{name!r} is not of the form namespace.op.overload")
        for part in parts:
            value = getattr(value, part)
    except AttributeError as error:
        raise ExternError.of(
            "GY-RUNTIME-002",
            f"there is no operator {name}: {error}",
            help="import the library that registers it before the compiled program is loaded",
        ) from error
    result: Callable[..., Any] = value
    return result
