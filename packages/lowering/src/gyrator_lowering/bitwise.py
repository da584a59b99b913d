"""Which ops kernels compute with eager's bits (`numerics="bitwise"`); others are calls of ATen.

Moving, comparing, selecting and converting values have one result, and so has one correctly rounded
operation on them. Functions have as many as there are libraries, sums of floats as many as there
are orders of their terms, and ATen's compiler contracts products and sums of a longer formula
(`addcmul`, `lerp`, the gradient of `tanh`) into one operation where it sees fit.
"""

from collections.abc import Iterable, Sequence

from gyrator_ir.body.nodes import Let, ReduceKind, ScanKind
from gyrator_ir.body.ops import OPS, Numerics
from gyrator_ir.loop.nodes import Operation, Pointwise, Reduction, Scan, Scatter, Sort

_BASIC = frozenset(
    """
    add sub rsub mul div true_divide reciprocal pow square leaky_relu leaky_relu_backward
    _prelu_kernel
    """.split()
)
"""Ops, whatever their overload, that are ATen's where they are one operation on floats."""

_FORMULAS = frozenset(
    """
    addcdiv hardsigmoid hardsigmoid_backward hardswish hardswish_backward native_dropout_backward
    _prelu_kernel_backward
    """.split()
)
"""Ops of several operations on floats that ATen has in this order, no two of which contract."""

_ROUNDING = frozenset({
    ReduceKind.SUM, ReduceKind.PROD, ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX, ReduceKind.DOT,
    ScanKind.SUM, ScanKind.PROD, ScanKind.LOGSUMEXP,
})  # fmt: skip
"""Folds that round at each step where they are of floats."""

_OTHERWISE = frozenset({"sqrt", "fma", "fmod", "remainder"})
"""Rows of the op table that are correctly rounded where ATen's are not, or only by some of its
kernels."""


def other_bits(name: str, operations: Sequence[Operation]) -> str:
    """Return what may give an op's results other bits than ATen's, or an empty string.

    Args:
        name: the overload, as `aten.add.Tensor`.
        operations: what its rule made of it.
    """
    rounded = 0
    for s in _lets(operations):
        row = OPS[s.op]
        if not s.dtype.is_float or s.op == "cast":
            continue
        if row.numerics not in (Numerics.EXACT, Numerics.ROUNDED) or s.op in _OTHERWISE:
            return f"the function {s.op!r}"
        rounded += row.numerics is Numerics.ROUNDED
    op = name.split(".")[1]
    if rounded > (op in _BASIC) and op not in _FORMULAS:
        return "its formula"
    return _order(operations)


def _lets(operations: Iterable[Operation]) -> Iterable[Let]:
    for operation in operations:
        if isinstance(operation, Pointwise | Scatter | Reduction | Scan | Sort):
            yield from (s for s in operation.body if isinstance(s, Let))


def _order(operations: Iterable[Operation]) -> str:
    """Return what of operations depends on an order that ATen may choose otherwise."""
    for operation in operations:
        match operation:
            case Reduction(reduce=step) | Scan(scan=step):
                if step.dtype.is_float and step.kind in _ROUNDING:
                    return f"a {step.kind.value} of floats"
            case Sort(sort=step) if not step.stable:
                return "an order of equal elements"
    return ""
