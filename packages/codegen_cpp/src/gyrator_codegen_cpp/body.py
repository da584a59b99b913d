"""Emission of statements as C++, for whole vectors, partial vectors, and single elements."""

from collections.abc import Callable, Iterable

from gyrator_codegen_cpp.dtypes import STORAGE, lane_type, literal
from gyrator_codegen_cpp.ops import EMITTERS, UNIFORM_ARGS, cast
from gyrator_codegen_cpp.scope import Scope, Span
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Store, StoreMode
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, expr
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import DRAWN, Access, IndexAccess, Prefetch
from gyrator_ir.types import DType

_COMBINE = {mode: f"gy_{mode.value}" for mode in (StoreMode.ADD, StoreMode.MUL)}
_COMBINE |= {StoreMode.MIN: "gy_minimum", StoreMode.MAX: "gy_maximum"}
_BACKWARDS = expr(-1)
_GATHERED_SIZES = (4, 8)
"""Bytes of the elements that machines gather."""


def run(scope: Scope, body: Iterable[KernelStatement]) -> None:
    """Emit statements. Reductions, scans and sorts are passed to `scope.collective`."""
    full_vector = scope.lanes is not None and scope.live is None
    for s in body:
        match scope.frame.pairs.get(id(s)) if full_vector else None:
            case None:
                _statement(scope, s)
            case Load() as one, Load() as other if s is one:
                _load_pair(scope, one, other)
            case Store() as one, Store() as other if s is other:
                _store_pair(scope, one, other)


def _statement(scope: Scope, s: KernelStatement) -> None:
    match s:
        case Load(name=name) | Let(name=name) if name in scope.frame.kept:
            pass
        case Load():
            _load(scope, s)
        case Let():
            _let(scope, s)
        case Const(name, value, dtype):
            scope.define(name, literal(value, dtype), dtype, varying=False)
        case IndexValue(name, e, dtype):
            varying = scope.access(e).kind is not Access.UNIFORM
            scope.define(name, index_text(scope, e, varying, dtype), dtype, varying)
        case Bind():
            _bind(scope, s)
        case Store():
            _store(scope, s)
        case _:
            assert scope.collective is not None, s
            scope.collective(scope, s)


def _let(scope: Scope, s: Let) -> None:
    values = [scope.value(a) for a in s.args]
    varying = any(v.varying for v in values)
    types = tuple(v.dtype for v in values)
    uniform = UNIFORM_ARGS.get(s.op, ())
    if any(values[k].varying for k in uniform):
        # The prelude requires these operands to be the same for all lanes, so emit one at a time.
        lane_text = EMITTERS[s.op](tuple(map(scope.one_lane, s.args)), types, s.dtype, "s")
        text = scope.by_lane(s.name, s.dtype, lane_text)
    elif s.op == "where" and varying and not values[0].varying:
        # A branch needs no broadcast, and is easier for the compiler to simplify.
        lane_text, other = (scope.operand(a, varying) for a in s.args[1:])
        text = f"{values[0].text} ? {lane_text} : {other}"
    else:
        args = [scope.operand(a, varying and k not in uniform) for k, a in enumerate(s.args)]
        args += [scope.frame.drawn[s.name]] if s.op in DRAWN else []
        text = args[0]
        if s.name not in scope.frame.tiled.exact:
            text = EMITTERS[s.op](tuple(args), types, s.dtype, "v" if varying else "s")
    scope.define(s.name, text, s.dtype, varying)


def index_text(scope: Scope, e: Expr, varying: bool, dtype: DType = DType.I64) -> str:
    """Return an index expression as a value of `dtype`, as a vector if `varying`."""
    access = scope.access(e)
    match access.kind:
        case Access.UNIFORM:
            text = cast(f"(si64)({scope.index(e)})", DType.I64, dtype)
            return scope.spread(text, scope.form if varying else "s")
        case Access.UNIT | Access.STRIDED:
            steps = [e] if access.kind is Access.UNIT else [e, access.stride]
            if dtype is DType.I32:
                return f"gy_viota32({', '.join(f'(si32)({scope.index(x)})' for x in steps)})"
            text = f"gy_viota({', '.join(map(scope.index, steps))})"
        case _:
            text = scope.by_lane("index", DType.I64, _at_lane(scope, e))
    return cast(text, DType.I64, dtype)


