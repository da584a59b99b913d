"""`reuse-loads`: reuse loaded or stored values that are still in registers.

A softmax that processes rows whole then loads each row once instead of three times.
"""

from collections.abc import Collection
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import blocks_of
from gyrator_ir.body.nodes import Bind, Load, Store, StoreMode
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import Expr, ShapeFacts, Sym, subs
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.tile.nodes import Reuse, TiledKernel

_Position = tuple[int, int]
"""A stage and a statement of it."""


@frozen
class ReuseLoads(KernelPass):
    """Record loads from an address that was loaded from under the same mask, or stored to, with no
    other store to the buffer in between. This pass runs after `flatten-indices` and `pair-points`.

    Values that a loop loads or stores are only available in the same step. A loop may reuse values
    that were loaded before it, unless it stores to their buffer.
    """

    name: ClassVar[str] = "reuse-loads"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if tiled.contraction is not None:
            return tiled
        blocks = blocks_of(tiled)
        written = {f.index: f.written for f in tiled.forms}
        paired = {(p.stage, position) for p in tiled.pairs for position in (p.first, p.second)}
        local = {t.name for t in kernel.locals}
        definitions: dict[str, _Position] = {}
        """The statement that determines each value."""
        bound: dict[tuple[object, ...], Sym] = {}
        """A symbol for each loaded index."""
        symbols: dict[Sym, Expr] = {}
        """For each bound symbol, that of its index."""
        available: dict[tuple[object, ...], _Position] = {}
        """The statement that loaded or stored the value at each address."""
        reuses: list[Reuse] = []
        for number, stage in enumerate(kernel.stages):
            stepwise = blocks.tiles or (
                stage.level is Level.INNER and bool(kernel.inner) and not blocks.whole
            )
            if stepwise:
                _drop(available, {s.buffer for s in stage.body if isinstance(s, Store)})
            for k, s in enumerate(stage.body):
                position = (number, k)
                definitions |= dict.fromkeys(defined(s), position)
                if isinstance(s, Bind):
                    mask = None if s.mask is None else definitions[s.mask]
                    same = (definitions[s.value], s.size, s.wrap, mask)
                    symbols[s.symbol] = bound.setdefault(same, Sym(f"t{len(bound)}"))
                elif isinstance(s, Store):
                    _drop(available, {s.buffer})
                    index = written.get(s.index, s.index)
                    plain = s.mode is StoreMode.SET and s.mask is None and not stepwise
                    # With a loaded index, another point may have stored to the same address last.
                    own = index.free_symbols.isdisjoint(symbols) and position not in paired
                    if plain and own and s.buffer not in local:
                        available[s.buffer, index, None] = position
                elif isinstance(s, Load) and s.buffer not in local and position not in paired:
                    index = subs(written.get(s.index, s.index), symbols)
                    key = (s.buffer, index, None if s.mask is None else definitions[s.mask])
                    if key in available:
                        definitions[s.name] = available[key]
                        reuses.append(Reuse(*position, *available[key]))
                    elif not stepwise:
                        available[key] = position
        return evolve(tiled, reuses=tuple(reuses)) if reuses else tiled


def _drop(available: dict[tuple[object, ...], _Position], buffers: Collection[str]) -> None:
    for key in [key for key in available if key[0] in buffers]:
        del available[key]
