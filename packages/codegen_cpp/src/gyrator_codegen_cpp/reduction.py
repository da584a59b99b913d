"""Accumulators of reductions that take one element (or one vector) at a time.

Cascaded sums are chains of additions in the element's type, which a total in `f64` takes up.
Sums may also be in `f64` from the first value on.
"""

import math
from collections.abc import Sequence

from attrs import frozen

from gyrator_codegen import identity, linear_position
from gyrator_codegen_cpp.body import index_text
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.ops import cast, function
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Reduce, ReduceKind
from gyrator_ir.tile.nodes import Reduction
from gyrator_ir.types import DType

_ARGS = (ReduceKind.ARGMIN, ReduceKind.ARGMAX)
_HORIZONTAL = {
    ReduceKind.SUM: "gy_hsum",
    ReduceKind.DOT: "gy_hsum",
    ReduceKind.PROD: "gy_hprod",
    ReduceKind.MIN: "gy_hmin",
    ReduceKind.MAX: "gy_hmax",
    ReduceKind.ANY: "gy_hany",
    ReduceKind.ALL: "gy_hall",
    ReduceKind.XOR: "gy_hxor",
}
_I64_MAX = (1 << 63) - 1


def merge(kind: ReduceKind, dtype: DType, form: str, a: str, b: str) -> str:
    """Return the text that combines two values."""
    match kind:
        case ReduceKind.SUM | ReduceKind.DOT:
            return f"gy_add({a}, {b})"
        case ReduceKind.PROD:
            return f"gy_mul({a}, {b})"
        case ReduceKind.MIN:
            return f"gy_minimum({a}, {b})"
        case ReduceKind.MAX | ReduceKind.ONLINE_SOFTMAX:
            return f"gy_maximum({a}, {b})"
    operator = {ReduceKind.ANY: "|", ReduceKind.ALL: "&", ReduceKind.XOR: "^"}[kind]
    return f"({form}{lane_type(dtype)})({a} {operator} {b})"


