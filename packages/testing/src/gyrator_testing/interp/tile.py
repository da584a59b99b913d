"""The reference interpreter of Tile IR: units run in any order, the steps of loops in order.

The elements of a reduction are gathered in the order of their positions and reduced by definition;
sums with chains are added up chain by chain. Besides, the interpreter checks that every element of
every point is visited once; that no unit loads or stores an element that another unit stores,
unless both combine into a buffer that is declared `atomic`; that indices vary from lane to lane of
a vector as the accesses declare; and that exact casts do not round.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, field, frozen

from gyrator_ir.body.nodes import Bind, Let, Load, Reduce, ScanStep, SortStep, Store, StoreMode
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import Expr, Sym, SymKind
from gyrator_ir.kernel.nodes import Level, Stage
from gyrator_ir.loop.contraction import needed_for
from gyrator_ir.source import Configuration
from gyrator_ir.tile import nodes
from gyrator_ir.tile.choices import bound, settled
from gyrator_ir.tile.nodes import Access, LoopKind, TiledKernel, TileProgram
from gyrator_ir.types import DType
from gyrator_testing.interp import folds
from gyrator_testing.interp.body import Cell, Frame, Memory, spread
from gyrator_testing.interp.dtypes import NUMPY, Array, poisoned
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.externs import DEFAULT, Externs
from gyrator_testing.interp.index import Environment, Number, integer
from gyrator_testing.interp.kernel import cells_of
from gyrator_testing.interp.loop import NO_CONSTANTS

_NOBODY, _SEVERAL = -1, -2

Group = tuple[Sym, ...]
"""Axes that loops iterate over as one flattened axis."""
Region = Mapping[Group, tuple[int, int]]
"""The range of positions of each group, from the first to the last, exclusive."""


def run_tiled(
    tiled: TiledKernel,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int],
    configuration: Configuration | None = None,
    seed: int = 0,
) -> None:
    """Run a tiled kernel on flat storages, which it writes; arguments are those of `run_kernel`.

    Args:
        configuration: values of the choices; the first candidate if None, or the first value of
            each choice where there are no candidates.
        seed: of the order of units.

    Raises:
        InterpreterError: as `run_kernel`; GY-INTERP-006 for an element that is visited not at all
            or twice, and for a race between units.
        IndexError: when a checked index is out of range.
    """
    cells, env = cells_of(tiled.kernel, buffers, sizes)
    run = _Run(bound(tiled, configuration), cells, env)
    units = list(run.units())
    for n in np.random.default_rng(seed).permutation(len(units)):
        run.unit(*units[n])


def run_tile_program(
    program: TileProgram,
    inputs: Sequence[Any],
    constants: Mapping[str, Array] = NO_CONSTANTS,
    externs: Externs = DEFAULT,
) -> list[Any]:
    """Run each kernel on storages of its own; return these.

    Args:
        inputs: the sizes by name, and then a flat array for each parameter of `tiled_kernels`.
    """
    sizes, *arrays = inputs
    remaining = iter(arrays)
    for tiled in tiled_kernels(program):
        buffers = {p.name: next(remaining) for p in tiled.kernel.parameters}
        run_tiled(tiled, buffers, {s.name: sizes[s.name] for s in tiled.kernel.sizes})
    return arrays


def tiled_kernels(program: TileProgram) -> list[TiledKernel]:
    """Return the kernels of a program but those of templates, those of groups once for each
    member."""
    kernels: list[TiledKernel] = []
    for kernel in program.kernels:
        if isinstance(kernel, nodes.Repeat):
            kernels.append(next(t for t in kernels if t.kernel.name == kernel.kernel))
        elif isinstance(kernel, nodes.TiledGroup):
            kernels += [kernel.kernels[n] for n in kernel.members]
        elif not isinstance(kernel, nodes.TiledTemplate):
            kernels.append(kernel)
    return kernels


@define
class _Uses:
    """The units that stored to each element of a buffer, and that loaded it."""

    stored: Array
    loaded: Array


@define
class _Watched(Frame):
    """A frame that records which elements a unit accesses."""

    uses: dict[str, _Uses] = field(factory=dict)
    unit: int = 0
    atomic: frozenset[str] = frozenset()

    def _load(self, buffer: str, index: Expr, mask: str | None) -> Array:
        values = super()._load(buffer, index, mask)
        uses = self.uses.get(buffer)
        if uses is not None:
            touched = self._touched(index, mask)
            others = uses.stored[touched]
            if np.any((others != _NOBODY) & (others != self.unit)):
                raise _race(buffer, index, "loads what another unit stores")
            uses.loaded[touched] = _joined(uses.loaded[touched], self.unit)
        return values

    def _store(
        self, buffer: str, index: Expr, value: str, mode: StoreMode, mask: str | None
    ) -> None:
        super()._store(buffer, index, value, mode, mask)
        uses = self.uses.get(buffer)
        scattered = any(s.kind is SymKind.INDIRECT for s in index.free_symbols)
        if uses is None or (mode is StoreMode.SET and scattered):
            return  # which of the values at one place stays is not promised
        touched = self._touched(index, mask)
        if mode is StoreMode.SET or buffer not in self.atomic:
            for others, what in ((uses.stored, "stores to"), (uses.loaded, "loads")):
                units = others[touched]
                if np.any((units != _NOBODY) & (units != self.unit)):
                    raise _race(buffer, index, f"stores to what another unit {what}")
        uses.stored[touched] = _joined(uses.stored[touched], self.unit)

    def _touched(self, index: Expr, mask: str | None) -> Array:
        address = spread(self.address(index), self.space)
        return address.ravel() if mask is None else address[self.full(mask)]


def _race(buffer: str, index: Expr, conflict: str) -> Exception:
    return InterpreterError.of("GY-INTERP-006", f"a unit {conflict}", where=f"{buffer}[{index!r}]")


def _joined(before: Array, unit: int) -> Array:
    return np.where((before == _NOBODY) | (before == unit), unit, _SEVERAL)


@define
class _Gathered:
    """The arguments of a reduction, at the positions of their elements."""

    rows: list[Array]
    seen: Array


@frozen
class _Points:
    """The points of a step of the shared loops: for each group, the position of each of them."""

    positions: Mapping[Group, Array]
    symbols: dict[Sym, Number]
    count: int


class _Run:
    """The execution of one kernel, for one configuration."""

    def __init__(self, tiled: TiledKernel, cells: Memory, env: Environment) -> None:
        self._tiled = tiled
        self._kernel = tiled.kernel
        self._cells = cells
        self._env = dict(env)
        self._inner = {a.symbol for a in tiled.kernel.inner}
        self._extents = {
            a.symbol: integer(a.extent, env) for a in (*tiled.kernel.axes, *tiled.kernel.inner)
        }
        grid = sum(loop.kind is LoopKind.GRID for loop in tiled.loops)
        inner = [n for n, loop in enumerate(tiled.loops) if not self._inner.isdisjoint(loop.axes)]
        shared = grid if tiled.fissions else max(grid, min(inner, default=len(tiled.loops)))
        self._grid, self._shared = tiled.loops[:grid], tiled.loops[grid:shared]
        self._own = tiled.loops[shared:]
        self._own_groups = {x.axes for x in self._own if self._inner.isdisjoint(x.axes)}
        """Axes of points that the loops of each point cut."""
        self._inner_groups = tuple(dict.fromkeys(tiled.loops[n].axes for n in inner))
        self._steps: dict[tuple[tuple[int, int], ...], tuple[dict[Sym, Number], Array]] = {}
        """What `_elements` returned, which is the same in every unit."""
        self._methods = {r.result: r for r in tiled.reductions}
        self._accesses = {a.index: a for a in tiled.accesses if a.kind is not Access.LANES}
        self._orders = [
            _orders(stage, number, tiled) for number, stage in enumerate(tiled.kernel.stages)
        ]
        """For each stage, the orders of the statements in its loops, one after the other."""
        self._reuses = {
            (r.stage, r.statement): (r.first_stage, r.first_statement) for r in tiled.reuses
        }
        self._read: dict[tuple[int, int], Array] = {}
        """The values of loads that others reuse, by stage and statement."""
        stored = {s.buffer for s in tiled.kernel.statements if isinstance(s, Store)} & cells.keys()
        self._uses = {
            name: _Uses(*(np.full(cells[name].span, _NOBODY, np.int64) for _ in range(2)))
            for name in stored
        }

    def _cut(
        self, loops: Sequence[nodes.Loop], region: Region
    ) -> Iterator[tuple[tuple[int, ...], Region]]:
        """Yield the steps of nested loops: their numbers, and the region that each covers."""
        if not loops:
            yield (), region
            return
        low, high = region[loops[0].axes]
        step = settled(loops[0].step)
        for place, start in enumerate(range(low, high, step)):
            part = dict(region) | {loops[0].axes: (start, min(start + step, high))}
            for numbers, rest in self._cut(loops[1:], part):
                yield (place, *numbers), rest

    def units(self) -> Iterator[tuple[int, Region]]:
        """Yield each unit of work: the worker that runs it, and its region."""
        whole = {
            loop.axes: (0, math.prod(self._extents[s] for s in loop.axes))
            for loop in self._tiled.loops
        }
        threads = self._tiled.threads
        workers: dict[tuple[int, ...], int] = {}
        for numbers, region in self._cut(self._grid, whole):
            thread = numbers if threads is None else numbers[: threads.loops]
            yield workers.setdefault(thread, len(workers)), region

    def unit(self, worker: int, region: Region) -> None:
        """Run one unit."""
        for _, part in self._cut(self._shared, region):
            self._stages(worker, part)

    def _stages(self, worker: int, region: Region) -> None:
        points = self._points(region)
        memory = dict(self._cells)
        for local in self._kernel.locals:
            extent = integer(local.extent, self._env)
            base = np.arange(points.count, dtype=np.int64)[:, None] * extent
            memory[local.name] = Cell(poisoned(local.dtype, points.count * extent), extent, base)
        outer = self._frame((points.count, 1), memory, self._env | points.symbols, {}, worker)
        for number, stage in enumerate(self._kernel.stages):
            self._stage(number, stage, region, points, outer)

    def _frame(
        self, space: tuple[int, ...], memory: Memory, symbols: dict[Sym, Number],
        values: dict[str, Array], worker: int,
    ) -> _Watched:  # fmt: skip
        atomic = frozenset(self._tiled.atomic)
        return _Watched(space, memory, symbols, values, self._uses, worker, atomic)

    def _points(self, region: Region) -> _Points:
        groups = [g for g in region if self._inner.isdisjoint(g)]
        ranges = [np.arange(*region[g], dtype=np.int64) for g in groups]
        grids = np.meshgrid(*ranges, indexing="ij") if ranges else []
        flat = {g: grid.ravel() for g, grid in zip(groups, grids, strict=True)}
        count = math.prod(len(r) for r in ranges)
        symbols: dict[Sym, Number] = {}
        for group, positions in flat.items():
            symbols |= {s: a[:, None] for s, a in self._digits(group, positions).items()}
        return _Points(flat, symbols, count)

    def _digits(self, group: Group, positions: Array) -> dict[Sym, Array]:
        """Return the values of a group's axes at positions of the flattened group."""
        digits: dict[Sym, Array] = {}
        for symbol in reversed(group):
            extent = max(self._extents[symbol], 1)
            digits[symbol] = positions % extent
            positions = positions // extent
        return digits

    def _stage(
        self, number: int, stage: Stage, region: Region, points: _Points, outer: Frame
    ) -> None:
        inside = stage.level is Level.INNER and bool(self._inner)
        ordered = any(isinstance(s, ScanStep | SortStep) for s in stage.body)
        loops = tuple(
            loop
            for loop in self._own
            if self._inner.isdisjoint(loop.axes) or (inside and not ordered)
        )
        gathered: dict[str, _Gathered] = {}
        size = math.prod(self._extents[s] for s in self._inner) if inside else 1
        for s in stage.body:
            if isinstance(s, Reduce):
                rows = [np.zeros((points.count, size), NUMPY[s.dtype]) for _ in s.args]
                seen = np.zeros((points.count, size), np.bool_)
                gathered[s.names[0]] = _Gathered(rows, seen)
        for order in self._orders[number]:
            for _, part in self._cut(loops, region):
                self._part(number, order, part, points, outer, gathered, inside)
        for s in stage.body:
            if isinstance(s, Reduce):
                self._reduce(s, gathered[s.names[0]], outer)

    def _part(
        self, number: int, order: Sequence[int], part: Region, points: _Points, outer: Frame,
        gathered: Mapping[str, _Gathered], inside: bool,
    ) -> None:  # fmt: skip
        stage = self._kernel.stages[number]
        here = np.arange(points.count)
        symbols, values, memory = outer.symbols, dict(outer.values), outer.memory
        if self._own_groups:
            chosen = np.ones(points.count, np.bool_)
            for group in self._own_groups:
                low, high = part[group]
                chosen &= (points.positions[group] >= low) & (points.positions[group] < high)
            here = np.flatnonzero(chosen)
            symbols = {s: _at(v, here, points.count) for s, v in symbols.items()}
            values = {name: _at(v, here, points.count) for name, v in values.items()}
            memory = {
                name: cell if cell.base is None else Cell(cell.storage, cell.span, cell.base[here])
                for name, cell in memory.items()
            }
        elements, where = self._elements(part) if inside else ({}, np.zeros(1, np.int64))
        frame = self._frame(
            (len(here), len(where)), memory, symbols | elements, values, outer.unit  # type: ignore[attr-defined]
        )  # fmt: skip
        for place in order:
            s = stage.body[place]
            if isinstance(s, Reduce):
                operands, at = gathered[s.names[0]], (here[:, None], where)
                for row, name in zip(operands.rows, s.args, strict=True):
                    row[at] = frame.full(name)
                if np.any(operands.seen[at]):
                    raise InterpreterError.of(
                        "GY-INTERP-006", f"{s.names[0]} takes an element twice"
                    )
                operands.seen[at] = True
            elif isinstance(s, ScanStep | SortStep):
                frame.collect(s, 1)
            elif isinstance(s, Load) and (first := self._reuses.get((number, place))):
                frame.values[s.name] = self._read[first]
            else:
                frame.run((s,))
            if isinstance(s, Load | Store) and (number, place) in self._reuses.values():
                value = s.name if isinstance(s, Load) else s.value
                self._read[number, place] = frame.values[value]
        if not any(isinstance(s, ScanStep | SortStep) for s in stage.body):
            self._check_accesses(stage, frame)
            self._check_sections(frame)
        self._check_exact(stage, frame)
        if not inside:
            for s in map(stage.body.__getitem__, order):
                for name in defined(s):
                    _keep(outer.values, name, frame.values[name], here, points.count)
                if isinstance(s, Bind):
                    _keep(outer.symbols, s.symbol, frame.symbols[s.symbol], here, points.count)

    def _check_exact(self, stage: Stage, frame: Frame) -> None:
        """Raise if an exact cast changes a value."""
        for s in stage.body:
            if isinstance(s, Let) and s.name in self._tiled.exact:
                operand = frame.value(s.args[0])
                same = frame.value(s.name).astype(operand.dtype)
                if not np.array_equal(same, operand, equal_nan=True):
                    raise InterpreterError.of("GY-INTERP-006", f"the exact cast {s.name} rounds")

    def _check_accesses(self, stage: Stage, frame: Frame) -> None:
        """Raise if an index does not vary as its access declares. The frame is one vector."""
        if self._tiled.contraction is not None:
            self._check_panels(stage, frame, self._tiled.contraction)
            return
        below = [loop for loop in self._tiled.loops if loop.kind is LoopKind.LOOP]
        loops = [loop for loop in below if self._inner.isdisjoint(loop.axes)] or below[-1:]
        lanes = np.asarray(frame.symbols.get(loops[0].axes[0], 0)) if loops else 0
        named = {symbol.name: value for symbol, value in frame.symbols.items()}
        for s in stage.body:
            a = self._accesses.get(s.index) if isinstance(s, Load | Store) else None
            if a is None or not a.index.free_symbols <= frame.symbols.keys():
                continue
            if a.kind is Access.RUNS:
                wrong = bool(np.any(np.diff(np.ravel(frame.address(a.index))) > 1))
            else:
                step = integer(a.stride, self._env) + _STEPS[a.kind]
                rest = frame.address(a.index) - step * lanes
                for name, factor in a.terms:
                    rest = rest - frame.address(factor) * named[name]
                wrong = bool(rest.size) and np.ptp(rest) > 0
            if wrong:
                problem = f"an index is not {a.kind.value}"
                raise InterpreterError.of("GY-INTERP-006", problem, where=f"{a.index!r}")

    def _check_sections(self, frame: Frame) -> None:
        """Raise if a comparison does not have the result, or a load the index, that the section of
        a point declares."""
        sections = self._tiled.sections
        if not sections:
            return
        symbol = next(x.axes[0] for x in self._tiled.loops if x.kind is LoopKind.LOOP)
        positions = np.asarray(frame.symbols[symbol])
        ends = [*(float(s.start) for s in sections[1:]), math.inf]
        loads = {s.name: s.index for s in self._kernel.statements if isinstance(s, Load)}
        for section, end in zip(sections, ends, strict=True):
            inside = np.broadcast_to((positions >= section.start) & (positions < end), frame.space)
            for result, names in ((True, section.true), (False, section.false)):
                for name in names:
                    if np.any(frame.full(name)[inside] != result):
                        problem = f"{name} is not always {result} from {section.start}"
                        raise InterpreterError.of("GY-INTERP-006", problem)
            for name, index in section.indices:
                moved = frame.address(loads[name]) != frame.address(index)
                if np.any(np.broadcast_to(moved, frame.space)[inside]):
                    problem = f"the index of {name} is not always this from {section.start}"
                    raise InterpreterError.of("GY-INTERP-006", problem, where=f"{index!r}")

    def _check_panels(self, stage: Stage, frame: Frame, c: nodes.Contraction) -> None:
        """Raise if an access is not of its kind along the vectors of a factor or of results, which
        never go beyond the columns of a register tile."""
        for p in c.products:
            column = self._tiled.loops[c.columns].axes[0]
            ways = [(column, stage.body)] * bool(p.along)
            if stage.level is Level.INNER:
                factors = (needed_for(stage.body, name) for name in (p.left, p.right))
                ways = list(zip(p.along, factors, strict=False))
            for symbol, body in ways:
                for s in body:
                    a = self._accesses.get(s.index) if isinstance(s, Load | Store) else None
                    if a is None:
                        continue
                    step = integer(a.stride, self._env) + _STEPS[a.kind]
                    width = settled(self._tiled.loops[-2].step) if symbol is column else _ANY
                    within = frame.symbols[symbol] % width
                    first = {symbol: frame.symbols[symbol] - within}
                    start = evolve(frame, symbols=frame.symbols | first).address(a.index)
                    if np.any(frame.address(a.index) - step * within != start):
                        problem = f"an index is not {a.kind.value} along {symbol.name}"
                        raise InterpreterError.of("GY-INTERP-006", problem, where=f"{a.index!r}")

    def _elements(self, part: Region) -> tuple[dict[Sym, Number], Array]:
        """Return the inner axes' values in a step, and the elements' row-major positions."""
        step = tuple(part[group] for group in self._inner_groups)
        if step not in self._steps:
            ranges = [np.arange(*positions, dtype=np.int64) for positions in step]
            grids = np.meshgrid(*ranges, indexing="ij")
            symbols: dict[Sym, Array] = {}
            for group, grid in zip(self._inner_groups, grids, strict=True):
                symbols |= self._digits(group, grid.ravel())
            position = np.zeros(math.prod(len(r) for r in ranges), np.int64)
            for a in self._kernel.inner:
                position = position * self._extents[a.symbol] + symbols[a.symbol]
            self._steps[step] = {s: v[None, :] for s, v in symbols.items()}, position
        return self._steps[step]

    def _reduce(self, s: Reduce, operands: _Gathered, outer: Frame) -> None:
        if not np.all(operands.seen):
            raise InterpreterError.of("GY-INTERP-006", f"{s.names[0]} misses an element")
        method = self._methods[s.names[0]]
        if method.chain and operands.seen.shape[1]:
            product = (
                operands.rows[0] if len(operands.rows) == 1 else operands.rows[0] * operands.rows[1]
            )
            results = [_chained(product, method.chain * self._side_by_side(method), s.dtype)]
        elif method.wide:
            exact = folds.reduce(
                s.kind, [row.astype(np.float64) for row in operands.rows], DType.F64
            )
            results = [exact[0].astype(NUMPY[s.dtype])]
        else:
            results = folds.reduce(s.kind, operands.rows, s.dtype)
        for name, result in zip(s.names, results, strict=True):
            outer.values[name] = result[:, None]

    def _side_by_side(self, method: nodes.Reduction) -> int:
        """Return the number of accumulators of a point."""
        steps = {loop.axes: settled(loop.step) for loop in self._own}
        return settled(method.unroll) * math.prod(
            n for axes, n in steps.items() if not self._inner.isdisjoint(axes)
        )