def _bind(scope: Scope, s: Bind) -> None:
    name, operands = s.symbol.name, [scope.value(v) for v in (s.value, s.mask) if v is not None]
    varying = any(v.varying for v in operands)
    form = "v" if varying else "s"
    zero, size = scope.constant(0, DType.I64, form), f"(si64)({scope.index(s.size)})"
    text = cast(scope.operand(s.value, varying), operands[0].dtype, DType.I64)
    if s.mask is not None:
        text = f"gy_select({scope.operand(s.mask, varying)}, {text}, {zero})"
    scope.line(f"{form}i64 {name} = {text};")
    size = scope.spread(size, form)
    if s.wrap:
        scope.line(f"{name} = gy_select(gy_lt({name}, {zero}), gy_add({name}, {size}), {name});")
    if s.check:
        bad = f"gy_lt({name}, {zero}) | gy_ge({name}, {size})"
        only = scope.live_mask(s.mask) if varying else s.mask and operands[1].text
        if only:
            bad = f"({bad}) & {only}"
        scope.line(f"if (gy_any({bad})) return {scope.frame.checks[s.check].code};")
    if varying:
        scope.line(f"si64 {name}_lanes[GY_LANES];", f"gy_store({name}_lanes, {name});")
        scope.varying |= {s.symbol}
        if operands[0].dtype is DType.I32 and s.mask is None and not s.wrap:
            scope.narrow[s.symbol] = scope.operand(s.value, varying)


def address(
    scope: Scope, s: Load | Store | Prefetch, text: Callable[[Scope, Expr], str] = Scope.index
) -> str:
    """Return a pointer to the element of the first lane, or with indices printed by `text`."""
    ahead = scope.frame.access(s.index).ahead
    pointer, rest = scope.pointers.get((s.buffer, ahead)), s.index - ahead
    if pointer is None:
        pointer, rest = scope.frame.pointers[s.buffer], s.index
    return pointer if rest is ZERO else f"{pointer} + {text(scope, rest)}"


def _of_lane(scope: Scope, s: Load | Store) -> str:
    """Return a pointer to the element of lane `lane`."""
    access = scope.frame.access(s.index)
    match access.kind:
        case Access.UNIFORM:
            return address(scope, s)
        case Access.UNIT | Access.STRIDED:
            step = "" if access.kind is Access.UNIT else f"*({scope.index(access.stride)})"
            return f"{address(scope, s)} + lane{step}"
        case Access.GATHERED if len(access.terms) > 1 or access.terms[0][1] is not ONE:
            # One vector operation for all lanes is cheaper than index arithmetic for each.
            rest, offsets = _vector_index(scope, access)
            name = scope.frame.names.take("offsets")
            scope.line(f"si64 {name}[GY_LANES];", f"gy_store({name}, {offsets});")
            start = "" if rest == "0" else f" + {rest}"
            return f"{scope.frame.pointers[s.buffer]}{start} + {name}[lane]"
    return address(scope, s, _at_lane)


def _at_lane(scope: Scope, e: Expr) -> str:
    """Return the text of an index expression for lane `lane`."""
    assert scope.lanes is not None
    names = {scope.lanes.name: f"({scope.at(scope.lanes)} + lane)"}
    return scope.index(e, **names, **{t.name: f"{t.name}_lanes[lane]" for t in scope.varying})


def _row(scope: Scope, s: Load | Store) -> str:
    """Return a pointer to a local's vector."""
    return f"{scope.frame.pointers[s.buffer]} + GY_LANES*({scope.index(s.index)})"


def _vector_index(scope: Scope, access: IndexAccess) -> tuple[str, str]:
    """Return the uniform offset of a gather, and the vector of offsets that vary by lane."""
    (first, factor), *others = access.terms
    if not others and factor is ONE and Sym(first) in scope.narrow:
        return scope.index(access.uniform), scope.narrow[Sym(first)]
    total = ""
    for name, factor in access.terms:
        symbol = Sym(name)
        text = f"gy_viota({scope.at(symbol)})" if symbol is scope.lanes else name
        if factor is not ONE:
            text = f"gy_mul({text}, gy_vsplat((si64)({scope.index(factor)})))"
        total = f"gy_add({total}, {text})" if total else text
    return scope.index(access.uniform), total


def _window(scope: Scope, s: Load, access: IndexAccess) -> str:
    """Return the window of the row in which the elements of a gather are near each other."""
    symbol = Sym(access.terms[0][0])
    if symbol not in scope.windows:
        row = next(b.shape[-1] for b in scope.frame.kernel.parameters if b.name == s.buffer)
        name = scope.windows[symbol] = scope.frame.names.take(f"{symbol.name}_window")
        arguments = [scope.narrow[symbol], scope.index(row), scope.live_mask(None)]
        scope.line(f"const gy_window {name} = gy_window_of({', '.join(filter(None, arguments))});")
    return scope.windows[symbol]


