"""`narrow-integers`: compute 64-bit integers with small ranges in 32 bits.

Programs that compute addresses have such integers: indices that are converted to floats, scaled,
converted back, and compared to the bounds of a tensor. GPUs convert between floats and 64-bit
integers at a quarter of the rate, and emulate 64-bit arithmetic by pairs of 32-bit instructions. On
CPUs, a vector register holds half as many of them, and their comparison masks do not match those of
`f32` vectors.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from attrs import evolve

from gyrator_codegen.analysis import value_names
from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.value_ranges import Range, ValueRanges, type_range
from gyrator_codegen.writer import Names
from gyrator_ir.body.nodes import Bind, Check, Const, IndexValue, Let
from gyrator_ir.body.ops import OPS, Typing
from gyrator_ir.body.rewrite import AnyStatement, defined, rewritten, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.tile.loops import kernel_facts
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

_ANY_WIDTH = frozenset(
    "add sub mul neg abs minimum maximum where floordiv truncdiv mod rem bit_and shr".split()
)
"""Ops with the same result in any narrower type that can represent their operands and results."""
_WIDE, _NARROW = DType.I64, DType.I32


@frozen
class NarrowIntegers(KernelPass):
    """Compute `i64` values in `i32` if they fit and are not only used as `i64`.

    Also removes the wrapping of bound indices that are never negative, and the checks of those that
    are always in range.
    """

    name: ClassVar[str] = "narrow-integers"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        if not any(map(_may_change, kernel.statements)):
            return tiled
        ranges = ValueRanges(kernel_facts(kernel, facts), kernel.storage)
        names = value_names(kernel)
        stages = []
        for n, stage in enumerate(kernel.stages):
            for s in stage.body:
                ranges.add(s)
            chosen = _chosen(stage, ranges, _used_after(kernel, n))
            body = tuple(_rewritten(stage.body, chosen, ranges, names))
            stages.append(stage if body == stage.body else evolve(stage, body=body))
        if all(new is old for new, old in zip(stages, kernel.stages, strict=True)):
            return tiled
        return evolve(tiled, kernel=evolve(kernel, stages=tuple(stages)))


def _may_change(s: AnyStatement) -> bool:
    """Return whether a statement is an index to check, or defines a value that may be narrowed."""
    return isinstance(s, Bind) or (isinstance(s, Let | Const | IndexValue) and s.dtype is _WIDE)


def _used_after(kernel: Kernel, n: int) -> set[str]:
    """Return the values that stages after the n-th use, if its values are visible there."""
    if kernel.stages[n].level is Level.INNER and kernel.inner:
        return set()
    return {name for stage in kernel.stages[n + 1 :] for s in stage.body for name in used(s)}


def _chosen(stage: Stage, ranges: ValueRanges, wide: set[str]) -> set[str]:
    """Return the values of a stage to compute in `i32`."""
    own = {n for s in stage.body if isinstance(s, Let | Const | IndexValue) for n in defined(s)}
    able = {n for n in own - wide if ranges.types[n] is _WIDE and _fits(ranges.of(n))}
    for s in stage.body:
        if isinstance(s, Let) and s.name in able and not _takes(s, able, ranges):
            able.discard(s.name)
    useful: set[str] = set()
    for s in reversed(stage.body):
        if isinstance(s, Let) and s.name in able and s.name not in useful:
            continue  # its operands must be as wide as it is
        if isinstance(s, Let | Bind) and _takes(s, able, ranges):
            useful.update(used(s))
    return able & useful


def _fits(value: Range | None) -> bool:
    limits = type_range(_NARROW)
    assert value is not None
    assert limits is not None
    return limits[0] < value[0] and value[1] <= limits[1]  # strictly, so that -x fits too


def _takes(s: Let | Bind, able: set[str], ranges: ValueRanges) -> bool:
    """Return whether a statement has the same result if its operands in `able` are narrowed."""
    if isinstance(s, Bind):
        return True
    if s.op == "cast":
        return s.dtype is not _WIDE or s.name in able
    if OPS[s.op].typing is not Typing.COMPARE and (s.op not in _ANY_WIDTH or s.dtype is not _WIDE):
        return False
    if s.op == "shr":
        amount = ranges.of(s.args[1])
        if amount is None or amount[0] < 0 or amount[1] >= 8 * _NARROW.size:
            return False
    return all(a in able for a in s.args if ranges.types[a] is _WIDE)


def _rewritten(
    body: Sequence[AnyStatement], chosen: set[str], ranges: ValueRanges, names: Names
) -> Iterator[AnyStatement]:
    widened: dict[str, str] = {}
    for s in body:
        if isinstance(s, Bind):
            yield _inside(s, ranges)
            continue
        narrow = not chosen.isdisjoint(defined(s))
        wide = isinstance(s, Let) and s.dtype is _WIDE and not narrow
        if wide or not (isinstance(s, Let) and _takes(s, chosen, ranges)):
            for name in dict.fromkeys(used(s)):
                if name in chosen and name not in widened:
                    widened[name] = names.take(f"{name}_wide")
                    yield Let(widened[name], "cast", (name,), _WIDE)
            s = rewritten(s, {n: widened[n] for n in used(s) if n in widened})
        if isinstance(s, Let | Const | IndexValue) and narrow:
            s = evolve(s, dtype=_NARROW)
        yield s


def _inside(s: Bind, ranges: ValueRanges) -> Bind:
    value = ranges.of(s.value)
    if value is None or value[0] < 0:
        return s
    size, _ = ranges.facts.bounds(s.size)
    beyond = size is None or value[1] >= size
    check = s.check if beyond else Check.NONE
    return evolve(s, wrap=False, check=check) if s.wrap or check is not s.check else s
