"""What passes and printers ask about extents and bodies."""

from collections.abc import Collection, Iterable

from gyrator_ir.body.nodes import (
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanStep,
    SortStep,
)
from gyrator_ir.body.ops import OPS
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import Const as Number
from gyrator_ir.expr import Expr, ShapeFacts, Sym
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Stage
from gyrator_ir.modes import Numerics

_UNKNOWN_EXTENT = 256  # what a dynamic extent is taken for when work is compared
_ROUNDING = (
    ReduceKind.SUM, ReduceKind.PROD, ReduceKind.DOT, ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX,
)  # fmt: skip


def static(e: Expr) -> int | None:
    """Return the value of a constant expression, None for others."""
    return e.value if isinstance(e, Number) else None


def extent_guess(extent: Expr) -> int:
    """Return the extent, or a middling number for one that is not known yet."""
    return extent.value if isinstance(extent, Number) else _UNKNOWN_EXTENT


def kernel_facts(kernel: Kernel, facts: ShapeFacts) -> ShapeFacts:
    """Return the facts with the ranges of the kernel's axes and of symbols bound in it."""
    ranges = {a.symbol: a.extent for a in kernel.axes + kernel.inner}
    for stage in kernel.stages:
        ranges |= {s.symbol: s.size for s in stage.body if isinstance(s, Bind)}
    return facts.with_ranges(ranges)


def ordered(stage: Stage) -> bool:
    """Say whether a stage walks the inner axes one element at a time: it has a scan or a sort."""
    return any(isinstance(s, ScanStep | SortStep) for s in stage.body)


def in_order(kernel: Kernel) -> bool:
    """Say whether each point's elements must be reduced one after another, for it rounds."""
    return kernel.numerics is Numerics.BATCH_INVARIANT and any(
        isinstance(s, Reduce) and s.dtype.is_float and s.kind in _ROUNDING
        for stage in kernel.stages
        for s in stage.body
    )


def work(body: Iterable[KernelStatement]) -> int:
    """Return the rough price of a body, an addition being 1."""
    return sum(OPS[s.op].cost if isinstance(s, Let) else 1 for s in body)


def invariant(
    body: Iterable[KernelStatement], symbols: Iterable[Sym], written: Collection[str], loads: bool
) -> tuple[list[KernelStatement], list[KernelStatement]]:
    """Split a body into what is the same for all values of `symbols`, and the rest.

    Args:
        written: buffers that the kernel stores to.
        loads: the loops surely run, so that loads and checks may be done ahead of them.
    """
    moving = set(symbols)
    here: set[str] = set()
    fixed: list[KernelStatement] = []
    rest: list[KernelStatement] = []
    for s in body:
        match s:
            case Const():
                still = True
            case Let():
                still = here.isdisjoint(s.args)
            case IndexValue(expr=e):
                still = moving.isdisjoint(e.free_symbols)
            case Load(buffer=buffer, index=index, mask=None):
                still = loads and buffer not in written and moving.isdisjoint(index.free_symbols)
            case Bind(value=value, mask=None, size=e):
                still = loads and value not in here and moving.isdisjoint(e.free_symbols)
            case _:
                still = False
        if still:
            fixed.append(s)
            continue
        here.update(defined(s))
        if isinstance(s, Bind):
            moving.add(s.symbol)
        rest.append(s)
    return fixed, rest
