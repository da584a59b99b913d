"""What loops carry from element to element: accumulators of reductions, blocks that are reduced in
two passes, running reductions.

Cascaded sums are chains of additions in the element's type, which a total in `f64` takes up.
Sums may also be in `f64` from the first value on; running sums and products always are, as eager's.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from attrs import define, frozen

from gyrator_codegen import REDUCTION_OF
from gyrator_codegen.reductions import MERGED, Carried
from gyrator_codegen_cpp.accesses import address, requests
from gyrator_codegen_cpp.body import index_text
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.loops import Span
from gyrator_codegen_cpp.ops import EMITTERS, cast, function
from gyrator_codegen_cpp.scope import Array, Scope
from gyrator_ir.body.nodes import POSITIONS, Load, Reduce, ReduceKind, ScanKind, ScanStep
from gyrator_ir.expr import Sym
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Prefetch, Reduction
from gyrator_ir.types import DType

_ACROSS = dict.fromkeys(ReduceKind, "gy_h{0}({1})") | {ReduceKind.DOT: "gy_hsum({1})"}
_ACROSS_BOOL = dict.fromkeys(ReduceKind, "gy_hall({1})") | {
    ReduceKind.ANY: "gy_hany({1})",
    ReduceKind.MAX: "gy_hany({1})",
    ReduceKind.XOR: "(sbool)(gy_hxor(gy_to_i32({1})) & 1)",
}
Step = TypeVar("Step", Reduce, ScanStep)
_REACHES = {ScanKind.ARGMIN: "gy_le", ScanKind.ARGMAX: "gy_ge"}


def merge(kind: ReduceKind, dtype: DType, form: str, a: str, b: str) -> str:
    """Return the text that combines two values."""
    return EMITTERS[MERGED[kind]]((a, b), (dtype, dtype), dtype, form)


def joined(kind: ReduceKind, dtype: DType, form: str, parts: Sequence[str]) -> str:
    """Return the text that combines a power of two of values, in pairs."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [merge(kind, dtype, form, a, b) for a, b in pairs]
    return parts[0]


def _only_live(new: str, old: str, live: str | None) -> str:
    """Return `new` in the lanes in use and `old` in the others."""
    return new if live is None else f"gy_combine_n({new}, {old}, {live})"


@frozen
class State:
    """A variable of a collective, of form `s` or `v`."""

    name: str
    form: str
    carried: Carried

    @property
    def type(self) -> str:
        """The variable's type."""
        return f"{self.form}{lane_type(self.carried.dtype)}"


@define(eq=False, slots=False)
class Collective(Generic[Step]):
    """A `Reduce` or `ScanStep` on its way."""

    scope: Scope
    """The place around the loops; with lanes, each lane is a point of its own."""
    step: Step
    form: str
    """`v` if what is carried has lanes."""
    carried: Sequence[Carried]

    def __attrs_post_init__(self) -> None:
        self.states = [State(self.take(c.role), self.form, c) for c in self.carried]
        """The variables that hold what has come so far."""

    @property
    def cascade(self) -> bool:
        """Whether it has chains that end."""
        return self.carried[-1].total

    def take(self, word: str) -> str:
        """Return a new name for something of this collective."""
        return self.scope.frame.names.take(f"{self.step.names[0]}_{word}")

    def named(self, role: str) -> list[str]:
        """Return the names of the variables of a role."""
        return [s.name for s in self.states if s.carried.role == role]

    def declare(self, scope: Scope) -> None:
        """Write what stands ahead of the loops."""
        for s in self.states:
            start = scope.constant(s.carried.start, s.carried.dtype, s.form)
            scope.line(f"{s.type} {s.name} = {start};")

    def update(self, scope: Scope, copy: int) -> None:
        """Write what an element, or a vector, does; it feeds accumulator number `copy`."""

    def flush(self, scope: Scope) -> None:
        """Write the end of a chain."""

    def finish(self, scope: Scope) -> None:
        """Write what stands behind the loops: the results, under their names."""


