"""Products of rows and columns among the reductions."""

from gyrator_ir.expr import Sym
from gyrator_ir.loop.body import Axis, Bind, ReduceKind
from gyrator_ir.loop.nodes import Reduction
from gyrator_ir.loop.rewrite import defined, expressions, used


def factors(op: Reduction) -> tuple[tuple[Axis, ...], tuple[Axis, ...]] | None:
    """Return the points along which the first factor of a fold of products varies and the second
    does not, and the other way round; None where the fold is no product of rows and columns."""
    if op.reduce.kind is not ReduceKind.DOT:
        return None
    left, right = (_along(op, name) for name in op.reduce.args)
    rows = tuple(a for a in op.axes if a.symbol in left and a.symbol not in right)
    columns = tuple(a for a in op.axes if a.symbol in right and a.symbol not in left)
    return (rows, columns) if rows and columns else None


def _along(op: Reduction, value: str) -> set[Sym]:
    """Return the symbols that a value of the body depends on."""
    needed: set[str] = {value}
    symbols: set[Sym] = set()
    for s in reversed(op.body):
        wanted = s.symbol in symbols if isinstance(s, Bind) else not needed.isdisjoint(defined(s))
        if wanted:
            needed.update(used(s))
            for e in expressions(s):
                symbols |= e.free_symbols
    return symbols
