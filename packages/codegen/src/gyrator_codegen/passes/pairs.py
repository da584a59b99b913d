"""Accesses of adjacent elements that can be combined into one access."""

from collections.abc import Sequence

from gyrator_ir.body.nodes import Load, Store, StoreMode
from gyrator_ir.expr import ONE, Expr
from gyrator_ir.kernel.nodes import KernelStatement


def pairs_of(
    body: Sequence[KernelStatement], strided: set[Expr], buffers: set[str]
) -> list[tuple[int, int]]:
    """Return the indices of pairs of loads without a store to their buffer in between, and of pairs
    of stores without another access of their buffer in between."""
    pairs: list[tuple[int, int]] = []
    loads: dict[tuple[str, Expr], int] = {}
    stores: dict[tuple[str, Expr], int] = {}
    for position, s in enumerate(body):
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
            opened[s.buffer, s.index + ONE] = position
        else:
            pairs.append((first, position))
    return sorted(pairs)
