"""Tracing: a rule's Python function runs once on symbolic values, which record a body."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from itertools import chain
from operator import and_
from typing import Any, Union, final

from gyrator_ir.body.nodes import (
    Bind,
    Check,
    Const,
    IndexValue,
    Let,
    Load,
    Statement,
    Store,
    StoreMode,
)
from gyrator_ir.body.ops import OPS, Typing
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.expr import ZERO, Expr, Sym, SymKind, floordiv, mod, sum_of
from gyrator_ir.expr import Const as ConstExpr
from gyrator_ir.types import DType
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.torch_bridge.dtypes import SATURATES

Number = Union[bool, int, float, "ScalarValue"]
_PARTS = ConstExpr(2)
Operand = Union["Value", Number]


class TraceError(GyratorError):
    """A rule traced an invalid body: a bug in the rule."""


def _wrong(message: str) -> TraceError:
    return TraceError.of("GY-LOWER-003", message, help="correct the lowering rule named above")


def _binary(row: str, swapped: bool = False) -> Callable[["Value", Operand], "Value"]:
    """Return the operator that applies a row of the op table, perhaps to its operands swapped."""

    def apply(self: "Value", other: Operand) -> "Value":
        return self.ops.let(row, other, self) if swapped else self.ops.let(row, self, other)

    return apply


@final
class Value:
    """A scalar in a traced body. Operators work as on Python numbers.

    The other operand is a value of the same dtype or a Python number. Narrow floats are cast to
    `f32` for arithmetic.
    """

    __slots__ = ("dtype", "name", "ops")

    def __init__(self, ops: "Tracer", name: str, dtype: DType) -> None:
        self.ops = ops
        self.name = name
        self.dtype = dtype

    __add__ = __radd__ = _binary("add")
    __sub__, __rsub__ = _binary("sub"), _binary("sub", swapped=True)
    __mul__ = __rmul__ = _binary("mul")
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", swapped=True)
    __lt__, __le__ = _binary("lt"), _binary("le")
    __gt__, __ge__ = _binary("gt"), _binary("ge")
    __and__, __or__, __xor__ = _binary("bit_and"), _binary("bit_or"), _binary("bit_xor")

    def __neg__(self) -> "Value":
        return self.ops.let("neg", self)

    def __invert__(self) -> "Value":
        return self.ops.let("bit_not", self)


def _is_narrowed(value: Any, number: Any) -> bool:
    """Return whether a Python float is `f32` here because its device has no `f64`."""
    python = isinstance(number, ScalarValue) and number.dtype is DType.F64
    return python and value.dtype is DType.F32


def _traced(row: str, swapped: bool = False) -> Callable[["ScalarValue", Any], Any]:
    """Return the operator that traces a row of the op table, perhaps on its operands swapped."""

    def apply(self: "ScalarValue", other: Any) -> Any:
        if not isinstance(other, (bool, int, float, ScalarValue)):
            return NotImplemented
        operands = (other, self) if swapped else (self, other)

        def trace(ops: Tracer) -> Value:
            values: list[Any] = [
                n.trace(ops) if isinstance(n, ScalarValue) else n for n in operands
            ]
            narrowed = any(map(_is_narrowed, values, operands))
            real = DType.F32 if narrowed else DType.F64
            return ops.let(row, *[ops.number(v, real) for v in values])

        return ScalarValue(DType.F64, trace)

    return apply


@frozen(eq=False)
class ScalarValue:
    """A symbolic float or bool, traced in each body that uses it, as `dtype`.

    Python arithmetic on it is traced too, in Python's type `f64`, or in `f32` for devices without
    `f64`.
    """

    dtype: DType
    trace: Callable[["Tracer"], Value]

    __add__, __radd__ = _traced("add"), _traced("add", swapped=True)
    __sub__, __rsub__ = _traced("sub"), _traced("sub", swapped=True)
    __mul__, __rmul__ = _traced("mul"), _traced("mul", swapped=True)
    __truediv__ = _traced("div")

    def __neg__(self) -> Any:
        return self * -1.0


Index = Sequence[Expr]


def address(value: TensorValue, index: Index) -> Expr:
    """Return the linear offset of a view's element, from the start of its buffer."""
    terms: list[Expr | int] = [value.offset]
    for stride, i in zip(value.strides, index, strict=True):
        if i is not ZERO:
            terms.append(stride * i)
    return sum_of(terms) if len(terms) > 1 else value.offset


