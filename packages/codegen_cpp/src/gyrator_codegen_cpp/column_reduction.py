"""Reductions down the columns: a strip of neighbouring points is reduced together, row by row.

The rows stream through while the strip's accumulators stay in the nearest cache, so that memory is
read in long consecutive runs. Everything that outlives a stage is an array over the strip.
"""

from collections.abc import Callable, Iterable, Sequence

from gyrator_codegen import linear_position, static
from gyrator_codegen_cpp.addresses import hoist
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.inner_loops import nonempty_test
from gyrator_codegen_cpp.loops import Span, nested_loops, vector_loop
from gyrator_codegen_cpp.reduction import Accumulators, State
from gyrator_codegen_cpp.scope import Lanes, Scope
from gyrator_ir.body.nodes import Axis, Const, IndexValue, Let, Load, Reduce
from gyrator_ir.body.rewrite import defined, used
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import KernelStatement, Level, Stage
from gyrator_ir.tile.choices import settled
from gyrator_ir.types import DType


class Columns:
    """Writes the stages of a kernel over one strip of points.

    Args:
        scope: the place around everything.
        along: the axis of the lanes.
        span: the strip; at most `points` long.
    """

    def __init__(self, scope: Scope, along: Axis, span: Span, points: int) -> None:
        self._scope = scope
        self._symbol: Sym = along.symbol
        self._span = span
        self.points = points
        self._arrays: dict[str, tuple[str, DType]] = {}
        self._constants: dict[str, Const] = {}
        self._kernel = scope.frame.kernel

    def write(self) -> None:
        """Write all stages."""
        low, high = self._span.low, self._span.high
        count = f"({high} - {low} + GY_LANES - 1) / GY_LANES"
        self._scope.line(f"const si64 padded = {count} * GY_LANES;")
        stages = self._kernel.stages
        for number, stage in enumerate(stages):
            wanted = {n for later in stages[number + 1 :] for s in later.body for n in used(s)}
            if stage.level is Level.OUTER or not self._kernel.inner:
                self._outer(stage, wanted)
            else:
                self._inner(stage)

    # Values that outlive their stage ------------------------------------------------------------

    def _offset(self, scope: Scope) -> str:
        symbol = scope.symbols.get(self._symbol, self._symbol.name)
        return symbol if self._span.low == "0" else f"({symbol} - {self._span.low})"

    def keep(self, name: str, dtype: DType) -> None:
        """Declare the array of a value."""
        array = self._scope.frame.names.take(f"{name}_strip")
        self._scope.line(f"alignas(64) s{lane_type(dtype)} {array}[{self.points}];")
        self._arrays[name] = (array, dtype)

    def store(self, at: Scope, name: str, offset: str) -> None:
        """Write a value into its array."""
        value = at.operand(name, varying=True)
        at.line(f"gy_store({self._arrays[name][0]} + {offset}, {value});")

    def _recall(self, scope: Scope, body: Sequence[KernelStatement]) -> None:
        """Name what the body needs of earlier stages."""
        here = {n for s in body for n in defined(s)}
        for name in dict.fromkeys(n for s in body for n in used(s)):
            if name in here or name in scope.env:
                continue
            if name in self._constants:
                run(scope, [self._constants[name]])
                continue
            array, dtype = self._arrays[name]
            word = "gy_vload" if scope.lanes is not None else "gy_sload"
            scope.define(name, f"{word}({array} + {self._offset(scope)})", dtype, varying=True)

    def each(self, emit: Callable[[Scope], None]) -> None:
        """Write a loop over the strip's arrays, padding included."""
        wide = self._scope.frame.width > 1
        step = "at += GY_LANES" if wide else "at++"
        with self._scope.block(f"for (si64 at = 0; at < padded; {step}) {{"):
            emit(self._scope.nested(lanes=Lanes(self._symbol) if wide else None))

    # Stages -------------------------------------------------------------------------------------

    def _outer(self, stage: Stage, wanted: set[str]) -> None:
        scope = self._scope
        kept: list[str] = []
        for s in stage.body:
            if isinstance(s, Const):
                self._constants[s.name] = s
            elif isinstance(s, Load | Let | IndexValue) and s.name in wanted:
                kept.append(s.name)
                self.keep(s.name, scope.frame.storage[s.buffer] if isinstance(s, Load) else s.dtype)
        inside = hoist(scope, stage.body, [self._symbol])

        def vector(at: Scope, copy: int) -> None:
            self._recall(at, stage.body)
            run(at, stage.body)
            for name in kept:
                self.store(at, name, self._offset(at))

        vector_loop(inside, self._symbol, self._span, 1, vector)

    def _inner(self, stage: Stage) -> None:
        scope, axes = self._scope, self._kernel.inner
        reduces = [s for s in stage.body if isinstance(s, Reduce)]
        reductions = _Reductions(self, scope, reduces, axes)
        body: list[KernelStatement] = [s for s in stage.body if not isinstance(s, Const)]
        run(scope, (s for s in stage.body if isinstance(s, Const)))
        reductions.declare()
        last = axes[-1]
        turn = reductions.unroll

        def rows(at: Scope) -> None:
            name, extent = last.symbol.name, at.index(last.extent)
            at.line(f"si64 {name} = 0;")
            if turn > 1:
                with at.block(f"for (; {name} + {turn} <= {extent}; {name} += {turn}) {{"):
                    self._row(at.nested(), body, reductions, turn)
            exact = static(last.extent)
            if turn == 1 or exact is None or exact % turn:
                with at.block(f"for (; {name} < {extent}; {name}++) {{"):
                    self._row(at.nested(), body, reductions, 1)

        def braced(at: Scope) -> None:
            with at.block("{"):
                rows(at)

        nested_loops(scope, axes[:-1], braced)
        reductions.finish()

    def _row(
        self, scope: Scope, body: list[KernelStatement], reductions: "_Reductions", turn: int
    ) -> None:
        """Write the work on `turn` rows of the strip."""
        last = self._kernel.inner[-1].symbol
        places = []
        for k in range(turn):
            symbols = dict(scope.symbols)
            if k:
                symbols[last] = f"({last.name} + {k})"
            places.append(hoist(scope.nested(symbols=symbols), body, [self._symbol]))

        def vector(at: Scope, copy: int) -> None:
            reductions.fetch(at, self._offset(at))
            for place in places:
                one = at.nested(
                    pointers=place.pointers,
                    collective=reductions.update,
                    inner=place.inner,
                    symbols=at.symbols | place.symbols,
                )
                with at.block("{"):
                    self._recall(one, body)
                    run(one, body)
            reductions.put(at, self._offset(at))

        reductions.next_row(scope)
        vector_loop(scope, self._symbol, self._span, 1, vector)
        reductions.end_row(scope, turn)


