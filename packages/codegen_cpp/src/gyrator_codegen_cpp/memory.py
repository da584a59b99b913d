"""Loads and stores: contiguous, spread, strided, masked, atomic."""

from attrs import evolve

from gyrator_codegen import Access
from gyrator_codegen_cpp.dtypes import STORAGE, lane_type
from gyrator_codegen_cpp.loops import Span
from gyrator_codegen_cpp.scope import Code
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, linear
from gyrator_ir.loop.body import Load, Store, StoreMode
from gyrator_ir.types import DType


def load(code: Code, s: Load) -> None:
    """Write a load, as few and as wide accesses as its address allows."""
    dtype = code.frame.storage[s.buffer]
    if s.name in code.ready:
        code.define(s.name, code.ready[s.name], dtype, varying=True)
        return
    if s.buffer in code.frame.local_rows:
        pointer = f"{code.frame.pointers[s.buffer]} + GY_LANES*({code.index(s.index)})"
        code.define(s.name, f"gy_vload({pointer})", dtype, varying=True)
        return
    access = code.access(s.index)
    varying_mask = s.mask is not None and code.env[s.mask].varying
    if access.kind is Access.UNIFORM:
        pointer = code.address(s.buffer, s.index, access.kind)
        _load_uniform(code, s, pointer)
    elif access.kind is Access.UNIT:
        pointer = code.address(s.buffer, s.index, access.kind)
        if varying_mask:
            mask = code.live_mask(s.mask)
            text = f"gy_vload_mask({pointer}, {mask}, {code.zero(dtype, varying=True)})"
        else:
            live = code.live
            text = f"gy_vload({pointer})" if live is None else f"gy_vload_n({pointer}, {live})"
            text = _if_masked(code, s, text)
        code.define(s.name, text, dtype, varying=True)
    elif access.kind is Access.STRIDED and code.live is None and not varying_mask:
        pointer = code.address(s.buffer, s.index, Access.UNIT)
        text = f"gy_vload_strided({pointer}, {code.index(access.stride)})"
        code.define(s.name, _if_masked(code, s, text), dtype, varying=True)
    else:
        _load_lanes(code, s, access.kind)


def _if_masked(code: Code, s: Load, text: str) -> str:
    if s.mask is None:
        return text
    zero = code.zero(code.frame.storage[s.buffer], varying=True)
    return f"{code.env[s.mask].text} ? {text} : {zero}"


def _load_uniform(code: Code, s: Load, pointer: str) -> None:
    dtype = code.frame.storage[s.buffer]
    zero = code.zero(dtype, varying=False)
    if s.mask is None:
        code.define(s.name, f"gy_sload({pointer})", dtype, varying=False)
        return
    mask = code.env[s.mask]
    if not mask.varying:
        text = f"{mask.text} ? gy_sload({pointer}) : {zero}"
        code.define(s.name, text, dtype, varying=False)
        return
    one = f"gy_any({code.live_mask(s.mask)}) ? gy_sload({pointer}) : {zero}"
    zeros = code.zero(dtype, varying=True)
    text = f"gy_select({mask.text}, gy_vsplat((s{lane_type(dtype)})({one})), {zeros})"
    code.define(s.name, text, dtype, varying=True)


def _vector_index(code: Code, e: Expr) -> tuple[str, str] | None:
    """Return (uniform offset, `i64` vector) that add up to an address, if it is linear in the
    symbols that differ from lane to lane."""
    assert code.lanes is not None
    symbols = sorted(code.varying & e.free_symbols, key=lambda t: t.name)
    if not symbols:
        return None
    split = linear(e, [*symbols, code.lanes.symbol])
    if split is None:
        return None
    parts = []
    for symbol, factor in split[0].items():
        if factor is ZERO:
            continue
        lane_symbol = symbol is code.lanes.symbol
        text = f"gy_viota({code.index(symbol)})" if lane_symbol else symbol.name
        if factor is not ONE:
            text = f"gy_mul({text}, gy_vsplat((si64)({code.index(factor)})))"
        parts.append(text)
    total = parts[0]
    for part in parts[1:]:
        total = f"gy_add({total}, {part})"
    return code.index(split[1]), total


def _load_lanes(code: Code, s: Load, kind: Access) -> None:
    dtype = code.frame.storage[s.buffer]
    vector = _vector_index(code, s.index)
    if vector is not None:
        pointer, mask = f"{code.frame.pointers[s.buffer]} + {vector[0]}", code.live_mask(s.mask)
        text = f"gy_gather({pointer}, {vector[1]})"
        if mask is not None:
            zero = code.zero(dtype, varying=True)
            text = f"gy_gather_mask({pointer}, {vector[1]}, {mask}, {zero})"
        code.define(s.name, text, dtype, varying=True)
        return
    array = code.frame.names.take(f"{s.name}_lanes")
    code.line(f"s{lane_type(dtype)} {array}[GY_LANES] = {{}};")
    pointer = code.address(s.buffer, s.index, kind, "lane")
    test = _lane_test(code, s.mask)
    limit = code.live or "GY_LANES"
    code.line(
        f"for (si64 lane = 0; lane < {limit}; lane++) {test}{array}[lane] = gy_sload({pointer});"
    )
    code.define(s.name, f"gy_vload({array})", dtype, varying=True)


