"""Translation of torch's dtypes and devices to the IR's, and eager's type promotion."""

from math import isfinite
from types import MappingProxyType

import torch

from gyrator_ir.loop.nodes import TypeArg
from gyrator_ir.types import HOST, Device, DType

TO_TORCH: MappingProxyType[DType, torch.dtype] = MappingProxyType(
    {dtype: getattr(torch, dtype.full_name) for dtype in DType}
)

FROM_TORCH: MappingProxyType[torch.dtype, DType] = MappingProxyType(
    {torch_dtype: dtype for dtype, torch_dtype in TO_TORCH.items()}
)
"""The element types that the IR supports; tensors of other dtypes stay in ATen."""

SATURATES = bool(torch.tensor(1e9, device=HOST).to(torch.float8_e4m3fn).float() == 448.0)
"""Whether eager converts values too large for `float8_e4m3fn`, which has no infinity, to its
largest number; in torch 2.11 they become NaN."""


def _promotions() -> dict[tuple[DType, DType], DType]:
    table: dict[tuple[DType, DType], DType] = {}
    for x, a in FROM_TORCH.items():
        for y, b in FROM_TORCH.items():
            try:
                table[a, b] = FROM_TORCH[torch.promote_types(x, y)]
            except RuntimeError:
                continue  # torch has no common type for these two
    return table


_PROMOTED = MappingProxyType(_promotions())


def promote(a: DType, b: DType) -> DType:
    """Return the common dtype of two, as `torch.promote_types` does.

    Raises:
        KeyError: if torch has no common type (two different 8-bit floats).
    """
    return a if a is b else _PROMOTED[a, b]


def _category(dtype: DType) -> int:
    if dtype is DType.BOOL:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_float else 1


def result_type(
    tensors: list[DType], zero_dim: list[DType], scalars: list[DType], default: DType
) -> DType:
    """Return the dtype in which eager computes an elementwise op, before any op-specific change.

    Tensors with dimensions take precedence over 0-d tensors, and these over Python scalars: a later
    group counts only if its category (bool, integer, float, complex) is higher. `default` is the
    dtype of a Python float.
    """
    result: DType | None = None
    for group in (tensors, zero_dim, scalars):
        if not group:
            continue
        kind = group[0]
        for other in group[1:]:
            kind = promote(kind, other)
        if result is None:
            result = kind
        elif _category(kind) > _category(result):
            result = promote(result, kind)
    return default if result is None else result


def device_of(device: torch.device) -> Device:
    """Return the IR's name of a device; the CPU has no ordinal."""
    return Device(device.type, None if device.type == HOST else device.index)


_NAMED = MappingProxyType(
    {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}
)


def type_arg(value: object) -> TypeArg | None:
    """Return the name of a dtype, device, layout or memory format; None for anything else."""
    if isinstance(value, torch.device):
        return TypeArg("device", str(value))
    kind = _NAMED.get(type(value))
    return None if kind is None else TypeArg(kind, str(value).removeprefix("torch."))


def from_type_arg(value: TypeArg) -> object:
    """Return the torch object that a `TypeArg` names, or None."""
    if value.kind == "device":
        return torch.device(value.value)
    result = getattr(torch, value.value, None)
    return result if _NAMED.get(type(result)) == value.kind else None


def extremes(dtype: DType) -> list[int | float]:
    """Return the least and the greatest finite number of a dtype; nothing for complex ones."""
    if dtype.is_complex:
        return []
    greatest = torch.finfo(TO_TORCH[dtype]).max if dtype.is_float else 0
    return [-greatest, greatest] if dtype.is_float else [*dtype.limits]


def is_in_range(number: float, dtype: torch.dtype) -> bool:
    """Return whether torch converts a number to a dtype without the error that it overflows.

    Negative integers wrap around in unsigned dtypes if their magnitude fits; every number is a
    bool.
    """
    if dtype is torch.bool or dtype.is_complex:
        return True
    if dtype.is_floating_point:
        return not isfinite(number) or abs(number) <= torch.finfo(dtype).max
    info = torch.iinfo(dtype)
    least = info.min if isinstance(number, float) else info.min or -info.max
    return isfinite(number) and least <= number <= info.max