def hoist(scope: Scope, body: Iterable[KernelStatement]) -> Scope:
    """Emit the loop-invariant parts of addresses in `body`; return the scope inside the loop."""
    inside, frame = scope.nested(), scope.frame
    for s in body:
        if isinstance(s, Load | Store) and s.buffer not in frame.rows:
            ahead = frame.access(s.index).ahead
            if ahead is not ZERO and (s.buffer, ahead) not in inside.pointers:
                element, base = STORAGE[frame.storage[s.buffer]], frame.pointers[s.buffer]
                name = inside.pointers[s.buffer, ahead] = frame.names.take(f"{base}_at")
                scope.line(f"{element} *const {name} = {base} + {scope.index(ahead)};")
    return inside


def requests(scope: Scope, prefetches: Iterable[Prefetch]) -> list[str]:
    """Return the prefetch statements for one vector."""
    return [
        f"__builtin_prefetch({address(scope, p)}{', 1' if p.write else ''});" for p in prefetches
    ]


def _test(scope: Scope, mask: str | None) -> str | None:
    """Return the text of a uniform mask; None without a mask, or if it varies by lane."""
    return None if mask is None or scope.value(mask).varying else scope.value(mask).text


def _lane_test(scope: Scope, mask: str | None) -> str:
    return "" if mask is None else f"if ({scope.one_lane(mask)}) "


def _access(scope: Scope, s: Load | Store, function: str, value: str = "", zero: str = "") -> str:
    """Return the call of the prelude's function for consecutive elements, one per active lane."""
    arguments = f"{address(scope, s)}{value}"
    if s.mask is not None and scope.value(s.mask).varying:
        return f"{function}_mask({arguments}, {scope.live_mask(s.mask)}{zero})"
    if scope.live is None:
        return f"{function}({arguments})"
    return f"{function}_n({arguments}, {scope.live})"


def _load(scope: Scope, s: Load) -> None:
    """Emit a load with the widest accesses that its address allows."""
    dtype, access, test = scope.frame.storage[s.buffer], scope.access(s.index), _test(scope, s.mask)
    by_lane, varying = s.mask is not None and test is None, True
    zero = scope.constant(0, dtype, scope.form)
    if s.buffer in scope.frame.rows:
        test, text = None, f"gy_vload({_row(scope, s)})"
    elif access.kind is Access.UNIFORM:
        text, varying = f"gy_sload({address(scope, s)})", by_lane
        if by_lane:
            mask, nothing = scope.operand(str(s.mask), True), scope.constant(0, dtype, "s")
            lane_text = f"gy_any({scope.live_mask(s.mask)}) ? {text} : {nothing}"
            text = f"gy_select({mask}, gy_vsplat((s{lane_type(dtype)})({lane_text})), {zero})"
        zero = scope.constant(0, dtype, "s")
    elif access.kind is Access.UNIT:
        text = _access(scope, s, "gy_vload", zero=f", {zero}")
    elif access.kind is Access.STRIDED and scope.live is None and not by_lane:
        if access.stride == _BACKWARDS:
            text = f"gy_vload_back({address(scope, s)})"
        else:
            text = f"gy_vload_strided({address(scope, s)}, {scope.index(access.stride)})"
    elif access.kind is Access.STRIDED and dtype.size in _GATHERED_SIZES:
        lanes = scope.live_mask(s.mask if by_lane else None)
        arguments = f"{address(scope, s)}, {scope.index(access.stride)}, {lanes}, {zero}"
        text = f"gy_vload_strided_mask({arguments})"
    elif access.kind is Access.RUNS and scope.live is None and not by_lane:
        text = f"gy_vload_runs([&](si64 lane) GY_LAMBDA {{ return {_of_lane(scope, s)}; }})"
    elif access.kind is Access.GATHERED:
        test, lanes = None, scope.live_mask(s.mask)
        function, masked = ("gy_gather_mask", f", {lanes}, {zero}") if lanes else ("gy_gather", "")
        start, offsets = _vector_index(scope, access)
        if s.name in scope.frame.tiled.near:
            function, offsets = "gy_gather_near", f"{_window(scope, s, access)}, {offsets}"
        text = f"{function}({scope.frame.pointers[s.buffer]} + {start}, {offsets}{masked})"
    else:
        test, lane_text = None, f"gy_sload({_of_lane(scope, s)})"
        text = scope.by_lane(s.name, dtype, lane_text, _lane_test(scope, s.mask))
    scope.define(s.name, text if test is None else f"{test} ? {text} : {zero}", dtype, varying)


