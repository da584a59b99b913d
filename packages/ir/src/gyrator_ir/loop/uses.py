"""The statements, buffers and symbols of an operation, independent of its class."""

from collections.abc import Iterable, Iterator

from gyrator_ir.body.nodes import Axis, Collective, Statement, Store
from gyrator_ir.expr import Cond, Expr, Sym
from gyrator_ir.loop import nodes
from gyrator_ir.loop.nodes import Arg, LoopOperation, Operation, TensorRef


def inner_of(op: LoopOperation) -> tuple[Axis, ...]:
    """Return the axes that are reduced, scanned or sorted; none for pointwise operations."""
    match op:
        case nodes.Reduction(inner=inner):
            return inner
        case nodes.Scan(inner=inner) | nodes.Sort(inner=inner):
            return (inner,)
        case _:
            return ()


def collective_of(op: nodes.Reduction | nodes.Scan | nodes.Sort) -> Collective:
    """Return the reduction, scan or sort statement of an operation."""
    match op:
        case nodes.Reduction(reduce=step) | nodes.Scan(scan=step) | nodes.Sort(sort=step):
            return step


def stores_after(op: LoopOperation) -> tuple[Store, ...]:
    """Return the stores after an operation's reduction, scan or sort; none for pointwise ones."""
    return () if isinstance(op, nodes.Pointwise | nodes.Scatter) else op.stores


def statements_of(op: LoopOperation) -> tuple[Statement | Collective, ...]:
    """Return the body, the reduction, scan or sort, and the stores as one sequence."""
    if isinstance(op, nodes.Pointwise | nodes.Scatter):
        return op.body
    return (*op.body, collective_of(op), *op.stores)


def refs_in(args: Iterable[Arg | Cond]) -> Iterator[TensorRef]:
    """Yield the tensor arguments in order, including those in lists."""
    for arg in args:
        if isinstance(arg, TensorRef):
            yield arg
        elif isinstance(arg, nodes.ListArg):
            yield from refs_in(arg.items)


def exprs_in(args: Iterable[Arg | Cond]) -> Iterator[Expr | Cond]:
    """Yield the integers and conditions among the arguments, and the sizes, strides and offsets of
    tensor arguments."""
    for arg in args:
        if isinstance(arg, (Expr, Cond)):
            yield arg
        elif isinstance(arg, TensorRef):
            yield from arg.shape
            yield from arg.strides
            yield arg.offset
        elif isinstance(arg, nodes.ListArg):
            yield from exprs_in(arg.items)


def arguments_of(op: Operation) -> tuple[Arg | Cond, ...]:
    """Return all arguments of a call operation, keywords included; none for loops."""
    match op:
        case nodes.Extern(args=args, kwargs=kwargs):
            return (*args, *(a for _, a in kwargs))
        case nodes.Template(inputs=inputs, attributes=attributes, fallback=fallback):
            called = () if fallback is None else arguments_of(fallback)
            return (*inputs, *(a for _, a in attributes), *called)
        case nodes.UserTritonKernel(args=args, constants=constants, grid=grid):
            passed = (*(a for _, a in args), *(a for _, a in constants))
            return (*passed, *(e for row in grid for e in row))
        case nodes.CollectiveCall(args=args):
            return args
        case nodes.DeviceCopy(source=source) | nodes.ScalarRead(source=source):
            return (source,)
        case nodes.AssertCond(condition=condition):
            return (condition,)
        case nodes.CondOp(predicate=predicate, operands=operands):
            return (predicate, *operands)
        case nodes.WhileOp(carried=carried, invariants=invariants):
            return (*carried, *invariants)
        case nodes.RepeatOp(count=count, carried=carried, operands=operands):
            return (count, *carried, *operands)
        case nodes.CallOp(operands=operands):
            return operands
        case _:
            return ()


def results_of(op: Operation) -> tuple[str, ...]:
    """Return the buffers that a call operation creates or fills, in order."""
    match op:
        case nodes.Extern(results=results):
            lists = ((r,) if isinstance(r, str) else r for r in results)
            return tuple(n for r in lists if isinstance(r, tuple) for n in r)
        case nodes.CollectiveCall() | nodes.CondOp() | nodes.WhileOp() | nodes.CallOp():
            return op.results
        case nodes.RepeatOp(results=results, stacks=stacks):
            return (*results, *stacks)
        case nodes.Template(outputs=outputs):
            return tuple(o.buffer for o in outputs)
        case nodes.DeviceCopy(destination=destination):
            return (destination,)
        case _:
            return ()


def mutated_by(op: Operation) -> tuple[str, ...]:
    """Return the arguments of a call that it writes to."""
    match op:
        case (
            nodes.Extern(mutates=m)
            | nodes.UserTritonKernel(mutates=m)
            | nodes.CollectiveCall(mutates=m)
        ):
            return m
        case nodes.CollectiveWait(buffer=buffer):
            return (buffer,)
        case _:
            return ()


def defined_symbols(op: Operation) -> tuple[Sym, ...]:
    """Return the symbols whose values an operation determines."""
    match op:
        case nodes.ScalarRead(symbol=symbol):
            return (symbol,)
        case nodes.Extern(results=results):
            return tuple(r for r in results if isinstance(r, Sym))
        case _:
            return ()


def buffers_of(op: nodes.CallOperation) -> set[str]:
    """Return the buffers that a call operation reads or writes."""
    read = (ref.buffer for ref in refs_in(arguments_of(op)))
    return {*read, *results_of(op), *mutated_by(op)}
