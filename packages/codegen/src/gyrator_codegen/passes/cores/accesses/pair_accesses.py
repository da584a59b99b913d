"""`pair-accesses`: neighbours that lie two apart from lane to lane are loaded, or stored, at once.

Parts of complex numbers lie so: two vectors hold the memory of both, and are sorted in registers.
"""

from collections.abc import Sequence
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Load, Store, StoreMode
from gyrator_ir.expr import ONE, Const, Expr, ShapeFacts
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.tile.nodes import Pair, TiledKernel
from gyrator_ir.types import DType

_UNPAIRED = frozenset(d for d in DType if d.is_narrow_float and d.size == 1)
"""Floats that vectors hold converted."""


@frozen
class PairAccesses(KernelPass):
    """Record pairs of strided accesses that nothing keeps apart. It goes after
    `classify-accesses`."""

    name: ClassVar[str] = "pair-accesses"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        strided = {a.index for a in tiled.accesses if a.stride is Const(2)}
        if not strided or tiled.transposed:
            return tiled
        buffers = {
            b.name
            for b in tiled.kernel.parameters
            if not b.dtype.is_complex and b.dtype not in _UNPAIRED
        }
        pairs = [
            Pair(number, first, second)
            for number, stage in enumerate(tiled.kernel.stages)
            for first, second in pairs_of(stage.body, strided, buffers)
        ]
        return evolve(tiled, pairs=tuple(pairs)) if pairs else tiled


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
