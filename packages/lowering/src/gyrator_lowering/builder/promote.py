"""Operands of elementwise rules: promotion, broadcasting and scalars."""

from collections.abc import Sequence
from typing import Any

from gyrator_ir.expr import Expr
from gyrator_ir.types import DType
from gyrator_lowering.builder.trace import Index, ScalarValue, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.torch_bridge.dtypes import result_type

Arg = TensorValue | Expr | ScalarValue | bool | int | float


def promoted_dtype(args: Sequence[Any]) -> DType:
    """Return the dtype to which eager promotes the arguments of an elementwise op."""
    tensors: list[DType] = []
    zero_dim: list[DType] = []
    scalars: list[DType] = []
    for arg in args:
        if isinstance(arg, TensorValue):
            (tensors if arg.shape else zero_dim).append(arg.dtype)
        elif isinstance(arg, bool):
            scalars.append(DType.BOOL)
        elif isinstance(arg, (int, Expr)):
            scalars.append(DType.I64)
        elif isinstance(arg, float):
            scalars.append(DType.F32)
        elif isinstance(arg, complex):
            scalars.append(DType.C64)
        elif isinstance(arg, ScalarValue):
            scalars.append(DType.BOOL if arg.dtype is DType.BOOL else DType.F32)
    return result_type(tensors, zero_dim, scalars, DType.F32)


def operand(ops: Tracer, arg: Arg, index: Index, dtype: DType) -> Value:
    """Return an argument at an index of the result, cast to `dtype`, with broadcasting."""
    if isinstance(arg, TensorValue):
        return ops.cast(ops.get(arg, index), dtype)
    if isinstance(arg, Expr):
        return ops.cast(ops.index(arg), dtype)
    return ops.const(arg, dtype)
