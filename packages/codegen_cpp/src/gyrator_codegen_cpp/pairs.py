"""Neighbours that lie two apart from lane to lane, as the parts of complex numbers do: two vectors
are read, or written, at once and sorted in registers."""

from collections.abc import Mapping, Sequence

from gyrator_codegen import Access
from gyrator_codegen_cpp.addresses import address
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Load, Store, StoreMode
from gyrator_ir.expr import Const
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.types import DType

_TYPES = (DType.F32, DType.F64)


def partners(scope: Scope, body: Sequence[KernelStatement]) -> Mapping[int, int]:
    """Return places of two loads, or two stores, of neighbours that nothing keeps apart: for the
    place where they are written the other one, where nothing is."""
    found: dict[int, int] = {}
    if scope.lanes is None or scope.live is not None:
        return found
    open_loads: dict[tuple[str, object], int] = {}
    open_stores: dict[tuple[str, object], int] = {}
    for place, s in enumerate(body):
        if not isinstance(s, Load | Store):
            continue
        loads = isinstance(s, Load)
        for key in [k for k in open_stores if k[0] == s.buffer and (loads or k[1] != s.index)]:
            del open_stores[key]
        if not loads:
            for key in [k for k in open_loads if k[0] == s.buffer]:
                del open_loads[key]
        if not _is_half(scope, s):
            continue
        opened = open_loads if loads else open_stores
        first = opened.pop((s.buffer, s.index), None)
        if first is None:
            opened[s.buffer, s.index + 1] = place
        elif loads:
            found[first] = place
        else:
            found[place] = first
    return found


def _is_half(scope: Scope, s: Load | Store) -> bool:
    if s.mask is not None or s.buffer in scope.frame.local_rows:
        return False
    if isinstance(s, Load):
        if s.name in scope.frame.given:
            return False
    elif s.mode is not StoreMode.SET:
        return False
    access = scope.access(s.index)
    return (
        scope.frame.storage[s.buffer] in _TYPES
        and access.kind is Access.STRIDED
        and access.stride is Const(2)
    )


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
    even, odd = (scope.operand(s.value, varying=True) for s in (one, other))
    scope.line(f"gy_store_pairs({pointer}, {even}, {odd});")
