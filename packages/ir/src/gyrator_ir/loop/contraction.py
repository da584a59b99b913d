"""Recognition of matrix products among dot reductions: their row, column and batch axes.

A `reduce.dot` of two values is a matrix product if each value varies along axes along which the
other does not. The axes of the first value alone are rows, those of the second alone columns, and
all others batch axes.
"""

from collections.abc import Sequence

from gyrator_ir.body.nodes import Axis, Bind, Reduce, ReduceKind
from gyrator_ir.body.rewrite import AnyStatement, defined, expressions, used
from gyrator_ir.define import frozen
from gyrator_ir.expr import Sym


@frozen
class Roles:
    """The axes of a matrix product by role."""

    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    batches: tuple[Axis, ...]


def roles(axes: Sequence[Axis], body: Sequence[AnyStatement], reduce: Reduce) -> Roles | None:
    """Return the roles of `axes` in a reduction, or None if it is not a matrix product."""
    if reduce.kind is not ReduceKind.DOT:
        return None
    left, right = (symbols_of(needed_for(body, name)) for name in reduce.args)
    rows = tuple(a for a in axes if a.symbol in left and a.symbol not in right)
    columns = tuple(a for a in axes if a.symbol in right and a.symbol not in left)
    if not rows or not columns:
        return None
    return Roles(rows, columns, tuple(a for a in axes if a not in rows and a not in columns))


def needed_for(body: Sequence[AnyStatement], value: str) -> tuple[AnyStatement, ...]:
    """Return the statements that compute a value of the body, in order."""
    names: set[str] = {value}
    symbols: set[Sym] = set()
    statements: list[AnyStatement] = []
    for s in reversed(body):
        needed = s.symbol in symbols if isinstance(s, Bind) else not names.isdisjoint(defined(s))
        if not needed:
            continue
        names.update(used(s))
        for e in expressions(s):
            symbols |= e.free_symbols
        statements.append(s)
    return tuple(reversed(statements))


def symbols_of(body: Sequence[AnyStatement]) -> set[Sym]:
    """Return the symbols in the index expressions of statements."""
    return {x for s in body for e in expressions(s) for x in e.free_symbols}
