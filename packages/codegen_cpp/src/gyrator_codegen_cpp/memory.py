"""Loads and stores: contiguous, spread, strided, masked, atomic."""

from attrs import evolve

from gyrator_codegen import Access
from gyrator_codegen_cpp.addresses import address
from gyrator_codegen_cpp.dtypes import STORAGE, lane_type
from gyrator_codegen_cpp.loops import Span
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Load, Store, StoreMode
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, linear
from gyrator_ir.types import DType


def load(scope: Scope, s: Load) -> None:
    """Write a load, as few and as wide accesses as its address allows."""
    dtype = scope.frame.storage[s.buffer]
    if s.name in scope.ready:
        scope.define(s.name, scope.ready[s.name], dtype, varying=True)
        return
    if s.buffer in scope.frame.local_rows:
        pointer = f"{scope.frame.pointers[s.buffer]} + GY_LANES*({scope.index(s.index)})"
        scope.define(s.name, f"gy_vload({pointer})", dtype, varying=True)
        return
    access = scope.access(s.index)
    varying_mask = s.mask is not None and scope.env[s.mask].varying
    if access.kind is Access.UNIFORM:
        pointer = address(scope, s.buffer, s.index)
        _load_uniform(scope, s, pointer)
    elif access.kind is Access.UNIT:
        pointer = address(scope, s.buffer, s.index)
        if varying_mask:
            mask = scope.live_mask(s.mask)
            text = f"gy_vload_mask({pointer}, {mask}, {scope.zero(dtype, varying=True)})"
        else:
            live = scope.live
            text = f"gy_vload({pointer})" if live is None else f"gy_vload_n({pointer}, {live})"
            text = _if_masked(scope, s, text)
        scope.define(s.name, text, dtype, varying=True)
    elif access.kind is Access.STRIDED and scope.live is None and not varying_mask:
        pointer = address(scope, s.buffer, s.index)
        text = f"gy_vload_strided({pointer}, {scope.index(access.stride)})"
        scope.define(s.name, _if_masked(scope, s, text), dtype, varying=True)
    else:
        _load_lanes(scope, s)


def _if_masked(scope: Scope, s: Load, text: str) -> str:
    if s.mask is None:
        return text
    zero = scope.zero(scope.frame.storage[s.buffer], varying=True)
    return f"{scope.env[s.mask].text} ? {text} : {zero}"


def _load_uniform(scope: Scope, s: Load, pointer: str) -> None:
    dtype = scope.frame.storage[s.buffer]
    zero = scope.zero(dtype, varying=False)
    if s.mask is None:
        scope.define(s.name, f"gy_sload({pointer})", dtype, varying=False)
        return
    mask = scope.env[s.mask]
    if not mask.varying:
        text = f"{mask.text} ? gy_sload({pointer}) : {zero}"
        scope.define(s.name, text, dtype, varying=False)
        return
    one = f"gy_any({scope.live_mask(s.mask)}) ? gy_sload({pointer}) : {zero}"
    zeros = scope.zero(dtype, varying=True)
    text = f"gy_select({mask.text}, gy_vsplat((s{lane_type(dtype)})({one})), {zeros})"
    scope.define(s.name, text, dtype, varying=True)


def _vector_index(scope: Scope, e: Expr) -> tuple[str, str] | None:
    """Return (uniform offset, `i64` vector) that add up to an address, if it is linear in the
    symbols that differ from lane to lane."""
    assert scope.lanes is not None
    symbols = sorted(scope.varying & e.free_symbols, key=lambda t: t.name)
    if not symbols:
        return None
    split = linear(e, [*symbols, scope.lanes.symbol])
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


def _load_lanes(scope: Scope, s: Load) -> None:
    dtype = scope.frame.storage[s.buffer]
    vector = _vector_index(scope, s.index)
    if vector is not None:
        pointer, mask = f"{scope.frame.pointers[s.buffer]} + {vector[0]}", scope.live_mask(s.mask)
        text = f"gy_gather({pointer}, {vector[1]})"
        if mask is not None:
            zero = scope.zero(dtype, varying=True)
            text = f"gy_gather_mask({pointer}, {vector[1]}, {mask}, {zero})"
        scope.define(s.name, text, dtype, varying=True)
        return
    array = scope.frame.names.take(f"{s.name}_lanes")
    scope.line(f"s{lane_type(dtype)} {array}[GY_LANES] = {{}};")
    pointer = address(scope, s.buffer, s.index, by_lane=True)
    test = _lane_test(scope, s.mask)
    limit = scope.live or "GY_LANES"
    scope.line(
        f"for (si64 lane = 0; lane < {limit}; lane++) {test}{array}[lane] = gy_sload({pointer});"
    )
    scope.define(s.name, f"gy_vload({array})", dtype, varying=True)


def _lane_test(scope: Scope, mask: str | None) -> str:
    if mask is None:
        return ""
    if scope.env[mask].varying:
        return f"if ({scope.spill(mask)}[lane]) "
    return f"if ({scope.env[mask].text}) "


