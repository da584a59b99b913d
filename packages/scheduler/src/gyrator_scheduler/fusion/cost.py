"""What statements cost, by the op table: for choosing between computing again and keeping."""

from gyrator_ir.body.nodes import Bind, Let, Load, ScanStep, SortStep
from gyrator_ir.body.ops import OPS
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_scheduler.access import is_indirect

NEVER = 1 << 30
"""Cost of what must not be computed again."""
CHEAP = 10
"""Up to this cost, a pass over a row computes a value again rather than keep it."""


def statement_cost(s: KernelStatement) -> int:
    """Return the cost of one evaluation, an addition being 1."""
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
