"""Check whether kernels compute an op with eager's bits (`numerics="bitwise"`).

Moving, comparing, selecting and converting values have only one possible result, and so has a
single correctly rounded operation. Transcendental functions differ between libraries, sums of
floats depend on the order of their terms, and ATen's compiler may contract the products and sums of
a longer formula (`addcmul`, `lerp`, the gradient of `tanh`). Ops that depend on any of these are
calls of ATen, unless `rules.exact` has a rule for them.
"""

from collections.abc import Iterable, Sequence

from gyrator_ir.body.nodes import Let, ReduceKind, ScanKind
from gyrator_ir.body.ops import OPS, Numerics
from gyrator_ir.loop.nodes import LoopOperation, Operation, Reduction, Scan, Sort
from gyrator_ir.types import DType

_BASIC = frozenset(
    """
    add sub rsub mul div reciprocal pow leaky_relu leaky_relu_backward _prelu_kernel
    """.split()
)
"""Ops, in every overload, that ATen computes as a single operation on floats."""

_FORMULAS = frozenset(
    """
    addcdiv hardsigmoid hardsigmoid_backward hardswish hardswish_backward native_dropout_backward
    _prelu_kernel_backward sigmoid_backward
    """.split()
)
"""Ops of several float operations which ATen computes in the same order, none of which can be
contracted."""

_ROUNDED_IN_HALF = frozenset({"sigmoid_backward"})
"""Formulas of which ATen rounds every step to `float16`, and kernels only the result."""

_ROUNDING = frozenset({
    ReduceKind.SUM, ReduceKind.PROD, ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX, ReduceKind.DOT,
    ScanKind.SUM, ScanKind.PROD, ScanKind.LOGSUMEXP,
})  # fmt: skip
"""Reductions and scans that round at each step if they are over floats."""

_ATEN_ROUNDS_DIFFERENTLY = frozenset({"sqrt", "fma", "fmod", "remainder"})
"""Rows of the op table that are correctly rounded although ATen's are not, or not in all of its
kernels."""


def why_not_bitwise(name: str, operations: Sequence[Operation]) -> str:
    """Return the reason why an op's kernels may give other bits than ATen, or an empty string.

    Args:
        name: the overload, as `aten.add.Tensor`.
        operations: the operations that its rule emitted.
    """
    rounded, op = 0, name.split(".")[1]
    for s in _lets(operations):
        row = OPS[s.op]
        if s.dtype is DType.F16 and op in _ROUNDED_IN_HALF:
            return "its formula in float16"
        if not s.dtype.is_float or s.op == "cast":
            continue
        if (
            row.numerics not in (Numerics.EXACT, Numerics.ROUNDED)
            or s.op in _ATEN_ROUNDS_DIFFERENTLY
        ):
            return f"the function {s.op!r}"
        rounded += row.numerics is Numerics.ROUNDED
    if rounded > (op in _BASIC) and op not in _FORMULAS:
        return "its formula"
    return _order(operations)


def _lets(operations: Iterable[Operation]) -> Iterable[Let]:
    for operation in operations:
        if isinstance(operation, LoopOperation):
            yield from (s for s in operation.body if isinstance(s, Let))


def _order(operations: Iterable[Operation]) -> str:
    """Return the part of the operations that depends on an order in which ATen may differ."""
    for operation in operations:
        match operation:
            case Reduction(reduce=step) | Scan(scan=step):
                if step.dtype.is_float and step.kind in _ROUNDING:
                    return f"a {step.kind.value} of floats"
            case Sort(sort=step) if not step.stable:
                return "an order of equal elements"
    return ""
