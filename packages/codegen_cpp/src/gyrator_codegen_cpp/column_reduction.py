"""Reductions down the columns: a strip of neighbouring points is folded together, row by row.

The rows stream through while the strip's accumulators stay in the nearest cache, so that memory is
read in long consecutive runs. Everything that outlives a stage is an array over the strip.
"""

from collections.abc import Callable, Sequence

from gyrator_codegen import static
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.inner_loops import linear_position, nonempty_test
from gyrator_codegen_cpp.loops import Span, nested_loops, vector_loop
from gyrator_codegen_cpp.reduction import Accumulators
from gyrator_codegen_cpp.scope import Code, Lanes
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import KernelStatement, Level, Stage
from gyrator_ir.loop.body import Axis, Const, Reduce
from gyrator_ir.loop.rewrite import defined, used
from gyrator_ir.types import DType


class Columns:
    """Writes the stages of a kernel over one strip of points.

    Args:
        code: the place around everything.
        along: the axis of the lanes.
        span: the strip; at most `points` long.
    """

    def __init__(self, code: Code, along: Axis, span: Span, points: int) -> None:
        self._code = code
        self._symbol: Sym = along.symbol
        self._span = span
        self._points = points
        self._arrays: dict[str, tuple[str, DType]] = {}
        self._constants: dict[str, Const] = {}
        self._kernel = code.frame.kernel

    def write(self) -> None:
        """Write all stages."""
        low, high = self._span.low, self._span.high
        count = f"({high} - {low} + GY_LANES - 1) / GY_LANES"
        self._code.line(f"const si64 padded = {count} * GY_LANES;")
        stages = self._kernel.stages
        for number, stage in enumerate(stages):
            wanted = {n for later in stages[number + 1 :] for s in later.body for n in used(s)}
            if stage.level is Level.OUTER or not self._kernel.inner:
                self._outer(stage, wanted)
            else:
                self._inner(stage)

    # Values that outlive their stage ------------------------------------------------------------

    def _offset(self, code: Code) -> str:
        symbol = code.symbols.get(self._symbol, self._symbol.name)
        return symbol if self._span.low == "0" else f"({symbol} - {self._span.low})"

    def _keep(self, name: str, dtype: DType) -> None:
        array = self._code.frame.names.take(f"{name}_strip")
        self._code.line(f"alignas(64) s{lane_type(dtype)} {array}[{self._points}];")
        self._arrays[name] = (array, dtype)

    def _recall(self, code: Code, body: Sequence[KernelStatement]) -> None:
        """Name what the body needs of earlier stages."""
        here = {n for s in body for n in defined(s)}
        for name in dict.fromkeys(n for s in body for n in used(s)):
            if name in here or name in code.env:
                continue
            if name in self._constants:
                run(code, [self._constants[name]])
                continue
            array, dtype = self._arrays[name]
            word = "gy_vload" if code.lanes is not None else "gy_sload"
            code.define(name, f"{word}({array} + {self._offset(code)})", dtype, varying=True)

    def _each(self, emit: Callable[[Code], None]) -> None:
        """Write a loop over the strip's arrays, padding included."""
        if self._code.frame.width == 1:
            head = "for (si64 at = 0; at < padded; at++) {"
        else:
            head = "for (si64 at = 0; at < padded; at += GY_LANES) {"
        with self._code.block(head):
            lanes = Lanes(self._symbol) if self._code.frame.width > 1 else None
            emit(self._code.nested(lanes=lanes))

    # Stages -------------------------------------------------------------------------------------

    def _outer(self, stage: Stage, wanted: set[str]) -> None:
        code = self._code
        kept: list[str] = []
        for s in stage.body:
            for name in defined(s):
                if isinstance(s, Const):
                    self._constants[name] = s
                elif name in wanted:
                    kept.append(name)
        types = _types(stage.body, code)
        for name in kept:
            self._keep(name, types[name])
        inside = code.hoist(stage.body, [self._symbol])

        def vector(at: Code, copy: int) -> None:
            self._recall(at, stage.body)
            run(at, stage.body)
            for name in kept:
                value = at.operand(name, varying=True)
                at.line(f"gy_store({self._arrays[name][0]} + {self._offset(at)}, {value});")

        vector_loop(inside, self._symbol, self._span, 1, vector)

    def _inner(self, stage: Stage) -> None:
        code, axes = self._code, self._kernel.inner
        reduces = [s for s in stage.body if isinstance(s, Reduce)]
        folds = _Reductions(self, code, reduces, axes)
        fixed, body = _constants_first(stage.body)
        run(code, fixed)
        folds.declare()
        last = axes[-1]
        turn = folds.unroll

        def rows(at: Code) -> None:
            name, extent = last.symbol.name, at.index(last.extent)
            at.line(f"si64 {name} = 0;")
            if turn > 1:
                with at.block(f"for (; {name} + {turn} <= {extent}; {name} += {turn}) {{"):
                    self._row(at.nested(), body, folds, turn)
            exact = static(last.extent)
            if turn == 1 or exact is None or exact % turn:
                with at.block(f"for (; {name} < {extent}; {name}++) {{"):
                    self._row(at.nested(), body, folds, 1)

        def braced(at: Code) -> None:
            with at.block("{"):
                rows(at)

        nested_loops(code, axes[:-1], braced)
        folds.finish()

    def _row(
        self, code: Code, body: list[KernelStatement], folds: "_Reductions", turn: int
    ) -> None:
        """Write the work on `turn` rows of the strip."""
        last = self._kernel.inner[-1].symbol
        places = []
        for k in range(turn):
            symbols = dict(code.symbols)
            if k:
                symbols[last] = f"({last.name} + {k})"
            places.append(code.nested(symbols=symbols).hoist(body, [self._symbol]))

        def vector(at: Code, copy: int) -> None:
            folds.fetch(at, self._offset(at))
            for place in places:
                one = at.nested(pointers=place.pointers, collective=folds.update, inner=place.inner)
                one.symbols = {**at.symbols, **place.symbols}
                with at.block("{"):
                    self._recall(one, body)
                    run(one, body)
            folds.put(at, self._offset(at))

        folds.next_row(code)
        vector_loop(code, self._symbol, self._span, 1, vector)
        folds.end_row(code, turn)


