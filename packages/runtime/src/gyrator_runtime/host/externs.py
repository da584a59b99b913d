"""Dispatcher operators by name, resolved once to the fastest callable."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch

from gyrator_ir.diagnostics import GyratorError

_FLASH_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_DEFAULTS = f"""
    {_FLASH_ATTENTION} _fft_c2c _fft_c2r _fft_r2c _int_mm
    _native_batch_norm_legit_no_training _trilinear addmv col2im dot grid_sampler_2d histc kthvalue
    logsumexp median mv sort topk vdot
""".split()
_FUNCTIONS = """
    _log_softmax _log_softmax_backward_data _softmax acos acosh add addcdiv addcmul asin asinh atan
    atan2 atanh cos cosh cumprod cumsum digamma elu erf erfc erfinv exp exp2 expm1 gelu hypot lgamma
    linalg_vector_norm log log10 log1p log2 logaddexp logcumsumexp mean mish rsqrt sigmoid silu sin
    sinh softplus sqrt sub tan tanh
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
        "aten.sum.default": "sum",
        "aten.sum.IntList_out": "sum",
        "aten.mean.default": "mean",
        "aten.native_layer_norm.default": "native_layer_norm",
        "aten.native_group_norm.default": "native_group_norm",
        "aten.median.dim": "median",
        "aten.mode.default": "mode",
        "aten.nanmedian.dim": "nanmedian",
        "aten._native_batch_norm_legit.no_stats": "_native_batch_norm_legit",
        "aten.lerp.Scalar_out": "lerp",
        "aten.lerp.Tensor_out": "lerp",
        "aten.pow.Scalar_out": "pow",
        "aten.pow.Tensor_Scalar_out": "pow",
        "aten.pow.Tensor_Tensor_out": "pow",
        "aten.prod.int_out": "prod",
        "aten.xlogy.OutTensor": "xlogy",
        **{f"aten.{name}.default": name for name in _DEFAULTS},
        **{f"aten.{name}.out": name for name in _FUNCTIONS},
    }
)
"""Overloads whose generated C binding is 0.3 to 4 us faster than `torch.ops`.

The binding selects the overload from the arguments, so only operators are listed whose arguments
(tensors, dimensions, presence of `out=`) determine the overload. Losses are left out: where no
reduction is given, their bindings take none instead of the mean.
"""


class ExternError(GyratorError):
    """An extern call names an operator that is not registered."""


def extern(name: str) -> Callable[..., Any]:
    """Return the operator `namespace.op.overload`, for example "aten.mm.out".

    Custom operators work like PyTorch's own. ExternError (GY-RUNTIME-002) if there is none.
    """
    public = PUBLIC_ENTRY.get(name)
    if public is not None:
        linalg = torch._C._linalg  # type: ignore[attr-defined]
        for bindings in (torch._C._VariableFunctions, torch._C._nn, linalg):
            quick: Callable[..., Any] | None = getattr(bindings, public, None)
            if quick is not None:
                return quick
    return overload(name)


def overload(name: str) -> Callable[..., Any]:
    """Return the `torch._ops.OpOverload` named `namespace.op.overload`."""
    try:
        if name.count(".") != 2:
            raise AttributeError(f"{name!r} is not of the form namespace.op.overload")
        op: Callable[..., Any] = attrgetter(name)(torch.ops)
    except AttributeError as error:
        raise ExternError.of(
            "GY-RUNTIME-002",
            f"there is no operator {name}: {error}",
            help="import the library that registers it before the compiled program is loaded",
        ) from error
    return op
