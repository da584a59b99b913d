"""What printers for vector machines ask about the loops of one stage, and about units of work."""

from collections.abc import Collection, Iterable, Sequence

from attrs import frozen

from gyrator_codegen.nests import Nest, axis_of, steps
from gyrator_ir.body.nodes import (
    Axis,
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanStep,
    SortStep,
    Store,
)
from gyrator_ir.body.rewrite import defined, live, used
from gyrator_ir.expr import Const as Number
from gyrator_ir.expr import Expr
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.tile.choices import settled
from gyrator_ir.tile.nodes import Method, Prefetch, TiledKernel
from gyrator_ir.types import DType


@frozen
class StageLoops:
    """The loops of a stage over inner axes."""

    axes: tuple[Axis, ...]
    """In the order of their loops."""
    vector: bool
    """The innermost loop is that of the vectors."""
    backwards: bool
    copies: int
    """Steps that are written side by side."""
    block: int
    """Elements of the innermost loop that are taken at a time; 0 for no cut."""
    chain: int
    """The elements between two flushes, where chains end between two runs of the innermost loop; 0
    where they don't."""
    counts: bool
    """Something asks how many elements have come."""
    first: tuple[Prefetch, ...]
    """What each vector asks for."""
    second: tuple[Prefetch, ...]
    """What the second of two passes asks for."""


def stage_loops(tiled: TiledKernel, loops: Nest, number: int) -> StageLoops:
    """Return the loops of stage `number`, which runs over the inner axes and has no sort."""
    kernel = tiled.kernel
    body = kernel.stages[number].body
    reduces = {s.names[0]: s for s in body if isinstance(s, Reduce)}
    scans = [s for s in body if isinstance(s, ScanStep)]
    axes = kernel.inner
    if not scans:
        order = [x.axes[0] for x in tiled.loops]
        axes = tuple(axis_of(kernel, x) for x in order if x in {a.symbol for a in kernel.inner})
    vector = not scans and not loops.across and loops.lanes > 1
    recorded = [r for r in tiled.reductions if r.result in reduces]
    copies = max((settled(r.unroll) for r in recorded), default=1)
    block = max((settled(r.block) for r in recorded), default=0)
    chain = 0 if block else max((r.chain for r in recorded), default=0)
    if not loops.columns:
        chain *= copies * (loops.lanes if vector else 1)
    single = [reduces[r.result] for r in recorded if r.method is Method.ACCUMULATE]
    counts = any(s.kind is ReduceKind.WELFORD for s in single)
    first, second = (
        tuple(p for p in tiled.prefetches if p.stage == number and p.second is late)
        for late in (False, True)
    )
    backwards = bool(scans) and scans[0].reverse
    return StageLoops(axes, vector, backwards, copies, block, chain, counts, first, second)


def parted(
    body: Iterable[KernelStatement], ahead: Collection[str]
) -> tuple[list[KernelStatement], list[KernelStatement]]:
    """Return what of a body is computed ahead of its loops, constants and what is named, and the
    rest."""
    parts: tuple[list[KernelStatement], list[KernelStatement]] = [], []
    for s in body:
        names = (s.symbol.name,) if isinstance(s, Bind) else defined(s)
        first = isinstance(s, Const) or any(name in ahead for name in names)
        parts[not first].append(s)
    return parts


@frozen
class Sorted:
    """A stage around a sort: what makes the values to sort, and what is done beside the sorted
    ones, what it needs of the former included."""

    before: tuple[KernelStatement, ...]
    step: SortStep
    after: tuple[KernelStatement, ...]


def sorted_stage(body: Sequence[KernelStatement]) -> Sorted | None:
    """Return the parts of a body with a sort, None for one without."""
    found = ((k, s) for k, s in enumerate(body) if isinstance(s, SortStep))
    place, step = next(found, (0, None))
    if step is None:
        return None
    before, after = tuple(body[:place]), tuple(body[place + 1 :])
    again = live(before, [name for s in after for name in used(s)])
    return Sorted(before, step, (*(s for s in again if not isinstance(s, Store)), *after))


def results(s: KernelStatement, storage: dict[str, DType]) -> list[tuple[str, DType]]:
    """Return the names that a statement gives values, with their types; `storage` has those of
    buffers."""
    match s:
        case Load(name=name, buffer=buffer):
            return [(name, storage[buffer])]
        case Let(name=name, dtype=dtype) | IndexValue(name=name, dtype=dtype):
            return [(name, dtype)]
        case Reduce():
            return list(zip(s.names, s.types, strict=True))
    return []


def kept(kernel: Kernel, number: int, storage: dict[str, DType]) -> dict[str, DType]:
    """Return what later stages want of stage `number`, but for constants, with the types."""
    wanted = {name for g in kernel.stages[number + 1 :] for s in g.body for name in used(s)}
    found = [x for s in kernel.stages[number].body for x in results(s, storage)]
    return {name: dtype for name, dtype in found if name in wanted}


def digits(kernel: Kernel, loops: Nest) -> list[tuple[str, Expr]]:
    """Return names for what numbers the units of work, the last fastest, and how many values each
    has: a symbol, or `<symbol>_tile` where a loop has steps. A tile along the vectors that is the
    only one has no number."""
    found: list[tuple[str, Expr]] = []
    for loop in loops.grid:
        symbol, count = loop.axes[0], steps(kernel, loop)
        vectors = loops.across and symbol is loops.symbol
        if not (vectors and isinstance(count, Number) and count.value <= 1):
            plain = loop.step == 1 and not vectors
            found.append((symbol.name if plain else f"{symbol.name}_tile", count))
    return found
