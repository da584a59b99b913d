"""Capabilities that a device's kernels lack: a rule that needs one gives way to a call of ATen."""

from collections.abc import Callable, Iterable

from gyrator_ir.body.nodes import Bind, IndexValue, Let, Load, Statement, Store
from gyrator_ir.body.nodes import Const as Number
from gyrator_ir.body.rewrite import writes
from gyrator_ir.expr import Const, Expr
from gyrator_ir.loop.nodes import LoopOperation, Operation, Reduction, Scan, Sort
from gyrator_ir.loop.uses import mutated_by, statements_of, stores_after
from gyrator_ir.target import Capabilities
from gyrator_ir.types import DType

RANDOM = frozenset({"rand", "randn", "randint"})
"""Rows of the op table that generate random numbers."""
_INTERMEDIATES = frozenset({DType.F64, DType.F32, DType.I64, DType.I32, DType.BOOL})
"""Element types that rules may compute in, whatever their tensors' dtypes."""


def is_complete(capabilities: Capabilities) -> bool:
    """Return whether no capability that `missing_capability` checks is lacking."""
    flags = (capabilities.reductions, capabilities.scans, capabilities.sorts, capabilities.indirect)
    more = (capabilities.device_checks, capabilities.random, capabilities.dtypes >= _INTERMEDIATES)
    return all(flags) and all(more) and not capabilities.ops_lacking


def is_within(most: int, extent: Expr) -> bool:
    """Return whether kernels can loop over `extent`: only constants up to `most`, or anything if
    0."""
    return not most or (isinstance(extent, Const) and extent.value <= most)


def missing_capability(
    operations: Iterable[Operation], capabilities_of: Callable[[str], Capabilities | None]
) -> str:
    """Return the first capability that operations need and a device lacks, or an empty string.

    `capabilities_of` returns the capabilities of the device of a buffer, None for complete ones.
    """
    for operation in operations:
        if not isinstance(operation, LoopOperation):
            continue
        body = (*operation.body, *stores_after(operation))
        target = next((s.buffer for s in reversed(body) if isinstance(s, Store)), None)
        capabilities = None if target is None else capabilities_of(target)
        if capabilities is not None and (lack := _lack(operation, body, capabilities)):
            return lack
    return ""


def accessed_buffers(operation: Operation) -> set[str]:
    """Return the buffers that a kernel reads or writes; none for operations that are not
    kernels."""
    if not isinstance(operation, LoopOperation):
        return set()
    return {s.buffer for s in statements_of(operation) if isinstance(s, Load | Store)}


def written_buffers(operation: Operation) -> set[str]:
    """Return the buffers that an operation writes to, except results that a call allocates."""
    if isinstance(operation, LoopOperation):
        return set(writes(statements_of(operation)))
    return set(mutated_by(operation))


def _lack(operation: Operation, body: tuple[Statement, ...], capabilities: Capabilities) -> str:
    if isinstance(operation, Reduction) and not capabilities.reductions:
        return "reductions"
    if isinstance(operation, Scan) and not capabilities.scans:
        return "scans"
    if isinstance(operation, Sort) and not capabilities.sorts:
        return "sorts"
    for s in body:
        match s:
            case Bind() if not capabilities.indirect:
                return "addresses that depend on values"
            case Bind() if s.check and not capabilities.device_checks:
                return "checks of indices"
            case Let(op=op) if op in RANDOM and not capabilities.random:
                return "random numbers"
            case Let(op=op, dtype=dtype) if op in capabilities.ops_lacking:
                return f"the op {op!r} on {DType(dtype).value}"
            case Let(dtype=dtype) | Number(dtype=dtype) | IndexValue(dtype=dtype) if (
                dtype in _INTERMEDIATES - capabilities.dtypes
            ):
                return f"the element type {dtype.value}"
    return ""
