"""Reductions down the columns: a strip of neighbouring points is reduced together, row by row.

The rows stream through while the strip's accumulators stay in the nearest cache, so that memory is
read in long consecutive runs. Everything that outlives a stage is an array over the strip.
"""

from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from gyrator_codegen import static
from gyrator_codegen_cpp.addresses import hoist
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.inner_loops import nonempty_test
from gyrator_codegen_cpp.loops import Span, nested_loops, offset, vector_loop
from gyrator_codegen_cpp.reduction import Accumulators, State
from gyrator_codegen_cpp.scope import Lanes, Scope
from gyrator_ir.body.nodes import Axis, Const, IndexValue, Let, Load, Reduce
from gyrator_ir.body.rewrite import defined, used
from gyrator_ir.kernel.nodes import KernelStatement, Level, Stage
from gyrator_ir.tile.choices import settled
from gyrator_ir.types import DType


@frozen
class _Rows:
    """What a stage reduces, row by row."""

    reductions: dict[str, Accumulators]
    count: str
    """Counts the rows."""
    chain: str
    """Counts the rows of a chain."""
    longest: int
    """Rows of a chain; 0 for no chains."""
    turn: int
    """Rows that are reduced before the accumulators go back to their arrays."""

    @property
    def states(self) -> list[State]:
        """All variables of the reductions."""
        return [state for one in self.reductions.values() for state in one.states]


