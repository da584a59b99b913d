"""Helpers for formatting C++ text."""

from collections.abc import Iterable, Mapping

from gyrator_ir.expr import CPrinter, Expr, ShapeFacts
from gyrator_ir.types import Device, DType

_DEVICES = frozenset({"cpu", "cuda", "meta", "xpu", "mps"})


class SizePrinter(CPrinter):
    """Formats size expressions over the symbols of a frame, with floor semantics."""

    def __init__(self, facts: ShapeFacts) -> None:
        super().__init__(
            nonnegative=facts.nonnegative_division,
            names=lambda s: f"f.s_{s.name}",
            floor_div="gy::floor_div",
            floor_mod="gy::floor_mod",
            suffix="LL",
        )

    def ints(self, exprs: Iterable[Expr]) -> str:
        """Format a braced list of sizes."""
        return f"{{{', '.join(self(e) for e in exprs)}}}"


def quoted(text: str) -> str:
    """Quote a string as a C literal of its UTF-8 bytes."""
    parts = []
    for byte in text.encode():
        c = chr(byte)
        plain = 32 <= byte < 127 and c not in '"\\?'
        parts.append(c if plain else f"\\{byte:03o}")
    return f'"{"".join(parts)}"'


def dtype(value: DType) -> str:
    """Format libtorch's number of a dtype."""
    return f"aoti_torch_dtype_{value.full_name}()"


def device(value: Device, host_index: int = 0) -> str:
    """Format a `gy::Device`; types for which the ABI has no function are parsed at run time.

    `host_index` is the index of the CPU if `value` has none: ABI functions take 0, while a value
    that must equal the plain `torch.device` has -1.
    """
    if value.type not in _DEVICES:
        return f"gy::device({quoted(str(value))})"
    index = value.index if value.index is not None else (host_index if value.is_host else -1)
    return f"gy::Device{{aoti_torch_device_type_{value.type}(), {index}}}"


def real(value: float) -> str:
    """Format a double exactly."""
    if value != value:
        return '__builtin_nan("")'
    if value in (float("inf"), -float("inf")):
        return "__builtin_inf()" if value > 0 else "-__builtin_inf()"
    return value.hex()


def integer(value: int) -> str:
    """Format an int64."""
    return "INT64_MIN" if value == -(2**63) else f"{value}LL"


def comment(text: str) -> list[str]:
    """Format comment lines, without a backslash at the end, which would continue a line."""
    return [f"// {line.rstrip().rstrip(chr(92))}".rstrip() for line in text.splitlines()]


TYPE_NAMES: Mapping[str, frozenset[str]] = {
    "dtype": frozenset(
        "float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz bfloat16 float16 float32 "
        "float64 uint8 uint16 uint32 uint64 int8 int16 int32 int64 bool complex32 complex64 "
        "complex128".split()
    ),
    "layout": frozenset(
        "strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc _mkldnn jagged".split()
    ),
    "memory_format": frozenset(
        "contiguous_format channels_last channels_last_3d preserve_format".split()
    ),
}
"""The values of a `TypeArg` for which the ABI has a function, by kind."""
