"""`offer-choices`: which of the numbers that other passes chose are worth measuring."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from attrs import evolve, field, frozen

from gyrator_codegen.analysis import ordered, static
from gyrator_codegen.nests import Nest, nest
from gyrator_codegen.passes.rewriting import each_alone
from gyrator_ir.body.nodes import Reduce
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.source import Configuration
from gyrator_ir.tile.choices import choices_of, settled
from gyrator_ir.tile.nodes import Loop, LoopKind, Method, Reduction, TiledKernel, TileProgram

_WIDE = 4  # bytes: a vector of larger elements is several registers


@frozen
class OfferChoices:
    """Give names and further values to numbers that suit some machines, and sizes, better.

    The first candidate is what the passes before it chose. Each of the others changes one thing:

    - `UNROLL<n>`, steps of stage n that are written side by side, of all stages at once;
    - `BLOCK`, elements of a row that two passes keep;
    - `STRIP`, neighbouring points that are reduced together, row by row;
    - `TILE` and `STRETCH`, both sides of what is read to be transposed.
    """

    unroll: int = 8
    """The most steps side by side."""
    least_block: int = 512
    widest: int = 2048
    """The most points of a strip."""

    name: ClassVar[str] = "offer-choices"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with choices for the kernels that have a launch of their own."""
        return each_alone(program, self._tile)

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        loops = None if tiled.choices else nest(tiled)
        if loops is None or loops.lanes == 1:
            return tiled
        found = _Offers(tiled)
        if tiled.reductions and (loops.columns or not loops.across):
            self._unrolled(found, loops)
        if not loops.across:
            self._blocked(found, loops)
        elif loops.columns:
            self._strips(found, loops)
        elif tiled.transposed:
            _tiles(found, loops)
        return found.offered()

    def _unrolled(self, found: "_Offers", loops: Nest) -> None:
        last = found.tiled.kernel.inner[-1] if loops.across else loops.axis
        extent = static(last.extent)
        more: dict[str, int] = {}
        fewer: dict[str, int] = {}
        for place, here in _reducing(found.tiled):
            name, chosen = f"UNROLL{place}", settled(here[0][1].unroll)
            found.chosen[name] = chosen
            found.reductions.update({r.result: evolve(r, unroll=name) for _, r in here})
            narrow = all(s.dtype.size <= _WIDE for s, _ in here)
            most = self.unroll if narrow or loops.across else self.unroll // 2
            taken = 2 * chosen * (2 if loops.across else loops.lanes)
            fits = 2 * chosen <= most and (extent is None or taken <= extent)
            # Chains along rows are as long as they may be.
            chained = not loops.across and any(r.chain for _, r in here)
            more[name] = 2 * chosen if fits else chosen
            fewer[name] = chosen if chained else max(chosen // 2, 1)
        found.offer(more)
        found.offer(fewer)

    def _blocked(self, found: "_Offers", loops: Nest) -> None:
        here = [r for r in found.tiled.reductions if r.method is Method.TWO_PASS]
        blocks = {r.block for r in here}
        if len(blocks) != 1 or any(r.keep for r in here):
            return
        chosen = settled(blocks.pop())
        half = chosen // 2 // loops.lanes * loops.lanes
        extent = static(loops.axis.extent)
        sizes = [half] if half >= self.least_block else []
        alike = [r for r in found.tiled.reductions if r.block == chosen]
        if (extent is None or chosen < extent) and not any(r.chain for r in alike):
            sizes.insert(0, 2 * chosen if extent is None else min(2 * chosen, extent))
        if not sizes:
            return
        found.chosen["BLOCK"] = chosen
        for r in alike:
            found.reductions[r.result] = evolve(found.reductions.get(r.result, r), block="BLOCK")
        for size in sizes:
            found.offer({"BLOCK": size})

    def _strips(self, found: "_Offers", loops: Nest) -> None:
        chosen = found.name_grid(loops.axis.symbol.name, "STRIP")
        extent = static(loops.axis.extent)
        for size in (2 * chosen, 4 * chosen, chosen // 2 // loops.lanes * loops.lanes):
            wide = extent is not None and size > -(-extent // loops.lanes) * loops.lanes
            if loops.lanes <= size <= self.widest and not wide:
                found.offer({"STRIP": size})


def _tiles(found: "_Offers", loops: Nest) -> None:
    rows = found.name_grid(found.tiled.transposed[0].along.name, "TILE")
    stretch = found.name_grid(loops.axis.symbol.name, "STRETCH")
    for size in (2 * rows, rows // 2 // loops.lanes * loops.lanes):
        if size:
            found.offer({"TILE": size})
    extent = static(loops.axis.extent)
    for size in (2 * loops.lanes, 4 * loops.lanes, 2 * stretch):
        if extent is None or min(size, stretch) < extent:
            found.offer({"STRETCH": size})


def _reducing(tiled: TiledKernel) -> Iterator[tuple[int, list[tuple[Reduce, Reduction]]]]:
    """Yield the stages that reduce, by number, and how; those that walk elements in order are left
    out."""
    recorded = iter(tiled.reductions)
    for place, stage in enumerate(tiled.kernel.stages):
        here = [(s, next(recorded)) for s in stage.body if isinstance(s, Reduce)]
        if here and not ordered(stage):
            yield place, here


@frozen
class _Offers:
    """What is to be chosen of a kernel, as far as it is found."""

    tiled: TiledKernel
    chosen: dict[str, int] = field(factory=dict)
    """The names, and what other passes chose."""
    others: list[dict[str, int]] = field(factory=list)
    reductions: dict[str, Reduction] = field(factory=dict)
    """With names in place of numbers."""
    grid: dict[Loop, Loop] = field(factory=dict)

    def offer(self, values: Mapping[str, int]) -> None:
        """Have these values measured beside the chosen ones."""
        if any(self.chosen[name] != value for name, value in values.items()):
            self.others.append(self.chosen | dict(values))

    def name_grid(self, axis: str, name: str) -> int:
        """Make the step of the grid loop over an axis a choice; return what it is."""
        loop = next(
            x for x in self.tiled.loops if x.kind is LoopKind.GRID and x.axes[0].name == axis
        )
        self.grid[loop] = evolve(loop, step=name)
        self.chosen[name] = settled(loop.step)
        return self.chosen[name]

    def offered(self) -> TiledKernel:
        """Return the kernel with choices, where there is any but the first."""
        if not self.others:
            return self.tiled
        rows = [self.chosen | values for values in ({}, *self.others)]
        candidates = tuple(Configuration(tuple(row.items())) for row in rows)
        return evolve(
            self.tiled,
            loops=tuple(self.grid.get(x, x) for x in self.tiled.loops),
            reductions=tuple(self.reductions.get(r.result, r) for r in self.tiled.reductions),
            choices=choices_of(candidates),
            candidates=candidates,
        )
