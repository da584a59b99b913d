"""Which kernels are matrix products, and what their rows, columns and folded axes are.

A kernel whose inner stage folds products of two values (`reduce.dot`) is a product of matrices
where each value varies along points that the other does not: those of the first value alone are
rows, those of the second alone columns, and the rest batches.
"""

from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from gyrator_codegen import Access, extent_guess, lane_access
from gyrator_ir.expr import ONE, ZERO, Add, Const, Expr, ShapeFacts, Sym, SymKind, subs
from gyrator_ir.kernel.nodes import Kernel, KernelStatement, Level, Stage
from gyrator_ir.loop.body import (
    Axis,
    Bind,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    Statement,
    Store,
)
from gyrator_ir.loop.body import Const as ConstValue
from gyrator_ir.loop.rewrite import defined, expressions, used
from gyrator_ir.target import Target
from gyrator_ir.types import DType

_SIDE = 4  # fewer rows or columns than this leave most of a matrix unit idle
_WORK = 1 << 12  # fewer products than this are done before a matrix unit is fed
_FOLD = 16  # elements of an axis that is worth walking in blocks of its own
_WASTE = 1.34  # how much longer the blocks of such an axis may be than the axis
_VECTOR = 16


@frozen
class Operand:
    """One factor: the statements that make it, and the value in the type that units take."""

    body: tuple[Statement, ...]
    value: str
    dtype: DType
    loaded: bool
    """The value is read from memory as it is, so that what lies outside is 0."""
    loose: bool = False
    """Blocks of it can't be read in whole vectors."""


@frozen
class Product:
    """One fold of products: rows by columns."""

    result: str
    left: Operand
    right: Operand
    dtype: DType
    """What it is summed in."""


@frozen
class Contraction:
    """A kernel as a product of matrices."""

    kernel: Kernel
    products: tuple[Product, ...]
    batches: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    outside: tuple[Axis, ...]
    """Folded axes that are walked one by one."""
    folded: tuple[Axis, ...]
    """Folded axes that are walked in blocks, as one."""
    stages: tuple[Stage, ...]
    """What is done at each point, with the sums."""


def contraction(kernel: Kernel, target: Target, facts: ShapeFacts) -> Contraction | None:
    """Return a kernel as a product of matrices, or None where it is none, or too small a one."""
    inside = [stage for stage in kernel.stages if stage.level is Level.INNER]
    if not kernel.inner or kernel.locals or len(inside) != 1:
        return None
    body = inside[0].body
    folds = [s for s in body if isinstance(s, Reduce)]
    if not folds or any(isinstance(s, Store) for s in body):
        return None
    found = [_product(kernel, body, s, target) for s in folds]
    products = [p for p in found if p is not None]
    if len(products) != len(found):
        return None
    sides = [(_along(kernel, p.left), _along(kernel, p.right)) for p in products]
    left, right = sides[0]
    rows = tuple(a for a in kernel.axes if a in left and a not in right)
    columns = tuple(a for a in kernel.axes if a in right and a not in left)
    batches = tuple(a for a in kernel.axes if a not in rows and a not in columns)
    if any(set(side) != {left, right} for side in sides):
        return None
    products = [
        p if side == (left, right) else Product(p.result, p.right, p.left, p.dtype)
        for p, side in zip(products, sides, strict=True)
    ]
    if not _worthwhile(rows, columns, kernel.inner, facts):
        return None
    stages = tuple(stage for stage in kernel.stages if stage.level is not Level.INNER)
    if _turned(rows, columns, stages):
        rows, columns = columns, rows
        products = [Product(p.result, p.right, p.left, p.dtype) for p in products]
    outside, folded = _walked(kernel, products, facts)
    rows = _ordered(rows, [p.left for p in products])
    columns = _ordered(columns, [p.right for p in products])
    products = [
        Product(p.result, _seen(p.left, rows, folded), _seen(p.right, columns, folded), p.dtype)
        for p in products
    ]
    return Contraction(kernel, tuple(products), batches, rows, columns, outside, folded, stages)


def extent(axes: Iterable[Axis]) -> Expr:
    """Return the product of the extents of some axes."""
    total: Expr = ONE
    for a in axes:
        total = total * a.extent
    return total


def guess(e: Expr, facts: ShapeFacts) -> int:
    """Return a typical value of a size."""
    known = facts.hint(e)
    return extent_guess(e) if known is None else known


def _product(
    kernel: Kernel, body: Sequence[KernelStatement], fold: Reduce, target: Target
) -> Product | None:
    if fold.kind is not ReduceKind.DOT:
        return None
    types = _types(kernel, body)
    if not types.keys() >= set(fold.args):
        return None
    wide = [_narrowed(body, name, types) for name in fold.args]
    units = target.capabilities.matrix_units
    if fold.dtype is DType.I32:
        if {types[n] for n in wide} != {DType.I8}:
            return None
    elif fold.dtype is DType.F32:
        kinds = {types[n] for n in wide}
        if len(kinds) != 1 or not kinds <= {DType.BF16, DType.F16, DType.F32}:
            wide = list(fold.args)
    else:
        return None
    dtype = types[wide[0]]
    if dtype not in units or dtype is not types[wide[1]]:
        return None
    operands = [_operand(body, name, dtype) for name in wide]
    if operands[0] is None or operands[1] is None:
        return None
    return Product(fold.names[0], operands[0], operands[1], fold.dtype)


