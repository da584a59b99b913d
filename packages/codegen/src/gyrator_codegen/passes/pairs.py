"""Accesses to neighbours that may be one access of both."""

from collections.abc import Sequence

from gyrator_ir.body.nodes import Load, Store, StoreMode
from gyrator_ir.expr import ONE, Expr
from gyrator_ir.kernel.nodes import KernelStatement


def pairs_of(
    body: Sequence[KernelStatement], strided: set[Expr], buffers: set[str]
) -> list[tuple[int, int]]:
    """Return places of two loads that no store to their buffer parts, or of two stores that no
    other access of it does."""
    found: list[tuple[int, int]] = []
    loads: dict[tuple[str, Expr], int] = {}
    stores: dict[tuple[str, Expr], int] = {}
    for place, s in enumerate(body):
        if not isinstance(s, Load | Store):
            continue
        reads = isinstance(s, Load)
        for key in [k for k in stores if k[0] == s.buffer and (reads or k[1] is not s.index)]:
            del stores[key]
        if not reads:
            for key in [k for k in loads if k[0] == s.buffer]:
                del loads[key]
        plain = s.mask is None and (isinstance(s, Load) or s.mode is StoreMode.SET)
        if not plain or s.buffer not in buffers or s.index not in strided:
            continue
        opened = loads if reads else stores
        first = opened.pop((s.buffer, s.index), None)
        if first is None:
            opened[s.buffer, s.index + ONE] = place
        else:
            found.append((first, place))
    return sorted(found)
