"""The buffers that a host operation accesses."""

from collections.abc import Iterable

from gyrator_ir.expr import Sym
from gyrator_ir.loop import nodes
from gyrator_ir.loop.nodes import Arg, CallOperation, TensorRef


def buffers_of(op: CallOperation) -> set[str]:
    """Return the buffers that an operation reads or writes."""
    names = set(_of_arguments(_arguments(op)))
    match op:
        case nodes.Extern(results=results, mutates=mutates):
            names.update(_of_results(results), mutates)
        case nodes.UserTritonKernel(mutates=mutates):
            names.update(mutates)
        case nodes.CollectiveCall(results=results, mutates=mutates):
            names.update(results, mutates)
        case (
            nodes.CondOp(results=results)
            | nodes.WhileOp(results=results)
            | nodes.CallOp(results=results)
        ):
            names.update(results)
        case nodes.RepeatOp(results=results, stacks=stacks):
            names.update(results, stacks)
        case nodes.CollectiveWait(buffer=buffer):
            names.add(buffer)
        case nodes.DeviceCopy(destination=destination):
            names.add(destination)
    return names


def _arguments(op: CallOperation) -> tuple[Arg, ...]:
    match op:
        case nodes.Extern(args=args, kwargs=kwargs):
            return (*args, *(value for _, value in kwargs))
        case nodes.Template(inputs=inputs, outputs=outputs, fallback=fallback):
            called = () if fallback is None else _arguments(fallback)
            return (*inputs, *outputs, *called)
        case nodes.UserTritonKernel(args=named, constants=constants):
            return tuple(value for _, value in (*named, *constants))
        case nodes.CollectiveCall(args=args):
            return args
        case nodes.DeviceCopy(source=source) | nodes.ScalarRead(source=source):
            return (source,)
        case nodes.CondOp(predicate=predicate, operands=operands):
            return (predicate, *operands) if isinstance(predicate, TensorRef) else operands
        case nodes.WhileOp(carried=carried, invariants=invariants):
            return (*carried, *invariants)
        case nodes.RepeatOp(carried=carried, operands=operands):
            return (*carried, *operands)
        case nodes.CallOp(operands=operands):
            return operands
        case nodes.CollectiveWait() | nodes.AssertCond():
            return ()


def _of_arguments(args: Iterable[Arg]) -> Iterable[str]:
    for arg in args:
        match arg:
            case TensorRef(buffer):
                yield buffer
            case nodes.ListArg(items):
                yield from _of_arguments(items)


def _of_results(results: Iterable[str | tuple[str, ...] | Sym | None]) -> Iterable[str]:
    for result in results:
        match result:
            case str():
                yield result
            case tuple():
                yield from result
