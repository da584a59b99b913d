"""Loads and stores: contiguous, spread, strided, masked, atomic."""

from attrs import evolve, frozen

from gyrator_codegen import Access
from gyrator_codegen_cpp.addresses import address
from gyrator_codegen_cpp.dtypes import STORAGE, lane_type
from gyrator_codegen_cpp.loops import Span
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Load, Store, StoreMode
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, linear
from gyrator_ir.types import DType

_COMBINE = {
    StoreMode.ADD: "gy_add",
    StoreMode.MUL: "gy_mul",
    StoreMode.MIN: "gy_minimum",
    StoreMode.MAX: "gy_maximum",
}


@frozen
class _Run:
    """Consecutive elements, one a lane: how they are read and written."""

    pointer: str
    test: str | None
    """Of whether any of them is accessed, where that is one value."""
    only: str
    """What names, and tells a prelude's function, the lanes in use: `mask` or `n`, or nothing."""
    lanes: str

    def read(self, zero: str) -> str:
        """Return a vector of them; `zero` where a mask is not set."""
        other = f", {zero}" if self.only == "_mask" else ""
        return f"gy_vload{self.only}({self.pointer}{self.lanes}{other})"

    def write(self, value: str) -> str:
        """Return the statement that stores a vector."""
        test = "" if self.test is None else f"if ({self.test}) "
        return f"{test}gy_store{self.only}({self.pointer}, {value}{self.lanes});"


def _run_of(scope: Scope, s: Load | Store) -> _Run:
    pointer = address(scope, s.buffer, s.index)
    if s.mask is not None and scope.value(s.mask).varying:
        return _Run(pointer, None, "_mask", f", {scope.live_mask(s.mask)}")
    test = None if s.mask is None else scope.value(s.mask).text
    if scope.live is not None:
        return _Run(pointer, test, "_n", f", {scope.live}")
    return _Run(pointer, test, "", "")


def load(scope: Scope, s: Load) -> None:
    """Write a load, as few and as wide accesses as its address allows."""
    dtype = scope.frame.storage[s.buffer]
    zero = scope.zero(dtype, varying=True)
    varying_mask = s.mask is not None and scope.value(s.mask).varying
    access = scope.access(s.index)
    if s.buffer in scope.frame.local_rows:
        text = f"gy_vload({_local_row(scope, s)})"
    elif access.kind is Access.UNIFORM:
        _load_uniform(scope, s)
        return
    elif access.kind is Access.UNIT:
        run = _run_of(scope, s)
        text = run.read(zero)
        if run.test is not None:
            text = f"{run.test} ? {text} : {zero}"
    elif access.kind is Access.STRIDED and scope.live is None and not varying_mask:
        pointer = address(scope, s.buffer, s.index)
        text = f"gy_vload_strided({pointer}, {scope.index(access.stride)})"
        if s.mask is not None:
            text = f"{scope.value(s.mask).text} ? {text} : {zero}"
    else:
        text = _gathered(scope, s, dtype)
    scope.define(s.name, text, dtype, varying=True)


def _local_row(scope: Scope, s: Load | Store) -> str:
    return f"{scope.frame.pointers[s.buffer]} + GY_LANES*({scope.index(s.index)})"


def _load_uniform(scope: Scope, s: Load) -> None:
    dtype = scope.frame.storage[s.buffer]
    text, zero = f"gy_sload({address(scope, s.buffer, s.index)})", scope.zero(dtype, varying=False)
    varying = s.mask is not None and scope.value(s.mask).varying
    if s.mask is not None:
        test = f"gy_any({scope.live_mask(s.mask)})" if varying else scope.value(s.mask).text
        text = f"{test} ? {text} : {zero}"
    if varying:
        zeros = scope.zero(dtype, varying=True)
        one = f"gy_vsplat((s{lane_type(dtype)})({text}))"
        text = f"gy_select({scope.operand(str(s.mask), True)}, {one}, {zeros})"
    scope.define(s.name, text, dtype, varying)


def _vector_index(scope: Scope, e: Expr) -> tuple[str, str] | None:
    """Return (uniform offset, `i64` vector) that add up to an address, if it is linear in the
    symbols that differ from lane to lane."""
    assert scope.lanes is not None
    symbols = sorted(scope.varying & e.free_symbols, key=lambda t: t.name)
    split = linear(e, [*symbols, scope.lanes.symbol]) if symbols else None
    if split is None:
        return None
    parts = []
    for symbol, factor in split[0].items():
        if factor is ZERO:
            continue
        lane_symbol = symbol is scope.lanes.symbol
        text = f"gy_viota({scope.index(symbol)})" if lane_symbol else symbol.name
        if factor is not ONE:
            text = f"gy_mul({text}, gy_vsplat((si64)({scope.index(factor)})))"
        parts.append(text)
    total = parts[0]
    for part in parts[1:]:
        total = f"gy_add({total}, {part})"
    return scope.index(split[1]), total


