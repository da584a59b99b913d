"""Places in tensors that may have no element.

A rule promises that the places it computes lie inside the tensor. Where it takes the nearest one
inside, as resizing does, the promise fails for a tensor that is empty: eager raises there.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from attrs import evolve

from gyrator_ir.body.nodes import Bind, Check
from gyrator_ir.expr import Const, Expr, ShapeFacts
from gyrator_ir.loop.nodes import Operation, Pointwise, Reduction, Scan, Scatter, Sort

_Kernel = Pointwise | Scatter | Reduction | Scan | Sort


def with_checks(
    operations: Sequence[Operation], facts: Callable[[], ShapeFacts]
) -> Sequence[Operation]:
    """Return operations that check the places they compute in tensors that may be empty."""
    sizes = {s.size for o in operations for s in _promises(o) if type(s.size) is not Const}
    if not sizes:
        return operations
    known = facts()
    open_sizes = {size for size in sizes if not known.known_positive(size)}
    return [_checked(o, open_sizes) for o in operations] if open_sizes else operations


def _promises(operation: Operation) -> Iterator[Bind]:
    """Iterate over the places that are promised to lie inside."""
    if isinstance(operation, _Kernel):
        for s in operation.body:
            if isinstance(s, Bind) and s.check is Check.NONE and s.mask is None:
                yield s


def _checked(operation: Operation, sizes: Collection[Expr]) -> Operation:
    promises = {s for s in _promises(operation) if s.size in sizes}
    if not isinstance(operation, _Kernel) or not promises:
        return operation
    body = [evolve(s, check=Check.RUNTIME) if s in promises else s for s in operation.body]
    return evolve(operation, body=tuple(body))
