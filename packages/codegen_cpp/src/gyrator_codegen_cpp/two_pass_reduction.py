"""Mean and deviation, and softmax's maximum and sum, of rows: a block at a time, in two passes.

The first pass keeps the block's elements in fast memory, so that the second neither computes nor
loads them again. Blocks merge by Chan, Golub and LeVeque's formula, or by rescaling to the greater
maximum (Milakov and Gimelshein), with the running values in `f64`.
"""

import math

from gyrator_codegen import Access
from gyrator_codegen_cpp.addresses import address
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.ops import function
from gyrator_codegen_cpp.reduction import only_live
from gyrator_codegen_cpp.scope import Scope
from gyrator_ir.body.nodes import Load, Reduce, ReduceKind
from gyrator_ir.expr import Sym
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Reduction
from gyrator_ir.types import DType


class TwoPass:
    """One `Reduce` of kind `welford` or `online_softmax` along the lanes' loop.

    Args:
        scope: the place around the loops.
        reduce: what is reduced.
        recorded: how.
        symbol: the loop of the lanes.
        nonempty: text of whether there is anything to reduce, None if surely so.
        single: there is only one block.
        source: what the second pass loads again, if it does.
    """

    def __init__(
        self, scope: Scope, reduce: Reduce, recorded: Reduction, *, symbol: Sym,
        nonempty: str | None, single: bool, source: Load | None,
    ) -> None:  # fmt: skip
        self.reduce = reduce
        copies = settled(recorded.unroll)
        self._symbol = symbol
        self._nonempty = nonempty
        self._block = settled(recorded.block)
        self._welford = reduce.kind is ReduceKind.WELFORD
        self._exp = function("exp", reduce.dtype)
        take = scope.frame.names.take
        first = reduce.names[0]
        self.row = take(f"{first}_row")
        self._acc = tuple(take(f"{first}_acc") for _ in range(copies))
        self._gaps = tuple(take(f"{first}_gap") for _ in range(copies))
        self._a = take(f"{first}_run")
        self._b = take(f"{first}_sum")
        self._n = take(f"{first}_count")
        self._source = source
        self._keeps = recorded.keep
        self._single = single
        # One exponential hides the latency of the sum that it feeds.
        self.second_copies = copies if self._welford else 1

    def declare(self, scope: Scope) -> None:
        """Write the declarations of the running values."""
        lane = lane_type(self.reduce.dtype)
        size = -(-self._block // scope.frame.width) * scope.frame.width
        if self._keeps or self._source is None:
            scope.line(f"alignas(64) s{lane} {self.row}[{size}];")
        start = "0" if self._welford else scope.constant(-math.inf, DType.F64, varying=False)
        scope.line(f"sf64 {self._a} = {start}, {self._b} = 0;")
        if self._welford:
            scope.line(f"si64 {self._n} = 0;")

    def begin_block(self, scope: Scope) -> None:
        """Write the start of a block."""
        dtype = self.reduce.dtype
        start = 0 if self._welford else -math.inf
        for acc in self._acc:
            text = scope.constant(start, dtype, varying=False)
            scope.line(f"v{lane_type(dtype)} {acc} = gy_vsplat({text});")

    def update(self, scope: Scope, copy: int, low: str) -> None:
        """Write the first pass over one vector."""
        x = scope.operand(self.reduce.args[0], varying=True)
        if self._source is None:
            scope.line(f"gy_store({self._place(scope, low)}, {x});")
        acc = self._acc[copy]
        new = f"gy_add({acc}, {x})" if self._welford else f"gy_maximum({acc}, {x})"
        scope.line(f"{acc} = {only_live(new, acc, scope.live)};")

    def _place(self, scope: Scope, low: str) -> str:
        symbol = scope.symbols.get(self._symbol, self._symbol.name)
        return f"{self.row} + {symbol}" if low == "0" else f"{self.row} + ({symbol} - {low})"

    def _joined(self, word: str, names: tuple[str, ...] | None = None) -> str:
        parts = list(self._acc if names is None else names)
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [f"{word}({a}, {b})" for a, b in pairs]
        return parts[0]

    def between(self, scope: Scope, low: str, high: str) -> None:
        """Write what stands between the passes."""
        lane = lane_type(self.reduce.dtype)
        if self._welford:
            total = f"gy_hsum({self._joined('gy_add')})"
            scope.line(f"sf64 here = (sf64)({total} / (s{lane})({high} - {low}));")
            scope.line(f"const v{lane} middle = gy_vsplat((s{lane})here);")
        else:
            top = f"(sf64)gy_hmax({self._joined('gy_maximum')})"
            scope.line(f"const sf64 higher = gy_maximum({self._a}, {top});")
            scope.line(f"const v{lane} middle = gy_vsplat((s{lane})higher);")
        self._acc = self._acc[: self.second_copies]
        for acc in self._acc:
            scope.line(f"{acc} = gy_vsplat((s{lane})0);")
        if self._welford:
            for gap in self._gaps:
                scope.line(f"v{lane} {gap} = gy_vsplat((s{lane})0);")

    def second(self, scope: Scope, copy: int, low: str) -> None:
        """Write the second pass over one vector."""
        lane = lane_type(self.reduce.dtype)
        acc = self._acc[copy]
        given = self._given(scope, low)
        if self._welford:
            total = self._gaps[copy]
            scope.line(f"const v{lane} gap = {given} - middle;")
            scope.line(f"{total} = {only_live(f'gy_add({total}, gap)', total, scope.live)};")
            new = f"gy_mad(gap, gap, {acc})"
        else:
            scope.line(f"const v{lane} part = {self._exp}({given} - middle);")
            if self._keeps:
                scope.line(f"gy_store({self._place(scope, low)}, part);")
            new = f"gy_add({acc}, part)"
        scope.line(f"{acc} = {only_live(new, acc, scope.live)};")

    def _given(self, scope: Scope, low: str) -> str:
        """Return one vector of what is reduced."""
        if self._source is None:
            return f"gy_vload({self._place(scope, low)})"
        pointer = address(scope, self._source.buffer, self._source.index, Access.UNIT)
        if scope.live is not None:
            return f"gy_vload_n({pointer}, {scope.live})"
        return f"gy_vload({pointer})"

    def end_block(self, scope: Scope, low: str, high: str) -> None:
        """Write the merge of a block with those before it."""
        total = f"(sf64)gy_hsum({self._joined('gy_add')})"
        if self._welford:
            # The middle is rounded: what the gaps sum to says by how much it is off.
            gaps = f"(sf64)gy_hsum({self._joined('gy_add', self._gaps)})"
            scope.line(f"const sf64 off = {gaps} / (sf64)({high} - {low});")
            scope.line("here += off;")
            total = f"{total} - off * off * (sf64)({high} - {low})"
        if self._single:
            scope.line(f"{self._a} = {'here' if self._welford else 'higher'};")
            scope.line(f"{self._b} = {total};")
            if self._welford:
                scope.line(f"{self._n} = {high} - {low};")
            return
        if not self._welford:
            nothing = scope.constant(-math.inf, DType.F64, varying=False)
            with scope.block(f"if (higher != {nothing}) {{"):
                apart = f"(s{lane_type(self.reduce.dtype)})({self._a} - higher)"
                scale = f"(sf64){self._exp}({apart})"
                scope.line(f"{self._b} = {self._b} * ({self._b} == 0 ? 0.0 : {scale}) + {total};")
                scope.line(f"{self._a} = higher;")
            return
        scope.line(f"const sf64 deviation = {total};")
        scope.line(f"const sf64 more = (sf64)({high} - {low}), before = (sf64){self._n};")
        scope.line(f"const sf64 apart = here - {self._a}, share = more / (before + more);")
        scope.line(f"{self._a} += apart * share;")
        scope.line(f"{self._b} += deviation + apart * apart * before * share;")
        scope.line(f"{self._n} += {high} - {low};")

    def finish(self, scope: Scope) -> None:
        """Write the results under the names that the `Reduce` gives them."""
        dtype, names = self.reduce.dtype, self.reduce.names
        for name in self._keeps:
            scope.frame.ready[name] = (self.row, self._symbol)
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
