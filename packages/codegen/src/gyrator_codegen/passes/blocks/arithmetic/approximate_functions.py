"""`approximate-functions`: approximate `f32` quotients, roots and exponentials that are rounded to
narrower floats.

An accurate one takes a device several times as long as an approximation within a few units in the
last place. In a 16-bit result, such an error is visible only once in thousands of values, as one
unit in the last place.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Const, Let, Load, Reduce, ReduceKind, Store
from gyrator_ir.body.rewrite import used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.modes import EXACT_NUMERICS
from gyrator_ir.tile.nodes import APPROXIMABLE, TiledKernel
from gyrator_ir.types import DType

_RELATIVE = frozenset(("mul", "div", "neg", "abs", "sqrt", "rsqrt"))
"""Ops that preserve the relative error of their operands."""
_SUMS = frozenset((ReduceKind.SUM, ReduceKind.DOT))
"""Reductions whose own rounding errors are about as large as those of approximate terms."""
_LARGEST_F8E4M3 = 448.0  # of the finite values; it has no infinity


@frozen
class ApproximateFunctions(KernelPass):
    """Approximate functions that are cast to a narrower float, possibly after products, quotients
    and the like, or summed over rows by a kernel that stores only narrower floats and integers.

    Exponentials stay accurate beside a sum of the same exponentials, with which they are computed.
    Kernels whose numerics guarantee exact bits are not changed.
    """

    name: ClassVar[str] = "approximate-functions"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.numerics in EXACT_NUMERICS:
            return tiled
        body = kernel.statements
        precise = _precise(kernel)
        summed = any(isinstance(s, Reduce) and s.kind is ReduceKind.ONLINE_SOFTMAX for s in body)
        allowed = APPROXIMABLE - {"exp"} if summed else APPROXIMABLE
        functions = (
            s.name
            for s in body
            if isinstance(s, Let)
            and s.op in allowed
            and s.dtype is DType.F32
            and s.name not in precise
        )
        return evolve(tiled, approximate=tuple(dict.fromkeys(functions)))


def _precise(kernel: Kernel) -> set[str]:
    """Return the values that must be accurate to full `f32` precision."""
    body = kernel.statements
    summed = _narrow(kernel)
    lets = {s.name: s for s in body if isinstance(s, Let)}
    constants = {s.name: s.value for s in body if isinstance(s, Const)}
    narrowed: dict[str, DType] = {}
    bounds: set[str] = set()
    """Comparisons that select NaN for values which the narrower type cannot represent."""
    tolerant = {b.name for b in kernel.locals}
    """Locals that no statement reads as such a value."""
    precise: set[str] = set()
    for s in reversed(body):
        if isinstance(s, Load) and s.name in precise:
            tolerant.discard(s.buffer)
        if isinstance(s, Store) and s.buffer in tolerant:
            precise.update(used(s)[1:])
            continue
        if isinstance(s, Reduce) and s.kind in _SUMS and summed:
            continue
        if isinstance(s, Let) and s.op == "cast" and _is_narrow(s.dtype):
            narrowed[s.args[0]] = s.dtype
            continue
        if isinstance(s, Let) and s.name not in precise:
            if s.op in _RELATIVE or s.name in bounds:
                continue
            if s.name in narrowed and _overflows(s, narrowed[s.name], lets, constants):
                bounds.add(s.args[0])
                continue
        precise.update(used(s))
    return precise


def _overflows(
    s: Let, dtype: DType, lets: Mapping[str, Let], constants: Mapping[str, float]
) -> bool:
    """Return whether `s` replaces values beyond the largest one of `dtype` by NaN, and keeps all
    others."""
    if s.op != "where" or not math.isnan(constants.get(s.args[1], 0.0)):
        return False
    compared = lets.get(s.args[0])
    if compared is None or compared.op != "gt":
        return False
    size = lets.get(compared.args[0])
    bound = constants.get(compared.args[1], 0.0)
    sizes = size is not None and size.op == "abs" and size.args == s.args[2:]
    return sizes and dtype is DType.F8E4M3 and bound > _LARGEST_F8E4M3


def _narrow(kernel: Kernel) -> bool:
    """Return whether the kernel stores only integers and narrower floats than `f32`."""
    stored = {s.buffer for s in kernel.statements if isinstance(s, Store)}
    dtypes = (b.dtype for b in kernel.parameters if b.name in stored)
    return all(_is_narrow(d) or not (d.is_float or d.is_complex) for d in dtypes)


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.size < DType.F32.size
