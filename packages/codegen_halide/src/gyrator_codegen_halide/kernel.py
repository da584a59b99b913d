"""Emission of a kernel as a function of the unit's script, which returns its Halide module."""

from collections.abc import Sequence

from gyrator_codegen import Writer
from gyrator_codegen.analysis import guess
from gyrator_codegen_halide.ops import constant
from gyrator_codegen_halide.schedule import Schedule
from gyrator_codegen_halide.text import Printer, listed
from gyrator_codegen_halide.values import Scheduling, Values
from gyrator_ir.body.nodes import Bind, Reduce, ReduceKind, ScanStep, Store, identity_of
from gyrator_ir.expr import ONE, Expr, ShapeFacts, Sym, linear
from gyrator_ir.kernel.nodes import Level
from gyrator_ir.kernel.reach import accessed_extent
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType


class KernelText:
    """Emits a kernel: the definitions of its values, then their schedule.

    Args:
        tiled: the kernel.
        facts: hints for its sizes.
        how: the source of its schedule.
        writer: the script's writer.
        reserved: names that the script uses.
    """

    def __init__(
        self,
        tiled: TiledKernel,
        facts: ShapeFacts,
        how: Scheduling,
        writer: Writer,
        reserved: frozenset[str],
    ) -> None:
        self.tiled, self.values = tiled, Values(tiled.kernel, how, reserved)
        self.kernel = self.values.kernel
        self._facts, self._how, self._w = facts, how, writer
        self._text = Printer(self.values, tiled.index is DType.I32)
        self.schedule = Schedule(tiled, how, self.values, writer)

    def write(self, symbol: str) -> None:
        """Emit the function `symbol`."""
        with self._w.block(f"def {symbol}(autoscheduler):", end=""):
            inputs = ", ".join(self._inputs())
            for axis in self.values.coordinates(Level.INNER):
                self._w.line(f'{axis.name} = hl.Var("{axis.name}")')
            self._folds()
            dense = [self._dense(level, stores) for level, stores in self.values.dense.items()]
            flat = [self._flat(buffer, stores) for buffer, stores in self.values.flat.items()]
            outputs = ", ".join(dense + flat + self._checks())
            arguments = f"[{inputs}], [{outputs}], TARGET, autoscheduler"
            self._w.line(f'return compiled("{symbol}_halide", {arguments})')

    @property
    def inputs(self) -> list[str]:
        """Parameters that are read."""
        reads = {s.buffer for s in self.values.loads}
        return [b.name for b in self.kernel.parameters if b.name in reads]

    def _inputs(self) -> list[str]:
        for size in self.kernel.sizes:
            arguments = f'size("{size.name}", {self._guess(size)})'
            self._w.line(f"{size.name}_given, {size.name} = {arguments}")
        for name in self.inputs:
            dtype = self.values.types[name].value
            self._w.line(f'{name} = buffer("{name}", "{dtype}", {self._reached(name)})')
        return [*self.inputs, *(f"{size.name}_given" for size in self.kernel.sizes)]

    def _guess(self, size: Expr) -> int:
        return max(1, guess(size, self._facts))

    def _reached(self, buffer: str) -> int:
        elements = accessed_extent(
            self.kernel, next(b for b in self.kernel.parameters if b.name == buffer)
        )
        return self._guess(ONE if elements is None else elements)

    def _extents(self, symbols: Sequence[Sym]) -> str:
        """Return the extents of axes as a list."""
        return f"[{', '.join(self._text.index(self.values.extents[s]) for s in symbols)}]"

    def _function(self, name: str, at: str, results: Sequence[str | Sym], result: str) -> None:
        """Emit a function from coordinates to values."""
        with self._w.block(f"def {name}({at}):", end=""):
            self._w.lines(*self._text.body(results), f"return {result}")

    def _folds(self) -> None:
        """Emit reductions and scans."""
        recorded = iter(self.tiled.reductions)
        inner = self.values.coordinates(Level.INNER)
        for s in self.kernel.statements:
            if not isinstance(s, Reduce | ScanStep):
                continue
            name = f"{s.names[0]}_fold"
            self._function(f"{name}_of", listed(inner), s.args, f"[{', '.join(s.args)}]")
            points, extents = listed(self.values.points), self._extents(self.values.inner)
            arguments = (
                f'"{name}", "{s.kind.value}", "{s.dtype.value}", {name}_of, [{points}], {extents}'
            )
            if isinstance(s, Reduce):
                lanes = self.schedule.accumulators(next(recorded))
                self._w.line(f"{name} = reduction({arguments}, {_start(s)}, {lanes})")
            else:
                self._w.line(f"{name} = scanned({arguments}, {s.reverse}, {len(s.names)})")
            self.schedule.fold(name)

    def _dense(self, level: Level, stores: list[Store]) -> str:
        name, at = f"{stores[0].buffer}_out", listed(self.values.coordinates(level))
        results = (f'stored({s.value}, "{self.values.types[s.buffer].value}")' for s in stores)
        self._function(f"{name}_of", at, [s.value for s in stores], f"[{', '.join(results)}]")
        rows = [self.shape(level, s) for s in stores]
        extents = ((x, self.values.extents[x]) for x, _ in rows[0])
        dims = (f"({x.name}, {self._text.index(e)}, {self._guess(e)})" for x, e in extents)
        strides = (f"[{', '.join(self._text.index(d) for _, d in row)}]" for row in rows)
        arguments = f"{name}_of, [{at}], [{', '.join(dims)}], [{', '.join(strides)}]"
        self._w.line(f'{name} = dense("{name}", {arguments})')
        self.schedule.write(name, level)
        return name

    def shape(self, level: Level, s: Store) -> list[tuple[Sym, Expr]]:
        """Return the coordinates of a dense store, innermost loop first, with their strides."""
        split = linear(s.index, self.values.coordinates(level))
        assert split is not None
        return [(x, split[0][x]) for x in reversed(self.schedule.order(level))]

    def _flat(self, buffer: str, stores: list[tuple[Level, Store]]) -> str:
        name, dtype = f"{buffer}_out", self.values.types[buffer].value
        self._w.line(f'{name} = flat("{name}", "{dtype}", {self._reached(buffer)})')
        for k, (level, s) in enumerate(stores):
            symbols, binds = self.values.coordinates(level), self.values.bound(s.index)
            mask = [s.mask] if s.mask else []
            tests = " & ".join([*mask, *(f"{b.name}_inside" for b in binds)]) or "None"
            result = f"({self._text.index(s.index)}, {s.value}, {tests})"
            self._function(f"{name}_{k}_of", listed(symbols), [s.value, *mask, *binds], result)
            arguments = (
                f'{name}, "{dtype}", {name}_{k}_of, {self._extents(symbols)}, "{s.mode.value}"'
            )
            self._w.line(f"scatter({arguments}, {self.schedule.free(s)})")
        return name

    def _checks(self) -> list[str]:
        checks = self.values.checks
        if not checks:
            return []
        tests = (f"({code}, {self._check(s)})" for code, (_, s) in enumerate(checks, 1))
        self._w.line(f"codes = failed([{', '.join(tests)}])")
        return ["codes"]

    def _check(self, s: Bind) -> str:
        symbols, name = self.values.needed(s), s.symbol.name
        self._function(f"{name}_checked", listed(symbols), [s.symbol], f"{name}_inside")
        return f"{name}_checked, {self._extents(symbols)}"


def _start(s: Reduce) -> str:
    kind = ReduceKind.SUM if s.kind is ReduceKind.DOT else s.kind
    dtype = DType.F64 if kind is ReduceKind.SUM and s.dtype.is_float else s.dtype
    return constant(identity_of(kind, dtype), dtype)