@define(eq=False, slots=False)
class Accumulators(Collective[Reduce]):
    """One `Reduce` that takes a value at a time."""

    nonempty: str | None
    """Text of whether there is anything to reduce, None if surely so."""
    across: bool
    """The lanes belong to one point, and are reduced at the end."""
    count: str
    """Text of how many elements have come, this one included."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._acc, self._second = self.named("acc"), self.named("with")
        self._varying = self.form == "v" and not self.across

    def update(self, scope: Scope, copy: int) -> None:
        """Write the accumulation of one more element into accumulator `copy`."""
        kind, dtype, form = self.step.kind, self.step.dtype, self.form
        x, *others = (scope.operand(a, form == "v") for a in self.step.args)
        acc, second = self._acc[copy], self._second[copy] if self._second else ""
        live = scope.live if self.across else None
        if kind in POSITIONS:
            x = _only_live(x, acc, live)
            at = _only_live(index_text(scope, scope.frame.position, form == "v"), second, live)
            scope.line(f"gy_{kind.value}_update({acc}, {second}, {x}, {at});")
        elif kind is ReduceKind.WELFORD:
            # All lanes have seen equally many elements, so one scalar count serves them.
            share = scope.spread(f"1.0 / (sf64)({self.count})", form)
            scope.line(f"gy_welford_take({acc}, {second}, {cast(x, dtype, DType.F64)}, {share});")
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            nothing = scope.constant(-math.inf, dtype, form)
            given = f"{acc}, {second}, {x}, {nothing}, GY_AS({function('exp', dtype)})"
            scope.line(f"gy_softmax_take({given});")
        else:
            x, *others = (cast(a, dtype, self.carried[0].dtype) for a in (x, *others))
            if others and dtype.is_float:
                new = f"gy_mad({x}, {others[0]}, {acc})"
            elif others:
                new = f"gy_add({acc}, gy_mul({x}, {others[0]}))"
            else:
                new = merge(kind, dtype, form, acc, x)
            scope.line(f"{acc} = {_only_live(new, acc, live)};")

    def _joined(self) -> str:
        """Return the accumulators' values as one, with the total."""
        dtype = self.step.dtype
        text = joined(self.step.kind, dtype, self.form, self._acc)
        if not self.cascade:
            return text
        wide = text if dtype is DType.F64 else f"gy_to_f64({text})"
        return f"gy_add({self.states[-1].name}, {wide})"

    def flush(self, scope: Scope) -> None:
        """Write the end of a chain: move the accumulators into the total."""
        if self.cascade:
            scope.line(f"{self.states[-1].name} = {self._joined()};")
            zero = scope.constant(0, self.step.dtype, self.form)
            scope.line(*(f"{acc} = {zero};" for acc in self._acc))

    def finish(self, scope: Scope) -> None:
        """Write the results under the names that the `Reduce` gives them."""
        kind, dtype = self.step.kind, self.step.dtype
        acc, *_ = self._acc
        if kind in POSITIONS:
            texts = [self._where(scope)]
        elif kind is ReduceKind.WELFORD:
            texts = [cast(x, DType.F64, dtype) for x in (acc, *self._second)]
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            endless, nan = (scope.constant(n, dtype, self.form) for n in (math.inf, math.nan))
            if self.nonempty is not None:
                nan = f"({self.nonempty} ? {nan} : {scope.constant(0, dtype, self.form)})"
            total = cast(self._second[0], DType.F64, dtype)
            texts = [acc, f"gy_select(gy_eq(gy_abs({acc}), {endless}), {nan}, {total})"]
        else:
            text = self._joined()
            if self.across:
                form = (_ACROSS_BOOL if dtype is DType.BOOL else _ACROSS)[kind]
                text = form.format(kind.value, text)
            if (
                DType.F64 in (self.carried[0].dtype, self.carried[-1].dtype)
                and dtype is not DType.F64
            ):
                text = f"gy_to_{dtype.value}({text})"
            texts = [text]
        for name, text, real in zip(self.step.names, texts, self.step.types, strict=False):
            scope.define(name, text, real, self._varying)
        if kind is ReduceKind.WELFORD:
            count = f"(s{lane_type(dtype)}){self.count}"
            scope.define(self.step.names[2], count, dtype, varying=False)

    def _where(self, scope: Scope) -> str:
        """Return the position of the least or greatest."""
        best, at, word = self._acc[0], self._second[0], self.step.kind.value
        for other, place in zip(self._acc[1:], self._second[1:], strict=True):
            scope.line(f"gy_{word}_update({best}, {at}, {other}, {place});")
        text = f"gy_h{word}({best}, {at})" if self.across else at
        nothing = scope.constant(0, DType.I64, "v" if self._varying else "s")
        return text if self.nonempty is None else f"{self.nonempty} ? {text} : {nothing}"


