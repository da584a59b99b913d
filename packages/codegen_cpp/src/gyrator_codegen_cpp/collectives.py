"""What loops carry from element to element: accumulators of reductions, blocks that are reduced in
two passes, running reductions.

Cascaded sums are chains of additions in the element's type, which a total in `f64` takes up.
Sums may also be in `f64` from the first value on; running sums and products always are, as eager's.
"""

import math
from collections.abc import Iterable, Sequence

from attrs import define, frozen

from gyrator_codegen import REDUCTION_OF, identity
from gyrator_codegen_cpp.accesses import address, requests
from gyrator_codegen_cpp.body import index_text
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.loops import Span
from gyrator_codegen_cpp.ops import cast, function
from gyrator_codegen_cpp.scope import Array, Scope
from gyrator_ir.body.nodes import POSITIONS, Load, Reduce, ReduceKind, ScanKind, ScanStep
from gyrator_ir.expr import Sym
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Prefetch, Reduction
from gyrator_ir.types import DType

_MERGE = {
    ReduceKind.SUM: "gy_add({a}, {b})",
    ReduceKind.DOT: "gy_add({a}, {b})",
    ReduceKind.PROD: "gy_mul({a}, {b})",
    ReduceKind.MIN: "gy_minimum({a}, {b})",
    ReduceKind.MAX: "gy_maximum({a}, {b})",
    ReduceKind.ONLINE_SOFTMAX: "gy_maximum({a}, {b})",
    ReduceKind.ANY: "({type})({a} | {b})",
    ReduceKind.ALL: "({type})({a} & {b})",
    ReduceKind.XOR: "({type})({a} ^ {b})",
}
_HORIZONTAL = {k: "gy_hsum({})" if k is ReduceKind.DOT else f"gy_h{k.value}({{}})" for k in _MERGE}
_HORIZONTAL_BOOL = dict.fromkeys(_MERGE, "gy_hall({})") | {
    ReduceKind.ANY: "gy_hany({})",
    ReduceKind.MAX: "gy_hany({})",
    ReduceKind.XOR: "(sbool)(gy_hxor(gy_to_i32({})) & 1)",
}
_LAST = (1 << 63) - 1  # a position behind all others
_SECOND: dict[ReduceKind, tuple[DType, int]] = {
    ReduceKind.ARGMIN: (DType.I64, _LAST),
    ReduceKind.ARGMAX: (DType.I64, _LAST),
    ReduceKind.WELFORD: (DType.F64, 0),
    ReduceKind.ONLINE_SOFTMAX: (DType.F64, 0),
}
"""Type and start of what is kept beside the accumulator."""


def merge(kind: ReduceKind, dtype: DType, form: str, a: str, b: str) -> str:
    """Return the text that combines two values."""
    return _MERGE[kind].format(a=a, b=b, type=f"{form}{lane_type(dtype)}")


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
    """A variable of a collective."""

    name: str
    dtype: DType
    start: bool | int | float
    form: str
    """`s` or `v`."""
    total: bool = False
    """It only changes when a chain is flushed."""

    @property
    def type(self) -> str:
        """The variable's type."""
        return f"{self.form}{lane_type(self.dtype)}"


class Collective:
    """A `Reduce` or `ScanStep` on its way."""

    states: tuple[State, ...] = ()
    """The variables that hold what has come so far."""
    cascade: bool = False
    """It has chains that end."""

    def declare(self, scope: Scope) -> None:
        """Write what stands ahead of the loops."""
        for s in self.states:
            scope.line(f"{s.type} {s.name} = {scope.constant(s.start, s.dtype, s.form)};")

    def update(self, scope: Scope, copy: int) -> None:
        """Write what an element, or a vector, does; it feeds accumulator number `copy`."""

    def flush(self, scope: Scope) -> None:
        """Write the end of a chain."""

    def finish(self, scope: Scope) -> None:
        """Write what stands behind the loops: the results, under their names."""


