"""Running reductions (scans) along a dimension."""

from typing import Any

from gyrator_ir.body.nodes import ScanKind
from gyrator_ir.types import DType
from gyrator_lowering.builder.capabilities import is_within
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder


def running(kind: ScanKind) -> Rule:
    """Return the rule of `cumsum`, `cumprod` or `logcumsumexp`."""

    def rule(b: LoopBuilder, x: TensorValue, dim: int, **_: Any) -> TensorValue:
        out = b.out
        if x.ndim == 0:
            return b.copy(x, out)
        if not _scans(b, x, dim % x.ndim, kind is not ScanKind.LOGSUMEXP):
            raise FallbackToAten
        dtype = out.dtype.compute
        narrow = dtype is not out.dtype
        raw = b.buffer(Spec(dtype, out.device, out.shape, out.strides) if narrow else out)
        b.scan(kind, lambda ops, index: ops.load(x, index), x.shape, dim % x.ndim, [raw], dtype)
        return b.copy(raw, out) if narrow else raw

    return rule


def _scans(b: LoopBuilder, x: TensorValue, dim: int, shared: bool) -> bool:
    """Return whether the device's kernels scan a dimension of `x`; `shared` if in parts too."""
    capabilities = b.targets[x.device.type].capabilities
    return capabilities.scans and (shared or is_within(capabilities.scan_extent, x.shape[dim]))


def running_extreme(kind: ScanKind, position: ScanKind) -> Rule:
    """Return the rule of `cummax` or `cummin`: values and indices."""

    def rule(b: LoopBuilder, x: TensorValue, dim: int) -> Any:
        values, indices = b.wanted()
        if x.ndim == 0 or x.dtype is DType.BOOL or not _scans(b, x, dim % x.ndim, False):
            raise FallbackToAten
        dtype = x.dtype.compute
        d = dim % x.ndim
        raw = at = None
        if values is not None:
            raw = b.buffer(Spec(dtype, values.device, values.shape, values.strides))
        if indices is not None:
            at = b.buffer(indices)
        into = [buffer for buffer in (raw, at) if buffer is not None]
        step = kind if at is None else position
        b.scan(step, lambda ops, index: ops.load(x, index), x.shape, d, into, dtype)
        if raw is not None and raw.dtype is not x.dtype:
            return b.copy(raw, values), at
        return raw, at

    return rule


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten.cumsum.default")(running(ScanKind.SUM))
    table.rule("aten.cumprod.default")(running(ScanKind.PROD))
    table.rule("aten.logcumsumexp.default")(running(ScanKind.LOGSUMEXP))
    table.rule("aten.cummax.default")(running_extreme(ScanKind.MAX, ScanKind.ARGMAX))
    table.rule("aten.cummin.default")(running_extreme(ScanKind.MIN, ScanKind.ARGMIN))