def _gathered(scope: Scope, s: Load, dtype: DType) -> str:
    """Return the text of elements each lane of which has an address of its own."""
    vector = _vector_index(scope, s.index)
    if vector is not None:
        given = f"{scope.frame.pointers[s.buffer]} + {vector[0]}, {vector[1]}"
        mask = scope.live_mask(s.mask)
        if mask is None:
            return f"gy_gather({given})"
        return f"gy_gather_mask({given}, {mask}, {scope.zero(dtype, varying=True)})"
    array = scope.frame.names.take(f"{s.name}_lanes")
    scope.line(f"s{lane_type(dtype)} {array}[GY_LANES] = {{}};")
    pointer = address(scope, s.buffer, s.index, by_lane=True)
    test = _lane_test(scope, s.mask)
    scope.line(f"{scope.each_lane} {test}{array}[lane] = gy_sload({pointer});")
    return f"gy_vload({array})"


def _lane_test(scope: Scope, mask: str | None) -> str:
    return "" if mask is None else f"if ({scope.one_lane(mask)}) "


def store(scope: Scope, s: Store) -> None:
    """Write a store, or a store that combines with what is there."""
    stored = scope.value(s.value)
    dtype = scope.frame.storage[s.buffer]
    if stored.exact is not None and stored.dtype is dtype:
        scope = scope.nested()
        scope.env[s.value] = evolve(stored, text=stored.exact)
    if s.buffer in scope.frame.local_rows:
        pointer, value = _local_row(scope, s), scope.operand(s.value, varying=True)
        if s.mask is not None:
            mask = scope.operand(s.mask, varying=True)
            value = f"gy_select({mask}, {value}, gy_vload({pointer}))"
        scope.line(f"gy_store({pointer}, {value});")
    elif scope.lanes is None:
        pointer = address(scope, s.buffer, s.index)
        text = _store_one(scope, s, pointer, scope.value(s.value).text)
        scope.line(_lane_test(scope, s.mask) + text)
    elif scope.access(s.index).kind is not Access.UNIT:
        _store_lanes(scope, s)
    elif s.mode is StoreMode.SET:
        scope.line(_run_of(scope, s).write(scope.operand(s.value, varying=True)))
    elif dtype is DType.BOOL:
        _store_lanes(scope, s)
    elif s.buffer in scope.frame.tiled.atomic:
        with scope.block("if (shared) {"):
            _store_lanes(scope.nested(), s)
        with scope.block("else {"):
            _combine_vector(scope.nested(), s)
    else:
        _combine_vector(scope, s)


def _combine_vector(scope: Scope, s: Store) -> None:
    run = _run_of(scope, s)
    there = run.read(scope.zero(scope.frame.storage[s.buffer], varying=True))
    value = scope.operand(s.value, varying=True)
    scope.line(run.write(f"{_COMBINE[s.mode]}({there}, {value})"))


def _store_lanes(scope: Scope, s: Store) -> None:
    one = scope.one_lane(s.value)
    test = _lane_test(scope, s.mask)
    # A uniform address may still name a symbol of the lanes' loop below a quotient.
    pointer = address(scope, s.buffer, s.index, by_lane=True)
    scope.line(f"{scope.each_lane} {test}{{ {_store_one(scope, s, pointer, one)} }}")


def _store_one(scope: Scope, s: Store, pointer: str, value: str) -> str:
    if s.mode is StoreMode.SET:
        return f"gy_store({pointer}, {value});"
    plain = f"gy_store({pointer}, {_COMBINE[s.mode]}(gy_sload({pointer}), {value}));"
    if s.buffer not in scope.frame.tiled.atomic:
        return plain
    return f"if (shared) gy_atomic_{s.mode.value}({pointer}, {value}); else {plain}"


def clear(scope: Scope, s: Store, symbol: Sym, span: Span) -> None:
    """Write a store of zeros to consecutive elements over `span` of `symbol`, by the C library,
    which knows the machine's best way."""
    at = scope.index(s.index, **{symbol.name: span.low})
    element = STORAGE[scope.frame.storage[s.buffer]]
    count = f"({span.high} - {span.low}) * (si64)sizeof({element})"
    pointer = scope.frame.pointers[s.buffer]
    scope.line(f"if ({span.high} > {span.low}) __builtin_memset({pointer} + {at}, 0, {count});")