_ANY = 1 << 62
"""More than any extent."""
_STEPS = {Access.UNIFORM: 0, Access.UNIT: 1, Access.STRIDED: 0, Access.GATHERED: 0}
"""Difference of an index between neighbouring lanes, without the access's stride and terms."""


def _orders(stage: Stage, number: int, tiled: TiledKernel) -> list[list[int]]:
    """Return the orders of a stage's statements, one for each of its loops."""
    order = _together(stage, [p for p in tiled.pairs if p.stage == number])
    copied = [v for f in tiled.fissions if f.stage == number for v in f.values]
    moved = {n: _moved(s) for n, s in enumerate(stage.body)}
    return [
        [n for n in order if moved[n] == value or moved[n] not in copied] for value in copied
    ] or [order]


def _moved(s: object) -> str | None:
    """Return the value that a statement loads or stores, if any."""
    return s.name if isinstance(s, Load) else s.value if isinstance(s, Store) else None


def _together(stage: Stage, pairs: Sequence[nodes.Pair]) -> list[int]:
    """Return the order of a stage's statements in which pairs are adjacent: loads at the position
    of the first one, stores at that of the second."""
    positions = {n: float(n) for n in range(len(stage.body))}
    for p in pairs:
        if isinstance(stage.body[p.first], Store):
            positions[p.first] = p.second - 0.5
        else:
            positions[p.second] = p.first + 0.5
    return sorted(positions, key=positions.__getitem__)


def _at(value: Number, here: Array, count: int) -> Any:
    """Return the part of a value, computed for all points, that belongs to the points `here`."""
    if isinstance(value, np.ndarray) and value.ndim and value.shape[0] == count:
        return value[here]
    return value


def _keep(table: dict[Any, Any], key: Any, value: Number, here: Array, count: int) -> None:
    part = spread(np.asarray(value), (len(here), 1))
    if len(here) == count:
        table[key] = part.copy()
        return
    if key not in table or not isinstance(table[key], np.ndarray) or table[key].shape != (count, 1):
        table[key] = np.zeros((count, 1), part.dtype)
    table[key][here] = part


def _chained(rows: Array, length: int, dtype: DType) -> Array:
    """Return sums over the last axis: chains of `length` elements, which are added up in `f64`."""
    parts = [
        np.sum(rows[:, start : start + length], axis=-1, dtype=NUMPY[dtype]).astype(np.float64)
        for start in itertools.islice(itertools.count(0, length), -(-rows.shape[1] // length))
    ]
    total: Array = np.sum(parts, axis=0)
    return total.astype(NUMPY[dtype])
