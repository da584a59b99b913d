"""`offer-choices`: turn parameters that other passes chose into tuning choices."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from attrs import evolve, field

from gyrator_codegen.analysis import ordered, static
from gyrator_codegen.nests import Nest, nest
from gyrator_codegen.passes.rewriting import each_of
from gyrator_ir.body.nodes import Reduce, ReduceKind
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.source import Configuration
from gyrator_ir.tile.choices import choices_of, settled
from gyrator_ir.tile.nodes import Loop, LoopKind, Method, Reduction, TiledKernel, TileProgram

_WIDE = 4  # bytes: a vector of larger elements is several registers


@frozen
class OfferChoices:
    """Offer alternatives for parameters whose best values depend on the machine and the sizes.

    The first candidate has the values that preceding passes chose. Each of the others changes one
    parameter:

    - `UNROLL<n>`, the unroll factor of stage n, of all stages at once;
    - `BLOCK`, the elements of a row that a two-pass reduction stages;
    - `STRIP`, the number of adjacent points that are reduced together, row by row;
    - `TILE` and `STRETCH`, the sides of a tile that is loaded and transposed.
    """

    unroll: int = 8
    """Maximum unroll factor."""
    least_block: int = 512
    widest: int = 2048
    """Maximum number of points of a strip."""

    name: ClassVar[str] = "offer-choices"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with choices for the kernels that have a launch of their own."""
        return each_of(program, TiledKernel, self._tile)

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        loops = None if tiled.choices else nest(tiled)
        if loops is None or loops.lanes == 1:
            return tiled
        offers = _Offers(tiled)
        if tiled.reductions and (loops.columns or not loops.across):
            self._unrolled(offers, loops)
        if not loops.across:
            self._blocked(offers, loops)
        elif loops.columns:
            self._strips(offers, loops)
        elif tiled.transposed:
            _tiles(offers, loops)
        return offers.with_choices()

    def _unrolled(self, offers: "_Offers", loops: Nest) -> None:
        last = offers.tiled.kernel.inner[-1] if loops.across else loops.axis
        extent = static(last.extent)
        more: dict[str, int] = {}
        fewer: dict[str, int] = {}
        for number, reduced in _reducing(offers.tiled):
            name, chosen = f"UNROLL{number}", settled(reduced[0][1].unroll)
            offers.chosen[name] = chosen
            offers.reductions.update({r.result: evolve(r, unroll=name) for _, r in reduced})
            narrow = all(s.dtype.size <= _WIDE for s, _ in reduced)
            most = self.unroll if narrow or loops.across else self.unroll // 2
            elements = 2 * chosen * (2 if loops.across else loops.lanes)
            # Down columns, each step of a Welford reduction needs the number of rows before it.
            counts = loops.across and any(s.kind is ReduceKind.WELFORD for s, _ in reduced)
            short = extent is not None and elements > extent
            fits = 2 * chosen <= most and not short and not counts
            # Chains along rows already have their maximum length.
            chained = not loops.across and any(r.chain for _, r in reduced)
            more[name] = 2 * chosen if fits else chosen
            fewer[name] = chosen if chained else max(chosen // 2, 1)
        offers.offer(more)
        offers.offer(fewer)

    def _blocked(self, offers: "_Offers", loops: Nest) -> None:
        two_pass = [r for r in offers.tiled.reductions if r.method is Method.TWO_PASS]
        blocks = {r.block for r in two_pass}
        if len(blocks) != 1 or any(r.keep for r in two_pass):
            return
        chosen = settled(blocks.pop())
        half = chosen // 2 // loops.lanes * loops.lanes
        extent = static(loops.axis.extent)
        sizes = [half] if half >= self.least_block else []
        alike = [r for r in offers.tiled.reductions if r.block == chosen]
        if (extent is None or chosen < extent) and not any(r.chain for r in alike):
            sizes.insert(0, 2 * chosen if extent is None else min(2 * chosen, extent))
        if not sizes:
            return
        offers.chosen["BLOCK"] = chosen
        for r in alike:
            offers.reductions[r.result] = evolve(offers.reductions.get(r.result, r), block="BLOCK")
        for size in sizes:
            offers.offer({"BLOCK": size})

    def _strips(self, offers: "_Offers", loops: Nest) -> None:
        chosen = offers.name_grid(loops.axis.symbol.name, "STRIP")
        extent = static(loops.axis.extent)
        for size in (2 * chosen, 4 * chosen, chosen // 2 // loops.lanes * loops.lanes):
            wide = extent is not None and size > -(-extent // loops.lanes) * loops.lanes
            if loops.lanes <= size <= self.widest and not wide:
                offers.offer({"STRIP": size})


def _tiles(offers: "_Offers", loops: Nest) -> None:
    rows = offers.name_grid(offers.tiled.transposed[0].along.name, "TILE")
    length = offers.name_grid(loops.axis.symbol.name, "STRETCH")
    for size in (2 * rows, rows // 2 // loops.lanes * loops.lanes):
        if size:
            offers.offer({"TILE": size})
    extent = static(loops.axis.extent)
    for size in (2 * loops.lanes, 4 * loops.lanes, 2 * length):
        if extent is None or min(size, length) < extent:
            offers.offer({"STRETCH": size})


def _reducing(tiled: TiledKernel) -> Iterator[tuple[int, list[tuple[Reduce, Reduction]]]]:
    """Yield the number and the reductions of each stage that reduces and has no scan or sort."""
    recorded = iter(tiled.reductions)
    for number, stage in enumerate(tiled.kernel.stages):
        reduced = [(s, next(recorded)) for s in stage.body if isinstance(s, Reduce)]
        if reduced and not ordered(stage):
            yield number, reduced


@frozen
class _Offers:
    """The choices offered for a kernel so far."""

    tiled: TiledKernel
    chosen: dict[str, int] = field(factory=dict)
    """The values that preceding passes chose, by name of the choice."""
    others: list[dict[str, int]] = field(factory=list)
    reductions: dict[str, Reduction] = field(factory=dict)
    """Reductions with names of choices in place of numbers."""
    grid: dict[Loop, Loop] = field(factory=dict)

    def offer(self, values: Mapping[str, int]) -> None:
        """Add a candidate with these values, and the chosen ones of other choices."""
        if any(self.chosen[name] != value for name, value in values.items()):
            self.others.append(self.chosen | dict(values))

    def name_grid(self, axis: str, name: str) -> int:
        """Make the step of the grid loop over an axis a choice, and return its value."""
        loop = next(
            x for x in self.tiled.loops if x.kind is LoopKind.GRID and x.axes[0].name == axis
        )
        self.grid[loop] = evolve(loop, step=name)
        self.chosen[name] = settled(loop.step)
        return self.chosen[name]

    def with_choices(self) -> TiledKernel:
        """Return the kernel with choices, if there is more than one candidate."""
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