def _store(scope: Scope, s: Store) -> None:
    """Emit a store, or an update that combines with the stored value."""
    value_name, combines = scope.frame.stored_value(s), s.mode is not StoreMode.SET
    no_vector = combines and scope.frame.storage[s.buffer] is DType.BOOL
    if s.buffer in scope.frame.rows:
        pointer, value = _row(scope, s), scope.operand(value_name, varying=True)
        if s.mask is not None:
            mask = scope.operand(s.mask, varying=True)
            value = f"gy_select({mask}, {value}, gy_vload({pointer}))"
        scope.line(f"gy_store({pointer}, {value});")
    elif scope.lanes is None:
        scope.line(_store_one(scope, s, value_name, address(scope, s)))
    elif scope.access(s.index).kind is not Access.UNIT or no_vector:
        _store_lanes(scope, s, value_name)
    elif combines and s.buffer in scope.frame.tiled.atomic:
        with scope.block("if (shared) {"):
            _store_lanes(scope.nested(), s, value_name)
        with scope.block("else {"):
            _store_vector(scope.nested(), s, value_name)
    else:
        _store_vector(scope, s, value_name)


def _store_function(scope: Scope, s: Store) -> str:
    partial = scope.live is not None or (s.mask is not None and scope.value(s.mask).varying)
    exact = s.value in scope.frame.tiled.truncated and not partial
    return "gy_store_exact" if exact else "gy_store"


def _store_vector(scope: Scope, s: Store, value_name: str) -> None:
    value, test = scope.operand(value_name, varying=True), _test(scope, s.mask)
    if s.mode is not StoreMode.SET:
        zero = scope.constant(0, scope.frame.storage[s.buffer], scope.form)
        old = _access(scope, s, "gy_vload", zero=f", {zero}")
        value = f"{_COMBINE[s.mode]}({old}, {value})"
    store = _access(scope, s, _store_function(scope, s), f", {value}")
    scope.line(f"if ({test}) {store};" if test else f"{store};")


def _store_lanes(scope: Scope, s: Store, value_name: str) -> None:
    access, function = scope.access(s.index), _store_function(scope, s)
    whole = scope.live is None and s.mask is None and s.mode is StoreMode.SET
    rounded = scope.frame.storage[s.buffer] in (DType.F16, DType.BF16) and function == "gy_store"
    if whole and rounded and access.kind is Access.STRIDED:
        # All lanes are rounded at once.
        value, stride = scope.operand(value_name, varying=True), scope.index(access.stride)
        scope.line(f"gy_store_strided({address(scope, s)}, {stride}, {value});")
        return
    text = _store_one(scope, s, value_name, _of_lane(scope, s))
    scope.line(f"{scope.each_lane} {{ {text} }}")


def _store_one(scope: Scope, s: Store, value_name: str, pointer: str) -> str:
    value, test = scope.one_lane(value_name), _lane_test(scope, s.mask)
    if s.mode is StoreMode.SET:
        return f"{test}{_store_function(scope, s)}({pointer}, {value});"
    plain = f"gy_store({pointer}, {_COMBINE[s.mode]}(gy_sload({pointer}), {value}));"
    if s.buffer not in scope.frame.tiled.atomic:
        return test + plain
    return f"{test}if (shared) gy_atomic_{s.mode.value}({pointer}, {value}); else {plain}"


def _load_pair(scope: Scope, *pair: Load) -> None:
    """Emit the loads of two neighbours."""
    dtype, pointer = scope.frame.storage[pair[0].buffer], address(scope, pair[0])
    parts = [scope.frame.names.take(f"{s.name}_part") for s in pair]
    scope.line(f"v{lane_type(dtype)} {', '.join(parts)};")
    scope.line(f"gy_vload_pairs({pointer}, {', '.join(parts)});")
    for s, part in zip(pair, parts, strict=True):
        scope.define(s.name, part, dtype, varying=True)


def _store_pair(scope: Scope, *pair: Store) -> None:
    """Emit the stores of two neighbours."""
    values = [scope.operand(scope.frame.stored_value(s), True) for s in pair]
    scope.line(f"gy_store_pairs({address(scope, pair[0])}, {', '.join(values)});")


def clear(scope: Scope, s: Store, symbol: Sym, span: Span) -> None:
    """Emit a store of zeros to consecutive elements over `span` of `symbol`, as memory."""
    at = scope.index(s.index, **{symbol.name: span.low})
    element = STORAGE[scope.frame.storage[s.buffer]]
    size, whole = f"(si64)sizeof({element})", scope.index(extent_of(scope.frame.kernel.axes))
    count = f"({span.high} - {span.low}) * {size}"
    pointer = scope.frame.pointers[s.buffer]
    scope.line(f"gy_clear({pointer} + {at}, {count}, {whole} * {size});")
