"""Loads, stores and addresses: the text of every kind of access, whole vectors, the last part of
one, and single elements."""

from collections.abc import Iterable

from gyrator_codegen_cpp.dtypes import STORAGE, lane_type
from gyrator_codegen_cpp.loops import Span
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Load, Store, StoreMode
from gyrator_ir.expr import ONE, ZERO, Expr, Sym
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.tile.nodes import Access, IndexAccess, Prefetch
from gyrator_ir.types import DType

_COMBINE = {
    StoreMode.ADD: "gy_add",
    StoreMode.MUL: "gy_mul",
    StoreMode.MIN: "gy_minimum",
    StoreMode.MAX: "gy_maximum",
}

# Addresses ------------------------------------------------------------------------------------


def address(scope: Scope, buffer: str, e: Expr) -> str:
    """Return a pointer to the element at `e`, of the first lane."""
    pointer, rest = _based(scope, buffer, e)
    return pointer if rest is ZERO else f"{pointer} + {scope.index(rest)}"


def _based(scope: Scope, buffer: str, e: Expr) -> tuple[str, Expr]:
    """Return a pointer that is there, and what is to be added."""
    ahead = scope.frame.access(e).ahead
    pointer = scope.pointers.get((buffer, ahead))
    return (scope.frame.pointers[buffer], e) if pointer is None else (pointer, e - ahead)


def _of_lane(scope: Scope, buffer: str, e: Expr) -> str:
    """Return a pointer to the element at `e`, of the lane called `lane`."""
    access = scope.frame.access(e)
    steps = {
        Access.UNIFORM: "",
        Access.UNIT: " + lane",
        Access.STRIDED: f" + lane*({scope.index(access.stride)})",
    }
    if access.kind in steps:
        return address(scope, buffer, e) + steps[access.kind]
    pointer, rest = _based(scope, buffer, e)
    return f"{pointer} + {at_lane(scope, rest)}"


def at_lane(scope: Scope, e: Expr) -> str:
    """Return an index expression as text, for the lane called `lane`."""
    assert scope.lanes is not None
    symbol = scope.lanes.symbol
    names = {symbol.name: f"({scope.at(symbol)} + lane)"}
    return scope.index(e, **names, **{t.name: f"{t.name}_lanes[lane]" for t in scope.varying})


def hoist(scope: Scope, body: Iterable[KernelStatement]) -> Scope:
    """Compute what addresses of `body` have in common in all steps of a loop; return the place
    inside."""
    inside = scope.nested()
    for s in body:
        if not isinstance(s, Load | Store) or s.buffer in scope.frame.local_rows:
            continue
        ahead = scope.frame.access(s.index).ahead
        if ahead is ZERO or (s.buffer, ahead) in inside.pointers:
            continue
        element = STORAGE[scope.frame.storage[s.buffer]]
        base = scope.frame.pointers[s.buffer]
        name = scope.frame.names.take(f"{base}_at")
        scope.line(f"{element} *const {name} = {base} + {scope.index(ahead)};")
        inside.pointers[s.buffer, ahead] = name
    return inside


def requests(scope: Scope, prefetches: Iterable[Prefetch]) -> list[str]:
    """Return the statements that ask for one vector's memory."""
    return [
        f"__builtin_prefetch({address(scope, p.buffer, p.index)}{', 1' if p.write else ''});"
        for p in prefetches
    ]


# Accesses -------------------------------------------------------------------------------------


def _test(scope: Scope, mask: str | None) -> str | None:
    """Return a mask's text; None without one, or where lanes have masks of their own."""
    return None if mask is None or scope.value(mask).varying else scope.value(mask).text


def _chosen(test: str | None, text: str, zero: str) -> str:
    """Return a text, or zero where the test fails."""
    return text if test is None else f"{test} ? {text} : {zero}"


def _run(scope: Scope, s: Load | Store, word: str, value: str = "", zero: str = "") -> str:
    """Return the call of the prelude's function for consecutive elements, one for each lane in use:
    those of the mask, the first ones, or all."""
    given = f"{address(scope, s.buffer, s.index)}{value}"
    if s.mask is not None and scope.value(s.mask).varying:
        return f"{word}_mask({given}, {scope.live_mask(s.mask)}{zero})"
    return f"{word}({given})" if scope.live is None else f"{word}_n({given}, {scope.live})"


def load(scope: Scope, s: Load) -> None:
    """Write a load, as few and as wide accesses as its address allows."""
    dtype, access, test = scope.frame.storage[s.buffer], scope.access(s.index), _test(scope, s.mask)
    by_lane, varying = s.mask is not None and test is None, True
    zero = scope.zero(dtype, varying=True)
    if s.buffer in scope.frame.local_rows:
        text = f"gy_vload({_local_row(scope, s)})"
    elif access.kind is Access.UNIFORM:
        one, varying = scope.zero(dtype, varying=False), by_lane
        if by_lane:
            test = f"gy_any({scope.live_mask(s.mask)})"
        text = _chosen(test, f"gy_sload({address(scope, s.buffer, s.index)})", one)
        if by_lane:
            text = f"gy_vsplat((s{lane_type(dtype)})({text}))"
            text = f"gy_select({scope.operand(str(s.mask), True)}, {text}, {zero})"
    elif access.kind is Access.UNIT:
        text = _chosen(test, _run(scope, s, "gy_vload", zero=f", {zero}"), zero)
    elif access.kind is Access.STRIDED and scope.live is None and not by_lane:
        given = f"{address(scope, s.buffer, s.index)}, {scope.index(access.stride)}"
        text = _chosen(test, f"gy_vload_strided({given})", zero)
    elif access.kind is Access.GATHERED:
        mask = scope.live_mask(s.mask)
        given = f"{scope.frame.pointers[s.buffer]} + {_vector_index(scope, access)}"
        text = f"gy_gather({given})" if mask is None else f"gy_gather_mask({given}, {mask}, {zero})"
    else:
        one = f"gy_sload({_of_lane(scope, s.buffer, s.index)})"
        text = scope.by_lane(s.name, dtype, one, _lane_test(scope, s.mask))
    scope.define(s.name, text, dtype, varying)