@define(eq=False, slots=False)
class Accumulators(Collective):
    """One `Reduce` that takes a value at a time."""

    scope: Scope
    """The place around the loops."""
    reduce: Reduce
    how: Reduction
    form: str
    """`v` if accumulators have lanes."""
    copies: int
    """Independent accumulators, for latency."""
    across: bool
    """The lanes belong to one point, and are reduced at the end."""
    nonempty: str | None
    """Text of whether there is anything to reduce, None if surely so."""
    count: str
    """Text of how many elements have come, this one included."""

    def __attrs_post_init__(self) -> None:
        kind, form, first = self.reduce.kind, self.form, self.reduce.names[0]
        take = self.scope.frame.names.take
        self._acc = tuple(take(f"{first}_acc") for _ in range(self.copies))
        self._second = tuple(take(f"{first}_with") for _ in range(self.copies))
        self._total = take(f"{first}_total")
        wide = self.how.wide or kind is ReduceKind.WELFORD
        dtype = DType.F64 if wide else self.reduce.dtype
        start, second = identity(kind, dtype), _SECOND.get(kind)
        for name, other in zip(self._acc, self._second, strict=True):
            self.states += (State(name, dtype, start, form),)
            self.states += (State(other, *second, form),) if second else ()
        self._varying = form == "v" and not self.across
        self.cascade = bool(self.how.chain)
        if self.cascade:
            self.states += (State(self._total, DType.F64, 0, form, total=True),)

    def update(self, scope: Scope, copy: int) -> None:
        """Write the accumulation of one more element into accumulator `copy`."""
        kind, dtype, form = self.reduce.kind, self.reduce.dtype, self.form
        x, *others = (scope.operand(a, form == "v") for a in self.reduce.args)
        acc, second = self._acc[copy], self._second[copy]
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
            x, *others = (
                cast(a, dtype, DType.F64 if self.how.wide else dtype) for a in (x, *others)
            )
            if others and dtype.is_float:
                new = f"gy_mad({x}, {others[0]}, {acc})"
            elif others:
                new = f"gy_add({acc}, gy_mul({x}, {others[0]}))"
            else:
                new = merge(kind, dtype, form, acc, x)
            scope.line(f"{acc} = {_only_live(new, acc, live)};")

    def _joined(self) -> str:
        """Return the accumulators' values as one, with the total."""
        dtype = self.reduce.dtype
        text = joined(self.reduce.kind, dtype, self.form, self._acc)
        if not self.cascade:
            return text
        wide = text if dtype is DType.F64 else f"gy_to_f64({text})"
        return f"gy_add({self._total}, {wide})"

    def flush(self, scope: Scope) -> None:
        """Write the end of a chain: move the accumulators into the total."""
        if self.cascade:
            scope.line(f"{self._total} = {self._joined()};")
            zero = scope.constant(0, self.reduce.dtype, self.form)
            scope.line(*(f"{acc} = {zero};" for acc in self._acc))

    def finish(self, scope: Scope) -> None:
        """Write the results under the names that the `Reduce` gives them."""
        kind, dtype = self.reduce.kind, self.reduce.dtype
        acc, second = self._acc[0], self._second[0]
        if kind in POSITIONS:
            texts = [self._where(scope)]
        elif kind is ReduceKind.WELFORD:
            texts = [cast(x, DType.F64, dtype) for x in (acc, second)]
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            endless, nan = (scope.constant(n, dtype, self.form) for n in (math.inf, math.nan))
            if self.nonempty is not None:
                nan = f"({self.nonempty} ? {nan} : {scope.constant(0, dtype, self.form)})"
            total = cast(second, DType.F64, dtype)
            texts = [acc, f"gy_select(gy_eq(gy_abs({acc}), {endless}), {nan}, {total})"]
        else:
            text = self._joined()
            if self.across:
                text = (_HORIZONTAL_BOOL if dtype is DType.BOOL else _HORIZONTAL)[kind].format(text)
            if (self.cascade or self.how.wide) and dtype is not DType.F64:
                text = f"gy_to_{dtype.value}({text})"
            texts = [text]
        for name, text, real in zip(self.reduce.names, texts, self.reduce.types, strict=False):
            scope.define(name, text, real, self._varying)
        if kind is ReduceKind.WELFORD:
            count = f"(s{lane_type(dtype)}){self.count}"
            scope.define(self.reduce.names[2], count, dtype, varying=False)

    def _where(self, scope: Scope) -> str:
        """Return the position of the least or greatest."""
        best, at, word = self._acc[0], self._second[0], self.reduce.kind.value
        for other, place in zip(self._acc[1:], self._second[1:], strict=True):
            scope.line(f"gy_{word}_update({best}, {at}, {other}, {place});")
        text = f"gy_h{word}({best}, {at})" if self.across else at
        nothing = scope.constant(0, DType.I64, "v" if self._varying else "s")
        return text if self.nonempty is None else f"{self.nonempty} ? {text} : {nothing}"


