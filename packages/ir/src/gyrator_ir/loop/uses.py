"""The buffers that a host operation accesses."""

from collections.abc import Iterable

from gyrator_ir.expr import Sym
from gyrator_ir.loop.nodes import (
    Arg,
    AssertCond,
    CallOp,
    CallOperation,
    CollectiveCall,
    CollectiveWait,
    CondOp,
    DeviceCopy,
    Extern,
    ListArg,
    RepeatOp,
    ScalarRead,
    Template,
    TensorRef,
    UserTritonKernel,
    WhileOp,
)


def buffers_of(op: CallOperation) -> set[str]:
    """Return the buffers that an operation reads or writes."""
    names = set(_of_arguments(_arguments(op)))
    match op:
        case Extern(results=results, mutates=mutates):
            names.update(_of_results(results), mutates)
        case UserTritonKernel(mutates=mutates):
            names.update(mutates)
        case CollectiveCall(results=results, mutates=mutates):
            names.update(results, mutates)
        case CondOp(results=results) | WhileOp(results=results) | CallOp(results=results):
            names.update(results)
        case RepeatOp(results=results, stacks=stacks):
            names.update(results, stacks)
        case CollectiveWait(buffer=buffer):
            names.add(buffer)
        case DeviceCopy(destination=destination):
            names.add(destination)
    return names


def _arguments(op: CallOperation) -> tuple[Arg, ...]:
    match op:
        case Extern(args=args, kwargs=kwargs):
            return (*args, *(value for _, value in kwargs))
        case Template(inputs=inputs, outputs=outputs, fallback=fallback):
            called = () if fallback is None else _arguments(fallback)
            return (*inputs, *outputs, *called)
        case UserTritonKernel(args=named, constants=constants):
            return tuple(value for _, value in (*named, *constants))
        case CollectiveCall(args=args):
            return args
        case DeviceCopy(source=source) | ScalarRead(source=source):
            return (source,)
        case CondOp(predicate=predicate, operands=operands):
            return (predicate, *operands) if isinstance(predicate, TensorRef) else operands
        case WhileOp(carried=carried, invariants=invariants):
            return (*carried, *invariants)
        case RepeatOp(carried=carried, operands=operands):
            return (*carried, *operands)
        case CallOp(operands=operands):
            return operands
        case CollectiveWait() | AssertCond():
            return ()


def _of_arguments(args: Iterable[Arg]) -> Iterable[str]:
    for arg in args:
        match arg:
            case TensorRef(buffer):
                yield buffer
            case ListArg(items):
                yield from _of_arguments(items)


def _of_results(results: Iterable[str | tuple[str, ...] | Sym | None]) -> Iterable[str]:
    for result in results:
        match result:
            case str():
                yield result
            case tuple():
                yield from result
