"""Element types and devices, named as the text form names them."""

from enum import StrEnum
from math import inf
from types import NoneType

from attrs import field

from gyrator_ir.checks import exactly
from gyrator_ir.define import frozen


class DType(StrEnum):
    """An element type. The value is its name in the text form."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2FNUZ = "f8e5m2fnuz"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    BOOL = "bool"
    C64 = "c64"
    C128 = "c128"

    @property
    def full_name(self) -> str:
        """Its name in PyTorch, NumPy and `ml_dtypes`: `float32`, `float8_e4m3fn`."""
        return _FULL_NAMES[self]

    @property
    def size(self) -> int:
        """Size of one element in bytes."""
        return _SIZES[self]

    @property
    def is_float(self) -> bool:
        """True for real floating-point types."""
        return self in _FLOATS

    @property
    def is_complex(self) -> bool:
        """True for complex types; kernels access their real and imaginary parts separately."""
        return self in _PARTS

    @property
    def part(self) -> "DType":
        """The type of the real and imaginary parts of a complex type; any other type itself."""
        return _PARTS.get(self, self)

    @property
    def is_int(self) -> bool:
        """True for integer types; bool is not one."""
        return self in _INTS

    @property
    def is_signed(self) -> bool:
        """True for types that can represent negative values."""
        return self not in (DType.U8, DType.U16, DType.U32, DType.U64, DType.BOOL)

    @property
    def limits(self) -> tuple[int | float, int | float]:
        """The least and the greatest value of a real type: infinities for floats."""
        if self is DType.BOOL:
            return False, True
        if self.is_float:
            return -inf, inf
        values = 1 << (8 * self.size - self.is_signed)
        return -values if self.is_signed else 0, values - 1

    def wrap(self, value: int) -> int:
        """Return an integer wrapped to the range of an integer type, in two's complement."""
        bits = 8 * self.size
        value &= (1 << bits) - 1
        return value - (1 << bits) if self.is_signed and value >> (bits - 1) else value

    @property
    def is_narrow_float(self) -> bool:
        """True for 8-bit and 16-bit floats, on which kernels only compute after a cast to `f32`."""
        return self in _NARROW

    @property
    def compute(self) -> "DType":
        """The type used for arithmetic: `f32` for narrow floats, else the type itself."""
        return DType.F32 if self in _NARROW else self


_FULL_NAMES = {
    DType.F64: "float64", DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16",
    DType.F8E4M3: "float8_e4m3fn", DType.F8E5M2: "float8_e5m2",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz", DType.F8E5M2FNUZ: "float8_e5m2fnuz",
    DType.I64: "int64", DType.I32: "int32", DType.I16: "int16", DType.I8: "int8",
    DType.U64: "uint64", DType.U32: "uint32", DType.U16: "uint16", DType.U8: "uint8",
    DType.BOOL: "bool", DType.C64: "complex64", DType.C128: "complex128",
}  # fmt: skip
_SIZES = {
    DType.F64: 8, DType.F32: 4, DType.F16: 2, DType.BF16: 2,
    DType.F8E4M3: 1, DType.F8E5M2: 1, DType.F8E4M3FNUZ: 1, DType.F8E5M2FNUZ: 1,
    DType.I64: 8, DType.I32: 4, DType.I16: 2, DType.I8: 1,
    DType.U64: 8, DType.U32: 4, DType.U16: 2, DType.U8: 1,
    DType.BOOL: 1, DType.C64: 8, DType.C128: 16,
}  # fmt: skip
BYTE_FLOATS = (DType.F8E4M3, DType.F8E5M2, DType.F8E4M3FNUZ, DType.F8E5M2FNUZ)
"""8-bit floats."""
_NARROW = frozenset({DType.F16, DType.BF16, *BYTE_FLOATS})
_FLOATS = _NARROW | {DType.F32, DType.F64}
_PARTS = {DType.C64: DType.F32, DType.C128: DType.F64}
_INTS = frozenset(
    {DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8}
)


HOST = "cpu"
"""The host's device type in torch."""


@frozen
class Device:
    """`cpu`, `cuda:1`: a device type as torch spells it, with an index if there may be several."""

    type: str = field(validator=exactly(str))
    index: int | None = field(default=None, validator=exactly(int, NoneType))

    @property
    def is_host(self) -> bool:
        """True for the host, which needs no device guard, stream or index."""
        return self.type == HOST

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"
