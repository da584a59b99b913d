"""Instructions for operations that are not kernels."""

from collections.abc import Iterator, Mapping, Sequence, Set

from gyrator_ir.expr import Const, Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.loop.nodes import (
    Arg,
    AssertCond,
    Buffer,
    CallOp,
    CallOperation,
    CollectiveCall,
    CollectiveWait,
    CondOp,
    DeviceCopy,
    Extern,
    ListArg,
    Literal,
    RepeatOp,
    ScalarRead,
    TensorRef,
    UserTritonKernel,
    WhileOp,
)
from gyrator_scheduler.access import results_of
from gyrator_scheduler.errors import SchedulerError
from gyrator_scheduler.host.names import Names

_LIBRARIES = frozenset({"aten", "prims", "gyrator"})
"""Namespaces of the ops of PyTorch and this compiler, which a user cannot correct."""


def calls(
    node: CallOperation,
    names: Names,
    before: list[h.Instruction],
    work: list[h.Instruction],
) -> None:
    """Append the views that a call needs to `before`, and the call itself to `work`.

    Raises:
        SchedulerError: GY-SCHED-002, when a loop carries a value that is not a tensor.
    """
    match node:
        case Extern():
            _extern(node, names, before, work)
        case UserTritonKernel():
            _user_kernel(node, names, before, work)
        case CollectiveCall(target=target, args=args, results=results):
            work.append(h.CollectiveStart(target, _values(args, names, before), results))
        case CollectiveWait(buffer=buffer):
            work.append(h.CollectiveFinish(buffer))
        case DeviceCopy(source=source, destination=destination, non_blocking=non_blocking):
            work.append(h.Copy(destination, names.tensor(source, before), non_blocking))
        case ScalarRead(source=source, symbol=symbol):
            work.append(h.ReadScalar(symbol, names.tensor(source, before)))
        case AssertCond(condition=condition, message=message):
            work.append(h.AssertTrue(condition, message))
        case CondOp():
            _branch(node, names, before, work)
        case WhileOp():
            _loop(node, names, before, work)
        case RepeatOp():
            _repeat(node, names, before, work)
        case CallOp(program=program, operands=operands, results=results):
            work.append(h.CallProgram(program, _values(operands, names, before), results))


def _values(
    args: Sequence[object], names: Names, before: list[h.Instruction]
) -> tuple[h.Value, ...]:
    return tuple(names.value(a, before) for a in args)  # type: ignore[arg-type]


def _user_kernel(
    node: UserTritonKernel, names: Names, before: list[h.Instruction], work: list[h.Instruction]
) -> None:
    values = {k: names.value(a, before) for k, a in node.args}
    args = dict(node.args)
    for parameter, block in node.descriptors:
        tensor, descriptor = values[parameter], names.fresh("descriptor")
        form = args[parameter]
        assert isinstance(tensor, h.Ref) and isinstance(form, TensorRef)
        sizes = tuple(Const(n) for n in _integers(block))
        size = Const(form.dtype.size)
        work.append(h.TmaDescriptor(descriptor, tensor.name, form.shape, sizes, size, stable=True))
        values[parameter] = h.Ref(descriptor)
    fixed = tuple((k, names.value(a, before)) for k, a in node.constants)
    work.append(h.TritonLaunch(node.kernel, node.grid, tuple(values.items()), fixed))


def _integers(block: Arg) -> list[int]:
    items = block.items if isinstance(block, ListArg) else ()
    return [n.value for n in items if isinstance(n, Literal) and isinstance(n.value, int)]


def _extern(
    node: Extern, names: Names, before: list[h.Instruction], work: list[h.Instruction]
) -> None:
    args = _values(node.args, names, before)
    kwargs = tuple((k, names.value(a, before)) for k, a in node.kwargs)
    out = node.out, node.out_names
    work.append(h.ExternCall(node.target, args, kwargs, node.results, *out, node.uncaptured))


def separation(work: Sequence[h.Instruction], packed: Set[str]) -> list[h.Instruction]:
    """Return an instruction that gives the results of a call storage of their own, in case they
    alias arguments. `packed` arguments, in a library's format, cannot be aliased."""
    for call in work:
        if isinstance(call, h.ExternCall) and call.out is None:
            results = tuple(r for result in call.results for r in _tensors(result))
            others = dict.fromkeys(
                n
                for v in (*call.args, *dict(call.kwargs).values())
                for n in _names(v)
                if n not in packed
            )
            return [h.Separate(results, tuple(others))] if results else []
    return []


