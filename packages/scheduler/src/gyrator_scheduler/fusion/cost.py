"""Cost of statements by the op table, for choosing between recomputing and storing a value."""

from gyrator_ir.body.nodes import Bind, Let, Load, ScanStep, SortStep
from gyrator_ir.body.ops import OPS
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_scheduler.access import is_indirect

NEVER = 1 << 30
"""Cost of statements that must not be recomputed."""
CHEAP = 10
"""Maximum cost at which a later stage recomputes a value instead of loading it."""


def statement_cost(s: KernelStatement) -> int:
    """Return the cost of one evaluation, relative to an addition."""
    match s:
        case Let(op=op):
            return OPS[op].cost
        case Load(index=index):
            return 4 if is_indirect(index) else 1
        case Bind():
            return 2
        case ScanStep() | SortStep():
            return NEVER
        case _:
            return 0
