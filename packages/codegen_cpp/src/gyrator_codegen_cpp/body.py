"""Statements of a body as C++ text, in order."""

from collections.abc import Iterable

from gyrator_codegen_cpp.accesses import at_lane, load, load_pair, store, store_pair
from gyrator_codegen_cpp.dtypes import literal
from gyrator_codegen_cpp.ops import EMITTERS, UNIFORM_ARGS, cast
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Store
from gyrator_ir.expr import Expr
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.tile.nodes import Access
from gyrator_ir.types import DType


def run(scope: Scope, body: Iterable[KernelStatement]) -> None:
    """Write the statements; collectives go to `scope.collective`."""
    whole = scope.lanes is not None and scope.live is None
    for s in body:
        pair = scope.frame.pairs.get(id(s)) if whole else None
        match pair:
            case None:
                _statement(scope, s)
            case Load() as one, Load() as other if s is one:
                load_pair(scope, one, other)
            case Store() as one, Store() as other if s is other:
                store_pair(scope, one, other)


def _statement(scope: Scope, s: KernelStatement) -> None:
    match s:
        case Load(name=name) | Let(name=name) if name in scope.frame.given:
            pass
        case Load():
            load(scope, s)
        case Let():
            _let(scope, s)
        case Const(name, value, dtype):
            scope.define(name, literal(value, dtype), dtype, varying=False)
        case IndexValue():
            _index_value(scope, s)
        case Bind():
            _bind(scope, s)
        case Store():
            store(scope, s)
        case _:
            assert scope.collective is not None, s
            scope.collective(scope, s)


def _let(scope: Scope, s: Let) -> None:
    values = [scope.value(a) for a in s.args]
    varying = any(v.varying for v in values)
    types = tuple(v.dtype for v in values)
    uniform = UNIFORM_ARGS.get(s.op, ())
    if any(values[k].varying for k in uniform):
        # The prelude wants these operands to be the same for all lanes: one after another.
        one = EMITTERS[s.op](tuple(map(scope.one_lane, s.args)), types, s.dtype, "s")
        scope.define(s.name, scope.by_lane(s.name, s.dtype, one), s.dtype, varying=True)
        return
    if s.op == "where" and varying and not values[0].varying:
        # A branch: nothing is spread over the lanes for it, and the compiler has less to simplify.
        one, other = (scope.operand(a, varying) for a in s.args[1:])
        scope.define(s.name, f"{values[0].text} ? {one} : {other}", s.dtype, varying)
        return
    args = tuple(scope.operand(a, varying and k not in uniform) for k, a in enumerate(s.args))
    if s.name in scope.frame.tiled.exact:
        text = args[0]
    else:
        if s.name in scope.frame.drawn:
            args = (*args, scope.frame.drawn[s.name])
        text = EMITTERS[s.op](args, types, s.dtype, "v" if varying else "s")
    scope.define(s.name, text, s.dtype, varying)


def index_text(scope: Scope, e: Expr, varying: bool) -> str:
    """Return an index expression as an `i64` value, spread over the lanes if asked for."""
    access = scope.access(e)
    match access.kind:
        case Access.UNIFORM:
            return scope.spread(f"(si64)({scope.index(e)})", scope.form if varying else "s")
        case Access.UNIT:
            return f"gy_viota({scope.index(e)})"
        case Access.STRIDED:
            return f"gy_viota({scope.index(e)}, {scope.index(access.stride)})"
    return scope.by_lane("index", DType.I64, at_lane(scope, e))


def _index_value(scope: Scope, s: IndexValue) -> None:
    varying = scope.access(s.expr).kind is not Access.UNIFORM
    text = index_text(scope, s.expr, varying)
    scope.define(s.name, cast(text, DType.I64, s.dtype), s.dtype, varying)


def _bind(scope: Scope, s: Bind) -> None:
    value = scope.value(s.value)
    mask = None if s.mask is None else scope.value(s.mask)
    varying = value.varying or (mask is not None and mask.varying)
    name = s.symbol.name
    zero = scope.zero(DType.I64, varying)
    size = f"(si64)({scope.index(s.size)})"
    if varying:
        size = f"gy_vsplat({size})"
    text = cast(scope.operand(s.value, varying), value.dtype, DType.I64)
    if mask is not None:
        assert s.mask is not None
        text = f"gy_select({scope.operand(s.mask, varying)}, {text}, {zero})"
    scope.line(f"{'v' if varying else 's'}i64 {name} = {text};")
    if s.wrap:
        scope.line(f"{name} = gy_select(gy_lt({name}, {zero}), gy_add({name}, {size}), {name});")
    if s.check:
        bad = f"gy_lt({name}, {zero}) | gy_ge({name}, {size})"
        only = scope.live_mask(s.mask) if varying else mask and mask.text
        if only:
            bad = f"({bad}) & {only}"
        scope.line(f"if (gy_any({bad})) return {scope.frame.checks[s.check].code};")
    if varying:
        scope.line(f"si64 {name}_lanes[GY_LANES];")
        scope.line(f"gy_store({name}_lanes, {name});")
        scope.varying = scope.varying | {s.symbol}
