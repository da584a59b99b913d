"""Addresses: what of them is computed ahead of loops, and what in each step."""

from collections.abc import Iterable

from gyrator_codegen import Access, split_terms
from gyrator_codegen_cpp.dtypes import STORAGE
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Bind, Load, Store
from gyrator_ir.expr import ZERO, Expr, Sym
from gyrator_ir.kernel.nodes import KernelStatement


def address(scope: Scope, buffer: str, e: Expr, kind: Access, lane: str | None = None) -> str:
    """Return a pointer to the element at `e`; of lane number `lane` if given."""
    fixed, moving = split_terms(e, _left_out(scope, kind))
    pointer = scope.pointers.get((buffer, fixed))
    if pointer is None:
        pointer, moving = scope.frame.pointers[buffer], e
    if moving is ZERO:
        return pointer
    return f"{pointer} + {at_lane(scope, moving, lane)}"


def at_lane(scope: Scope, e: Expr, lane: str | None) -> str:
    """Return an index expression as text, for one lane if `lane` is given."""
    if lane is None or scope.lanes is None:
        return scope.index(e)
    symbol = scope.lanes.symbol
    names = {symbol.name: f"({scope.symbols.get(symbol, symbol.name)} + {lane})"}
    names |= {t.name: f"{t.name}_lanes[{lane}]" for t in scope.varying}
    return scope.index(e, **names)


def hoist(scope: Scope, body: Iterable[KernelStatement], inner: Iterable[Sym]) -> Scope:
    """Compute what addresses of `body` have in common over the `inner` loops; return the place
    inside."""
    body = tuple(body)
    bound = {s.symbol for s in body if isinstance(s, Bind)}
    inside = scope.nested(inner=frozenset(inner) | bound)
    for s in body:
        if not isinstance(s, Load | Store) or s.buffer in scope.frame.local_rows:
            continue
        fixed, moving = split_terms(s.index, _left_out(inside, scope.access(s.index).kind))
        key = (s.buffer, fixed)
        if fixed is ZERO or moving is ZERO or key in inside.pointers:
            continue
        element = STORAGE[scope.frame.storage[s.buffer]]
        base = scope.frame.pointers[s.buffer]
        name = scope.frame.names.take(f"{base}_at")
        scope.line(f"{element} *const {name} = {base} + {scope.index(fixed)};")
        inside.pointers[key] = name
    return inside


def _left_out(scope: Scope, kind: Access) -> frozenset[Sym]:
    """Return the symbols that change after an address is computed ahead."""
    if kind in (Access.UNIT, Access.UNIFORM) or scope.lanes is None:
        return scope.inner
    return scope.inner | scope.varying | {scope.lanes.symbol}
