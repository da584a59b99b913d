"""`reuse-loads`: reuse loaded or stored values that are still in registers.

A softmax that processes rows whole then loads each row once instead of three times.
"""

from collections.abc import Collection, Mapping
from typing import ClassVar

from attrs import evolve, field

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.positions import blocks_of
from gyrator_ir.body.nodes import Bind, Load, Store, StoreMode
from gyrator_ir.body.rewrite import defined
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import Expr, ShapeFacts, Sym, subs
from gyrator_ir.kernel.nodes import KernelStatement, Level
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
        values = _Values(
            written={f.index: f.written for f in tiled.forms},
            private=frozenset(t.name for t in kernel.locals),
            paired={(p.stage, position) for p in tiled.pairs for position in (p.first, p.second)},
        )
        for number, stage in enumerate(kernel.stages):
            stepwise = blocks.tiles or (
                stage.level is Level.INNER and bool(kernel.inner) and not blocks.whole
            )
            if stepwise:
                values.drop({s.buffer for s in stage.body if isinstance(s, Store)})
            for k, s in enumerate(stage.body):
                values.statement(s, (number, k), stepwise)
        return evolve(tiled, reuses=tuple(values.reuses)) if values.reuses else tiled


@define
class _Values:
    """The values that are in registers after some statements."""

    written: Mapping[Expr, Expr]
    """The form in which each index is written."""
    private: frozenset[str]
    """Buffers that are local to the kernel."""
    paired: Collection[_Position]
    """Accesses that belong to a pair."""
    definitions: dict[str, _Position] = field(factory=dict)
    """The statement that determines each value."""
    bound: dict[tuple[object, ...], Sym] = field(factory=dict)
    """A symbol for each loaded index."""
    symbols: dict[Sym, Expr] = field(factory=dict)
    """For each bound symbol, that of its index."""
    available: dict[tuple[object, ...], _Position] = field(factory=dict)
    """The statement that loaded or stored the value at each address."""
    reuses: list[Reuse] = field(factory=list)

    def statement(self, s: KernelStatement, position: _Position, stepwise: bool) -> None:
        """Add a statement; `stepwise` says that its values are available in the same step only."""
        self.definitions |= dict.fromkeys(defined(s), position)
        match s:
            case Bind():
                same = (self.definitions[s.value], s.size, s.wrap, self.mask_of(s))
                self.symbols[s.symbol] = self.bound.setdefault(same, Sym(f"t{len(self.bound)}"))
            case Store():
                self.store(s, position, stepwise)
            case Load() if s.buffer not in self.private and position not in self.paired:
                self.load(s, position, stepwise)

    def store(self, s: Store, position: _Position, stepwise: bool) -> None:
        self.drop({s.buffer})
        index = self.written.get(s.index, s.index)
        plain = s.mode is StoreMode.SET and s.mask is None and not stepwise
        # With a loaded index, another point may have stored to the same address last.
        own = index.free_symbols.isdisjoint(self.symbols) and position not in self.paired
        if plain and own and s.buffer not in self.private:
            self.available[s.buffer, index, None] = position

    def load(self, s: Load, position: _Position, stepwise: bool) -> None:
        index = subs(self.written.get(s.index, s.index), self.symbols)
        address = (s.buffer, index, self.mask_of(s))
        if address in self.available:
            source = self.definitions[s.name] = self.available[address]
            self.reuses.append(Reuse(*position, *source))
        elif not stepwise:
            self.available[address] = position

    def mask_of(self, s: Bind | Load) -> _Position | None:
        return None if s.mask is None else self.definitions[s.mask]

    def drop(self, buffers: Collection[str]) -> None:
        for address in [a for a in self.available if a[0] in buffers]:
            del self.available[address]
