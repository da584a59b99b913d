"""Which tiled kernels Triton can express."""

from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.expr import Const
from gyrator_ir.tile.loops import axes_of, in_one_step, steps_of
from gyrator_ir.tile.nodes import (
    LoopKind,
    Method,
    Repeat,
    Tiled,
    TiledGroup,
    TiledKernel,
    TiledTemplate,
)

TILING = "GY-TRITON-008"
"""Decisions that Triton kernels can't express."""

_GRID, _LOOP = LoopKind.GRID, LoopKind.LOOP
_POINTS = (_GRID, "XBLOCK")
_INNER = (_LOOP, "RBLOCK")
_NESTS = (
    (_POINTS,),
    (_POINTS, (_GRID, "RBLOCK")),
    (_POINTS, _INNER),
    ((_GRID, 1), _POINTS, _INNER),
)
"""Kinds and steps of loops, see `blocks`."""
_PRODUCT = (_POINTS, (_GRID, "RBLOCK"), (_LOOP, "KBLOCK"))
_PRODUCTS = (
    _PRODUCT,
    ((_GRID, 1), *_PRODUCT),
    (*_PRODUCT, (_LOOP, 1)),
    ((_GRID, 1), *_PRODUCT, (_LOOP, 1)),
)
"""The same of products: batches, rows, columns, depth, and what is summed over one by one."""


def check_expressible(tiled: Tiled) -> None:
    """Raise UnsupportedError for decisions that no text has a form for."""
    match tiled:
        case Repeat(name=name):
            said = "each kernel has a text of its own"
        case TiledGroup(name=name, kernels=kernels):
            said = "a group is of one kernel, which is no product of matrices"
            if len(kernels) == 1 and kernels[0].contraction is None:
                said = _wrong_with(kernels[0])
        case TiledKernel():
            name, said = tiled.kernel.name, _wrong_with(tiled)
        case TiledTemplate():
            return
    if said:
        help = "tile for this language with `gyrator_codegen.passes.block_pipeline`"
        raise UnsupportedError(Diagnostic(TILING, said, where=f"kernel {name}", help=help))


def _wrong_with(tiled: TiledKernel) -> str:
    if tiled.threads or tiled.transposed or tiled.prefetches or tiled.cleared:
        return "programs have no threads, prefetches or blocks in memory of their own"
    product = tiled.contraction is not None
    whole = in_one_step(tiled)
    method = Method.MATRIX if product else Method.AT_ONCE if whole else Method.ACCUMULATE
    for r in tiled.reductions:
        if r.method is not method or r.unroll != 1 or r.chain or r.wide or r.block:
            return f"{r.result} is reduced as {method.value}, and in no other way"
    nest = tuple((loop.kind, loop.step) for loop in tiled.loops)
    if nest not in (_PRODUCTS if product else _NESTS):
        return "its loops are none that text has"
    if not product and nest[0] == (_GRID, 1):
        extent = axes_of(tiled.kernel, tiled.loops[1])[-1].extent
        steps = steps_of(tiled, tiled.loops[1])
        if not isinstance(extent, Const) or any(extent.value % step for step in steps):
            return f"blocks of {steps} points reach beyond the axis of {extent!r}"
    return ""
