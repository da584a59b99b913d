"""Mean and deviation, and softmax's maximum and sum, of rows: a block at a time, in two passes.

The first pass keeps the block's elements in fast memory, so that the second, which is a function of
the prelude, neither computes nor loads them again. The running values are `f64`.
"""

import math
from collections.abc import Iterable

from gyrator_codegen_cpp.addresses import address, requests
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.loops import Span, offset
from gyrator_codegen_cpp.ops import function
from gyrator_codegen_cpp.reduction import joined, merge, only_live
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Load, Reduce, ReduceKind
from gyrator_ir.expr import Sym
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Prefetch, Reduction
from gyrator_ir.types import DType


class TwoPass:
    """One `Reduce` of kind `welford` or `online_softmax` along the lanes' loop.

    Args:
        scope: the place around the loops.
        reduce: what is reduced.
        recorded: how.
        symbol: the loop of the lanes.
        nonempty: text of whether there is anything to reduce, None if surely so.
        source: what the second pass loads again, if it does.
    """

    def __init__(
        self, scope: Scope, reduce: Reduce, recorded: Reduction, symbol: Sym,
        nonempty: str | None, source: Load | None,
    ) -> None:  # fmt: skip
        self.reduce = reduce
        self._symbol = symbol
        self._nonempty = nonempty
        self._block = settled(recorded.block)
        self._welford = reduce.kind is ReduceKind.WELFORD
        self._first = ReduceKind.SUM if self._welford else ReduceKind.MAX
        take = scope.frame.names.take
        first = reduce.names[0]
        self._row = take(f"{first}_row")
        self._acc = tuple(take(f"{first}_acc") for _ in range(settled(recorded.unroll)))
        self._a = take(f"{first}_run")
        self._b = take(f"{first}_sum")
        self._n = take(f"{first}_count")
        self._source = source
        self._keeps = recorded.keep
        self._low = "0"

    def declare(self, scope: Scope) -> None:
        """Write the declarations of the running values."""
        lane = lane_type(self.reduce.dtype)
        size = -(-self._block // scope.frame.width) * scope.frame.width
        if self._keeps or self._source is None:
            scope.line(f"alignas(64) s{lane} {self._row}[{size}];")
        start = "0" if self._welford else scope.constant(-math.inf, DType.F64, varying=False)
        scope.line(f"sf64 {self._a} = {start}, {self._b} = 0;")
        if self._welford:
            scope.line(f"si64 {self._n} = 0;")

    def begin_block(self, scope: Scope, span: Span) -> None:
        """Write the start of a block."""
        self._low = span.low
        dtype = self.reduce.dtype
        text = scope.constant(0 if self._welford else -math.inf, dtype, varying=False)
        for acc in self._acc:
            scope.line(f"v{lane_type(dtype)} {acc} = gy_vsplat({text});")

    def update(self, scope: Scope, copy: int) -> None:
        """Write the first pass over one vector."""
        x, acc = scope.operand(self.reduce.args[0], varying=True), self._acc[copy]
        if self._source is None:
            scope.line(f"gy_store({self._row} + {offset(scope, self._symbol, self._low)}, {x});")
        new = merge(self._first, self.reduce.dtype, "v", acc, x)
        scope.line(f"{acc} = {only_live(new, acc, scope.live)};")

    def end_block(self, scope: Scope, span: Span, prefetches: Iterable[Prefetch]) -> None:
        """Write the second pass over a block; it asks for memory on the way."""
        name, dtype = self._symbol.name, self.reduce.dtype
        row = self._row
        if self._source is not None:
            first = scope.nested(symbols=scope.symbols | {self._symbol: span.low})
            row = address(first, self._source.buffer, self._source.index)
        first_pass = joined(self._first, dtype, "v", self._acc)
        ask = f"[&](si64 {name}) GY_LAMBDA {{{' '.join(requests(scope, prefetches))}}}"
        given = f"{row}, {span.low}, {span.high}, {first_pass}, {self._a}, {self._b}"
        if self._welford:
            call = f"gy_welford_block<{len(self._acc)}>({given}, {self._n}, {ask});"
        else:
            kept = self._row if self._keeps else f"(s{lane_type(dtype)} *)0"
            call = f"gy_softmax_block({given}, {kept}, GY_AS({function('exp', dtype)}), {ask});"
        scope.line(call)

    def flush(self, scope: Scope) -> None:
        """Write nothing: blocks join as they end."""

    def finish(self, scope: Scope) -> None:
        """Write the results under the names that the `Reduce` gives them."""
        dtype, names = self.reduce.dtype, self.reduce.names
        for name in self._keeps:
            scope.frame.ready[name] = (self._row, self._symbol)
        word = f"(s{lane_type(dtype)})"
        scope.define(names[0], f"{word}{self._a}", dtype, varying=False)
        if self._welford:
            scope.define(names[1], f"{word}{self._b}", dtype, varying=False)
            scope.define(names[2], f"{word}{self._n}", dtype, varying=False)
            return
        nan = scope.constant(math.nan, DType.F64, varying=False)
        nothing = scope.constant(-math.inf, DType.F64, varying=False)
        some = "" if self._nonempty is None else f" && ({self._nonempty})"
        text = f"{word}(({self._a} == {nothing}{some}) ? {nan} : {self._b})"
        scope.define(names[1], text, dtype, varying=False)
