"""Emission of loop-carried state: accumulators of reductions, blocks that are reduced in two
passes, and scans.

Cascaded sums are chains of additions in the element's dtype, which are accumulated in a total in
`f64`. Sums may also be in `f64` from the start; cumulative sums and products always are, as in
eager mode.
"""

import math
from collections.abc import Iterable
from typing import Generic, TypeVar

from attrs import evolve

from gyrator_codegen import REDUCTION_OF
from gyrator_codegen.reductions import MERGED, Carried, in_pairs
from gyrator_codegen.stage_loops import StageLoops
from gyrator_codegen_cpp.body import address, index_text, requests
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.ops import EMITTERS, cast, function
from gyrator_codegen_cpp.scope import Array, Scope, Span
from gyrator_ir.body.nodes import POSITIONS, Load, Reduce, ReduceKind, ScanKind, ScanStep
from gyrator_ir.define import define
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import Prefetch
from gyrator_ir.types import DType

_ACROSS = dict.fromkeys(ReduceKind, "gy_h{0}({1})") | {ReduceKind.DOT: "gy_hsum({1})"}
_ACROSS_BOOL = dict.fromkeys(ReduceKind, "gy_hall({1})") | {
    ReduceKind.ANY: "gy_hany({1})",
    ReduceKind.MAX: "gy_hany({1})",
    ReduceKind.XOR: "(sbool)(gy_hxor(gy_to_i32({1})) & 1)",
}
Step = TypeVar("Step", Reduce, ScanStep)


def merge(kind: ReduceKind, dtype: DType, form: str, *parts: str) -> str:
    """Return the combination of accumulators or values, a power of two of them."""
    merged = EMITTERS[MERGED[kind]]
    return in_pairs(parts, lambda a, b: merged((a, b), (dtype, dtype), dtype, form))


def _only_live(new: str, old: str, live: str | None) -> str:
    """Return `new` in the active lanes and `old` in the others."""
    return new if live is None else f"gy_combine_n({new}, {old}, {live})"


def type_of(s: Carried) -> str:
    """Return the C++ type of a loop-carried variable."""
    return f"{'v' if s.lanes else 's'}{lane_type(s.dtype)}"


@define(eq=False, slots=False)
class Collective(Generic[Step]):
    """The emission state of a `Reduce` or `ScanStep`."""

    scope: Scope
    """The scope around the loops. If it is vectorised, each lane is a separate point."""
    step: Step
    loops: StageLoops

    def __attrs_post_init__(self) -> None:
        self.states = self.loops.carried[self.step.names[0]]
        """The loop-carried variables."""
        self.form = "v" if self.states and self.states[0].lanes else "s"

    @property
    def cascade(self) -> bool:
        """Whether it is a cascaded sum."""
        return any(s.total for s in self.states)

    @property
    def nonempty(self) -> str | None:
        """Text of the condition that there are elements; None if that is certain."""
        if self.scope.frame.tiled.nonempty:
            return None
        return f"{self.scope.index(extent_of(self.loops.axes))} > 0"

    def declare(self, scope: Scope) -> None:
        """Emit the code before the loops."""
        for s in self.states:
            start = scope.constant(s.start, s.dtype, self.form)
            scope.line(f"{type_of(s)} {s.name} = {start};")

    def flush(self, scope: Scope) -> None:
        """Emit the end of a chain."""

    def finish(self, scope: Scope) -> None:
        """Emit the code after the loops, which defines the results."""