def _local_row(scope: Scope, s: Load | Store) -> str:
    return f"{scope.frame.pointers[s.buffer]} + GY_LANES*({scope.index(s.index)})"


def _vector_index(scope: Scope, access: IndexAccess) -> str:
    """Return the offset of a gathered access that all lanes share, and the `i64` vector of what
    differs."""
    assert scope.lanes is not None
    rest, total = access.index, ""
    for name, factor in access.terms:
        symbol = Sym(name)
        rest = rest - factor * symbol
        text = f"gy_viota({scope.at(symbol)})" if symbol is scope.lanes.symbol else name
        if factor is not ONE:
            text = f"gy_mul({text}, gy_vsplat((si64)({scope.index(factor)})))"
        total = f"gy_add({total}, {text})" if total else text
    return f"{scope.index(rest)}, {total}"


def store(scope: Scope, s: Store) -> None:
    """Write a store, or a store that combines with what is there."""
    dtype, combines = scope.frame.storage[s.buffer], s.mode is not StoreMode.SET
    given = scope.frame.stored.get(id(s), s.value)
    if s.buffer in scope.frame.local_rows:
        pointer, value = _local_row(scope, s), scope.operand(given, varying=True)
        if s.mask is not None:
            mask = scope.operand(s.mask, varying=True)
            value = f"gy_select({mask}, {value}, gy_vload({pointer}))"
        scope.line(f"gy_store({pointer}, {value});")
    elif scope.lanes is None:
        scope.line(_store_one(scope, s, given, address(scope, s.buffer, s.index)))
    elif scope.access(s.index).kind is not Access.UNIT or (combines and dtype is DType.BOOL):
        _store_lanes(scope, s, given)
    elif combines and s.buffer in scope.frame.tiled.atomic:
        with scope.block("if (shared) {"):
            _store_lanes(scope.nested(), s, given)
        with scope.block("else {"):
            _store_run(scope.nested(), s, given)
    else:
        _store_run(scope, s, given)


def _store_run(scope: Scope, s: Store, given: str) -> None:
    value, test = scope.operand(given, varying=True), _test(scope, s.mask)
    if s.mode is not StoreMode.SET:
        zero = scope.zero(scope.frame.storage[s.buffer], varying=True)
        value = f"{_COMBINE[s.mode]}({_run(scope, s, 'gy_vload', zero=f', {zero}')}, {value})"
    scope.line(f"{f'if ({test}) ' if test else ''}{_run(scope, s, 'gy_store', f', {value}')};")


def _store_lanes(scope: Scope, s: Store, given: str) -> None:
    text = _store_one(scope, s, given, _of_lane(scope, s.buffer, s.index))
    scope.line(f"{scope.each_lane} {{ {text} }}")


def _lane_test(scope: Scope, mask: str | None) -> str:
    return "" if mask is None else f"if ({scope.one_lane(mask)}) "


def _store_one(scope: Scope, s: Store, given: str, pointer: str) -> str:
    value, test = scope.one_lane(given), _lane_test(scope, s.mask)
    if s.mode is StoreMode.SET:
        return f"{test}gy_store({pointer}, {value});"
    plain = f"gy_store({pointer}, {_COMBINE[s.mode]}(gy_sload({pointer}), {value}));"
    if s.buffer not in scope.frame.tiled.atomic:
        return test + plain
    return f"{test}if (shared) gy_atomic_{s.mode.value}({pointer}, {value}); else {plain}"


def load_pair(scope: Scope, one: Load, other: Load) -> None:
    """Write two loads, of neighbours."""
    dtype = scope.frame.storage[one.buffer]
    even, odd = (scope.frame.names.take(f"{s.name}_part") for s in (one, other))
    pointer = address(scope, one.buffer, one.index)
    scope.line(f"v{lane_type(dtype)} {even}, {odd};")
    scope.line(f"gy_vload_pairs({pointer}, {even}, {odd});")
    scope.define(one.name, even, dtype, varying=True)
    scope.define(other.name, odd, dtype, varying=True)


def store_pair(scope: Scope, one: Store, other: Store) -> None:
    """Write two stores, of neighbours."""
    pointer = address(scope, one.buffer, one.index)
    given = (scope.frame.stored.get(id(s), s.value) for s in (one, other))
    even, odd = (scope.operand(value, True) for value in given)
    scope.line(f"gy_store_pairs({pointer}, {even}, {odd});")


def clear(scope: Scope, s: Store, symbol: Sym, span: Span) -> None:
    """Write a store of zeros to consecutive elements over `span` of `symbol`, by the C library,
    which knows the machine's best way."""
    at = scope.index(s.index, **{symbol.name: span.low})
    element = STORAGE[scope.frame.storage[s.buffer]]
    count = f"({span.high} - {span.low}) * (si64)sizeof({element})"
    pointer = scope.frame.pointers[s.buffer]
    scope.line(f"if ({span.high} > {span.low}) __builtin_memset({pointer} + {at}, 0, {count});")