def _lane_test(code: Code, mask: str | None) -> str:
    if mask is None:
        return ""
    if code.env[mask].varying:
        return f"if ({code.spill(mask)}[lane]) "
    return f"if ({code.env[mask].text}) "


def store(code: Code, s: Store) -> None:
    """Write a store, or a store that combines with what is there."""
    stored = code.env[s.value]
    if stored.exact is not None and stored.dtype is code.frame.storage[s.buffer]:
        code = code.nested()
        code.env[s.value] = evolve(stored, text=stored.exact)
    if s.buffer in code.frame.local_rows:
        pointer = f"{code.frame.pointers[s.buffer]} + GY_LANES*({code.index(s.index)})"
        value = code.operand(s.value, varying=True)
        if s.mask is not None:
            value = f"gy_select({code.operand(s.mask, varying=True)}, {value}, gy_vload({pointer}))"
        code.line(f"gy_store({pointer}, {value});")
        return
    if code.lanes is None:
        test = "" if s.mask is None else f"if ({code.env[s.mask].text}) "
        pointer = code.address(s.buffer, s.index, Access.UNIFORM)
        code.line(test + _store_one(code, s, pointer, code.env[s.value].text))
        return
    kind = code.access(s.index).kind
    varying_mask = s.mask is not None and code.env[s.mask].varying
    if kind is Access.UNIT and s.mode is not StoreMode.SET:
        _fold_vector(code, s)
        return
    if kind is not Access.UNIT:
        _store_lanes(code, s, kind)
        return
    pointer = code.address(s.buffer, s.index, kind)
    value = code.operand(s.value, varying=True)
    if varying_mask:
        code.line(f"gy_store_mask({pointer}, {value}, {code.live_mask(s.mask)});")
        return
    test = "" if s.mask is None else f"if ({code.env[s.mask].text}) "
    text = f"gy_store({pointer}, {value})"
    if code.live is not None:
        text = f"gy_store_n({pointer}, {value}, {code.live})"
    code.line(f"{test}{text};")


def clear(code: Code, s: Store, symbol: Sym, span: Span) -> None:
    """Write a store of zeros to consecutive elements over `span` of `symbol`, by the C library,
    which knows the machine's best way."""
    at = code.index(s.index, **{symbol.name: span.low})
    element = STORAGE[code.frame.storage[s.buffer]]
    count = f"({span.high} - {span.low}) * (si64)sizeof({element})"
    pointer = code.frame.pointers[s.buffer]
    code.line(f"if ({span.high} > {span.low}) __builtin_memset({pointer} + {at}, 0, {count});")


def _fold_vector(code: Code, s: Store) -> None:
    """Write a fold into consecutive elements: as vectors where no other thread meets them."""
    if code.frame.storage[s.buffer] is DType.BOOL:
        _store_lanes(code, s, Access.UNIT)
        return
    if s.buffer in code.frame.tiled.atomic:
        with code.block("if (shared) {"):
            _store_lanes(code.nested(), s, Access.UNIT)
        with code.block("else {"):
            _fold_alone(code.nested(), s)
        return
    _fold_alone(code, s)


def _fold_alone(code: Code, s: Store) -> None:
    pointer = code.address(s.buffer, s.index, Access.UNIT)
    value, fold = code.operand(s.value, varying=True), _FOLD[s.mode]
    if s.mask is not None and code.env[s.mask].varying:
        mask = code.live_mask(s.mask)
        zero = code.zero(code.frame.storage[s.buffer], varying=True)
        there = f"gy_vload_mask({pointer}, {mask}, {zero})"
        code.line(f"gy_store_mask({pointer}, {fold}({there}, {value}), {mask});")
        return
    test = "" if s.mask is None else f"if ({code.env[s.mask].text}) "
    if code.live is None:
        code.line(f"{test}gy_store({pointer}, {fold}(gy_vload({pointer}), {value}));")
        return
    there = f"gy_vload_n({pointer}, {code.live})"
    code.line(f"{test}gy_store_n({pointer}, {fold}({there}, {value}), {code.live});")


def _store_lanes(code: Code, s: Store, kind: Access) -> None:
    value = code.env[s.value]
    one = code.spill(s.value) + "[lane]" if value.varying else value.text
    test = _lane_test(code, s.mask)
    # A uniform address may still name a symbol of the lanes' loop below a quotient.
    pointer = code.address(s.buffer, s.index, Access.LANES, "lane")
    text = _store_one(code, s, pointer, one)
    code.line(f"for (si64 lane = 0; lane < {code.live or 'GY_LANES'}; lane++) {test}{{ {text} }}")


_FOLD = {
    StoreMode.ADD: "gy_add",
    StoreMode.MUL: "gy_mul",
    StoreMode.MIN: "gy_minimum",
    StoreMode.MAX: "gy_maximum",
}


def _store_one(code: Code, s: Store, pointer: str, value: str) -> str:
    if s.mode is StoreMode.SET:
        return f"gy_store({pointer}, {value});"
    plain = f"gy_store({pointer}, {_FOLD[s.mode]}(gy_sload({pointer}), {value}));"
    if s.buffer not in code.frame.tiled.atomic:
        return plain
    return f"if (shared) gy_atomic_{s.mode.value}({pointer}, {value}); else {plain}"
