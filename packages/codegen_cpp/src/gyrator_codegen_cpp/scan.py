"""Running reductions: the state of a `ScanStep`, and how an element (or a vector) moves it on.

Sums and products run in `f64`, as eager's do.
"""

from gyrator_codegen import REDUCTION_OF, identity
from gyrator_codegen_cpp.body import index_text
from gyrator_codegen_cpp.ops import cast
from gyrator_codegen_cpp.reduction import merge
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import ScanKind, ScanStep
from gyrator_ir.expr import Expr
from gyrator_ir.types import DType

_WIDE = (ScanKind.SUM, ScanKind.PROD, ScanKind.LOGSUMEXP)
_REACHES = {ScanKind.ARGMIN: "gy_le", ScanKind.ARGMAX: "gy_ge"}


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
        wide = scan.kind in _WIDE and scan.dtype.is_float
        self._dtype = DType.F64 if wide else scan.dtype
        self._acc = scope.frame.names.take(f"{scan.names[0]}_acc")
        self._at = scope.frame.names.take(f"{scan.names[0]}_at")

    def declare(self, scope: Scope) -> None:
        """Write the state's declarations."""
        start = identity(REDUCTION_OF[self._scan.kind], self._dtype)
        text = scope.constant(start, self._dtype, varying=True)
        scope.line(f"{scope.type_of(self._dtype)} {self._acc} = {text};")
        if self._scan.kind in _REACHES:
            scope.line(f"{scope.type_of(DType.I64)} {self._at} = {scope.zero(DType.I64, True)};")

    def update(self, scope: Scope, copy: int) -> None:
        """Write one step, and name its result."""
        scan, kind, acc = self._scan, self._scan.kind, self._acc
        x = cast(scope.operand(scan.args[0], varying=True), scan.dtype, self._dtype)
        if kind in _REACHES:
            place = index_text(scope, self._position, varying=True)
            reaches = f"{_REACHES[kind]}({x}, {acc})"
            scope.line(f"gy_reach({acc}, {self._at}, {x}, {place}, {reaches});")
            scope.define(scan.names[0], self._at, DType.I64, varying=True)
            return
        new = f"gy_log_add({acc}, {x})"
        if kind is not ScanKind.LOGSUMEXP:
            new = merge(REDUCTION_OF[kind], self._dtype, scope.form, acc, x)
        scope.line(f"{acc} = {new};")
        scope.define(scan.names[0], cast(acc, self._dtype, scan.dtype), scan.dtype, varying=True)

    def flush(self, scope: Scope) -> None:
        """Write nothing: scans have no chains."""

    def finish(self, scope: Scope) -> None:
        """Write nothing: each step has named its result."""
