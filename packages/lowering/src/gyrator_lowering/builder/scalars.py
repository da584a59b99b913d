"""Run-time numbers: sizes, and floats and booleans, which are computed inside the kernels that use
them."""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import and_, or_
from typing import Any

import sympy
import torch
from attrs import evolve, frozen
from torch.fx import Node

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Sym, SymKind, floordiv, le
from gyrator_ir.expr.sympy_bridge import cond_from_sympy
from gyrator_ir.loop.nodes import AssertCond, Input, ScalarRead, TensorInput
from gyrator_ir.modes import Numerics
from gyrator_ir.types import HOST, Device, DType
from gyrator_lowering.builder.program import LoopBuilder, each
from gyrator_lowering.builder.trace import ScalarValue, Tracer, Value
from gyrator_lowering.builder.values import Spec
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
_MOST = (1 << 63) - 1
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


def scalar_of(b: LoopBuilder, fake: Any, leaves: Mapping[Any, ScalarValue]) -> ScalarValue:
    """Return a `SymFloat` or `SymBool` as a value that is traced where it is used: in `f64`, or in
    `f32` on devices whose kernels lack that.

    `leaves` gives the values of symbols that were read from tensors.
    """
    expression = fake.node.expr
    if isinstance(fake, torch.SymBool):
        return ScalarValue(DType.BOOL, lambda ops: _bool(b, ops, expression, leaves, _real(b)))

    def trace(ops: Tracer) -> Value:
        return _float(b, ops, expression, leaves, _real(b))

    if not expression.free_symbols and expression.is_number:
        number = float(expression)
        return ScalarValue(DType.F64, lambda ops: ops.const(number, _real(b)))
    return ScalarValue(DType.F64, trace)


def _real(b: LoopBuilder) -> DType:
    """Return what floats of Python are in the kernels of the current node's device."""
    fakes = (f for f in each(b.node.meta.get("val")) if isinstance(f, torch.Tensor))
    targets = (b.targets[f.device.type] for f in fakes if f.device.type in b.targets)
    known = all(DType.F64 in t.capabilities.dtypes for t in targets)
    return DType.F64 if known or b.options.numerics is Numerics.BITWISE else DType.F32


def read_size(
    b: LoopBuilder, symbol: Sym, value: sympy.Basic, leaves: Mapping[Any, ScalarValue]
) -> None:
    """Compute a size that is a rounded float on the host, and bind the symbol to it."""

    def body(ops: Tracer, _: object) -> Value:
        number = _float(b, ops, value.args[0], leaves, DType.F64)
        return ops.cast(ops.let(ROUNDINGS[type(value).__name__], number), DType.I64)

    if HOST not in b.targets:
        raise _unknown(b, "size", value)
    held = b.pointwise(body, Spec(DType.I64, Device(HOST), (), ()))
    b.operations.append(ScalarRead(b.op_name(), held.ref, symbol, b.origin))


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


def _unknown(b: LoopBuilder, what: str, e: sympy.Basic) -> UnsupportedError:
    return b.unsupported(
        "GY-LOWER-008",
        f"the run-time {what} {e} cannot be computed in a kernel",
        help="PyTorch runs the op; compute on the tensor, before the number is read",
    )


def _float(
    b: LoopBuilder, ops: Tracer, e: sympy.Basic, leaves: Mapping[Any, ScalarValue], real: DType
) -> Value:
    found = leaves.get(e)
    if found is not None:
        return ops.cast(found.trace(ops), real)
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


@frozen
class Numbers:
    """Lowers the nodes of a graph whose results are numbers."""

    b: LoopBuilder
    env: Mapping[Node, Any]
    """What nodes became."""

    def compute(self, place: int, inputs: Iterable[Input]) -> None:
        """Compute, before operation number `place`, the sizes that are rounded floats."""
        b = self.b
        given = {
            size
            for one in inputs
            if isinstance(one, TensorInput)
            for size in one.buffer.shape
            if isinstance(size, Sym)
        }
        later = b.operations[place:]
        del b.operations[place:]
        leaves = {
            node.meta["val"].node.expr: value
            for node, value in self.env.items()
            if isinstance(value, ScalarValue) and isinstance(node.meta["val"], torch.SymFloat)
        }

        def compute(symbol: Sym, value: Any) -> None:
            b.symbols.translate_within(value)
            while b.symbols.pending:
                compute(*b.symbols.pending.popitem())
            if symbol not in given:
                read_size(b, symbol, value, leaves)

        while b.symbols.pending:
            compute(*b.symbols.pending.popitem())
        b.operations.extend(
            evolve(o, name=f"op{len(b.operations) + k}") for k, o in enumerate(later)
        )

    def reads(self, op: torch._ops.OpOverload, fake: Any) -> bool:
        """Whether an op gives a number that is known only once it ran."""
        if op in _READS:
            return True
        if not isinstance(fake, torch.SymInt):
            return False
        size = self.b.symbols.size(fake)
        return isinstance(size, Sym) and size.kind is SymKind.UNBACKED and size not in self.b.known

    def assertion(self, node: Node) -> None:
        """Check a condition on sizes at run time."""
        condition, message = node.args[:2]
        given: Any = condition.meta["val"] if isinstance(condition, Node) else condition
        if isinstance(given, (bool, int)):
            if not given:
                raise self.b.unsupported(
                    "GY-LOWER-010",
                    f"the graph asserts: {message}",
                    help="the assertion is known to be false: correct the model or its inputs",
                )
            return
        if self.b.symbols.defined & given.node.expr.free_symbols:
            return  # about the offset of a slice, which is kept inside of the tensor
        self.b.operations.append(
            AssertCond(
                self.b.op_name(), cond_from_sympy(given.node.expr), str(message), self.b.origin
            )
        )

    def division(self, node: Node) -> None:
        """Divide by a number that is known at run time only where that may raise: on the host."""
        numbers = [n.meta["val"] if isinstance(n, Node) else n for n in node.args]
        if not all(isinstance(n, (int, torch.SymInt)) for n in numbers):
            return
        dividend, divisor = (self.b.symbols.size(n) for n in numbers)
        if any(s.kind is SymKind.UNBACKED for s in divisor.free_symbols):
            any_number = le(floordiv(dividend, divisor), _MOST)
            self.b.operations.append(
                AssertCond(self.b.op_name(), any_number, "division by zero", self.b.origin)
            )

    def scalar(self, node: Node, fake: Any) -> Any:
        """Return a number: known, a size, or a value that is traced where it is used."""
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
