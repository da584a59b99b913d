"""Helpers of passes that rebuild operations and programs."""

from collections.abc import Callable, Sequence

from attrs import evolve

from gyrator_ir.body.nodes import Axis, Collective, Reduce, ScanStep, SortStep, Statement, Store
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Operation, Reduction, Scan, Sort


def with_operations(program: LoopProgram, operations: Sequence[Operation]) -> LoopProgram:
    """Return the program with the given operations; the same object if they are unchanged."""
    old = program.operations
    if len(old) == len(operations) and all(a is b for a, b in zip(old, operations, strict=True)):
        return program
    return evolve(program, operations=tuple(operations))


def each_loop(
    program: LoopProgram, rewrite: Callable[[LoopOperation], LoopOperation]
) -> LoopProgram:
    """Return the program with every loop operation rewritten, including subprograms."""
    operations = [rewrite(op) if isinstance(op, LoopOperation) else op for op in program.operations]
    return each_subprogram(with_operations(program, operations), lambda p: each_loop(p, rewrite))


def each_subprogram(
    program: LoopProgram, rewrite: Callable[[LoopProgram], LoopProgram]
) -> LoopProgram:
    """Return the program with its subprograms rewritten; the same object if none changed."""
    subprograms = tuple(rewrite(p) for p in program.subprograms)
    if all(a is b for a, b in zip(subprograms, program.subprograms, strict=True)):
        return program
    return evolve(program, subprograms=subprograms)


def rebuilt(
    op: LoopOperation,
    points: tuple[Axis, ...],
    inner: tuple[Axis, ...],
    body: Sequence[Statement],
    stores: Sequence[Store],
) -> LoopOperation:
    """Return the operation with new axes and statements. `stores` are those after a reduction, scan
    or sort."""
    new = tuple(body)
    if isinstance(op, Reduction):
        return evolve(op, axes=points, inner=inner, body=new, stores=tuple(stores))
    if isinstance(op, (Scan, Sort)):
        return evolve(op, axes=points, inner=inner[0], body=new, stores=tuple(stores))
    return evolve(op, axes=points, body=new)


def with_collective(
    op: Reduction | Scan | Sort,
    body: tuple[Statement, ...],
    step: Collective,
    stores: tuple[Store, ...],
) -> LoopOperation:
    """Return the operation with new statements. `step` must be of the operation's kind."""
    if isinstance(op, Reduction) and isinstance(step, Reduce):
        return evolve(op, body=body, reduce=step, stores=stores)
    if isinstance(op, Scan) and isinstance(step, ScanStep):
        return evolve(op, body=body, scan=step, stores=stores)
    if isinstance(op, Sort) and isinstance(step, SortStep):
        return evolve(op, body=body, sort=step, stores=stores)
    raise TypeError(f"a {type(op).__name__} cannot have a {type(step).__name__}")
