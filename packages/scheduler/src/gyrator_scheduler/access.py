"""Memory accesses and symbols of an operation, independent of its class."""

from collections.abc import Iterable, Iterator, Mapping

from attrs import frozen

from gyrator_ir.body.nodes import Axis
from gyrator_ir.body.rewrite import expressions, reads, writes
from gyrator_ir.expr import Cond, Expr, Sym, SymKind
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.loop import nodes
from gyrator_ir.loop.nodes import Arg, LoopOperation, Operation, TensorRef

LOOPS = (nodes.Pointwise, nodes.Scatter, nodes.Reduction, nodes.Scan, nodes.Sort)
"""Operation classes that become kernels."""


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


def points_of(op: LoopOperation) -> tuple[Axis, ...]:
    """Return the parallel axes, whose iterations are independent."""
    return op.axes


def inner_of(op: LoopOperation) -> tuple[Axis, ...]:
    """Return the axes that are reduced, scanned or sorted; none for pointwise operations."""
    match op:
        case nodes.Reduction(inner=inner):
            return inner
        case nodes.Scan(inner=inner) | nodes.Sort(inner=inner):
            return (inner,)
        case _:
            return ()


def statements_of(op: LoopOperation) -> tuple[KernelStatement, ...]:
    """Return the body, the reduction, scan or sort, and the stores as one sequence."""
    match op:
        case nodes.Pointwise() | nodes.Scatter():
            return op.body
        case nodes.Reduction(body=body, reduce=reduce, stores=stores):
            return (*body, reduce, *stores)
        case nodes.Scan(body=body, scan=scan, stores=stores):
            return (*body, scan, *stores)
        case nodes.Sort(body=body, sort=sort, stores=stores):
            return (*body, sort, *stores)


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


def access(op: Operation, shapes: dict[str, frozenset[Sym]]) -> Access:
    """Return the accesses of `op`. `shapes` maps buffers to the unbacked symbols in their
    shapes."""
    if isinstance(op, LOOPS):
        body = statements_of(op)
        loaded, stored = reads(body), writes(body)
        needs = _needs(_sized(op), (*loaded, *stored), shapes) if shapes else ()
        return Access(loaded, stored, needs)
    arguments = arguments_of(op)
    if isinstance(op, nodes.CollectiveWait):
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
    for axis in (*points_of(op), *inner_of(op)):
        yield axis.extent
    for s in statements_of(op):
        yield from expressions(s)