def broadcast_index(value: TensorValue, index: Index) -> tuple[Expr, ...]:
    """Return the index into `value` for an index of the shape that it is broadcast to."""
    tail = index[len(index) - len(value.shape) :]
    return tuple(
        ZERO if type(size) is ConstExpr and size.value == 1 else i
        for size, i in zip(value.shape, tail, strict=True)
    )


def conjunction(mask: Value | None, conditions: Iterable[Value | None]) -> Value | None:
    """Return whether `mask` and all conditions hold; None stands for true."""
    operands = (c for c in chain((mask,), conditions) if c is not None)
    first = next(operands, None)
    return None if first is None else reduce(and_, operands, first)


@final
class Tracer:
    """Records one body. Every row of the op table is a method: `ops.exp(a)`, `ops.add(a, 1.0)`.

    Equal statements are emitted once. `body` holds the statements in order.
    """

    __slots__ = ("_binds", "_count", "_memo", "body", "reads_empty_view")

    def __init__(self) -> None:
        self.body: list[Statement] = []
        self.reads_empty_view = False
        """Whether the body reads an element of an empty view."""
        self._memo: dict[Any, Value] = {}
        self._binds = 0
        self._count = 0

    def __getattr__(self, op: str) -> Callable[..., Value]:
        if op not in OPS:
            raise AttributeError(f"the op table has no row {op!r}")
        return partial(self.let, op)

    def let(self, op: str, *operands: Operand) -> Value:
        """Apply a row of the op table. Python numbers take the dtype of the other operands.

        Raises:
            TraceError: GY-LOWER-003, if the operands' dtypes do not fit the row.
        """
        typing = OPS[op].typing
        if typing is Typing.SELECT:
            cond, *rest = operands
            a, b = self._same(rest, narrow=True)
            if not isinstance(cond, Value):
                cond = self.const(cond, DType.BOOL)
            return self._emit(op, (cond, a, b), a.dtype)
        if typing is Typing.RANDOM:
            args = tuple(o if isinstance(o, Value) else self.const(o, DType.I64) for o in operands)
            return self._emit(op, args, DType.I64 if op == "randint" else DType.F32)
        if typing is Typing.EXPONENT:
            base, power = operands
            (value,) = self._same([base])
            if not isinstance(power, Value):
                power = self.const(power, DType.I32)
            return self._emit(op, (value, power), value.dtype)
        values = self._same(operands)
        boolean = typing in (Typing.COMPARE, Typing.PREDICATE)
        return self._emit(op, values, DType.BOOL if boolean else values[0].dtype)

    def _same(self, operands: Sequence[Operand], narrow: bool = False) -> tuple[Value, ...]:
        dtypes = {o.dtype for o in operands if isinstance(o, Value)}
        if len(dtypes) == 1:
            (dtype,) = dtypes
            if narrow and all(isinstance(o, Value) for o in operands):
                return tuple(operands)  # type: ignore[arg-type]
        else:
            if not dtypes:
                raise _wrong("an op was applied to Python numbers alone")
            wide = {d.compute for d in dtypes}
            if len(wide) != 1:
                names = ", ".join(sorted(dtypes))
                raise _wrong(f"operands of different types without a cast: {names}")
            (dtype,) = wide
        dtype = dtype.compute
        return tuple(
            self.cast(o, dtype) if isinstance(o, Value) else self.const(o, dtype) for o in operands
        )

    def _emit(self, op: str, args: tuple[Value, ...], dtype: DType) -> Value:
        names = tuple(a.name for a in args)
        key = (op, names, dtype)
        value = self._memo.get(key)
        if value is None:
            value = self._memo[key] = self._value(dtype)
            self.body.append(Let(value.name, op, names, dtype))
        return value

    def _value(self, dtype: DType) -> Value:
        name = f"v{self._count}"
        self._count += 1
        return Value(self, name, dtype)

    def number(self, operand: "Value | bool | int | float", dtype: DType) -> Value:
        """Return a value cast to a dtype, or a constant of that dtype."""
        return (
            self.cast(operand, dtype) if isinstance(operand, Value) else self.const(operand, dtype)
        )

    def const(self, number: Number, dtype: DType) -> Value:
        """Return a constant of a dtype; narrow floats are rounded from `f32`."""
        if isinstance(number, ScalarValue):
            return self.cast(number.trace(self), dtype)
        if dtype.is_narrow_float:
            return self.cast(self.const(number, DType.F32), dtype)
        if dtype is DType.BOOL:
            number = bool(number)
        elif dtype.is_float:
            number = float(number)
        elif isinstance(number, float) and not number.is_integer():
            raise _wrong(f"the constant {number} is not of type {dtype}")
        else:
            number = dtype.wrap(int(number))
        key = ("const", repr(number), dtype)
        value = self._memo.get(key)
        if value is None:
            value = self._memo[key] = self._value(dtype)
            self.body.append(Const(value.name, number, dtype))
        return value

    def cast(self, value: Value, dtype: DType) -> Value:
        """Convert by value, as eager does. Emits nothing if the dtype is the same."""
        if value.dtype is dtype:
            return value
        if dtype is DType.F8E4M3 and not SATURATES:
            wide = self.cast(value, DType.F32)
            value = self.let("where", self.gt(self.abs(wide), 464.0), float("nan"), wide)
        return self._emit("cast", (value,), dtype)

    def bitcast(self, value: Value, dtype: DType) -> Value:
        """Reinterpret the bits as another type of the same size."""
        return value if value.dtype is dtype else self._emit("bitcast", (value,), dtype)

    def wide(self, value: Value) -> Value:
        """Cast a value to the dtype of its arithmetic."""
        return self.cast(value, value.dtype.compute)

    def index(self, expr: Expr | int, dtype: DType = DType.I64) -> Value:
        """Return an index expression as a value."""
        if isinstance(expr, int):
            return self.const(expr, dtype)
        if type(expr) is ConstExpr:
            return self.const(expr.value, dtype)
        key = ("index", expr, dtype)
        value = self._memo.get(key)
        if value is None:
            value = self._memo[key] = self._value(dtype)
            self.body.append(IndexValue(value.name, expr, dtype))
        return value

    def bind(
        self,
        value: Value,
        size: Expr,
        *,
        wrap: bool = False,
        check: bool | Check = True,
        mask: Value | None = None,
    ) -> Expr:
        """Convert an integer to an index in [0, `size`): see `gyrator_ir.body.nodes.Bind`."""
        value = self.cast(value, DType.I64)
        key = ("bind", value.name, size, wrap, check, None if mask is None else mask.name)
        bound = self._memo.get(key)
        if bound is None:
            symbol = Sym(f"t{self._binds}", SymKind.INDIRECT)
            self._binds += 1
            bound = self._memo[key] = symbol  # type: ignore[assignment]
            name = None if mask is None else mask.name
            self.body.append(Bind(symbol, value.name, size, wrap, check, name))
        return bound  # type: ignore[return-value]

    def load(self, tensor: TensorValue, index: Index, mask: Value | None = None) -> Value:
        """Read one element of a view, or 0 if `mask` is false."""
        flat = address(tensor, index)
        self.reads_empty_view = self.reads_empty_view or (mask is None and ZERO in tensor.shape)
        if tensor.planes is None:
            return self.bitcast(self._load(tensor.buffer, flat, tensor.stored, mask), tensor.dtype)
        plane_offset, which = floordiv(flat, _PARTS), mod(flat, _PARTS)
        if type(which) is ConstExpr:
            value = self._load(tensor.planes[which.value], plane_offset, tensor.stored, mask)
        else:
            parts = (
                self._load(plane, plane_offset, tensor.stored, mask) for plane in tensor.planes
            )
            value = self.let("where", self.eq(self.index(which), 0), *parts)
        return self.bitcast(value, tensor.dtype)

    def _load(self, buffer: str, flat: Expr, dtype: DType, mask: Value | None) -> Value:
        key = ("load", buffer, flat, None if mask is None else mask.name)
        value = self._memo.get(key)
        if value is None:
            value = self._memo[key] = self._value(dtype)
            name = None if mask is None else mask.name
            self.body.append(Load(value.name, buffer, flat, name))
        return value

    def get(self, tensor: TensorValue, index: Index) -> Value:
        """Read a view at an index of the shape that it is broadcast to."""
        return self.load(tensor, broadcast_index(tensor, index))

    def masked_load(
        self, tensor: TensorValue, index: Index, mask: Value | None, other: Number = 0
    ) -> Value:
        """Read one element, or `other` if `mask` is false."""
        value = self.load(tensor, index, mask)
        return value if mask is None or other == 0 else self.let("where", mask, value, other)

    def store(
        self,
        tensor: TensorValue,
        index: Index,
        value: Value,
        mode: StoreMode = StoreMode.SET,
        mask: Value | None = None,
    ) -> None:
        """Write one element of a view, cast to its dtype."""
        value = self.bitcast(self.cast(value, tensor.dtype), tensor.stored)
        name = None if mask is None else mask.name
        self.body.append(Store(tensor.buffer, address(tensor, index), value.name, mode, name))


At = Callable[[Tracer, Index], Value]
"""Computes the value at an index."""
