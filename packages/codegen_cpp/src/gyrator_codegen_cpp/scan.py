"""Running reductions: the state of a `ScanStep`, and how an element (or a vector) moves it on.

Sums and products run in `f64`, as eager's do.
"""

import math

from gyrator_codegen import REDUCTION_OF, identity
from gyrator_codegen_cpp.body import index_text
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.ops import cast, function
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import ScanKind, ScanStep
from gyrator_ir.expr import Expr
from gyrator_ir.types import DType

_WIDE = (ScanKind.SUM, ScanKind.PROD, ScanKind.LOGSUMEXP)


class Scanner:
    """One `ScanStep` on its way along the scan axis.

    Args:
        scope: the place around the loop; with lanes, each lane is a point of its own.
        scan: what is scanned.
        position: linear position over the inner axes.
    """

    def __init__(self, scope: Scope, scan: ScanStep, position: Expr) -> None:
        self._scan = scan
        self._position = position
        self._vector = scope.lanes is not None
        wide = scan.kind in _WIDE and scan.dtype.is_float
        self._dtype = DType.F64 if wide else scan.dtype
        self._acc = scope.frame.names.take(f"{scan.names[0]}_acc")
        self._at = scope.frame.names.take(f"{scan.names[0]}_at")

    def declare(self, scope: Scope) -> None:
        """Write the state's declarations."""
        start: bool | int | float = identity(REDUCTION_OF[self._scan.kind], self._dtype)
        text = scope.constant(start, self._dtype, self._vector)
        scope.line(f"{scope.type_of(self._dtype)} {self._acc} = {text};")
        if self._scan.kind in (ScanKind.ARGMIN, ScanKind.ARGMAX):
            zero = scope.zero(DType.I64, self._vector)
            scope.line(f"{scope.type_of(DType.I64)} {self._at} = {zero};")

    def step(self, scope: Scope) -> None:
        """Write one step, and name its result."""
        scan, kind, acc = self._scan, self._scan.kind, self._acc
        x = scope.operand(scan.args[0], self._vector)
        if self._dtype is not scan.dtype:
            x = cast(x, scan.dtype, self._dtype)
        match kind:
            case ScanKind.SUM:
                scope.line(f"{acc} = gy_add({acc}, {x});")
            case ScanKind.PROD:
                scope.line(f"{acc} = gy_mul({acc}, {x});")
            case ScanKind.MIN:
                scope.line(f"{acc} = gy_minimum({acc}, {x});")
            case ScanKind.MAX:
                scope.line(f"{acc} = gy_maximum({acc}, {x});")
            case ScanKind.LOGSUMEXP:
                self._log_add(scope, x)
            case _:
                self._position_step(scope, x)
                scope.define(scan.names[0], self._at, DType.I64, self._vector)
                return
        scope.define(scan.names[0], cast(acc, self._dtype, scan.dtype), scan.dtype, self._vector)

    def _log_add(self, scope: Scope, x: str) -> None:
        word = f"{'v' if self._vector else 's'}{lane_type(self._dtype)}"
        infinite = scope.constant(math.inf, self._dtype, self._vector)
        with scope.block("{"):
            scope.line(f"const {word} more = gy_maximum({self._acc}, {x});")
            scope.line(f"const {word} less = gy_minimum({self._acc}, {x});")
            # Two equal infinities have no difference.
            same = f"gy_eq(more, less) & gy_eq(gy_abs(more), {infinite})"
            exp, log1p = function("exp", self._dtype), function("log1p", self._dtype)
            total = f"more + {log1p}({exp}(less - more))"
            scope.line(f"{self._acc} = gy_select({same}, more, {total});")

    def _position_step(self, scope: Scope, x: str) -> None:
        acc, at = self._acc, self._at
        reaches = "gy_le" if self._scan.kind is ScanKind.ARGMIN else "gy_ge"
        mask = f"{'v' if self._vector else 's'}bool"
        with scope.block("{"):
            number = f"gy_eq({acc}, {acc})"
            moves = f"gy_ne({x}, {x}) | ({reaches}({x}, {acc}) & {number})"
            scope.line(f"const {mask} moves = {moves};")
            scope.line(f"{acc} = gy_select(moves, {x}, {acc});")
            place = index_text(scope, self._position, self._vector)
            scope.line(f"{at} = gy_select(moves, {place}, {at});")