def _types(kernel: Kernel, body: Iterable[KernelStatement]) -> dict[str, DType]:
    buffers = {b.name: b.dtype for b in kernel.parameters}
    types: dict[str, DType] = {}
    for s in body:
        if isinstance(s, Load):
            types[s.name] = buffers[s.buffer]
        elif isinstance(s, Let | ConstValue | IndexValue):
            types[s.name] = s.dtype
    return types


def _narrowed(body: Iterable[KernelStatement], name: str, types: dict[str, DType]) -> str:
    """Return the value that `name` is a widening cast of, if it is one."""
    for s in body:
        if isinstance(s, Let) and s.name == name and s.op == "cast":
            return s.args[0] if s.args[0] in types else name
    return name


def _operand(body: Iterable[KernelStatement], value: str, dtype: DType) -> Operand | None:
    """Return the statements that `value` needs; None where some of them stand elsewhere."""
    needed: set[str] = {value}
    symbols: set[Sym] = set()
    kept: list[Statement] = []
    for s in reversed(list(body)):
        wanted = s.symbol in symbols if isinstance(s, Bind) else not needed.isdisjoint(defined(s))
        if not wanted:
            continue
        if not isinstance(s, Load | Let | ConstValue | IndexValue | Bind):
            return None
        needed -= set(defined(s))
        needed |= set(used(s))
        for e in expressions(s):
            symbols |= e.free_symbols
        kept.append(s)
    if needed:
        return None
    loaded = isinstance(kept[0], Load) and kept[0].name == value
    return Operand(tuple(reversed(kept)), value, dtype, loaded)


def _along(kernel: Kernel, operand: Operand) -> frozenset[Axis]:
    """Return the points along which a factor varies."""
    symbols = {x for s in operand.body for e in expressions(s) for x in e.free_symbols}
    return frozenset(a for a in kernel.axes if a.symbol in symbols)


def _worthwhile(
    rows: Sequence[Axis], columns: Sequence[Axis], inner: Sequence[Axis], facts: ShapeFacts
) -> bool:
    if not rows or not columns:
        return False
    sides = [guess(extent(group), facts) for group in (rows, columns, inner)]
    return min(sides[:2]) >= _SIDE and sides[0] * sides[1] * sides[2] >= _WORK


def _turned(rows: Sequence[Axis], columns: Sequence[Axis], stages: Iterable[Stage]) -> bool:
    """Whether results lie side by side along the rows' last axis, rather than the columns'."""
    score = 0
    for stage in stages:
        for s in stage.body:
            if isinstance(s, Load | Store):
                weight = 4 if isinstance(s, Store) else 1
                score += weight * _unit(s.index, columns[-1])
                score -= weight * _unit(s.index, rows[-1])
    return score < 0


def _unit(index: Expr, axis: Axis) -> bool:
    return lane_access(index, axis.symbol, _VECTOR, frozenset()).kind is Access.UNIT


def _ordered(axes: tuple[Axis, ...], operands: Iterable[Operand]) -> tuple[Axis, ...]:
    """Return axes with one last along which a factor is consecutive in memory, if there is one: a
    factor is read many times, and results are written once."""
    loads = [s for p in operands for s in p.body if isinstance(s, Load)]
    for a in reversed(axes):
        if any(_unit(s.index, a) for s in loads):
            return (*(b for b in axes if b is not a), a)
    return axes


def _seen(operand: Operand, axes: tuple[Axis, ...], folded: tuple[Axis, ...]) -> Operand:
    """Return an operand with a note of how its blocks are read."""
    vector = _VECTOR // operand.dtype.size
    for s in operand.body:
        if not isinstance(s, Load) or any(
            x.kind in (SymKind.SIZE, SymKind.UNBACKED) for x in s.index.free_symbols
        ):
            continue
        whole = False
        for group in (axes, folded):
            last = group[-1]
            if not _unit(s.index, last):
                continue
            rest = subs(s.index, {last.symbol: ZERO})
            even = len(group) == 1 or divides(vector, last.extent)
            whole = whole or (even and divides(vector, rest))
        if not whole:
            return evolve(operand, loose=True)
    return operand


def divides(number: int, e: Expr) -> bool:
    """Whether all terms of an expression are multiples of a number."""
    if isinstance(e, Const):
        return e.value % number == 0
    if isinstance(e, Add):
        return e.const % number == 0 and all(c % number == 0 for _, c in e.terms)
    return number == 1


def _walked(
    kernel: Kernel, products: Iterable[Product], facts: ShapeFacts
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Return folded axes that are walked one by one, and those walked in blocks, as one.

    One axis alone needs no division to be found in a block, and what depends on the others is the
    same for a whole block. The order of a sum is free.
    """
    if len(kernel.inner) == 1:
        return (), kernel.inner
    best: tuple[float, Axis] | None = None
    for a in kernel.inner:
        size = guess(a.extent, facts)
        if size < _FOLD:
            continue
        waste = -(-size // 32) * 32 / size
        if waste > _WASTE:
            continue
        units = sum(
            _unit(s.index, a)
            for p in products
            for s in (*p.left.body, *p.right.body)
            if isinstance(s, Load)
        )
        masks = any(
            isinstance(s, IndexValue) and a.symbol in s.expr.free_symbols
            for p in products
            for s in (*p.left.body, *p.right.body)
        )
        score = min(size, 64) / waste * (1 + units) / (1 + masks)
        if best is None or score > best[0]:
            best = score, a
    if best is None:
        return (), kernel.inner
    return tuple(a for a in kernel.inner if a is not best[1]), (best[1],)