class _Reductions:
    """The accumulators of a stage: arrays over the strip, in registers while a vector is fed."""

    def __init__(
        self, strip: Columns, code: Code, reduces: list[Reduce], axes: tuple[Axis, ...]
    ) -> None:
        self._strip = strip
        self._code = code
        recorded = code.frame.reductions
        here = [recorded[s.names[0]] for s in reduces]
        self.unroll = max((r.unroll for r in here), default=1)
        """Rows that are reduced before the accumulators go back to their arrays."""
        self._turns = max((r.chain for r in here), default=0)
        self._count = code.frame.names.take("row")
        self._chain = code.frame.names.take("chain")
        self._folds = {
            s.names[0]: Accumulators(
                code, s, 1, vector=code.frame.width > 1, across=False,
                cascade=bool(recorded[s.names[0]].chain),
                position=linear_position(axes), nonempty=nonempty_test(code, axes),
                count=self._count,
            )
            for s in reduces
        }  # fmt: skip
        self._arrays = {
            state.name: code.frame.names.take(f"{state.name}_strip")
            for fold in self._folds.values()
            for state in fold.states
        }

    def declare(self) -> None:
        """Write the arrays, at their starting values."""
        code = self._code
        points = self._strip._points
        for fold in self._folds.values():
            for state in fold.states:
                lane = lane_type(state.dtype)
                code.line(f"alignas(64) s{lane} {self._arrays[state.name]}[{points}];")

        def start(at: Code) -> None:
            for fold in self._folds.values():
                for state in fold.states:
                    at.line(f"gy_store({self._arrays[state.name]} + at, {fold.start(at, state)});")

        if self._folds:
            self._strip._each(start)
            code.line(f"si64 {self._count} = 0;")
        if self._turns:
            code.line(f"si64 {self._chain} = 0;")

    def fetch(self, code: Code, offset: str) -> None:
        """Write the accumulators' way from the arrays to registers."""
        load = "gy_vload" if code.lanes is not None else "gy_sload"
        for fold in self._folds.values():
            for state in fold.states:
                if not state.total:
                    array = self._arrays[state.name]
                    word = code.type_of(state.dtype)
                    code.line(f"{word} {state.name} = {load}({array} + {offset});")

    def update(self, code: Code, s: KernelStatement) -> None:
        """Write the fold of one more vector."""
        assert isinstance(s, Reduce)
        self._folds[s.names[0]].update(code, 0)

    def put(self, code: Code, offset: str) -> None:
        """Write the accumulators' way back."""
        for fold in self._folds.values():
            for state in fold.states:
                if not state.total:
                    code.line(f"gy_store({self._arrays[state.name]} + {offset}, {state.name});")

    def next_row(self, code: Code) -> None:
        """Count a row."""
        if self._folds:
            code.line(f"{self._count}++;")

    def end_row(self, code: Code, turn: int) -> None:
        """Write the flush of the cascaded sums where their chains have become long."""
        if not self._turns:
            return
        with code.block(f"if (({self._chain} += {turn}) >= {self._turns}) {{"):
            code.line(f"{self._chain} = 0;")
            self._strip._each(self._flush)

    def _load_all(self, at: Code, cascaded: bool) -> None:
        load = "gy_vload" if at.frame.width > 1 else "gy_sload"
        form = "v" if at.frame.width > 1 else "s"
        for fold in self._folds.values():
            if fold.cascade or not cascaded:
                for state in fold.states:
                    word = f"{form}{lane_type(state.dtype)}"
                    at.line(f"{word} {state.name} = {load}({self._arrays[state.name]} + at);")

    def _flush(self, at: Code) -> None:
        self._load_all(at, cascaded=True)
        for fold in self._folds.values():
            if fold.cascade:
                fold.flush(at)
                for state in fold.states:
                    at.line(f"gy_store({self._arrays[state.name]} + at, {state.name});")

    def finish(self) -> None:
        """Write the results into arrays that later stages read."""
        for fold in self._folds.values():
            for name in fold.reduce.names:
                self._strip._keep(name, fold.result_type)

        def last(at: Code) -> None:
            self._load_all(at, cascaded=False)
            for fold in self._folds.values():
                fold.finish(at)
                for name in fold.reduce.names:
                    value = at.env[name]
                    text = value.text
                    if not value.varying and at.frame.width > 1:
                        text = f"gy_vsplat({text})"
                    at.line(f"gy_store({self._strip._arrays[name][0]} + at, {text});")

        if self._folds:
            self._strip._each(last)


def _constants_first(
    body: Sequence[KernelStatement],
) -> tuple[list[KernelStatement], list[KernelStatement]]:
    return (
        [s for s in body if isinstance(s, Const)],
        [s for s in body if not isinstance(s, Const)],
    )


def _types(body: Sequence[KernelStatement], code: Code) -> dict[str, DType]:
    types: dict[str, DType] = {}
    for s in body:
        for name in defined(s):
            dtype = getattr(s, "dtype", None)
            types[name] = dtype if dtype is not None else code.frame.storage[s.buffer]  # type: ignore[union-attr]
    return types
