"""Kernels of narrow integers, whose steps are longer than a vector of 32-bit elements: the C++
compiler packs the elements of a step."""

from gyrator_codegen.analysis import element_types
from gyrator_codegen.lanes import lane_access
from gyrator_ir.body.nodes import Const, Let, Load, Store, StoreMode
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.tile.nodes import Access
from gyrator_ir.types import DType

PACKED = 64
"""Elements of a step: a register of bytes, or as many registers as the processor needs."""
_NARROW = 2  # bytes
_OPS = frozenset(
    "add sub mul neg abs maximum minimum eq ne lt le gt ge bit_and bit_or bit_xor bit_not where "
    "cast".split()
)


def packs(kernel: Kernel, symbol: Sym) -> bool:
    """Return whether compilers pack the elements of a kernel along `symbol`: all are integers of 8
    or 16 bits, or `bool`, at contiguous addresses, and their ops have packed instructions."""
    types = [dtype for _, dtype in element_types(kernel)]
    if kernel.inner or not all(t.size <= _NARROW and (t.is_int or t is DType.BOOL) for t in types):
        return False
    return all(_packs(s, symbol) for s in kernel.statements)


def _packs(s: KernelStatement, symbol: Sym) -> bool:
    match s:
        case Const():
            return True
        case Let(op=op):
            return op in _OPS
        case Load(index=index, mask=None):
            return _access(index, symbol) in (Access.UNIT, Access.UNIFORM)
        case Store(index=index, mask=None, mode=StoreMode.SET):
            return _access(index, symbol) is Access.UNIT
    return False


def _access(index: Expr, symbol: Sym) -> Access:
    return lane_access(index, symbol, PACKED, frozenset()).kind
