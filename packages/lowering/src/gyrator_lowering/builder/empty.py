"""Bounds checks for indices into tensors that may be empty.

A rule guarantees that the indices it computes are in bounds. If it clamps them to the nearest
element, as resizing does, the guarantee fails for an empty tensor, for which eager raises.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from attrs import evolve

from gyrator_ir.body.nodes import Bind, Check
from gyrator_ir.expr import Const, Expr, ShapeFacts
from gyrator_ir.loop.nodes import LoopOperation, Operation


def with_checks(
    operations: Sequence[Operation], facts: Callable[[], ShapeFacts]
) -> Sequence[Operation]:
    """Return the operations with checks of unchecked indices into tensors that may be empty."""
    sizes = {s.size for o in operations for s in _unchecked_binds(o) if type(s.size) is not Const}
    if not sizes:
        return operations
    shape_facts = facts()
    open_sizes = {size for size in sizes if not shape_facts.known_positive(size)}
    return [_checked(o, open_sizes) for o in operations] if open_sizes else operations


def _unchecked_binds(operation: Operation) -> Iterator[Bind]:
    """Iterate over the indices that are assumed to be in bounds."""
    if isinstance(operation, LoopOperation):
        for s in operation.body:
            if isinstance(s, Bind) and s.check is Check.NONE and s.mask is None:
                yield s


def _checked(operation: Operation, sizes: Collection[Expr]) -> Operation:
    unchecked = {s for s in _unchecked_binds(operation) if s.size in sizes}
    if not isinstance(operation, LoopOperation) or not unchecked:
        return operation
    body = [evolve(s, check=Check.RUNTIME) if s in unchecked else s for s in operation.body]
    return evolve(operation, body=tuple(body))
