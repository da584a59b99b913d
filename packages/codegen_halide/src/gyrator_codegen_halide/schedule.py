"""Emission of Halide schedules from a kernel's tile loops."""

from gyrator_codegen import Writer, nest
from gyrator_codegen_halide.values import POINT, Scheduling, Values
from gyrator_ir.body.nodes import Store
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.modes import StoreMode
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import LoopKind, Reduction, TiledKernel


class Schedule:
    """Emits the schedule of a kernel."""

    def __init__(self, tiled: TiledKernel, how: Scheduling, values: Values, writer: Writer) -> None:
        self._how, self._values, self._w = how, values, writer
        self._nest = None if how.blocks else nest(tiled)
        self._grid = [x for x in tiled.loops if x.kind is LoopKind.GRID]
        self._shared = 0 if tiled.threads is None else tiled.threads.loops
        self._folds: list[str] = []

    def order(self, level: Level) -> list[Sym]:
        """Return the coordinates of a level, outermost loop first."""
        symbols = [s for x in self._grid for s in x.axes] or [POINT.symbol]
        symbols += self._values.inner if level is Level.INNER else ()
        if self._nest is not None and self._nest.across:
            symbols.remove(self._nest.symbol)
            symbols.append(self._nest.symbol)
        return symbols

    def accumulators(self, how: Reduction) -> int:
        """Return the number of accumulators per point."""
        if self._nest is None or self._nest.across or self._how.autoscheduler:
            return 1
        return max(1, self._nest.lanes) * settled(how.unroll)

    def free(self, s: Store) -> str:
        """Return the vector lanes and whether to use threads, for a store whose elements can be
        written in any order."""
        if s.mode is not StoreMode.SET or self._values.bound(s.index) or self._how.autoscheduler:
            return "None"
        return f"({self._nest.lanes if self._nest else 1}, {self._shared > 0})"

    def fold(self, name: str) -> None:
        """Register a reduction or scan, which a single loop nest computes where it is used."""
        if self._values.single:
            self._folds.append(name)
        elif not self._how.autoscheduler:
            self._w.line(f"{name}.at(None, None, {self._along()})")

    def _along(self) -> str:
        loops = self._nest
        if loops is None or not loops.across:
            return "None"
        return f"Along({loops.symbol.name}, {loops.lanes}, {loops.columns})"

    def write(self, name: str, level: Level) -> None:
        """Emit the loops of a function of coordinates, and where they compute reductions."""
        if self._how.autoscheduler:
            return
        if self._how.blocks:
            order = ", ".join(s.name for s in self.order(level))
            size = settled(self._grid[0].step)
            self._w.line(f"thread = blocks({name}, [{order}], {size})")
            last = "thread"
        else:
            last = self._tiles(name, level)
        for fold in self._folds:
            self._w.line(f"{fold}.at({name}, {last}, {self._along()})")

    def _tiles(self, name: str, level: Level) -> str:
        """Emit loops, vectors and threads; return the innermost loop over points."""
        loops = self._nest
        grid = [x.axes[0].name for x in self._grid] or [POINT.symbol.name]
        below = [s.name for s in self._values.inner] if level is Level.INNER else []
        lanes = loops.lanes if loops is not None and loops.lanes > 1 else 0
        if loops is not None and loops.across:
            axis = loops.symbol.name
            parts = unit, vector, lane = [f"{axis}_{x}" for x in ("unit", "vector", "lane")]
            cut = f"across({name}, {axis}, {loops.grid_step}, {lanes})"
            self._w.line(f"{', '.join(parts)} = {cut}")
            grid = [unit if x == axis else x for x in grid]
            below = [*below, vector, lane] if loops.columns else [vector, *below, lane]
            lanes = 0
        order = f"[{', '.join(grid)}], [{', '.join(below)}], {lanes}, {self._shared}"
        self._w.line(f"scheduled({name}, {order})")
        return grid[-1]
