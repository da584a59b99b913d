"""Mean and deviation, and softmax's maximum and sum, of rows: a block at a time, in two passes.

The first pass keeps the block's elements in fast memory, so that the second neither computes nor
loads them again. Blocks merge by Chan, Golub and LeVeque's formula, or by rescaling to the greater
maximum (Milakov and Gimelshein), with the running values in `f64`.
"""

import math

from gyrator_codegen_cpp.code import Code
from gyrator_codegen_cpp.fold import only_live
from gyrator_codegen_cpp.scalars import lane_type
from gyrator_ir.expr import Sym
from gyrator_ir.loop.body import Reduce, ReduceKind
from gyrator_ir.types import DType

BLOCK = 2048
"""Elements of a row that are kept between the passes."""


class BlockFold:
    """One `Reduce` of kind `welford` or `online_softmax` along the lanes' loop.

    Args:
        code: the place around the loops.
        reduce: what is folded.
        copies: independent accumulators, for latency.
        symbol: the loop of the lanes.
        nonempty: text of whether anything is folded, None if surely so.
        keep: name of an array that takes exp(x - maximum) of the last block, or None.
    """

    def __init__(
        self, code: Code, reduce: Reduce, copies: int, *, symbol: Sym, nonempty: str | None,
        block: int,
    ) -> None:  # fmt: skip
        self.reduce = reduce
        self.copies = copies
        self._symbol = symbol
        self._nonempty = nonempty
        self._block = block
        self._welford = reduce.kind is ReduceKind.WELFORD
        take = code.frame.names.take
        first = reduce.names[0]
        self.row = take(f"{first}_row")
        self._acc = tuple(take(f"{first}_acc") for _ in range(copies))
        self._a = take(f"{first}_run")
        self._b = take(f"{first}_sum")
        self._n = take(f"{first}_count")

    def declare(self, code: Code) -> None:
        """Write the declarations of the running values."""
        lane = lane_type(self.reduce.dtype)
        size = -(-self._block // code.frame.width) * code.frame.width
        code.line(f"alignas(64) s{lane} {self.row}[{size}];")
        start = "0" if self._welford else code.constant(-math.inf, DType.F64, varying=False)
        code.line(f"sf64 {self._a} = {start}, {self._b} = 0;")
        if self._welford:
            code.line(f"si64 {self._n} = 0;")

    def begin_block(self, code: Code) -> None:
        """Write the start of a block."""
        dtype = self.reduce.dtype
        start = 0 if self._welford else -math.inf
        for acc in self._acc:
            text = code.constant(start, dtype, varying=False)
            code.line(f"v{lane_type(dtype)} {acc} = gy_vsplat({text});")

    def update(self, code: Code, copy: int, low: str) -> None:
        """Write the first pass over one vector."""
        x = code.operand(self.reduce.args[0], varying=True)
        place = self._place(code, low)
        code.line(f"gy_store({place}, {x});")
        acc = self._acc[copy]
        new = f"gy_add({acc}, {x})" if self._welford else f"gy_maximum({acc}, {x})"
        code.line(f"{acc} = {only_live(new, acc, code.live)};")

    def _place(self, code: Code, low: str) -> str:
        symbol = code.symbols.get(self._symbol, self._symbol.name)
        return f"{self.row} + {symbol}" if low == "0" else f"{self.row} + ({symbol} - {low})"

    def _fold(self, word: str) -> str:
        parts = list(self._acc)
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [f"{word}({a}, {b})" for a, b in pairs]
        return parts[0]

    def between(self, code: Code, low: str, high: str) -> None:
        """Write what stands between the passes."""
        lane = lane_type(self.reduce.dtype)
        if self._welford:
            total = f"gy_hsum({self._fold('gy_add')})"
            code.line(f"const sf64 here = (sf64){total} / (sf64)({high} - {low});")
            code.line(f"const v{lane} middle = gy_vsplat((s{lane})here);")
        else:
            top = f"(sf64)gy_hmax({self._fold('gy_maximum')})"
            code.line(f"const sf64 higher = gy_maximum({self._a}, {top});")
            code.line(f"const v{lane} middle = gy_vsplat((s{lane})higher);")
        for acc in self._acc:
            code.line(f"{acc} = gy_vsplat((s{lane})0);")

    def second(self, code: Code, copy: int, low: str) -> None:
        """Write the second pass over one vector."""
        lane = lane_type(self.reduce.dtype)
        place = self._place(code, low)
        acc = self._acc[copy]
        if self._welford:
            code.line(f"const v{lane} gap = gy_vload({place}) - middle;")
            new = f"gy_mad(gap, gap, {acc})"
        else:
            code.line(f"const v{lane} part = gy_exp(gy_vload({place}) - middle);")
            code.line(f"gy_store({place}, part);")
            new = f"gy_add({acc}, part)"
        code.line(f"{acc} = {only_live(new, acc, code.live)};")

    def end_block(self, code: Code, low: str, high: str) -> None:
        """Write the merge of a block with those before it."""
        total = f"(sf64)gy_hsum({self._fold('gy_add')})"
        if not self._welford:
            nothing = code.constant(-math.inf, DType.F64, varying=False)
            with code.block(f"if (higher != {nothing}) {{"):
                scale = f"(sf64)gy_exp((s{lane_type(self.reduce.dtype)})({self._a} - higher))"
                code.line(f"{self._b} = {self._b} * ({self._b} == 0 ? 0.0 : {scale}) + {total};")
                code.line(f"{self._a} = higher;")
            return
        code.line(f"const sf64 deviation = {total};")
        code.line(f"const sf64 more = (sf64)({high} - {low}), before = (sf64){self._n};")
        code.line(f"const sf64 apart = here - {self._a}, share = more / (before + more);")
        code.line(f"{self._a} += apart * share;")
        code.line(f"{self._b} += deviation + apart * apart * before * share;")
        code.line(f"{self._n} += {high} - {low};")

    def finish(self, code: Code) -> None:
        """Write the results under the names that the `Reduce` gives them."""
        dtype, names = self.reduce.dtype, self.reduce.names
        word = f"(s{lane_type(dtype)})"
        code.define(names[0], f"{word}{self._a}", dtype, varying=False)
        if self._welford:
            code.define(names[1], f"{word}{self._b}", dtype, varying=False)
            code.define(names[2], f"{word}{self._n}", dtype, varying=False)
            return
        nan = code.constant(math.nan, DType.F64, varying=False)
        nothing = code.constant(-math.inf, DType.F64, varying=False)
        some = "" if self._nonempty is None else f" && ({self._nonempty})"
        text = f"{word}(({self._a} == {nothing}{some}) ? {nan} : {self._b})"
        code.define(names[1], text, dtype, varying=False)


