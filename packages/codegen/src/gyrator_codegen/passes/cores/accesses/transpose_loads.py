"""`transpose-loads`: load tiles along contiguous rows, and transpose them in fast memory.

A load that is contiguous along an axis other than that of the vectors would touch one cache line
per lane. Instead, a tile of both axes is loaded along the contiguous axis and transposed.
"""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import extent_guess, static
from gyrator_codegen.lanes import lane_access
from gyrator_codegen.nests import grid_loop, nest, plain_loop
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Load
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts, Sym
from gyrator_ir.tile.nodes import Access, TiledKernel, Transposed
from gyrator_ir.types import DType

_NO_SYMBOLS: frozenset[Sym] = frozenset()
_LANES = 1 << 20
"""More lanes than any vector, so that only affine addresses have a constant stride."""
_ALIAS = 4096
"""Distance in bytes of addresses that map to the same set of the L1 cache. Rows at a multiple of
this distance evict one another."""
_LINE = 64
"""Bytes of a line of the L1 cache."""


@frozen
class TransposeLoads(KernelPass):
    """Tile both axes of loads that are contiguous along another axis than that of the vectors."""

    length: int = 2048
    """Elements along the vectors per unit of parallel work."""
    vectors: int = 2
    """Rows of a tile, in vectors, unless the row distance is a multiple of 4096 bytes."""

    name: ClassVar[str] = "transpose-loads"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if kernel.inner or len(kernel.axes) < 2:
            return tiled
        loops = nest(tiled)
        if loops is None or not loops.across or loops.lanes == 1:
            return tiled
        lanes, along = loops.lanes, loops.axis
        if extent_guess(along.extent) < lanes:
            return tiled
        body = kernel.statements
        bound = {s.symbol for s in body if isinstance(s, Bind)}
        loads = [s for s in body if isinstance(s, Load) and _affine(s, bound)]
        best: Sym | None = None
        transposed: list[Load] = []
        for axis in kernel.axes:
            if axis is along or extent_guess(axis.extent) < lanes:
                continue
            candidates = [s for s in loads if _is_transposed(s, axis.symbol, along.symbol)]
            if len(candidates) > len(transposed):
                best, transposed = axis.symbol, candidates
        if best is None:
            return tiled
        rows = tuple(x for x in loops.rows if x.axes[0] is not best)
        strides = [_stride(s, along.symbol) * kernel.storage[s.buffer].size for s in transposed]
        aliased = any(n and n % _ALIAS == 0 for n in strides)
        dtype = max((kernel.storage[s.buffer] for s in transposed), key=lambda x: x.size)
        vectors = self._aliased(lanes, dtype) if aliased else self.vectors
        grid = (*rows, grid_loop(best, vectors * lanes), grid_loop(along.symbol, self.length))
        return evolve(
            tiled,
            loops=(*grid, loops.vectors, plain_loop(best)),
            transposed=tuple(Transposed(s.name, best) for s in transposed),
        )

    def _aliased(self, lanes: int, dtype: DType) -> int:
        """Return the rows of a tile, in vectors, where rows evict one another.

        A tile reads as many elements of each row in memory. If each of its stores fills a line, it
        reads several lines of a row. Otherwise it is narrow, so that the lines that are filled in
        part stay until the next tile, but elements of 16 bits are turned in pairs of vectors.
        With AVX2, that takes 1.4 times as long for float16, which is converted instead.
        """
        stored = lanes * dtype.size
        if dtype.size == DType.F16.size:
            return self.vectors if dtype is not DType.F16 or 2 * stored >= _LINE else 1
        return max(lanes // dtype.size, 1) if stored >= _LINE else 1


def _affine(s: Load, bound: set[Sym]) -> bool:
    return s.mask is None and s.index.free_symbols.isdisjoint(bound)


def _is_transposed(s: Load, across: Sym, along: Sym) -> bool:
    kinds = (lane_access(s.index, x, _LANES, _NO_SYMBOLS).kind for x in (across, along))
    return tuple(kinds) == (Access.UNIT, Access.STRIDED)


def _stride(s: Load, along: Sym) -> int:
    """Return the stride of a load in elements, or 0 if it is not constant."""
    return static(lane_access(s.index, along, _LANES, _NO_SYMBOLS).stride) or 0
