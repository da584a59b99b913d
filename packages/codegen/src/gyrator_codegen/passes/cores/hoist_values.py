"""`hoist-values`: hoist loop-invariant values."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import invariant
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Const
from gyrator_ir.body.rewrite import defined, writes
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import KernelStatement, Level
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class HoistValues(KernelPass):
    """Record the values that are invariant in a stage's own loops.

    Loads and checks are hoisted only if the loops run at least once, so this pass runs after
    `nonempty-rows`.
    """

    name: ClassVar[str] = "hoist-values"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled)
        if loops is None or loops.columns or tiled.transposed:
            return tiled
        body = kernel.statements
        written = set(writes(body))
        inner = [stage.body for stage in kernel.stages if stage.level is Level.INNER]
        parts: list[tuple[Sequence[KernelStatement], Sequence[KernelStatement]]] = []
        if kernel.inner:
            symbols = [a.symbol for a in kernel.inner]
            parts = [invariant(stage, symbols, written, tiled.nonempty) for stage in inner]
        elif not inner and loops.across:
            # A unit has at least one vector.
            parts = [invariant(body, [loops.symbol], written, loads=True)]
        # Values of different stages may have the same name.
        moving = {name for _, rest in parts for name in _named(rest)}
        ahead = [name for fixed, _ in parts for name in _named(fixed) if name not in moving]
        return evolve(tiled, ahead=tuple(dict.fromkeys(ahead))) if ahead else tiled


def _named(body: Sequence[KernelStatement]) -> list[str]:
    names: list[str] = []
    for s in body:
        if isinstance(s, Bind):
            names.append(s.symbol.name)
        elif not isinstance(s, Const):
            names += defined(s)
    return names
