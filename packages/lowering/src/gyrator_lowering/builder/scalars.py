"""Symbolic scalars: sizes, and floats and booleans that the kernels which use them compute."""

import operator
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import and_, or_
from typing import Any

import sympy
import torch
from attrs import evolve
from torch.fx import Node

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import (
    And,
    Cond,
    Const,
    Expr,
    Le,
    Lt,
    Sym,
    SymKind,
    eq,
    floordiv,
    le,
    mod,
    negate,
)
from gyrator_ir.expr.sympy_bridge import cond_from_sympy
from gyrator_ir.loop.nodes import AssertCond, Input, ScalarRead, TensorInput
from gyrator_ir.modes import Failure, Numerics
from gyrator_ir.types import HOST, Device, DType
from gyrator_lowering.builder.program import LoopBuilder, each
from gyrator_lowering.builder.trace import ScalarValue, Tracer, Value
from gyrator_lowering.builder.values import Spec
from gyrator_lowering.torch_bridge.graphs import fake_of
from gyrator_lowering.torch_bridge.symbols import ROUNDINGS

_UNARY = {
    "OpaqueUnaryFn_sqrt": "sqrt", "OpaqueUnaryFn_exp": "exp", "OpaqueUnaryFn_log": "log",
    "OpaqueUnaryFn_sin": "sin", "OpaqueUnaryFn_cos": "cos", "OpaqueUnaryFn_tanh": "tanh",
    "OpaqueUnaryFn_log2": "log2", "OpaqueUnaryFn_sinh": "sinh", "OpaqueUnaryFn_cosh": "cosh",
}  # fmt: skip
_RELATIONS = {
    "Equality": "eq", "Unequality": "ne", "LessThan": "le", "StrictLessThan": "lt",
    "GreaterThan": "ge", "StrictGreaterThan": "gt",
}  # fmt: skip
_BINARY = {"FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "PowByNatural": "pow"}
_LEAST = -(1 << 63)
_NAN = _LEAST + 2
"""No float rounds to it."""
_MOST = (1 << 63) - 1
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
_INDEXED = {
    torch.ops.aten.select.int: (2, 1), torch.ops.aten.select_scatter.default: (3, 1),
    torch.ops.aten.slice.Tensor: (2, 0), torch.ops.aten.slice_scatter.default: (3, 0),
}  # fmt: skip
"""Ops that take an index: its position among the arguments, after that of its axis, and by how much
the largest index is below the size of the axis."""


def scalar_of(b: LoopBuilder, fake: Any, leaves: Mapping[Any, ScalarValue]) -> ScalarValue:
    """Return a `SymFloat` or `SymBool` as a value that is traced in the bodies that use it.

    It is computed in `f64`, or in `f32` on devices without `f64`. `leaves` has the values of
    symbols that were read from tensors.
    """
    expression = fake.node.expr
    if isinstance(fake, torch.SymBool):
        return ScalarValue(DType.BOOL, lambda ops: _bool(b, ops, expression, leaves, _real(b)))

    def trace(ops: Tracer) -> Value:
        return _float(b, ops, expression, leaves, _real(b))

    if not expression.free_symbols and expression.is_number:
        constant = float(expression)
        return ScalarValue(DType.F64, lambda ops: ops.const(constant, _real(b)))
    return ScalarValue(DType.F64, trace)


def _real(b: LoopBuilder) -> DType:
    """Return the dtype of Python floats in the kernels of the current node's device."""
    fakes = (f for f in each(b.node.meta.get("val")) if isinstance(f, torch.Tensor))
    targets = (b.targets[f.device.type] for f in fakes if f.device.type in b.targets)
    has_f64 = all(DType.F64 in t.capabilities.dtypes for t in targets)
    return DType.F64 if has_f64 or b.options.numerics is Numerics.BITWISE else DType.F32


def read_size(
    b: LoopBuilder, symbol: Sym, value: sympy.Basic, leaves: Mapping[Any, ScalarValue]
) -> None:
    """Compute a size that is a rounded float on the host, and bind the symbol to it.

    The program raises Python's exceptions: ValueError for NaN, and OverflowError for infinity,
    which stands for any other float of more than 64 bits.
    """

    def body(ops: Tracer, _: object) -> Value:
        unrounded = _float(b, ops, value.args[0], leaves, DType.F64)
        rounded = ops.let(ROUNDINGS[type(value).__name__], unrounded)
        fits = ops.lt(ops.abs(rounded), ops.const(2.0**63, DType.F64))  # false for NaN
        beyond = ops.where(
            ops.eq(rounded, rounded), ops.const(_LEAST, DType.I64), ops.const(_NAN, DType.I64)
        )
        return ops.where(fits, ops.cast(rounded, DType.I64), beyond)

    if HOST not in b.targets:
        raise _unknown(b, "size", value)
    buffer = b.pointwise(body, Spec(DType.I64, Device(HOST), (), ()))
    b.operations.append(ScalarRead(b.op_name(), buffer.ref, symbol, b.origin))
    half = floordiv(symbol, Const(2))  # comparisons of which do not exceed 64 bits
    for converted, error, what in (
        (negate(eq(half, _NAN // 2)), Failure.VALUE, "NaN"),
        (le(_LEAST // 2 + 1, half), Failure.OVERFLOW, "infinity, or of more than 64 bits,"),
    ):
        message = f"cannot convert float {what} to integer"
        b.operations.append(AssertCond(b.op_name(), converted, message, b.origin, error=error))


def _bool(
    b: LoopBuilder, ops: Tracer, e: sympy.Basic, leaves: Mapping[Any, ScalarValue], real: DType
) -> Value:
    if e in leaves:
        return ops.cast(leaves[e].trace(ops), DType.BOOL)
    if e in (sympy.true, sympy.false):
        return ops.const(e == sympy.true, DType.BOOL)
    name = type(e).__name__
    if name in _RELATIONS:
        left, right = (_float(b, ops, a, leaves, real) for a in e.args)
        return ops.let(_RELATIONS[name], left, right)
    parts = [_bool(b, ops, a, leaves, real) for a in e.args]
    if name == "Not":
        return ~parts[0]
    if name in ("And", "Or"):
        return reduce(and_ if name == "And" else or_, parts)
    raise _unknown(b, "condition", e)


def _unknown(b: LoopBuilder, kind: str, e: sympy.Basic) -> UnsupportedError:
    return b.unsupported(
        "GY-LOWER-008",
        f"the run-time {kind} {e} cannot be computed in a kernel",
        help="PyTorch runs the op; compute on the tensor, before the number is read",
    )


def _float(
    b: LoopBuilder, ops: Tracer, e: sympy.Basic, leaves: Mapping[Any, ScalarValue], real: DType
) -> Value:
    leaf = leaves.get(e)
    if leaf is not None:
        return ops.cast(leaf.trace(ops), real)
    if e.is_number:
        return ops.const(float(e), real)  # type: ignore[arg-type]
    if getattr(e, "is_integer", False):
        try:
            return ops.cast(ops.index(b.symbols.expression(e)), real)
        except UnsupportedError:
            if not e.args:
                raise
    name = type(e).__name__
    args = [_float(b, ops, a, leaves, real) for a in e.args]
    if name in ("ToFloat", "Identity"):
        return args[0]
    if name in _UNARY:
        return ops.let(_UNARY[name], args[0])
    if name in _BINARY:
        return ops.let(_BINARY[name], args[0], args[1])
    if name in ("Add", "Mul", "Max", "Min"):
        row = {"Add": "add", "Mul": "mul", "Max": "maximum", "Min": "minimum"}[name]
        total = args[0]
        for value in args[1:]:
            total = ops.let(row, total, value)
        return total
    if name == "Pow":
        return ops.pow(args[0], args[1])
    raise _unknown(b, "float", e)


def _distances(condition: Cond) -> list[Expr]:
    """Return what must not be negative for a conjunction of comparisons to hold; empty for other
    conditions."""
    parts = condition.args if isinstance(condition, And) else (condition,)
    if not all(isinstance(part, (Le, Lt)) for part in parts):
        return []
    return [p.b - p.a - int(isinstance(p, Lt)) for p in parts if isinstance(p, (Le, Lt))]


@frozen
class SymbolicScalars:
    """Lowers the nodes of a graph whose results are scalars."""

    b: LoopBuilder
    env: Mapping[Node, Any]
    """The values of lowered nodes."""

    def compute(self, begin: int, inputs: Iterable[Input]) -> None:
        """Compute pending sizes that are rounded floats, before the operation at index `begin`."""
        b = self.b
        input_sizes = {
            size
            for tensor in inputs
            if isinstance(tensor, TensorInput)
            for size in tensor.buffer.shape
            if isinstance(size, Sym)
        }
        later = b.operations[begin:]
        del b.operations[begin:]
        leaves = {
            node.meta["val"].node.expr: value
            for node, value in self.env.items()
            if isinstance(value, ScalarValue) and isinstance(node.meta["val"], torch.SymFloat)
        }

        def compute(symbol: Sym, value: Any) -> None:
            b.symbols.translate_within(value)
            while b.symbols.pending:
                compute(*b.symbols.pending.popitem())
            if symbol not in input_sizes:
                read_size(b, symbol, value, leaves)

        while b.symbols.pending:
            compute(*b.symbols.pending.popitem())
        b.operations.extend(
            evolve(o, name=f"op{len(b.operations) + k}") for k, o in enumerate(later)
        )

    def reads(self, op: torch._ops.OpOverload, fake: Any) -> bool:
        """Return whether an op returns a scalar that is known only after it ran."""
        if op in _READS:
            return True
        if not isinstance(fake, torch.SymInt):
            return False
        size = self.b.symbols.size(fake)
        return (
            isinstance(size, Sym)
            and size.kind is SymKind.UNBACKED
            and size not in self.b.bound_symbols
        )

    def assertion(self, node: Node) -> None:
        """Check a condition on sizes when the program runs."""
        condition, message = node.args[:2]
        condition_value: Any = fake_of(condition)
        if isinstance(condition_value, (bool, int)):
            if not condition_value:
                raise self.b.unsupported(
                    "GY-LOWER-010",
                    f"the graph asserts: {message}",
                    help="the assertion is known to be false: correct the model or its inputs",
                )
            return
        if self.b.symbols.defined & condition_value.node.expr.free_symbols:
            return  # about the offset of a slice, which is clamped to the tensor
        checked = cond_from_sympy(condition_value.node.expr)
        error = Failure.INDEX if self._bounds_an_index(condition, checked) else Failure.RUNTIME
        self.b.operations.append(
            AssertCond(self.b.op_name(), checked, str(message), self.b.origin, error=error)
        )

    def _bounds_an_index(self, node: Any, condition: Cond) -> bool:
        """Return whether a condition is what an op asks of an index read from a tensor, for which
        eager raises IndexError.

        A user may assert the same upper bound, but hardly -n as the lower one.
        """
        distances = set(_distances(condition))
        if not distances or not any(
            s.kind is SymKind.UNBACKED for d in distances for s in d.free_symbols
        ):
            return False
        for index, size in self._indices_of(node):
            position = self.b.symbols.size(fake_of(index))
            least, most = position + size[0], size[0] - size[1] - position
            asserted = distances.union(
                *(
                    _distances(cond_from_sympy(test.node.expr))
                    for test in (user.meta.get("val") for user in index.users)
                    if isinstance(test, torch.SymBool)
                )
            )
            if distances <= {least, most} and least in asserted:
                return True
        return False

    def _indices_of(self, condition: Any) -> Iterator[tuple[Node, tuple[Expr, int]]]:
        """Yield the scalars of a condition that an op takes as an index, with the size of the axis
        and by how much the largest index is below it."""
        waiting, reached = [condition], {condition}
        while waiting:
            node = waiting.pop()
            for user in node.users:
                at, below = _INDEXED.get(user.target, (0, 0))
                if at and len(user.args) > at and user.args[at] is node:
                    sizes = fake_of(user.args[0]).shape
                    yield node, (self.b.symbols.size(sizes[user.args[at - 1]]), below)
            inputs = {n for n in node.all_input_nodes if not isinstance(fake_of(n), torch.Tensor)}
            waiting += inputs - reached
            reached |= inputs

    def division(self, node: Node) -> None:
        """Check a division by an unbacked size on the host, where computing it raises
        ZeroDivisionError."""
        numbers = fake_of(node.args)
        if not all(isinstance(n, (int, torch.SymInt)) for n in numbers):
            return
        dividend, divisor = (self.b.symbols.size(n) for n in numbers)
        if any(s.kind is SymKind.UNBACKED for s in divisor.free_symbols):
            divided = floordiv if node.target is operator.floordiv else mod
            fits, message = le(divided(dividend, divisor), _MOST), "a quotient exceeds 64 bits"
            self.b.operations.append(
                AssertCond(self.b.op_name(), fits, message, self.b.origin, error=Failure.OVERFLOW)
            )

    def scalar(self, node: Node, fake: Any) -> Any:
        """Return a scalar: a constant, a size, or a value that is traced in the bodies that use
        it."""
        if isinstance(fake, (bool, float)):
            return fake
        if isinstance(fake, (int, torch.SymInt)):
            return self.b.symbols.size(fake)
        leaves = {
            a.meta["val"].node.expr: self.env[a]
            for a in node.all_input_nodes
            if isinstance(self.env[a], ScalarValue) and hasattr(a.meta["val"], "node")
        }
        return scalar_of(self.b, fake, leaves)