def store(scope: Scope, s: Store) -> None:
    """Write a store, or a store that combines with what is there."""
    stored = scope.env[s.value]
    if stored.exact is not None and stored.dtype is scope.frame.storage[s.buffer]:
        scope = scope.nested()
        scope.env[s.value] = evolve(stored, text=stored.exact)
    if s.buffer in scope.frame.local_rows:
        pointer = f"{scope.frame.pointers[s.buffer]} + GY_LANES*({scope.index(s.index)})"
        value = scope.operand(s.value, varying=True)
        if s.mask is not None:
            value = (
                f"gy_select({scope.operand(s.mask, varying=True)}, {value}, gy_vload({pointer}))"
            )
        scope.line(f"gy_store({pointer}, {value});")
        return
    if scope.lanes is None:
        test = "" if s.mask is None else f"if ({scope.env[s.mask].text}) "
        pointer = address(scope, s.buffer, s.index)
        scope.line(test + _store_one(scope, s, pointer, scope.env[s.value].text))
        return
    kind = scope.access(s.index).kind
    varying_mask = s.mask is not None and scope.env[s.mask].varying
    if kind is Access.UNIT and s.mode is not StoreMode.SET:
        _combine_vector(scope, s)
        return
    if kind is not Access.UNIT:
        _store_lanes(scope, s)
        return
    pointer = address(scope, s.buffer, s.index)
    value = scope.operand(s.value, varying=True)
    if varying_mask:
        scope.line(f"gy_store_mask({pointer}, {value}, {scope.live_mask(s.mask)});")
        return
    test = "" if s.mask is None else f"if ({scope.env[s.mask].text}) "
    text = f"gy_store({pointer}, {value})"
    if scope.live is not None:
        text = f"gy_store_n({pointer}, {value}, {scope.live})"
    scope.line(f"{test}{text};")


def clear(scope: Scope, s: Store, symbol: Sym, span: Span) -> None:
    """Write a store of zeros to consecutive elements over `span` of `symbol`, by the C library,
    which knows the machine's best way."""
    at = scope.index(s.index, **{symbol.name: span.low})
    element = STORAGE[scope.frame.storage[s.buffer]]
    count = f"({span.high} - {span.low}) * (si64)sizeof({element})"
    pointer = scope.frame.pointers[s.buffer]
    scope.line(f"if ({span.high} > {span.low}) __builtin_memset({pointer} + {at}, 0, {count});")


def _combine_vector(scope: Scope, s: Store) -> None:
    """Write a store that combines with consecutive elements: vectors where no thread meets them."""
    if scope.frame.storage[s.buffer] is DType.BOOL:
        _store_lanes(scope, s)
        return
    if s.buffer in scope.frame.tiled.atomic:
        with scope.block("if (shared) {"):
            _store_lanes(scope.nested(), s)
        with scope.block("else {"):
            _combine_alone(scope.nested(), s)
        return
    _combine_alone(scope, s)


def _combine_alone(scope: Scope, s: Store) -> None:
    pointer = address(scope, s.buffer, s.index)
    value, combine = scope.operand(s.value, varying=True), _COMBINE[s.mode]
    if s.mask is not None and scope.env[s.mask].varying:
        mask = scope.live_mask(s.mask)
        zero = scope.zero(scope.frame.storage[s.buffer], varying=True)
        there = f"gy_vload_mask({pointer}, {mask}, {zero})"
        scope.line(f"gy_store_mask({pointer}, {combine}({there}, {value}), {mask});")
        return
    test = "" if s.mask is None else f"if ({scope.env[s.mask].text}) "
    if scope.live is None:
        scope.line(f"{test}gy_store({pointer}, {combine}(gy_vload({pointer}), {value}));")
        return
    there = f"gy_vload_n({pointer}, {scope.live})"
    scope.line(f"{test}gy_store_n({pointer}, {combine}({there}, {value}), {scope.live});")


def _store_lanes(scope: Scope, s: Store) -> None:
    value = scope.env[s.value]
    one = scope.spill(s.value) + "[lane]" if value.varying else value.text
    test = _lane_test(scope, s.mask)
    # A uniform address may still name a symbol of the lanes' loop below a quotient.
    pointer = address(scope, s.buffer, s.index, by_lane=True)
    text = _store_one(scope, s, pointer, one)
    scope.line(f"for (si64 lane = 0; lane < {scope.live or 'GY_LANES'}; lane++) {test}{{ {text} }}")


_COMBINE = {
    StoreMode.ADD: "gy_add",
    StoreMode.MUL: "gy_mul",
    StoreMode.MIN: "gy_minimum",
    StoreMode.MAX: "gy_maximum",
}


def _store_one(scope: Scope, s: Store, pointer: str, value: str) -> str:
    if s.mode is StoreMode.SET:
        return f"gy_store({pointer}, {value});"
    plain = f"gy_store({pointer}, {_COMBINE[s.mode]}(gy_sload({pointer}), {value}));"
    if s.buffer not in scope.frame.tiled.atomic:
        return plain
    return f"if (shared) gy_atomic_{s.mode.value}({pointer}, {value}); else {plain}"
