"""Analyses of extents and bodies, for passes and printers."""

from collections.abc import Collection, Iterable, Iterator

from gyrator_codegen.writer import Names
from gyrator_ir.body import nodes
from gyrator_ir.body.nodes import ReduceKind, StoreMode
from gyrator_ir.body.ops import OPS
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import ZERO, Expr, ShapeFacts, Sym, SymKind
from gyrator_ir.expr import Const as Number
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Stage
from gyrator_ir.modes import Numerics
from gyrator_ir.types import DType

_ROUNDING = (
    ReduceKind.SUM, ReduceKind.PROD, ReduceKind.DOT, ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX,
)  # fmt: skip


def static(e: Expr) -> int | None:
    """Return the value of a constant expression, or None."""
    return e.value if isinstance(e, Number) else None


def linear_position(axes: Iterable[nodes.Axis]) -> Expr:
    """Return the row-major linear index over axes."""
    position: Expr = ZERO
    for a in axes:
        position = position * a.extent + a.symbol
    return position


def element_types(kernel: Kernel) -> Iterator[tuple[str, DType]]:
    """Yield the names and types of a kernel's parameters, locals, values, reductions and scans."""
    yield from ((b.name, b.dtype) for b in kernel.parameters)
    yield from ((t.name, t.dtype) for t in kernel.locals)
    for s in kernel.statements:
        if isinstance(s, nodes.Let | nodes.Const | nodes.IndexValue):
            yield s.name, s.dtype
        elif isinstance(s, nodes.Reduce | nodes.ScanStep):
            yield s.names[0], s.dtype


def value_names(kernel: Kernel) -> Names:
    """Return a generator of names that no value of a kernel has."""
    return Names(frozenset(n for s in kernel.statements for n in defined(s)))


def ordered(stage: Stage) -> bool:
    """Return whether a stage has a scan or a sort, and so visits the inner elements in order."""
    return any(isinstance(s, nodes.ScanStep | nodes.SortStep) for s in stage.body)


def in_order(kernel: Kernel) -> bool:
    """Return whether the kernel has a rounding reduction that must be done in element order."""
    return kernel.numerics in (Numerics.BATCH_INVARIANT, Numerics.BITWISE) and any(
        isinstance(s, nodes.Reduce) and s.dtype.is_float and s.kind in _ROUNDING
        for s in kernel.statements
    )


def stores_in_order(kernel: Kernel) -> bool:
    """Return whether the kernel has stores that may collide and must happen in the order of its
    points, because the result depends on it."""
    if kernel.numerics is not Numerics.BITWISE:
        return False
    floats = {b.name for b in kernel.parameters if b.dtype.is_float}
    return any(
        any(v.kind is SymKind.INDIRECT for v in s.index.free_symbols)
        if s.mode is StoreMode.SET
        else s.buffer in floats and s.mode in (StoreMode.ADD, StoreMode.MUL)
        for s in kernel.statements
        if isinstance(s, nodes.Store)
    )


def work(body: Iterable[KernelStatement]) -> int:
    """Return the approximate cost of a body relative to an addition."""
    return sum(OPS[s.op].cost if isinstance(s, nodes.Let) else 1 for s in body)


def invariant(
    body: Iterable[KernelStatement], symbols: Iterable[Sym], written: Collection[str], loads: bool
) -> tuple[list[KernelStatement], list[KernelStatement]]:
    """Split a body into the statements that are invariant in loops over `symbols`, and the rest.

    Args:
        body: the statements.
        symbols: the loop variables.
        written: buffers that the kernel stores to.
        loads: whether loads and checks may be hoisted, because the loops run at least once.
    """
    moving = set(symbols)
    varying: set[str] = set()
    fixed: list[KernelStatement] = []
    rest: list[KernelStatement] = []
    for s in body:
        match s:
            case nodes.Const():
                still = True
            case nodes.Let():
                still = varying.isdisjoint(s.args)
            case nodes.IndexValue(expr=e):
                still = moving.isdisjoint(e.free_symbols)
            case nodes.Load(buffer=buffer, index=index, mask=None):
                still = loads and buffer not in written and moving.isdisjoint(index.free_symbols)
            case nodes.Bind(value=value, mask=None, size=e):
                still = loads and value not in varying and moving.isdisjoint(e.free_symbols)
            case _:
                still = False
        if still:
            fixed.append(s)
            continue
        varying.update(defined(s))
        if isinstance(s, nodes.Bind):
            moving.add(s.symbol)
        rest.append(s)
    return fixed, rest


_UNKNOWN = 256  # the estimate of a dynamic extent


def extent_guess(extent: Expr) -> int:
    """Return the extent, or a typical number for one that is not constant."""
    return extent.value if isinstance(extent, Number) else _UNKNOWN


def guess(size: Expr, facts: ShapeFacts, unknown: int = _UNKNOWN) -> int:
    """Return a typical value of a size, or `unknown` if it has no hint."""
    hint = facts.hint(size)
    return unknown if hint is None else hint


def power_of_two(value: int) -> int:
    """Return the least power of two that is at least `value`; 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()