@define(eq=False, slots=False)
class TwoPass(Collective[Reduce]):
    """One `Reduce` of kind `welford` or `online_softmax` along the lanes' loop, a block at a time.

    The first pass keeps the block's elements in fast memory, so that the second, which is a
    function of the prelude, neither computes nor loads them again. The running values are `f64`.
    """

    nonempty: str | None
    """Text of whether there is anything to reduce, None if surely so."""
    how: Reduction
    symbol: Sym
    """The loop of the lanes."""
    source: Load | None
    """What the second pass loads again, if it does."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._welford = self.step.kind is ReduceKind.WELFORD
        self._row = Array(f"{self.step.names[0]}_row", self.step.dtype, self.symbol)
        self._acc = [self.take("acc") for _ in range(settled(self.how.unroll))]

    def declare(self, scope: Scope) -> None:
        """Write the declarations of the block and of the running values."""
        if self.how.keep or self.source is None:
            vectors = -(-settled(self.how.block) // scope.frame.width)
            self._row = scope.array(self._row, vectors * scope.frame.width)
        super().declare(scope)

    def begin_block(self, scope: Scope, span: Span) -> None:
        """Write the start of a block."""
        self._row = self._row.moved(span.low)
        dtype = self.step.dtype
        start = scope.constant(self.carried[0].start, dtype, "v")
        scope.line(*(f"v{lane_type(dtype)} {acc} = {start};" for acc in self._acc))

    def update(self, scope: Scope, copy: int) -> None:
        """Write the first pass over one vector."""
        x, acc = scope.operand(self.step.args[0], varying=True), self._acc[copy]
        if self.source is None:
            self._row.store(scope, x)
        new = merge(self.step.kind, self.step.dtype, "v", acc, x)
        scope.line(f"{acc} = {_only_live(new, acc, scope.live)};")

    def end_block(self, scope: Scope, span: Span, prefetches: Iterable[Prefetch]) -> None:
        """Write the second pass over a block; it asks for memory on the way."""
        dtype, row = self.step.dtype, self._row.name
        if self.source is not None:
            first = scope.nested(symbols=scope.symbols | {self.symbol: span.low})
            row = address(first, self.source.buffer, self.source.index)
        asked = " ".join(requests(scope, prefetches))
        ask = f"[&](si64 {self.symbol.name}) GY_LAMBDA {{{asked}}}"
        first_pass = joined(self.step.kind, dtype, "v", self._acc)
        names = ", ".join(s.name for s in self.states)
        given = f"{row}, {span.low}, {span.high}, {first_pass}, {names}"
        if self._welford:
            scope.line(f"gy_welford_block<{len(self._acc)}>({given}, {ask});")
            return
        kept = self._row.name if self.how.keep else f"(s{lane_type(dtype)} *)0"
        scope.line(f"gy_softmax_block({given}, {kept}, GY_AS({function('exp', dtype)}), {ask});")

    def finish(self, scope: Scope) -> None:
        """Write the results under the names that the `Reduce` gives them."""
        dtype = self.step.dtype
        scope.frame.arrays |= dict.fromkeys(self.how.keep, self._row)
        scope.frame.given |= set(self.how.keep)
        texts = [s.name for s in self.states]
        if not self._welford:
            nan, nothing = (scope.constant(x, DType.F64, "s") for x in (math.nan, -math.inf))
            some = "" if self.nonempty is None else f" && ({self.nonempty})"
            texts[1] = f"(({texts[0]} == {nothing}{some}) ? {nan} : {texts[1]})"
        for name, text in zip(self.step.names, texts, strict=True):
            scope.define(name, f"(s{lane_type(dtype)}){text}", dtype, varying=False)


class Scanner(Collective[ScanStep]):
    """One `ScanStep` on its way along the scan axis."""

    def update(self, scope: Scope, copy: int) -> None:
        """Write one step, and name its result."""
        scan, kind, acc = self.step, self.step.kind, self.states[0].name
        dtype = self.carried[0].dtype
        x = cast(scope.operand(scan.args[0], varying=True), scan.dtype, dtype)
        text = cast(acc, dtype, scan.dtype)
        if kind in _REACHES:
            place, text = index_text(scope, scope.frame.position, varying=True), self.states[1].name
            reaches = f"{_REACHES[kind]}({x}, {acc})"
            scope.line(f"gy_reach({acc}, {text}, {x}, {place}, {reaches});")
        elif kind is ScanKind.LOGSUMEXP:
            scope.line(f"{acc} = gy_log_add({acc}, {x});")
        else:
            new = merge(REDUCTION_OF[scan.kind], dtype, scope.form, acc, x)
            scope.line(f"{acc} = {new};")
        scope.define(scan.names[0], text, scan.types[0], varying=True)