def joined(kind: ReduceKind, dtype: DType, form: str, parts: Sequence[str]) -> str:
    """Return the text that combines a power of two of values, in pairs."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [merge(kind, dtype, form, a, b) for a, b in pairs]
    return parts[0]


def only_live(new: str, old: str, live: str | None) -> str:
    """Return `new` in the lanes in use and `old` in the others."""
    return new if live is None else f"gy_combine_n({new}, {old}, {live})"


@frozen
class State:
    """A variable of a reduction."""

    name: str
    dtype: DType
    start: bool | int | float
    total: bool = False
    """It only changes when a chain is flushed."""


class Accumulators:
    """One `Reduce` on its way.

    Args:
        scope: the place around the loops.
        reduce: what is reduced.
        how: how it runs.
        copies: independent accumulators, for latency.
        vector: accumulators have lanes.
        across: the lanes belong to one point, and are reduced at the end.
        nonempty: text of whether there is anything to reduce, None if surely so.
        count: text of how many elements have come, this one included; None to count here.
    """

    def __init__(
        self, scope: Scope, reduce: Reduce, how: Reduction, copies: int, *, vector: bool,
        across: bool, nonempty: str | None, count: str | None = None,
    ) -> None:  # fmt: skip
        self.reduce = reduce
        self._form = "v" if vector else "s"
        self._across = across and vector
        self.cascade = bool(how.chain)
        self._wide = how.wide
        self._position = linear_position(scope.frame.kernel.inner)
        self._nonempty = nonempty
        take = scope.frame.names.take
        first = reduce.names[0]
        self._acc = tuple(take(f"{first}_acc") for _ in range(copies))
        self._second = tuple(take(f"{first}_with") for _ in range(copies))
        self._total = take(f"{first}_total")
        self._counts = count is None
        self._count = take(f"{first}_count") if count is None else count

    def _type(self, dtype: DType) -> str:
        return f"{self._form}{lane_type(dtype)}"

    def _constant(self, scope: Scope, value: bool | int | float, dtype: DType) -> str:
        text = scope.constant(value, dtype, varying=False)
        return f"gy_vsplat({text})" if self._form == "v" else text

    @property
    def states(self) -> tuple[State, ...]:
        """The variables that hold what has been reduced so far."""
        kind, dtype = self.reduce.kind, self.reduce.dtype
        found: list[State] = []
        second_type = dtype
        if kind is ReduceKind.WELFORD:
            dtype = second_type = DType.F64
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            second_type = DType.F64
        elif self._wide:
            dtype = DType.F64
        for acc, second in zip(self._acc, self._second, strict=True):
            found.append(State(acc, dtype, identity(kind, dtype)))
            if kind in _ARGS:
                found.append(State(second, DType.I64, _I64_MAX))
            elif kind in (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX):
                found.append(State(second, second_type, 0))
        if self.cascade:
            found.append(State(self._total, DType.F64, 0, total=True))
        return tuple(found)

    @property
    def result_type(self) -> DType:
        """Element type of the results."""
        return DType.I64 if self.reduce.kind in _ARGS else self.reduce.dtype

    def start(self, scope: Scope, state: State) -> str:
        """Return the text of a state's first value."""
        return self._constant(scope, state.start, state.dtype)

    def declare(self, scope: Scope) -> None:
        """Write the accumulators' declarations."""
        for state in self.states:
            scope.line(f"{self._type(state.dtype)} {state.name} = {self.start(scope, state)};")
        if self.reduce.kind is ReduceKind.WELFORD and self._counts:
            scope.line(f"si64 {self._count} = 0;")

    def update(self, scope: Scope, copy: int) -> None:
        """Write the accumulation of one more element into accumulator `copy`."""
        vector = self._form == "v"
        args = [scope.operand(a, vector) for a in self.reduce.args]
        kind, dtype = self.reduce.kind, self.reduce.dtype
        acc, second = self._acc[copy], self._second[copy]
        live = scope.live if self._across else None
        if kind in _ARGS:
            at = index_text(scope, self._position, vector)
            if live is not None:
                args[0] = f"gy_combine_n({args[0]}, {acc}, {live})"
                at = f"gy_combine_n({at}, {second}, {live})"
            scope.line(f"gy_{kind.value}_update({acc}, {second}, {args[0]}, {at});")
        elif kind is ReduceKind.WELFORD:
            self._welford(scope, args[0], acc, second)
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            nothing = self._constant(scope, -math.inf, dtype)
            given = f"{acc}, {second}, {args[0]}, {nothing}, GY_AS({function('exp', dtype)})"
            scope.line(f"gy_softmax_take({given});")
        else:
            if self._wide:
                args = [cast(a, dtype, DType.F64) for a in args]
            new = merge(kind, dtype, self._form, acc, args[0])
            if kind is ReduceKind.DOT:
                product = f"gy_mul({args[0]}, {args[1]})"
                new = (
                    f"gy_mad({args[0]}, {args[1]}, {acc})"
                    if dtype.is_float
                    else f"gy_add({acc}, {product})"
                )
            scope.line(f"{acc} = {only_live(new, acc, live)};")

    def _welford(self, scope: Scope, x: str, mean: str, m2: str) -> None:
        # All lanes have seen equally many elements, so one scalar count serves them.
        count = f"++{self._count}" if self._counts else self._count
        share = f"1.0 / (sf64)({count})"
        if self._form == "v":
            share = f"gy_vsplat({share})"
        given = cast(x, self.reduce.dtype, DType.F64)
        scope.line(f"gy_welford_take({mean}, {m2}, {given}, {share});")

    def _joined(self) -> str:
        return joined(self.reduce.kind, self.reduce.dtype, self._form, self._acc)

    def flush(self, scope: Scope) -> None:
        """Write the end of a chain: move the accumulators into the total."""
        if not self.cascade:
            return
        wide = self._joined()
        if self.reduce.dtype is not DType.F64:
            wide = f"gy_to_f64({wide})"
        scope.line(f"{self._total} = gy_add({self._total}, {wide});")
        zero = self._constant(scope, 0, self.reduce.dtype)
        for acc in self._acc:
            scope.line(f"{acc} = {zero};")

    def finish(self, scope: Scope) -> None:
        """Write the results under the names that the `Reduce` gives them."""
        kind, dtype = self.reduce.kind, self.reduce.dtype
        names = self.reduce.names
        varying = self._form == "v" and not self._across
        if kind in _ARGS:
            self._finish_position(scope, varying)
        elif kind is ReduceKind.WELFORD:
            count = f"(s{lane_type(dtype)}){self._count}"
            scope.define(names[0], cast(self._acc[0], DType.F64, dtype), dtype, varying)
            scope.define(names[1], cast(self._second[0], DType.F64, dtype), dtype, varying)
            scope.define(names[2], count, dtype, varying=False)
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            self._finish_softmax(scope, varying)
        else:
            text = self._joined()
            if self.cascade:
                wide = text if dtype is DType.F64 else f"gy_to_f64({text})"
                text = f"gy_add({self._total}, {wide})"
            if self._across:
                text = self._across_lanes(text)
            if (self.cascade or self._wide) and dtype is not DType.F64:
                text = f"gy_to_{dtype.value}({text})"
            scope.define(names[0], text, dtype, varying)

    def _across_lanes(self, text: str) -> str:
        kind = self.reduce.kind
        if self.reduce.dtype is not DType.BOOL:
            return f"{_HORIZONTAL[kind]}({text})"
        if kind is ReduceKind.XOR:
            return f"(sbool)(gy_hxor(gy_to_i32({text})) & 1)"
        any_of = kind in (ReduceKind.ANY, ReduceKind.MAX)
        return f"{'gy_hany' if any_of else 'gy_hall'}({text})"

    def _finish_position(self, scope: Scope, varying: bool) -> None:
        best, at = self._acc[0], self._second[0]
        for other, place in zip(self._acc[1:], self._second[1:], strict=True):
            scope.line(f"gy_{self.reduce.kind.value}_update({best}, {at}, {other}, {place});")
        text = f"gy_h{self.reduce.kind.value}({best}, {at})" if self._across else at
        if self._nonempty is not None:
            zero = scope.zero(DType.I64, varying)
            text = f"{self._nonempty} ? {text} : {zero}"
        scope.define(self.reduce.names[0], text, DType.I64, varying)

    def _finish_softmax(self, scope: Scope, varying: bool) -> None:
        dtype, names = self.reduce.dtype, self.reduce.names
        scope.define(names[0], self._acc[0], dtype, varying)
        endless = self._constant(scope, math.inf, dtype)
        nan = self._constant(scope, math.nan, dtype)
        if self._nonempty is not None:
            nan = f"({self._nonempty} ? {nan} : {self._constant(scope, 0, dtype)})"
        total = cast(self._second[0], DType.F64, dtype)
        text = f"gy_select(gy_eq(gy_abs({self._acc[0]}), {endless}), {nan}, {total})"
        scope.define(names[1], text, dtype, varying)