@define(eq=False, slots=False)
class TwoPass(Collective):
    """One `Reduce` of kind `welford` or `online_softmax` along the lanes' loop, a block at a time.

    The first pass keeps the block's elements in fast memory, so that the second, which is a
    function of the prelude, neither computes nor loads them again. The running values are `f64`.
    """

    scope: Scope
    """The place around the loops."""
    reduce: Reduce
    how: Reduction
    symbol: Sym
    """The loop of the lanes."""
    nonempty: str | None
    """Text of whether there is anything to reduce, None if surely so."""
    source: Load | None
    """What the second pass loads again, if it does."""

    def __attrs_post_init__(self) -> None:
        self._welford = self.reduce.kind is ReduceKind.WELFORD
        self._first = ReduceKind.SUM if self._welford else ReduceKind.MAX
        take, first = self.scope.frame.names.take, self.reduce.names[0]
        self._row = Array(f"{first}_row", self.reduce.dtype, self.symbol)
        self._acc = tuple(take(f"{first}_acc") for _ in range(settled(self.how.unroll)))
        self._a, self._b, self._n = (take(f"{first}_{word}") for word in ("run", "sum", "count"))
        self._start = identity(self._first, DType.F64)
        self.states = (
            State(self._a, DType.F64, self._start, "s"),
            State(self._b, DType.F64, 0, "s"),
            *[State(self._n, DType.I64, 0, "s")] * self._welford,
        )

    def declare(self, scope: Scope) -> None:
        """Write the declarations of the block and of the running values."""
        if self.how.keep or self.source is None:
            vectors = -(-settled(self.how.block) // scope.frame.width)
            self._row = scope.array(self._row, vectors * scope.frame.width)
        super().declare(scope)

    def begin_block(self, scope: Scope, span: Span) -> None:
        """Write the start of a block."""
        self._row = self._row.moved(span.low)
        dtype = self.reduce.dtype
        start = scope.constant(self._start, dtype, "v")
        scope.line(*(f"v{lane_type(dtype)} {acc} = {start};" for acc in self._acc))

    def update(self, scope: Scope, copy: int) -> None:
        """Write the first pass over one vector."""
        x, acc = scope.operand(self.reduce.args[0], varying=True), self._acc[copy]
        if self.source is None:
            self._row.store(scope, x)
        new = merge(self._first, self.reduce.dtype, "v", acc, x)
        scope.line(f"{acc} = {_only_live(new, acc, scope.live)};")

    def end_block(self, scope: Scope, span: Span, prefetches: Iterable[Prefetch]) -> None:
        """Write the second pass over a block; it asks for memory on the way."""
        dtype, row = self.reduce.dtype, self._row.name
        if self.source is not None:
            first = scope.nested(symbols=scope.symbols | {self.symbol: span.low})
            row = address(first, self.source.buffer, self.source.index)
        asked = " ".join(requests(scope, prefetches))
        ask = f"[&](si64 {self.symbol.name}) GY_LAMBDA {{{asked}}}"
        first_pass = joined(self._first, dtype, "v", self._acc)
        given = f"{row}, {span.low}, {span.high}, {first_pass}, {self._a}, {self._b}"
        if self._welford:
            scope.line(f"gy_welford_block<{len(self._acc)}>({given}, {self._n}, {ask});")
            return
        kept = self._row.name if self.how.keep else f"(s{lane_type(dtype)} *)0"
        scope.line(f"gy_softmax_block({given}, {kept}, GY_AS({function('exp', dtype)}), {ask});")

    def finish(self, scope: Scope) -> None:
        """Write the results under the names that the `Reduce` gives them."""
        dtype = self.reduce.dtype
        scope.frame.arrays |= dict.fromkeys(self.how.keep, self._row)
        scope.frame.given |= set(self.how.keep)
        texts = [self._a, self._b, self._n]
        if not self._welford:
            nan, nothing = (scope.constant(x, DType.F64, "s") for x in (math.nan, -math.inf))
            some = "" if self.nonempty is None else f" && ({self.nonempty})"
            texts = [self._a, f"(({self._a} == {nothing}{some}) ? {nan} : {self._b})"]
        for name, text in zip(self.reduce.names, texts, strict=True):
            scope.define(name, f"(s{lane_type(dtype)}){text}", dtype, varying=False)


_WIDE = (ScanKind.SUM, ScanKind.PROD, ScanKind.LOGSUMEXP)
_REACHES = {ScanKind.ARGMIN: "gy_le", ScanKind.ARGMAX: "gy_ge"}


@define(eq=False, slots=False)
class Scanner(Collective):
    """One `ScanStep` on its way along the scan axis."""

    scope: Scope
    """The place around the loop; with lanes, each lane is a point of its own."""
    scan: ScanStep

    def __attrs_post_init__(self) -> None:
        scan, take, form = self.scan, self.scope.frame.names.take, self.scope.form
        self._dtype = DType.F64 if scan.kind in _WIDE and scan.dtype.is_float else scan.dtype
        self._acc, self._at = take(f"{scan.names[0]}_acc"), take(f"{scan.names[0]}_at")
        start = identity(REDUCTION_OF[scan.kind], self._dtype)
        self.states = (State(self._acc, self._dtype, start, form),)
        if scan.kind in _REACHES:
            self.states += (State(self._at, DType.I64, 0, form),)

    def update(self, scope: Scope, copy: int) -> None:
        """Write one step, and name its result."""
        scan, kind, acc = self.scan, self.scan.kind, self._acc
        x = cast(scope.operand(scan.args[0], varying=True), scan.dtype, self._dtype)
        text = cast(acc, self._dtype, scan.dtype)
        if kind in _REACHES:
            place = index_text(scope, scope.frame.position, varying=True)
            reaches = f"{_REACHES[kind]}({x}, {acc})"
            scope.line(f"gy_reach({acc}, {self._at}, {x}, {place}, {reaches});")
            text = self._at
        elif kind is ScanKind.LOGSUMEXP:
            scope.line(f"{acc} = gy_log_add({acc}, {x});")
        else:
            new = merge(REDUCTION_OF[kind], self._dtype, scope.form, acc, x)
            scope.line(f"{acc} = {new};")
        scope.define(scan.names[0], text, scan.types[0], varying=True)