class Columns:
    """Writes the stages of a kernel over one strip of points.

    Args:
        scope: the place around everything.
        along: the axis of the lanes.
        span: the strip; at most `points` long.
    """

    def __init__(self, scope: Scope, along: Axis, span: Span, points: int) -> None:
        self._scope = scope
        self._symbol = along.symbol
        self._span = span
        self._points = points
        self._kernel = scope.frame.kernel
        self._arrays: dict[str, tuple[str, DType]] = {}
        self._constants: dict[str, Const] = {}

    def write(self) -> None:
        """Write all stages."""
        low, high = self._span.low, self._span.high
        count = f"({high} - {low} + GY_LANES - 1) / GY_LANES"
        self._scope.line(f"const si64 padded = {count} * GY_LANES;")
        stages = self._kernel.stages
        for number, stage in enumerate(stages):
            if stage.level is Level.OUTER or not self._kernel.inner:
                self._outer(
                    stage, {n for g in stages[number + 1 :] for s in g.body for n in used(s)}
                )
            else:
                self._inner(stage)

    # Arrays over the strip ----------------------------------------------------------------------

    def _declare(self, name: str, dtype: DType) -> None:
        array = self._scope.frame.names.take(f"{name}_strip")
        self._scope.line(f"alignas(64) s{lane_type(dtype)} {array}[{self._points}];")
        self._arrays[name] = (array, dtype)

    def _store(self, at: Scope, name: str, text: str, place: str = "at") -> None:
        at.line(f"gy_store({self._arrays[name][0]} + {place}, {text});")

    def _load(self, at: Scope, name: str, place: str = "at") -> str:
        word = "gy_vload" if at.lanes is not None else "gy_sload"
        return f"{word}({self._arrays[name][0]} + {place})"

    def _fetch(self, at: Scope, states: Iterable[State], place: str = "at") -> None:
        for state in states:
            text = self._load(at, state.name, place)
            at.line(f"{at.type_of(state.dtype)} {state.name} = {text};")

    def _each(self, emit: Callable[[Scope], None]) -> None:
        """Write a loop over the strip's arrays, padding included."""
        wide = self._scope.frame.width > 1
        step = "at += GY_LANES" if wide else "at++"
        with self._scope.block(f"for (si64 at = 0; at < padded; {step}) {{"):
            emit(self._scope.nested(lanes=Lanes(self._symbol) if wide else None))

    def _offset(self, at: Scope) -> str:
        return offset(at, self._symbol, self._span.low)

    def _recall(self, scope: Scope, body: Sequence[KernelStatement]) -> None:
        """Name what the body needs of earlier stages."""
        here = {n for s in body for n in defined(s)}
        for name in dict.fromkeys(n for s in body for n in used(s)):
            if name in here or name in scope.env:
                continue
            if name in self._constants:
                run(scope, [self._constants[name]])
                continue
            text = self._load(scope, name, self._offset(scope))
            scope.define(name, text, self._arrays[name][1], varying=True)

    # Stages -------------------------------------------------------------------------------------

    def _outer(self, stage: Stage, wanted: set[str]) -> None:
        scope = self._scope
        kept: list[str] = []
        for s in stage.body:
            if isinstance(s, Const):
                self._constants[s.name] = s
            elif isinstance(s, Load | Let | IndexValue) and s.name in wanted:
                kept.append(s.name)
                dtype = scope.frame.storage[s.buffer] if isinstance(s, Load) else s.dtype
                self._declare(s.name, dtype)

        def vector(at: Scope, copy: int) -> None:
            self._recall(at, stage.body)
            run(at, stage.body)
            for name in kept:
                self._store(at, name, at.operand(name, varying=True), self._offset(at))

        inside = hoist(scope, stage.body, [self._symbol])
        vector_loop(inside, self._symbol, self._span, 1, vector)

    def _inner(self, stage: Stage) -> None:
        scope, last = self._scope, self._kernel.inner[-1]
        body: list[KernelStatement] = [s for s in stage.body if not isinstance(s, Const)]
        run(scope, (s for s in stage.body if isinstance(s, Const)))
        rows = self._start([s for s in body if isinstance(s, Reduce)])
        turn, exact, name = rows.turn, static(last.extent), last.symbol.name

        def walk(at: Scope) -> None:
            with at.block("{"):
                extent = at.index(last.extent)
                at.line(f"si64 {name} = 0;")
                if turn > 1:
                    with at.block(f"for (; {name} + {turn} <= {extent}; {name} += {turn}) {{"):
                        self._row(at.nested(), body, rows, turn)
                if turn == 1 or exact is None or exact % turn:
                    with at.block(f"for (; {name} < {extent}; {name}++) {{"):
                        self._row(at.nested(), body, rows, 1)

        nested_loops(scope, self._kernel.inner[:-1], walk)
        if not rows.reductions:
            return
        for one in rows.reductions.values():
            for result in one.reduce.names:
                self._declare(result, one.result_type)

        def finish(at: Scope) -> None:
            self._fetch(at, rows.states)
            for one in rows.reductions.values():
                one.finish(at)
                for result in one.reduce.names:
                    self._store(at, result, at.operand(result, varying=True))

        self._each(finish)

    def _start(self, reduces: Sequence[Reduce]) -> _Rows:
        """Write the accumulators' arrays, at their starting values."""
        scope, wide = self._scope, self._scope.frame.width > 1
        take, recorded = scope.frame.names.take, scope.frame.reductions
        count, chain = take("row"), take("chain")
        nonempty = nonempty_test(scope, self._kernel.inner)
        reductions = {
            s.names[0]: Accumulators(
                scope, s, recorded[s.names[0]], 1, vector=wide, across=False, nonempty=nonempty,
                count=count,
            )
            for s in reduces
        }  # fmt: skip
        here = [recorded[name] for name in reductions]
        longest = max((r.chain for r in here), default=0)
        turn = max((settled(r.unroll) for r in here), default=1)
        rows = _Rows(reductions, count, chain, longest, turn)
        for state in rows.states:
            self._declare(state.name, state.dtype)

        def start(at: Scope) -> None:
            for one in reductions.values():
                for state in one.states:
                    self._store(at, state.name, one.start(at, state))

        if reductions:
            self._each(start)
            scope.line(f"si64 {count} = 0;")
        if longest:
            scope.line(f"si64 {chain} = 0;")
        return rows

    def _row(self, scope: Scope, body: list[KernelStatement], rows: _Rows, turn: int) -> None:
        """Write the work on `turn` rows of the strip."""
        last = self._kernel.inner[-1].symbol
        places = []
        for k in range(turn):
            named = {last: f"({last.name} + {k})"} if k else {}
            places.append(hoist(scope.nested(symbols=scope.symbols | named), body, [self._symbol]))
        live = [state for state in rows.states if not state.total]

        def update(at: Scope, s: KernelStatement) -> None:
            assert isinstance(s, Reduce)
            rows.reductions[s.names[0]].update(at, 0)

        def vector(at: Scope, copy: int) -> None:
            self._fetch(at, live, self._offset(at))
            for place in places:
                inside = place.nested(
                    lanes=at.lanes, symbols=at.symbols | place.symbols, collective=update
                )
                with at.block("{"):
                    self._recall(inside, body)
                    run(inside, body)
            for state in live:
                self._store(at, state.name, state.name, self._offset(at))

        if rows.reductions:
            scope.line(f"{rows.count}++;")
        vector_loop(scope, self._symbol, self._span, 1, vector)
        if rows.longest:
            with scope.block(f"if (({rows.chain} += {turn}) >= {rows.longest}) {{"):
                scope.line(f"{rows.chain} = 0;")
                self._each(lambda at: self._flush(at, rows))

    def _flush(self, at: Scope, rows: _Rows) -> None:
        """Write the end of the chains of one vector."""
        cascades = [one for one in rows.reductions.values() if one.cascade]
        self._fetch(at, (state for one in cascades for state in one.states))
        for one in cascades:
            one.flush(at)
            for state in one.states:
                self._store(at, state.name, state.name)
