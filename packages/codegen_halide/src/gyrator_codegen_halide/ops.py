"""Ops and constants as calls of the prelude's functions."""

import math
from collections.abc import Sequence

from gyrator_ir.body.ops import OPS
from gyrator_ir.types import DType

STORAGE = {
    d: (0 if d.is_signed and d.is_int else 2 if d in (DType.F32, DType.F64) else 1)
    for d in DType
    if d.is_int or d in (DType.F64, DType.F32, DType.F16, DType.BF16, DType.BOOL)
}
"""Halide's type code of elements in memory: 0 for int, 1 for uint, 2 for float. Narrow floats are
moved as bits. Other dtypes cannot occur in a kernel."""

LACKING = frozenset({"fma", "fmod", "remainder", "erfinv", "lgamma", "digamma"})
"""Ops that Halide lacks."""
SINGLE = frozenset({"erf", "erfc", "hypot"})
"""Ops that it has only for `f32`."""

_RENAMED = {"abs": "abs_", "round": "round_", "pow": "pow_"}
_CONVERSIONS = frozenset({"cast", "bitcast"})


def has(op: str, dtypes: Sequence[DType]) -> bool:
    """Return whether the prelude supports an op for operands of these dtypes."""
    return op not in LACKING and not (op in SINGLE and DType.F64 in dtypes)


def call(op: str, args: Sequence[str], types: Sequence[DType], dtype: DType) -> str:
    """Return an op as a call of the prelude's function."""
    assert op in OPS, op
    if op in _CONVERSIONS:
        return f'{op}({args[0]}, "{types[0].value}", "{dtype.value}")'
    return f"{_RENAMED.get(op, op)}({', '.join(args)})"


def constant(value: bool | int | float, dtype: DType) -> str:
    """Return a constant of a dtype."""
    if dtype is DType.BOOL:
        return f"const({int(bool(value))}, 'bool')"
    if dtype.is_float:
        return f"const({_float(float(value))}, '{dtype.value}')"
    # Halide treats its argument as a signed 64-bit integer and keeps the low bits.
    number = (dtype if dtype.size < 8 else DType.I64).wrap(int(value))
    return f"const({number}, '{dtype.value}')"


def _float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value}')"
