"""Products of matrices among folds of products: which axes are rows, columns and batches.

A fold of products of two values (`reduce.dot`) is a product of matrices where each value varies
along axes that the other does not: those of the first value alone are rows, those of the second
alone columns, and the rest batches.
"""

from collections.abc import Sequence

from attrs import frozen

from gyrator_ir.body.nodes import Axis, Bind, Reduce, ReduceKind
from gyrator_ir.body.rewrite import AnyStatement, defined, expressions, used
from gyrator_ir.expr import Sym


@frozen
class Roles:
    """What the axes of a product of matrices are."""

    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    batches: tuple[Axis, ...]


def roles(axes: Sequence[Axis], body: Sequence[AnyStatement], reduce: Reduce) -> Roles | None:
    """Return what a fold's points are, or None where it is no product of rows and columns."""
    if reduce.kind is not ReduceKind.DOT:
        return None
    left, right = (_symbols(needed_for(body, name)) for name in reduce.args)
    rows = tuple(a for a in axes if a.symbol in left and a.symbol not in right)
    columns = tuple(a for a in axes if a.symbol in right and a.symbol not in left)
    if not rows or not columns:
        return None
    return Roles(rows, columns, tuple(a for a in axes if a not in rows and a not in columns))


def needed_for(body: Sequence[AnyStatement], value: str) -> tuple[AnyStatement, ...]:
    """Return the statements that compute a value of the body, in order."""
    names: set[str] = {value}
    symbols: set[Sym] = set()
    kept: list[AnyStatement] = []
    for s in reversed(body):
        wanted = s.symbol in symbols if isinstance(s, Bind) else not names.isdisjoint(defined(s))
        if not wanted:
            continue
        names.update(used(s))
        for e in expressions(s):
            symbols |= e.free_symbols
        kept.append(s)
    return tuple(reversed(kept))


def _symbols(body: Sequence[AnyStatement]) -> set[Sym]:
    return {x for s in body for e in expressions(s) for x in e.free_symbols}
