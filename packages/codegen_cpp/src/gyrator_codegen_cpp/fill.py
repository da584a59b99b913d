"""Zeros over a stretch of memory, by the C library, which knows the machine's best way."""

from gyrator_codegen import lane_slope
from gyrator_codegen_cpp.code import Code
from gyrator_codegen_cpp.loops import Span
from gyrator_codegen_cpp.scalars import STORAGE
from gyrator_ir.expr import ONE, Sym
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.loop.body import Const, Store, StoreMode

_ZEROS = ("0", "0.0", "False")  # minus zero has a bit set


def clears(code: Code, s: KernelStatement, symbol: Sym, span: Span) -> bool:
    """Write a store of zeros to consecutive elements over `span` of `symbol`; False, and nothing,
    where `s` is no such store, or its kernel does more than to fill memory."""
    body = [s for stage in code.frame.kernel.stages for s in stage.body]
    if any(not isinstance(other, Const | Store) for other in body):
        return False
    stored = [other.buffer for other in body if isinstance(other, Store)]
    if len(set(stored)) < len(stored):
        return False
    if not isinstance(s, Store) or s.mode is not StoreMode.SET or s.mask is not None:
        return False
    zeros = {c.name for c in body if isinstance(c, Const) and repr(c.value) in _ZEROS}
    # An affine address only: one that is so within a vector may jump between two.
    if s.value not in zeros or lane_slope(s.index, symbol, 1 << 40) is not ONE:
        return False
    at = code.index(s.index, **{symbol.name: span.low})
    element = STORAGE[code.frame.storage[s.buffer]]
    count = f"({span.high} - {span.low}) * (si64)sizeof({element})"
    pointer = code.frame.pointers[s.buffer]
    code.line(f"if ({span.high} > {span.low}) __builtin_memset({pointer} + {at}, 0, {count});")
    return True
