"""`unmask-indices`: load and bind indices regardless of masks along other axes.

A part of a concatenation that is read at loaded indices, as an upsampled image is, also has the
mask of its columns on the indices of its rows. Without it, an index is the same for all columns: it
is loaded once for a row, whose elements are contiguous.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import ClassVar

from attrs import evolve, field

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Store
from gyrator_ir.body.rewrite import defined, expressions, used
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import Expr, ShapeFacts, Sym, SymKind, sum_of
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Stage
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.tile.loops import kernel_facts
from gyrator_ir.tile.nodes import TiledKernel

_NOTHING: frozenset[Sym] = frozenset()


@frozen
class UnmaskIndices(KernelPass):
    """Drop the masks of indices, and of the loads that they are computed from, that vary along none
    of the axes that the mask varies along.

    The mask must only depend on positions, the value must only matter where it is true, and an
    element that is then always loaded must exist. Indices that are checked keep their masks, since
    elements that are masked out are not checked.
    """

    name: ClassVar[str] = "unmask-indices"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if not any(isinstance(s, Bind) and s.mask and not s.check for s in kernel.statements):
            return tiled
        inside = kernel_facts(kernel, facts)
        axes = (a.symbol for a in (*kernel.axes, *kernel.inner))
        sources = _Sources({symbol: frozenset({symbol}) for symbol in axes})
        stages = tuple(
            evolve(s, body=(*_unmasked(kernel, s, inside, sources),)) for s in kernel.stages
        )
        return (
            tiled
            if stages == kernel.stages
            else evolve(tiled, kernel=evolve(kernel, stages=stages))
        )


def _unmasked(
    kernel: Kernel, stage: Stage, facts: ShapeFacts, sources: "_Sources"
) -> Iterator[KernelStatement]:
    read_only = {b.name: b for b in kernel.parameters if b.name not in kernel.writes}
    extents = {a.symbol: a.extent for a in (*kernel.axes, *kernel.inner)}
    elsewhere = [s for other in kernel.stages if other is not stage for s in other.body]
    for number, s in enumerate(stage.body):
        if isinstance(s, Load | Bind) and s.mask in sources.positions:
            bare = evolve(s, mask=None)
            if isinstance(s, Bind):
                exists = not s.check
            else:
                exists = s.buffer in read_only and _exists(s, read_only[s.buffer], extents, facts)
            if exists and sources.of(bare).isdisjoint(sources.values[s.mask]):
                s = bare if _only_under(s, stage.body[number + 1 :], elsewhere) else s
        sources.add(s)
        yield s


@define(eq=False)
class _Sources:
    """The axes that symbols and values vary along; statements are added in order."""

    symbols: dict[Sym, frozenset[Sym]]
    values: dict[str, frozenset[Sym]] = field(factory=dict)
    positions: set[str] = field(factory=set)
    """The values that are computed from positions only."""

    def of(self, s: KernelStatement) -> frozenset[Sym]:
        """Return the axes that the results of a statement vary along."""
        free = {v for e in expressions(s) for v in e.free_symbols}
        symbols = (self.symbols.get(v, _NOTHING) for v in free)
        return _NOTHING.union(*symbols, *(self.values[name] for name in used(s)))

    def add(self, s: KernelStatement) -> None:
        """Add the results of a statement."""
        axes = self.of(s)
        names = defined(s)
        self.values.update(dict.fromkeys(names, axes))
        self.positions.difference_update(names)  # stages may use the same names
        match s:
            case Bind():
                self.symbols[s.symbol] = axes
            case Const(name=name):
                self.positions.add(name)
            case IndexValue(name, e) if _positional(e):
                self.positions.add(name)
            case Let(name=name, args=args) if self.positions.issuperset(args):
                self.positions.add(name)


def _positional(e: Expr) -> bool:
    return all(v.kind is not SymKind.INDIRECT for v in e.free_symbols)


def _exists(s: Load, buffer: Buffer, extents: Mapping[Sym, Expr], facts: ShapeFacts) -> bool:
    """Return whether the element of a load exists at all positions."""
    shape, strides = buffer.parts.shape, buffer.parts.strides
    if not _positional(s.index):
        return False  # a bound index need not be in range if the mask is never true
    # Positions along an axis only exist if it is not empty.
    filled = {extents[v] for v in s.index.free_symbols if v in extents}
    last = sum_of([(n - 1) * step for n, step in zip(shape, strides, strict=True)])
    return (
        all(n in filled or facts.known_positive(n) for n in shape)
        and facts.known_nonnegative(s.index)
        and facts.known_nonnegative(last - s.index)
    )


def _only_under(
    s: Load | Bind, after: Iterable[KernelStatement], elsewhere: Iterable[KernelStatement]
) -> bool:
    """Return whether what a statement defines only matters where its mask is true and, for a load,
    whether an index is computed from it."""
    masks, names = {s.mask}, {*defined(s)}
    symbols = {s.symbol} if isinstance(s, Bind) else set()
    index = isinstance(s, Bind)
    for t in after:
        if isinstance(t, Let) and t.op == "bit_and" and not masks.isdisjoint(t.args):
            masks.add(t.name)
        elif not _touches(t, names, symbols):
            continue
        elif isinstance(t, Load | Store | Bind) and t.mask in masks:
            index |= isinstance(t, Bind)
        elif isinstance(t, Let) and t.op == "where" and t.args[0] in masks:
            if t.args[2] in names:
                names.add(t.name)
        elif isinstance(t, Let | IndexValue):
            names.add(t.name)
        else:
            return False
    return index and not any(_touches(t, names, symbols) for t in elsewhere)


def _touches(s: KernelStatement, names: Collection[str], symbols: Collection[Sym]) -> bool:
    return not {*used(s)}.isdisjoint(names) or any(
        not e.free_symbols.isdisjoint(symbols) for e in expressions(s)
    )
