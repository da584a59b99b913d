"""Memory accesses and symbols of an operation, independent of its class."""

from collections.abc import Iterable, Iterator, Mapping

from gyrator_ir.body.rewrite import expressions, reads, writes
from gyrator_ir.define import frozen
from gyrator_ir.expr import Cond, Expr, Sym, SymKind
from gyrator_ir.loop.nodes import CollectiveWait, LoopOperation, Operation
from gyrator_ir.loop.uses import (
    arguments_of,
    defined_symbols,
    exprs_in,
    inner_of,
    mutated_by,
    refs_in,
    results_of,
    statements_of,
)


@frozen
class Access:
    """Buffers that an operation reads and writes, and symbols that it needs and defines."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    needs: tuple[Sym, ...] = ()
    defines: tuple[Sym, ...] = ()


def is_indirect(address: Expr) -> bool:
    """Return whether an address depends on an index loaded from memory."""
    return any(s.kind is SymKind.INDIRECT for s in address.free_symbols)


def access(op: Operation, shapes: dict[str, frozenset[Sym]]) -> Access:
    """Return the accesses of `op`. `shapes` maps buffers to the unbacked symbols in their
    shapes."""
    if isinstance(op, LoopOperation):
        body = statements_of(op)
        loaded, stored = reads(body), writes(body)
        needs = _needs(_sized(op), (*loaded, *stored), shapes) if shapes else ()
        return Access(loaded, stored, needs)
    arguments = arguments_of(op)
    if isinstance(op, CollectiveWait):
        loaded, stored = (op.buffer,), (op.buffer,)
    else:
        loaded = tuple(dict.fromkeys(r.buffer for r in refs_in(arguments)))
        stored = tuple(dict.fromkeys((*results_of(op), *mutated_by(op))))
    defines = defined_symbols(op)
    if not shapes:
        return Access(loaded, stored, (), defines)
    needs = _needs(exprs_in(arguments), (*loaded, *stored), shapes)
    return Access(loaded, stored, tuple(s for s in needs if s not in defines), defines)


def _needs(
    sized: Iterable[Expr | Cond], buffers: Iterable[str], shapes: Mapping[str, frozenset[Sym]]
) -> tuple[Sym, ...]:
    """Return the unbacked symbols in the expressions and in the shapes of the buffers."""
    needs: dict[Sym, None] = {}
    for node in sized:
        needs.update((s, None) for s in node.free_symbols if s.kind is SymKind.UNBACKED)
    for name in buffers:
        needs.update(dict.fromkeys(shapes.get(name, ())))
    return tuple(needs)


def _sized(op: LoopOperation) -> Iterator[Expr]:
    """Yield the expressions of a loop that may mention sizes."""
    for axis in (*op.axes, *inner_of(op)):
        yield axis.extent
    for s in statements_of(op):
        yield from expressions(s)
