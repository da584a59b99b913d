"""Addresses: what of them is computed ahead of loops, and what in each step."""

from collections.abc import Iterable

from gyrator_codegen import Access, split_terms
from gyrator_codegen_cpp.dtypes import STORAGE
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Bind, Load, Store
from gyrator_ir.expr import ZERO, Expr, Sym
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.tile.nodes import Prefetch


def address(scope: Scope, buffer: str, e: Expr, by_lane: bool = False) -> str:
    """Return a pointer to the element at `e`; to that of the lane called `lane`, by lane."""
    fixed, moving = split_terms(e, _left_out(scope, by_lane))
    pointer = scope.pointers.get((buffer, fixed))
    if pointer is None:
        pointer, moving = scope.frame.pointers[buffer], e
    if moving is ZERO:
        return pointer
    return f"{pointer} + {at_lane(scope, moving) if by_lane else scope.index(moving)}"


def at_lane(scope: Scope, e: Expr) -> str:
    """Return an index expression as text, for the lane called `lane`."""
    if scope.lanes is None:
        return scope.index(e)
    symbol = scope.lanes.symbol
    names = {symbol.name: f"({scope.at(symbol)} + lane)"}
    return scope.index(e, **names, **{t.name: f"{t.name}_lanes[lane]" for t in scope.varying})


def hoist(scope: Scope, body: Iterable[KernelStatement], inner: Iterable[Sym]) -> Scope:
    """Compute what addresses of `body` have in common over the `inner` loops; return the place
    inside."""
    body = tuple(body)
    bound = {s.symbol for s in body if isinstance(s, Bind)}
    inside = scope.nested(inner=frozenset(inner) | bound)
    for s in body:
        if not isinstance(s, Load | Store) or s.buffer in scope.frame.local_rows:
            continue
        by_lane = scope.access(s.index).kind not in (Access.UNIT, Access.UNIFORM)
        fixed, moving = split_terms(s.index, _left_out(inside, by_lane))
        key = (s.buffer, fixed)
        if fixed is ZERO or moving is ZERO or key in inside.pointers:
            continue
        element = STORAGE[scope.frame.storage[s.buffer]]
        base = scope.frame.pointers[s.buffer]
        name = scope.frame.names.take(f"{base}_at")
        scope.line(f"{element} *const {name} = {base} + {scope.index(fixed)};")
        inside.pointers[key] = name
    return inside


def requests(scope: Scope, prefetches: Iterable[Prefetch]) -> list[str]:
    """Return the statements that ask for one vector's memory."""
    return [
        f"__builtin_prefetch({address(scope, p.buffer, p.index)}{', 1' if p.write else ''});"
        for p in prefetches
    ]


def _left_out(scope: Scope, by_lane: bool) -> frozenset[Sym]:
    """Return the symbols that change after an address is computed ahead."""
    if not by_lane or scope.lanes is None:
        return scope.inner
    return scope.inner | scope.varying | {scope.lanes.symbol}