def _tensors(result: str | tuple[str, ...] | Sym | None) -> tuple[str, ...]:
    return (result,) if isinstance(result, str) else result if isinstance(result, tuple) else ()


def _names(value: h.Value) -> Iterator[str]:
    match value:
        case h.Ref(name):
            yield name
        case h.ListValue(items):
            for item in items:
                yield from _names(item)


def conformity(
    node: CallOperation, buffers: Mapping[str, Buffer], strict: bool
) -> list[h.Instruction]:
    """Return instructions that convert the results of a dispatcher op to the dtypes, devices, sizes
    and strides that its meta function promised.

    With `strict`, a difference is an error if the op is a custom op.
    """
    if not isinstance(node, Extern) or node.out is not None:
        return []
    foreign = node.target.partition(".")[0] not in _LIBRARIES
    mend = h.Mend.NOTHING if strict and foreign else h.Mend.ALL
    results = (buffers[name] for name in results_of(node))
    return [
        h.Conform(b.name, b.dtype, b.device, b.shape, b.strides, mend, node.target) for b in results
    ]


def _branch(
    node: CondOp, names: Names, before: list[h.Instruction], work: list[h.Instruction]
) -> None:
    test = node.predicate
    condition = h.Ref(names.tensor(test, before)) if isinstance(test, TensorRef) else test
    args = _values(node.operands, names, before)
    arms: list[tuple[tuple[h.Instruction, ...], tuple[str, ...]]] = []
    for program in (node.then, node.otherwise):
        values = tuple(names.fresh("arm") for _ in node.results)
        arms.append(((h.CallProgram(program, args, values),), values))
    work.append(h.Branch(condition, *arms[0], *arms[1], node.results))


def _initial(
    node: WhileOp | RepeatOp, names: Names, before: list[h.Instruction]
) -> tuple[str, ...]:
    tensors: list[str] = []
    for arg in node.carried:
        if not isinstance(arg, TensorRef):
            raise SchedulerError.of(
                "GY-SCHED-002",
                f"the loop {node.name} carries {arg!r}, which is not a tensor",
                help="lower carried integers to one-element tensors",
            )
        tensors.append(names.tensor(arg, before))
    return tuple(tensors)


def _loop(
    node: WhileOp, names: Names, before: list[h.Instruction], work: list[h.Instruction]
) -> None:
    initial = _initial(node, names, before)
    carried = tuple(names.fresh("carried") for _ in initial)
    following = tuple(names.fresh("next") for _ in initial)
    test = names.fresh("test")
    invariants = _values(node.invariants, names, before)
    args = (*map(h.Ref, carried), *invariants)
    work.append(
        h.Loop(
            carried,
            initial,
            (h.CallProgram(node.condition, args, (test,)),),
            test,
            (h.CallProgram(node.body, args, following),),
            following,
            node.results,
            node.stacked,
        )
    )
    _separated(node, initial, invariants, work)


def _repeat(
    node: RepeatOp, names: Names, before: list[h.Instruction], work: list[h.Instruction]
) -> None:
    initial = _initial(node, names, before)
    carried = tuple(names.fresh("carried") for _ in initial)
    following = tuple(names.fresh("next") for _ in initial)
    step = Sym(names.fresh("s_step"))
    operands = _values(node.operands, names, before)
    arguments = (*operands, *map(h.Ref, node.stacks))
    call = h.CallProgram(node.body, (step, *map(h.Ref, carried), *arguments), following)
    work.append(h.Repeat(step, node.count, carried, initial, (call,), following, node.results))
    _separated(node, initial, arguments, work)


def _separated(
    node: WhileOp | RepeatOp,
    initial: tuple[str, ...],
    arguments: Sequence[h.Value],
    work: list[h.Instruction],
) -> None:
    """Give the results of a loop storage of their own. They may alias its initial values, if no
    iteration runs, and a body may return its arguments."""
    others = dict.fromkeys((*initial, *(name for value in arguments for name in _names(value))))
    if node.results:
        work.append(h.Separate(node.results, tuple(others)))
