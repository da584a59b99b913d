"""torch's dtypes and devices, and eager's type promotion, in the names of the IR."""

from types import MappingProxyType

import torch

from gyrator_ir.loop.nodes import TypeArg
from gyrator_ir.types import HOST, Device, DType

TO_TORCH: MappingProxyType[DType, torch.dtype] = MappingProxyType(
    {dtype: getattr(torch, dtype.full_name) for dtype in DType}
)

FROM_TORCH: MappingProxyType[torch.dtype, DType] = MappingProxyType(
    {theirs: ours for ours, theirs in TO_TORCH.items()}
)
"""The element types that the IR knows; a tensor of another type stays in ATen."""

SATURATES = bool(torch.tensor(1e9, device=HOST).to(torch.float8_e4m3fn).float() == 448.0)
"""Whether what is too large for `float8_e4m3fn`, which has no infinity, becomes its largest number
in eager; in torch 2.11 it becomes NaN."""


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
    """Return the type both convert to, as `torch.promote_types`.

    Raises:
        KeyError: where torch has no such type (two different 8-bit floats).
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
    """Return the type that eager computes an elementwise op in, before any op-specific change.

    Tensors with dimensions come before 0-d tensors, which come before Python scalars: a later
    group counts only where its category (bool, integer, float, complex) is higher. `default` is
    the type of a Python float.
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
    """Return what `type_arg` names, or None."""
    if value.kind == "device":
        return torch.device(value.value)
    found = getattr(torch, value.value, None)
    return found if _NAMED.get(type(found)) == value.kind else None
