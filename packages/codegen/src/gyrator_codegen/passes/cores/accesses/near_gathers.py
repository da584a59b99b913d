"""`near-gathers`: find gathers whose elements are mostly near each other in a row."""

from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import static
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load
from gyrator_ir.body.rewrite import defined, types_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, Expr, ShapeFacts, Sym, SymKind, exact_quotient
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.tile.nodes import Access, IndexAccess, TiledKernel
from gyrator_ir.types import DType

_HALVES = frozenset({DType.BF16, DType.F16})
_CHEAPER = {8: _HALVES | {DType.F32, DType.I32, DType.U32}, 16: _HALVES}
"""By lanes, elements of which one load and a permutation are cheaper than a gather. With AVX-512,
those of 32 bits are not in bilinear resizing."""


@frozen
class NearGathers(KernelPass):
    """Record the gathers at computed positions in rows, as in resizing. Unlike loaded positions,
    computed ones mostly grow slowly along an axis. This pass runs after `classify-accesses`."""

    name: ClassVar[str] = "near-gathers"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        gathers = {a.index: a for a in tiled.accesses if a.kind is Access.GATHERED}
        loops = nest(tiled) if gathers else None
        if loops is None:
            return tiled
        bounds, cheaper = _computed(tiled.kernel), _CHEAPER.get(loops.lanes, ())
        rows = {
            b.name: b
            for b in tiled.kernel.parameters
            if b.dtype in cheaper and len(b.shape) > 1 and b.strides[-1] is ONE
            if (static(b.shape[-1]) or loops.lanes) >= loops.lanes
        }
        near: dict[str, bool] = {}
        for s in tiled.kernel.statements:
            if isinstance(s, Load):
                sure = s.mask is None and s.index in gathers and s.buffer in rows
                sure = sure and _in_row(gathers[s.index], rows[s.buffer], bounds)
                # Loads of different stages may have the same name.
                near[s.name] = sure and near.get(s.name, True)
        names = tuple(name for name, sure in near.items() if sure)
        return evolve(tiled, near=names) if names else tiled


def _in_row(access: IndexAccess, buffer: Buffer, bounds: dict[Sym, Expr]) -> bool:
    """Return whether the lanes of a gather are at computed positions of one row of a buffer.

    The bound of the position must be the length of a row: where the positions of a padded row are
    known not to be in the padding, no mask says that the others are not elements.
    """
    (first, factor), *others = access.terms
    if others or factor is not ONE or bounds.get(Sym(first)) is not buffer.shape[-1]:
        return False
    return exact_quotient(access.uniform, buffer.strides[-2]) is not None


def _computed(kernel: Kernel) -> dict[Sym, Expr]:
    """Return the symbols that are 32-bit values computed from no element, with their bounds."""
    types: dict[str, DType] = {}
    computed: dict[str, bool] = {}
    bounds: dict[Sym, Expr] = {}
    for s in kernel.statements:
        match s:
            case Bind(symbol, value, size, mask=None, wrap=False):
                if computed[value] and types[value] is DType.I32:
                    bounds[symbol] = size
                continue
            case Const():
                sure = True
            case IndexValue(expr=e):
                sure = all(v.kind is not SymKind.INDIRECT for v in e.free_symbols)
            case Let(args=args):
                sure = all(map(computed.__getitem__, args))
            case _:
                sure = False
        types |= types_of(s, kernel.storage)
        for name in defined(s):
            # Values of different stages may have the same name.
            computed[name] = sure and computed.get(name, True)
    return bounds