class Accumulators(Collective[Reduce]):
    """A `Reduce` that accumulates one value at a time."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._acc = [s.name for s in self.states if s.role == "acc"]
        self._second = [s.name for s in self.states if s.role == "with"]
        self._across = self.loops.vector
        """The lanes belong to one point and are reduced at the end."""
        self._varying = self.form == "v" and not self._across

    def update(self, scope: Scope, copy: int) -> None:
        """Emit the accumulation of an element into accumulator `copy`."""
        if not self.states:
            return
        kind, dtype, form = self.step.kind, self.step.dtype, self.form
        x, *others = (scope.operand(a, form == "v") for a in self.step.args)
        acc, second = self._acc[copy], self._second[copy] if self._second else ""
        live = scope.live if self._across else None
        if kind in POSITIONS:
            best, at = self.states[:2]
            x = _only_live(cast(x, dtype, best.dtype), acc, live)
            place = index_text(scope, scope.frame.position, form == "v", at.dtype)
            word = "next" if self.loops.in_order else "update"
            scope.line(f"gy_{kind.value}_{word}({acc}, {second}, {x}, {place});")
        elif kind is ReduceKind.WELFORD:
            # All lanes have the same number of elements, so a scalar count is sufficient.
            share = scope.spread(f"1.0 / (sf64)({self.loops.count})", form)
            scope.line(f"gy_welford_take({acc}, {second}, {cast(x, dtype, DType.F64)}, {share});")
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            nothing = scope.constant(-math.inf, dtype, form)
            arguments = f"{acc}, {second}, {x}, {nothing}, GY_AS({function('exp', dtype)})"
            scope.line(f"gy_softmax_take({arguments});")
        else:
            x, *others = (cast(a, dtype, self.states[0].dtype) for a in (x, *others))
            if others and dtype.is_float:
                new = f"gy_mad({x}, {others[0]}, {acc})"
            elif others:
                new = f"gy_add({acc}, gy_mul({x}, {others[0]}))"
            else:
                new = merge(kind, dtype, form, acc, x)
            scope.line(f"{acc} = {_only_live(new, acc, live)};")

    def _joined(self) -> str:
        """Return the combination of all accumulators and the total."""
        text = merge(self.step.kind, self.step.dtype, self.form, *self._acc)
        if not self.cascade:
            return text
        return f"gy_add({self.states[-1].name}, {cast(text, self.step.dtype, DType.F64)})"

    def flush(self, scope: Scope) -> None:
        """Emit the end of a chain: add the accumulators to the total."""
        if self.cascade:
            scope.line(f"{self.states[-1].name} = {self._joined()};")
            zero = scope.constant(0, self.step.dtype, self.form)
            scope.line(*(f"{acc} = {zero};" for acc in self._acc))

    def finish(self, scope: Scope) -> None:
        """Emit the definitions of the results."""
        if not self.states:
            return
        kind, dtype, acc = self.step.kind, self.step.dtype, self._acc[0]
        if kind in POSITIONS:
            texts = [self._position(scope)]
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
            if self._across:
                form = (_ACROSS_BOOL if dtype is DType.BOOL else _ACROSS)[kind]
                text = form.format(kind.value, text)
            texts = [cast(text, self.states[-1].dtype, dtype)]
        for name, text, real in zip(self.step.names, texts, self.step.types, strict=False):
            scope.define(name, text, real, self._varying)
        if kind is ReduceKind.WELFORD:
            count = f"(s{lane_type(dtype)}){self.loops.count}"
            scope.define(self.step.names[2], count, dtype, varying=False)

    def _position(self, scope: Scope) -> str:
        """Emit the definitions of extremes, and return the position of the minimum or maximum."""
        best, at, word = self._acc[0], self._second[0], self.step.kind.value
        for other, place in zip(self._acc[1:], self._second[1:], strict=True):
            scope.line(f"gy_{word}_update({best}, {at}, {other}, {place});")
        value, place, dtype = best, at, self.step.dtype
        if self._across:
            value, place = f"gy_h{word[3:]}({best})", f"gy_h{word}({best}, {at})"
        for name in self.loops.extremes.get(self.step.names[0], ()):
            text = cast(value, self.states[0].dtype, dtype)
            scope.define(name, text, dtype, self._varying)
        return cast(place, self.states[1].dtype, DType.I64)


class TwoPass(Collective[Reduce]):
    """A `Reduce` of kind `welford` or `online_softmax` along the vectorised loop, in blocks.

    The first pass stores the block's elements in cache, so that the second, a function of the
    prelude, does not recompute or reload them. The running values are `f64`.
    """

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        name = self.step.names[0]
        self._how = self.scope.frame.reductions[name]
        loads = (s for s in self.loops.body if isinstance(s, Load) and s.name == self.step.args[0])
        self._source = next(loads) if self._how.reload else None
        """The load that the second pass repeats, if any."""
        self._welford = self.step.kind is ReduceKind.WELFORD
        self._row = Array(f"{name}_row", self.step.dtype, self.loops.axis.symbol)
        names = self.scope.frame.names
        self._acc = [names.take(f"{name}_acc") for _ in range(self.loops.copies)]

    def declare(self, scope: Scope) -> None:
        """Emit the declarations of the block and the running values."""
        if self._how.keep or self._source is None:
            vectors = -(-self.loops.block // scope.frame.width)
            self._row = scope.array(self._row, vectors * scope.frame.width)
        super().declare(scope)

    def begin_block(self, scope: Scope, span: Span) -> None:
        """Emit the start of a block."""
        self._row = evolve(self._row, low=span.low)
        dtype = self.step.dtype
        start = scope.constant(self.states[0].start, dtype, "v")
        scope.line(*(f"v{lane_type(dtype)} {acc} = {start};" for acc in self._acc))

    def update(self, scope: Scope, copy: int) -> None:
        """Emit the first pass over a vector."""
        x, acc = scope.operand(self.step.args[0], varying=True), self._acc[copy]
        if self._source is None:
            self._row.store(scope, x)
        new = merge(self.step.kind, self.step.dtype, "v", acc, x)
        scope.line(f"{acc} = {_only_live(new, acc, scope.live)};")

    def end_block(self, scope: Scope, span: Span, prefetches: Iterable[Prefetch]) -> None:
        """Emit the second pass over a block, which also prefetches memory."""
        dtype, row, symbol = self.step.dtype, self._row.name, self.loops.axis.symbol
        if self._source is not None:
            first = scope.nested(symbols=scope.symbols | {symbol: span.low})
            row = address(first, self._source)
        prefetch = f"[&](si64 {symbol.name}) GY_LAMBDA {{{' '.join(requests(scope, prefetches))}}}"
        first_pass = merge(self.step.kind, dtype, "v", *self._acc)
        names = ", ".join(s.name for s in self.states)
        arguments = f"{row}, {span.low}, {span.high}, {first_pass}, {names}"
        if self._welford:
            scope.line(f"gy_welford_block<{len(self._acc)}>({arguments}, {prefetch});")
            return
        kept_row = self._row.name if self._how.keep else f"(s{lane_type(dtype)} *)0"
        exp = f"GY_AS({function('exp', dtype)})"
        scope.line(f"gy_softmax_block({arguments}, {kept_row}, {exp}, {prefetch});")

    def finish(self, scope: Scope) -> None:
        """Emit the definitions of the results."""
        dtype = self.step.dtype
        scope.frame.arrays |= dict.fromkeys(self._how.keep, self._row)
        scope.frame.kept |= set(self._how.keep)
        texts = [s.name for s in self.states]
        if not self._welford:
            nan, nothing = (scope.constant(x, DType.F64, "s") for x in (math.nan, -math.inf))
            has_elements = "" if self.nonempty is None else f" && ({self.nonempty})"
            texts[1] = f"(({texts[0]} == {nothing}{has_elements}) ? {nan} : {texts[1]})"
        for name, text in zip(self.step.names, texts, strict=True):
            scope.define(name, f"(s{lane_type(dtype)}){text}", dtype, varying=False)


class Scanner(Collective[ScanStep]):
    """A `ScanStep` along the scan axis."""

    def update(self, scope: Scope, copy: int) -> None:
        """Emit a step, and define its result."""
        scan, kind, acc = self.step, self.step.kind, self.states[0].name
        dtype = self.states[0].dtype
        x = cast(scope.operand(scan.args[0], varying=True), scan.dtype, dtype)
        texts = [cast(acc, dtype, scan.dtype)]
        if kind in POSITIONS:
            place, at = index_text(scope, scope.frame.position, varying=True), self.states[1].name
            reaches = f"gy_{'le' if kind is ScanKind.ARGMIN else 'ge'}({x}, {acc})"
            scope.line(f"gy_reach({acc}, {at}, {x}, {place}, {reaches});")
            texts = [*texts, at][-len(scan.names) :]
        elif kind is ScanKind.LOGSUMEXP:
            both = f"{acc}, {self.states[1].name}"
            scope.line(f"gy_log_add({both}, {x});")
            texts = [cast(f"gy_log_sum({both})", dtype, scan.dtype)]
        else:
            new = merge(REDUCTION_OF[scan.kind], dtype, scope.form, acc, x)
            scope.line(f"{acc} = {new};")
        for name, text, real in zip(scan.names, texts, scan.types, strict=True):
            scope.define(name, text, real, varying=True)
