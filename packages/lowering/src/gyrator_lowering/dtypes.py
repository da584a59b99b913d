"""torch's dtypes and devices, and eager's type promotion, in the names of the IR."""

from types import MappingProxyType

import torch

from gyrator_ir.types import HOST, Device, DType

FROM_TORCH: MappingProxyType[torch.dtype, DType] = MappingProxyType(
    {
        torch.float64: DType.F64,
        torch.float32: DType.F32,
        torch.float16: DType.F16,
        torch.bfloat16: DType.BF16,
        torch.float8_e4m3fn: DType.F8E4M3,
        torch.float8_e5m2: DType.F8E5M2,
        torch.int64: DType.I64,
        torch.int32: DType.I32,
        torch.int16: DType.I16,
        torch.int8: DType.I8,
        torch.uint64: DType.U64,
        torch.uint32: DType.U32,
        torch.uint16: DType.U16,
        torch.uint8: DType.U8,
        torch.bool: DType.BOOL,
        torch.complex64: DType.C64,
        torch.complex128: DType.C128,
    }
)
"""The element types that the IR knows; a tensor of another type stays in ATen."""

TO_TORCH: MappingProxyType[DType, torch.dtype] = MappingProxyType(
    {ours: theirs for theirs, ours in FROM_TORCH.items()}
)


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
