"""Emission of straight-line statements: loads, ops, checked indices and stores."""

from gyrator_codegen_llvm.code import GROUP, Code, Value
from gyrator_codegen_llvm.dtypes import STORAGE, literal
from gyrator_codegen_llvm.ops import EMITTERS, cast, loaded, stored
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Statement, Store, StoreMode
from gyrator_ir.types import DType

_COMBINE = {
    StoreMode.ADD: "add", StoreMode.MUL: "mul", StoreMode.MIN: "minimum", StoreMode.MAX: "maximum",
}  # fmt: skip
_COMBINE_BOOL = {
    StoreMode.ADD: "bit_or", StoreMode.MUL: "bit_and",
    StoreMode.MIN: "bit_and", StoreMode.MAX: "bit_or",
}  # fmt: skip


def statement(code: Code, s: Statement) -> None:
    """Emit a statement."""
    match s:
        case Load():
            _load(code, s)
        case Let(name, op, args, dtype):
            operands = [code.value(a) for a in args]
            code.define(name, EMITTERS[op](code, operands, dtype), dtype)
        case Const(name, value, dtype):
            code.define(name, literal(value, dtype), dtype)
            code.constants[name] = code.values[name]
        case IndexValue(name, e, dtype):
            code.define(name, cast(code, Value(code.index(e), DType.I64), dtype), dtype)
        case Bind():
            _bind(code, s)
        case Store():
            _store(code, s)


def _load(code: Code, s: Load) -> None:
    dtype = code.kernel.storage[s.buffer]
    word, place = STORAGE[dtype], code.address(s.buffer, s.index)
    text = f"load {word}, ptr {place}{GROUP}"
    if s.mask is None:
        element = code.op(text, s.name)
    else:
        with code.when(code.value(s.mask).text) as (before, inside):
            element = code.op(text, s.name)
        zero = "0" if word.startswith("i") else "0.0"
        element = code.op(f"phi {word} [ {element}, %{inside} ], [ {zero}, %{before} ]", s.name)
    code.define(s.name, loaded(code, element, dtype), dtype)


def _bind(code: Code, s: Bind) -> None:
    text = cast(code, code.value(s.value), DType.I64)
    mask = None if s.mask is None else code.value(s.mask).text
    if mask is not None:
        text = code.op(f"select i1 {mask}, i64 {text}, i64 0")
    size = code.index(s.size)
    if s.wrap:
        negative = code.op(f"icmp slt i64 {text}, 0")
        wrapped = code.op(f"add i64 {text}, {size}")
        text = code.op(f"select i1 {negative}, i64 {wrapped}, i64 {text}")
    if s.check:
        # As unsigned numbers, negative ones are not below the size either.
        bad = code.op(f"icmp uge i64 {text}, {size}")
        if mask is not None:
            bad = code.op(f"and i1 {bad}, {mask}")
        code.fail_if(bad, code.checks[s.check].code)
    code.bind(s.symbol, text)


def _store(code: Code, s: Store) -> None:
    dtype = code.kernel.storage[s.buffer]
    value, place = code.value(s.value), code.address(s.buffer, s.index)
    if s.mask is None:
        _store_at(code, s, value, place, dtype)
    else:
        with code.when(code.value(s.mask).text):
            _store_at(code, s, value, place, dtype)


def _store_at(code: Code, s: Store, value: Value, place: str, dtype: DType) -> None:
    word = STORAGE[dtype]
    if s.mode is not StoreMode.SET:
        old = loaded(code, code.op(f"load {word}, ptr {place}{GROUP}"), dtype)
        combine = (_COMBINE_BOOL if dtype is DType.BOOL else _COMBINE)[s.mode]
        lane = dtype.compute
        text = EMITTERS[combine](code, [Value(old, lane), Value(value.text, lane)], lane)
        value = Value(text, lane)
    code.writer.line(f"store {word} {stored(code, value, dtype)}, ptr {place}{GROUP}")