class _Reductions:
    """The accumulators of a stage: arrays over the strip, in registers while a vector is fed."""

    def __init__(
        self, strip: Columns, scope: Scope, reduces: list[Reduce], axes: tuple[Axis, ...]
    ) -> None:
        self._strip = strip
        self._scope = scope
        recorded = scope.frame.reductions
        here = [recorded[s.names[0]] for s in reduces]
        self.unroll = max((settled(r.unroll) for r in here), default=1)
        """Rows that are reduced before the accumulators go back to their arrays."""
        self._turns = max((r.chain for r in here), default=0)
        self._count = scope.frame.names.take("row")
        self._chain = scope.frame.names.take("chain")
        self._reductions = {
            s.names[0]: Accumulators(
                scope, s, 1, vector=scope.frame.width > 1, across=False,
                cascade=bool(recorded[s.names[0]].chain), wide=recorded[s.names[0]].wide,
                position=linear_position(axes), nonempty=nonempty_test(scope, axes),
                count=self._count,
            )
            for s in reduces
        }  # fmt: skip
        self._states = [(one, state) for one in self._reductions.values() for state in one.states]
        take = scope.frame.names.take
        self._arrays = {state.name: take(f"{state.name}_strip") for _, state in self._states}

    def _load(self, at: Scope, states: Iterable[State], offset: str = "at") -> None:
        load = "gy_vload" if at.lanes is not None else "gy_sload"
        for state in states:
            array, word = self._arrays[state.name], at.type_of(state.dtype)
            at.line(f"{word} {state.name} = {load}({array} + {offset});")

    def _store(self, at: Scope, states: Iterable[State], offset: str = "at") -> None:
        for state in states:
            at.line(f"gy_store({self._arrays[state.name]} + {offset}, {state.name});")

    def declare(self) -> None:
        """Write the arrays, at their starting values."""
        scope, points = self._scope, self._strip.points
        for _, state in self._states:
            lane = lane_type(state.dtype)
            scope.line(f"alignas(64) s{lane} {self._arrays[state.name]}[{points}];")

        def start(at: Scope) -> None:
            for one, state in self._states:
                at.line(f"gy_store({self._arrays[state.name]} + at, {one.start(at, state)});")

        if self._reductions:
            self._strip.each(start)
            scope.line(f"si64 {self._count} = 0;")
        if self._turns:
            scope.line(f"si64 {self._chain} = 0;")

    def fetch(self, scope: Scope, offset: str) -> None:
        """Write the accumulators' way from the arrays to registers."""
        self._load(scope, (state for _, state in self._states if not state.total), offset)

    def update(self, scope: Scope, s: KernelStatement) -> None:
        """Write the accumulation of one more vector."""
        assert isinstance(s, Reduce)
        self._reductions[s.names[0]].update(scope, 0)

    def put(self, scope: Scope, offset: str) -> None:
        """Write the accumulators' way back."""
        self._store(scope, (state for _, state in self._states if not state.total), offset)

    def next_row(self, scope: Scope) -> None:
        """Count a row."""
        if self._reductions:
            scope.line(f"{self._count}++;")

    def end_row(self, scope: Scope, turn: int) -> None:
        """Write the flush of the cascaded sums where their chains have become long."""
        if not self._turns:
            return
        with scope.block(f"if (({self._chain} += {turn}) >= {self._turns}) {{"):
            scope.line(f"{self._chain} = 0;")
            self._strip.each(self._flush)

    def _flush(self, at: Scope) -> None:
        self._load(at, (state for one, state in self._states if one.cascade))
        for one in self._reductions.values():
            if one.cascade:
                one.flush(at)
                self._store(at, one.states)

    def finish(self) -> None:
        """Write the results into arrays that later stages read."""
        if not self._reductions:
            return
        for one in self._reductions.values():
            for name in one.reduce.names:
                self._strip.keep(name, one.result_type)
        self._strip.each(self._finish)

    def _finish(self, at: Scope) -> None:
        self._load(at, (state for _, state in self._states))
        for one in self._reductions.values():
            one.finish(at)
            for name in one.reduce.names:
                self._strip.store(at, name, "at")
