"""One kernel as a function of the unit's script, which gives Halide's module of it."""

from collections.abc import Sequence

from gyrator_codegen import Nest, Writer, identity, nest
from gyrator_codegen.extents import guess
from gyrator_codegen_halide.ops import constant
from gyrator_codegen_halide.text import Printer
from gyrator_codegen_halide.values import Scheduling, Values, reach
from gyrator_ir.body.nodes import Bind, Reduce, ReduceKind, ScanStep, Store
from gyrator_ir.expr import ONE, Expr, ShapeFacts, Sym, linear
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.modes import StoreMode
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import LoopKind, Reduction, TiledKernel
from gyrator_ir.types import DType

_PLAIN_LANES = 8
"""Elements of a vector where the loops leave it to the compiler."""
_THREADS = 256
"""Threads of a block at most."""


class KernelText:
    """Writes one kernel: what its values are, then in which loops they are computed."""

    def __init__(
        self,
        tiled: TiledKernel,
        facts: ShapeFacts,
        how: Scheduling,
        writer: Writer,
        reserved: frozenset[str],
    ) -> None:
        self.tiled, self.kernel, self.w = tiled, tiled.kernel, writer
        self.values = Values(tiled.kernel, how)
        self._facts, self._how, self._reserved = facts, how, reserved
        self.text = Printer(self.values, tiled.index is DType.I32, self.name)
        self.nest: Nest | None = None if how.blocks else nest(tiled)
        self.dtypes = {b.name: b.dtype for b in tiled.kernel.parameters}
        self.groups = {k: g for k, g in self.values.dense.items() if g}
        self.alone = self.values.single
        self.folds: list[str] = []

    def name(self, name: str) -> str:
        """Return the identifier for a name of the kernel."""
        return f"{name}_" if name in self._reserved else name

    def write(self, symbol: str) -> None:
        """Write the function `symbol`."""
        with self.w.block(f"def {symbol}():", end=""):
            inputs = self._inputs()
            self._axes()
            self._folds()
            outputs = self._dense() + self._flat() + self._checks()
            made = f"[{', '.join(inputs)}], [{', '.join(outputs)}]"
            scheduler = repr(self._how.autoscheduler or None)
            self.w.line(f'return compiled("{symbol}_halide", {made}, TARGET, {scheduler})')

    # What there is

    @property
    def inputs(self) -> list[str]:
        """The parameters that are read."""
        reads = {
            s.buffer
            for name, (_, s) in self.values.maker.items()
            if hasattr(s, "buffer") and name not in self.values.forwarded
        }
        return [b.name for b in self.kernel.parameters if b.name in reads]

    def _inputs(self) -> list[str]:
        given = []
        for size in self.kernel.sizes:
            self.w.line(f'{size.name}_given = hl.Param(I64, "{size.name}")')
            self.w.line(f"{size.name} = short({size.name}_given)")
            given.append(f"{size.name}_given")
            if self._how.autoscheduler:
                self.w.line(f"{size.name}_given.set_estimate({self._guess(size)})")
        for name in self.inputs:
            dtype = self.dtypes[name].value
            self.w.line(f'{self.name(name)} = buffer("{name}", "{dtype}")')
            if self._how.autoscheduler:
                self.w.line(f"{self.name(name)}.dim(0).set_estimate(0, {self._reached(name)})")
        return [self.name(n) for n in self.inputs] + given

    def _guess(self, size: Expr) -> int:
        return guess(size, self._facts)

    def _reached(self, buffer: str) -> int:
        found = reach(self.kernel, next(b for b in self.kernel.parameters if b.name == buffer))
        return max(1, self._guess(found if found is not None else ONE))

    def _axes(self) -> None:
        for symbol in (*self.text.points, *self.text.inner):
            self.w.line(f'{symbol} = hl.Var("{symbol}")')

    def extents(self, symbols: Sequence[Sym]) -> str:
        """Return the lengths of some axes as a list."""
        known = {a.symbol: a.extent for a in (*self.kernel.axes, *self.kernel.inner)}
        return f"[{', '.join(self.text.index(known[s]) for s in symbols)}]"

    def _function(self, name: str, symbols: Sequence[str], lines: list[str], result: str) -> str:
        with self.w.block(f"def {name}({', '.join(symbols)}):", end=""):
            self.w.lines(*lines)
            self.w.line(f"return {result}")
        return name

    def _value(self, name: str, s: Reduce | ScanStep) -> str:
        args = ", ".join(self.name(a) for a in s.args)
        symbols = (*self.text.points, *self.text.inner)
        return self._function(f"{name}_of", symbols, self.text.body(s.args), f"[{args}]")

    # Reductions and scans

    def _folds(self) -> None:
        recorded = {r.result: r for r in self.tiled.reductions}
        points = f"[{', '.join(self.text.points)}]"
        inner = [a.symbol for a in self.kernel.inner]
        for stage in self.kernel.stages:
            for s in stage.body:
                if isinstance(s, Reduce):
                    name = self.name(s.names[0] + "_fold")
                    body = self._value(name, s)
                    how = recorded[s.names[0]]
                    start = self._start(s)
                    self.w.line(
                        f'{name} = reduction("{name}", "{s.kind.value}", "{s.dtype.value}", '
                        f"{start}, {body}, {points}, {self.extents(inner)}, {self._lanes(how)})"
                    )
                elif isinstance(s, ScanStep):
                    name = self.name(s.names[0] + "_scan")
                    body = self._value(name, s)
                    self.w.line(
                        f'{name} = scanned("{name}", "{s.kind.value}", "{s.dtype.value}", '
                        f"{body}, {points}, {self.extents(inner)}[0], {s.reverse})"
                    )
                else:
                    continue
                self.folds.append(name)
                if not self.alone and self._how.by_tiles:
                    self.w.line(f"{name}.at(None, None, {self._along()})")

    def _start(self, s: Reduce) -> str:
        kind = ReduceKind.SUM if s.kind is ReduceKind.DOT else s.kind
        dtype = DType.F64 if kind is ReduceKind.SUM and s.dtype.is_float else s.dtype
        return constant(identity(kind, dtype), dtype)

    def _lanes(self, how: Reduction) -> int:
        """Return how many accumulators a point has."""
        if self.nest is None or self.nest.across or not self._how.by_tiles:
            return 1
        return max(1, self.nest.lanes) * settled(how.unroll)

    def _along(self) -> str:
        loops = self.nest
        if loops is None or not loops.across:
            return "None"
        return f"Along({loops.symbol.name}, {loops.lanes}, {loops.columns})"

    # Stores

    def _dense(self) -> list[str]:
        outputs = []
        for level, group in self.groups.items():
            symbols = self.text.points + (self.text.inner if level is Level.INNER else [])
            name = self.name(f"{group[0][1].buffer}_out")
            stores = [s for _, s in group]
            results = ", ".join(self.text.stored(s, self.dtypes[s.buffer]) for s in stores)
            lines = self.text.body([s.value for s in stores])
            self._function(f"{name}_of", symbols, lines, f"[{results}]")
            order = list(reversed(self._order(level)))
            self.w.line(f'{name} = hl.Func("{name}")')
            at = ", ".join(order)
            self.w.line(
                f"{name}[{at}] = packed({name}_of({', '.join(f'expr_of({n})' for n in symbols)}))"
            )
            self._shape(name, level, order, stores)
            if self._how.blocks:
                self._blocks(name, level)
            elif self._how.by_tiles:
                self._schedule(name, level)
            outputs.append(name)
        return outputs

    def _order(self, level: Level) -> list[str]:
        """Return the coordinates of a group, the outermost loop first."""
        if not self.kernel.axes and level is Level.OUTER:
            return ["point"]
        loops = self.nest
        grid = [x for x in self.tiled.loops if x.kind is LoopKind.GRID]
        points = [a.name for x in grid for a in x.axes] or ["point"]
        if level is Level.OUTER:
            if loops is not None and loops.across:
                points = [p for p in points if p != loops.symbol.name] + [loops.symbol.name]
            return points
        inner = self.text.inner
        if loops is not None and loops.across:
            points = [p for p in points if p != loops.symbol.name]
            return [*points, *inner, loops.symbol.name]
        return [*points, *inner]

    def shape(self, level: Level, s: Store) -> list[tuple[str, Expr, Expr]]:
        """Return the coordinates of a dense store, the last loop's first, with their lengths and
        strides as C over the sizes."""
        known = {a.symbol.name: a for a in (*self.kernel.axes, *self.kernel.inner)}
        split = linear(s.index, self.values.symbols(level))
        assert split is not None
        rows: list[tuple[str, Expr, Expr]] = []
        for n in reversed(self._order(level)):
            if n == "point":
                rows.append((n, ONE, ONE))
            else:
                rows.append((n, known[n].extent, split[0][known[n].symbol]))
        return rows

    def _shape(self, name: str, level: Level, order: list[str], stores: list[Store]) -> None:
        known = {a.symbol.name: a for a in (*self.kernel.axes, *self.kernel.inner)}
        for n in order:
            extent = "1" if n == "point" else self.text.index(known[n].extent)
            self.w.line(f"{name}.bound({n}, 0, {extent})")
            if self._how.autoscheduler:
                size = ONE if n == "point" else known[n].extent
                self.w.line(f"{name}.set_estimate({n}, 0, {max(1, self._guess(size))})")
        rows = []
        for s in stores:
            strides = [self.text.index(stride) for _, _, stride in self.shape(level, s)]
            rows.append(f"[{', '.join(strides)}]")
        self.w.line(f"strided({name}.output_buffers(), [{', '.join(rows)}])")

    def _schedule(self, name: str, level: Level) -> None:
        loops, tiled = self.nest, self.tiled
        grid = [x.axes[0].name for x in tiled.loops if x.kind is LoopKind.GRID]
        inner = self.text.inner if level is Level.INNER else []
        below: list[str] = list(inner)
        if loops is not None and loops.across:
            axis = loops.symbol.name
            lanes = loops.lanes if loops.lanes > 1 else _PLAIN_LANES
            self.w.line(f'{axis}_unit, {axis}_lane = hl.Var("{axis}_unit"), hl.Var("{axis}_lane")')
            self.w.line(f'{axis}_vector = hl.Var("{axis}_vector")')
            self.w.line(
                f"{name}.split({axis}, {axis}_unit, {axis}_vector, {loops.stretch}, INNERMOST)"
            )
            self.w.line(
                f"{name}.split({axis}_vector, {axis}_vector, {axis}_lane, {lanes}, INNERMOST)"
            )
            grid = [f"{axis}_unit" if g == axis else g for g in grid]
            middle = [*inner, f"{axis}_vector"] if loops.columns else [f"{axis}_vector", *inner]
            below = [*middle, f"{axis}_lane"]
            vector = f"{name}.vectorize({axis}_lane)"
        elif loops is not None and inner:
            lanes = loops.lanes if loops.lanes > 1 else _PLAIN_LANES
            vector = f"{name}.vectorize({loops.symbol.name}, {lanes}, INNERMOST)"
        else:
            vector = ""
        order = list(reversed([*grid, *below]))
        if len(order) > 1:
            self.w.line(f"{name}.reorder({', '.join(order)})")
        if vector:
            self.w.line(vector)
        shared = 0 if tiled.threads is None else tiled.threads.loops
        last = grid[-1] if grid else None
        if shared:
            fused = grid[shared - 1]
            for outer in reversed(grid[: shared - 1]):
                self.w.line(f"{name}.fuse({fused}, {outer}, {fused})")
            self.w.line(f"{name}.parallel({fused})")
        if self.alone:
            for fold in self.folds:
                where = "None, None" if last is None else f"{name}, {last}"
                self.w.line(f"{fold}.at({where}, {self._along()})")

    def _blocks(self, name: str, level: Level) -> None:
        order = self._order(level)
        for outer in reversed(order[:-1]):
            self.w.line(f"{name}.fuse({order[-1]}, {outer}, {order[-1]})")
        step = next((x.step for x in self.tiled.loops if x.kind is LoopKind.GRID), 1)
        size = min(_THREADS, settled(step))
        self.w.line('block, thread = hl.Var("block"), hl.Var("thread")')
        self.w.line(f"{name}.split({order[-1]}, block, thread, {size}, INNERMOST)")
        self.w.line(f"{name}.gpu_blocks(block).gpu_threads(thread)")
        for fold in self.folds:
            self.w.line(f"{fold}.at({name}, thread)")

    def _flat(self) -> list[str]:
        outputs = []
        for buffer in self.values.flat:
            func = self.name(f"{buffer}_out")
            self.w.line(
                f'{func} = flat("{func}", "{self.dtypes[buffer].value}", {self._reached(buffer)})'
            )
            for k, (number, s) in enumerate(self.values.stores):
                if s.buffer == buffer:
                    self._scatter(func, f"{func}_{k}", number, s)
            outputs.append(func)
        return outputs

    def _scatter(self, func: str, name: str, number: int, s: Store) -> None:
        symbols = self.values.symbols(self.values.level(number))
        wanted = [s.value] + ([s.mask] if s.mask else [])
        binds = [b for b in self.values.binder if b in s.index.free_symbols]
        masks = [self.name(s.mask)] if s.mask else []
        masks += [f"{b.name}_inside" for b in binds]
        mask = " & ".join(masks) or "None"
        result = f"({self.text.index(s.index)}, {self.name(s.value)}, {mask})"
        names = [x.name for x in symbols] or []
        lines = self.text.body(wanted, binds)
        if not self.kernel.axes:
            lines = ["point = hl.Expr(0)", *lines]
        self._function(f"{name}_of", names, lines, result)
        free = "None"
        if s.mode is StoreMode.SET and not binds and self._how.by_tiles:
            lanes = self.nest.lanes if self.nest else 1
            threads = self.tiled.threads is not None and self.tiled.threads.loops > 0
            free = f"({lanes}, {threads})"
        self.w.line(
            f'scatter({func}, "{self.dtypes[s.buffer].value}", {name}_of, '
            f'{self.extents(symbols)}, "{s.mode.value}", {free})'
        )

    def _checks(self) -> list[str]:
        if not self.values.checks:
            return []
        tests = []
        for code, (number, s) in enumerate(self.values.checks, 1):
            tests.append(f"({code}, {self._check(number, s)})")
        self.w.line(f"codes = failed([{', '.join(tests)}])")
        return ["codes"]

    def _check(self, number: int, s: Bind) -> str:
        made = self.values.slice([s.symbol])
        found = self.values.coordinates(made)
        symbols = [x for x in self.values.symbols(self.values.level(number)) if x in found]
        name = f"{s.symbol.name}_checked"
        lines = self.text.body([], [s.symbol])
        if not self.kernel.axes:
            lines = ["point = hl.Expr(0)", *lines]
        names = [x.name for x in symbols]
        self._function(name, names, lines, f"{s.symbol.name}_inside")
        return f"{name}, {self.extents(symbols)}"
