"""Emission of straight-line statements: loads, ops, checked indices and stores."""

from gyrator_codegen_metal.code import Code
from gyrator_codegen_metal.dtypes import cast, literal
from gyrator_codegen_metal.ops import EMITTERS
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Statement, Store, StoreMode
from gyrator_ir.types import DType


def statement(code: Code, s: Statement) -> None:
    """Emit a statement."""
    match s:
        case Load():
            _load(code, s)
        case Let(name, op, args, dtype):
            operands = [code.values[a] for a in args]
            types = tuple(v.dtype for v in operands)
            code.value(name, EMITTERS[op]([v.text for v in operands], types, dtype), dtype)
        case Const(name, value, dtype):
            code.value(name, literal(value, dtype), dtype)
        case IndexValue(name, e, dtype):
            code.value(name, cast(f"({code.at(e)})", code.tiled.index, dtype), dtype)
        case Bind():
            _bind(code, s)
        case Store():
            _store(code, s)


def _element(code: Code, s: Load | Store) -> str:
    """Return the element that a load or store accesses. Locals are in thread memory."""
    local = s.buffer in {t.name for t in code.kernel.locals}
    at = f"r / {code.lanes}" if local else code.at(s.index)
    return f"{code.names.stable(s.buffer)}[{at}]"


def _load(code: Code, s: Load) -> None:
    if s.buffer in code.dirty and not code.inner:
        code.barrier()
    text, dtype = _element(code, s), code.kernel.storage[s.buffer]
    when = code.condition(s.index, s.mask, False)
    if when:
        text = f"{when} ? {text} : {literal(0, dtype)}"
    code.value(s.name, text, dtype)


def _bind(code: Code, s: Bind) -> None:
    value, w = code.values[s.value], code.writer
    at, size = code.names.stable(s.symbol.name), f"({code.at(s.size)})"
    text = cast(value.text, value.dtype, DType.I64)
    if when := code.condition(None, s.mask, False):
        text = f"{when} ? {text} : 0L"
    # A 64-bit value is checked before it is narrowed.
    wide = at if code.tiled.index is DType.I64 else code.names.take(f"{at}_wide")
    w.line(f"long {wide} = {text};")
    if s.wrap:
        w.line(f"{wide} = {wide} < 0 ? {wide} + {size} : {wide};")
    if s.check:
        number = code.checks[s.check].code
        outside = f"{wide} < 0 || {wide} >= {size}"
        outside = f"{when} && ({outside})" if when else outside
        with w.block(f"if ({outside}) {{"):
            w.line(f"atomic_store_explicit(failed, {number}, memory_order_relaxed);")
            w.lines("sound = false;", f"{wide} = 0;")
        code.bound.add(s.symbol)
    if wide != at:
        w.line(f"const int {at} = int({wide});")


def _store(code: Code, s: Store) -> None:
    text, value = _element(code, s), code.values[s.value].text
    line = f"{text} = {value};"
    if s.mode is not StoreMode.SET:
        line = f"gy_atomic_{s.mode.value}(&{text}, {value});"
    when = code.condition(s.index, s.mask, True)
    code.writer.line(f"if ({when}) {line}" if when else line)
    code.dirty.add(s.buffer)
