"""`narrow-integers`: integers of 64 bits that are known to be small are computed in 32.

Programs have them where they compute places: indices turned to floats, scaled, and turned back.
GPUs convert between floats and integers of 64 bits at a quarter of the rate, and have no
instructions for such integers but pairs of those for 32.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from attrs import evolve, frozen

from gyrator_codegen.passes.rewriting import KernelPass
from gyrator_codegen.value_ranges import Range, ValueRanges, whole_range
from gyrator_ir.body.nodes import Bind, Check, Const, IndexValue, Let
from gyrator_ir.body.ops import OPS, Typing
from gyrator_ir.body.rewrite import AnyStatement, defined, rewritten, used
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import Kernel, Level, Stage
from gyrator_ir.tile.loops import kernel_facts
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

_ANY_WIDTH = frozenset(
    "add sub mul neg abs minimum maximum where floordiv truncdiv mod rem bit_and shr".split()
)
"""Ops that give the same result in any narrower type that holds their operands and results."""
_WIDE, _NARROW = DType.I64, DType.I32


@frozen
class NarrowIntegers(KernelPass):
    """Compute in `i32` whatever is `i64`, fits, and is not needed as `i64` alone.

    Bound indices that are known not to be negative do not wrap, and those known to lie inside are
    not checked.
    """

    name: ClassVar[str] = "narrow-integers"

    def _tile(self, tiled: TiledKernel, facts: ShapeFacts) -> TiledKernel:
        kernel = tiled.kernel
        ranges = ValueRanges(kernel_facts(kernel, facts), kernel.storage)
        taken = {n for stage in kernel.stages for s in stage.body for n in defined(s)}
        stages = []
        for n, stage in enumerate(kernel.stages):
            for s in stage.body:
                ranges.tell(s)
            chosen = _chosen(stage, ranges, _used_after(kernel, n))
            body = tuple(_rewritten(stage.body, chosen, ranges, taken))
            stages.append(stage if body == stage.body else evolve(stage, body=body))
        if all(new is old for new, old in zip(stages, kernel.stages, strict=True)):
            return tiled
        return evolve(tiled, kernel=evolve(kernel, stages=tuple(stages)))


def _used_after(kernel: Kernel, n: int) -> set[str]:
    """Return what stages after the n-th read, if that one's values reach them."""
    if kernel.stages[n].level is Level.INNER and kernel.inner:
        return set()
    return {name for stage in kernel.stages[n + 1 :] for s in stage.body for name in used(s)}


def _chosen(stage: Stage, ranges: ValueRanges, wide: set[str]) -> set[str]:
    """Return the values of a stage that are computed in `i32`."""
    own = {n for s in stage.body if isinstance(s, Let | Const | IndexValue) for n in defined(s)}
    able = {n for n in own - wide if ranges.types[n] is _WIDE and _fits(ranges.of(n))}
    for s in stage.body:
        if isinstance(s, Let) and s.name in able and not _takes(s, able, ranges):
            able.discard(s.name)
    wanted: set[str] = set()
    for s in reversed(stage.body):
        if isinstance(s, Let) and s.name in able and s.name not in wanted:
            continue  # its operands are needed as wide as it is
        if isinstance(s, Let | Bind) and _takes(s, able, ranges):
            wanted.update(used(s))
    return able & wanted


def _fits(known: Range | None) -> bool:
    whole = whole_range(_NARROW)
    assert known is not None
    assert whole is not None
    return whole[0] < known[0] and known[1] <= whole[1]  # so that -x fits, too


def _takes(s: Let | Bind, able: set[str], ranges: ValueRanges) -> bool:
    """Whether a statement does the same with operands that are narrowed where possible."""
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
    body: Sequence[AnyStatement], chosen: set[str], ranges: ValueRanges, taken: set[str]
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
                    widened[name] = _fresh(f"{name}_wide", taken)
                    yield Let(widened[name], "cast", (name,), _WIDE)
            s = rewritten(s, {n: widened[n] for n in used(s) if n in widened})
        if isinstance(s, Let | Const | IndexValue) and narrow:
            s = evolve(s, dtype=_NARROW)
        yield s


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _inside(s: Bind, ranges: ValueRanges) -> Bind:
    known = ranges.of(s.value)
    if known is None or known[0] < 0:
        return s
    size, _ = ranges.facts.bounds(s.size)
    beyond = size is None or known[1] >= size
    check = s.check if beyond else Check.NONE
    return evolve(s, wrap=False, check=check) if s.wrap or check is not s.check else s
