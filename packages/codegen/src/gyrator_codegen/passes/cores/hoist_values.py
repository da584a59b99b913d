"""`hoist-values`: what is the same in all steps of a loop is computed once, ahead of it."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.analysis import invariant
from gyrator_codegen.nests import nest
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Const
from gyrator_ir.body.rewrite import defined, writes
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import KernelStatement, Level
from gyrator_ir.tile.nodes import TiledKernel


@frozen
class HoistValues(KernelPass):
    """Name the values that do not depend on a stage's own loops. Loads and checks are among them
    where those loops surely run: it goes after `nonempty-rows`."""

    name: ClassVar[str] = "hoist-values"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel, loops = tiled.kernel, nest(tiled)
        if loops is None or loops.columns or tiled.transposed:
            return tiled
        body = [s for stage in kernel.stages for s in stage.body]
        written = set(writes(body))
        inner = [stage.body for stage in kernel.stages if stage.level is Level.INNER]
        parts: list[tuple[Sequence[KernelStatement], Sequence[KernelStatement]]] = []
        if kernel.inner:
            symbols = [a.symbol for a in kernel.inner]
            parts = [invariant(stage, symbols, written, tiled.nonempty) for stage in inner]
        elif not inner and loops.across:
            # A stretch has at least one vector.
            parts = [invariant(body, [loops.symbol], written, loads=True)]
        # Stages may use one name for values of their own.
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
