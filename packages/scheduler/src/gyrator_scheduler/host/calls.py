"""Instructions for operations that are not kernels."""

from collections.abc import Iterator, Mapping, Sequence, Set

from gyrator_ir.define import frozen
from gyrator_ir.expr import Const, Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.loop import nodes
from gyrator_ir.loop.nodes import Arg, Buffer, CallOperation, TensorRef
from gyrator_ir.loop.uses import results_of
from gyrator_scheduler.errors import SchedulerError
from gyrator_scheduler.host.names import Names

_LIBRARIES = frozenset({"aten", "prims", "gyrator"})
"""Namespaces of the ops of PyTorch and this compiler, which a user cannot correct."""


@frozen
class CallWriter:
    """Emits an operation that is not a kernel."""

    names: Names
    before: list[h.Instruction]
    """Views that the call needs."""
    work: list[h.Instruction]
    """The call itself."""

    def write(self, node: CallOperation) -> None:
        """Append the instructions of an operation.

        Raises:
            SchedulerError: GY-SCHED-002, when a loop carries a value that is not a tensor.
        """
        work = self.work
        match node:
            case nodes.Extern():
                self._extern(node)
            case nodes.UserTritonKernel():
                self._user_kernel(node)
            case nodes.CollectiveCall():
                work.append(h.CollectiveStart(node.target, self._values(node.args), node.results))
            case nodes.CollectiveWait():
                work.append(h.CollectiveFinish(node.buffer))
            case nodes.DeviceCopy():
                source = self._tensor(node.source)
                work.append(h.Copy(node.destination, source, node.non_blocking))
            case nodes.ScalarRead():
                work.append(h.ReadScalar(node.symbol, self._tensor(node.source)))
            case nodes.AssertCond():
                work.append(h.AssertTrue(node.condition, node.message, node.error))
            case nodes.CondOp():
                self._branch(node)
            case nodes.WhileOp():
                self._loop(node)
            case nodes.RepeatOp():
                self._repeat(node)
            case nodes.CallOp():
                operands = self._values(node.operands)
                work.append(h.CallProgram(node.program, operands, node.results))

    def _tensor(self, arg: TensorRef) -> str:
        return self.names.tensor(arg, self.before)

    def _value(self, arg: Arg) -> h.Value:
        return self.names.value(arg, self.before)

    def _values(self, args: Sequence[Arg]) -> tuple[h.Value, ...]:
        return tuple(map(self._value, args))

    def _extern(self, node: nodes.Extern) -> None:
        args = self._values(node.args)
        kwargs = tuple((k, self._value(a)) for k, a in node.kwargs)
        out = node.out, node.out_names
        call = h.ExternCall(node.target, args, kwargs, node.results, *out, node.uncaptured)
        self.work.append(call)

    def _user_kernel(self, node: nodes.UserTritonKernel) -> None:
        values = {k: self._value(a) for k, a in node.args}
        args = dict(node.args)
        for parameter, block in node.descriptors:
            tensor, descriptor = values[parameter], self.names.fresh("descriptor")
            form = args[parameter]
            assert isinstance(tensor, h.Ref) and isinstance(form, TensorRef)
            sizes = tuple(Const(n) for n in _integers(block))
            described = tensor.name, form.shape, sizes, Const(form.dtype.size)
            self.work.append(h.TmaDescriptor(descriptor, *described, stable=True))
            values[parameter] = h.Ref(descriptor)
        constants = tuple((k, self._value(a)) for k, a in node.constants)
        arguments = tuple(values.items())
        self.work.append(h.TritonLaunch(node.kernel, node.grid, arguments, constants))

    def _branch(self, node: nodes.CondOp) -> None:
        test = node.predicate
        condition = h.Ref(self._tensor(test)) if isinstance(test, TensorRef) else test
        args = self._values(node.operands)
        arms: list[tuple[tuple[h.Instruction, ...], tuple[str, ...]]] = []
        for program in (node.then, node.otherwise):
            values = tuple(self.names.fresh("arm") for _ in node.results)
            arms.append(((h.CallProgram(program, args, values),), values))
        self.work.append(h.Branch(condition, *arms[0], *arms[1], node.results))

    def _initial(self, node: nodes.WhileOp | nodes.RepeatOp) -> tuple[str, ...]:
        tensors: list[str] = []
        for arg in node.carried:
            if not isinstance(arg, TensorRef):
                raise SchedulerError.of(
                    "GY-SCHED-002",
                    f"the loop {node.name} carries {arg!r}, which is not a tensor",
                    help="lower carried integers to one-element tensors",
                )
            tensors.append(self._tensor(arg))
        return tuple(tensors)

    def _loop(self, node: nodes.WhileOp) -> None:
        initial = self._initial(node)
        carried = tuple(self.names.fresh("carried") for _ in initial)
        following = tuple(self.names.fresh("next") for _ in initial)
        test = self.names.fresh("test")
        invariants = self._values(node.invariants)
        args = (*map(h.Ref, carried), *invariants)
        condition = (h.CallProgram(node.condition, args, (test,)),)
        body = (h.CallProgram(node.body, args, following),)
        loop = carried, initial, condition, test, body, following
        self.work.append(h.Loop(*loop, node.results, node.stacked))
        self._separate(node, initial, invariants)

    def _repeat(self, node: nodes.RepeatOp) -> None:
        initial = self._initial(node)
        carried = tuple(self.names.fresh("carried") for _ in initial)
        following = tuple(self.names.fresh("next") for _ in initial)
        step = Sym(self.names.fresh("s_step"))
        arguments = (*self._values(node.operands), *map(h.Ref, node.stacks))
        call = h.CallProgram(node.body, (step, *map(h.Ref, carried), *arguments), following)
        repeat = step, node.count, carried, initial, (call,), following, node.results
        self.work.append(h.Repeat(*repeat))
        self._separate(node, initial, arguments)

    def _separate(
        self,
        node: nodes.WhileOp | nodes.RepeatOp,
        initial: tuple[str, ...],
        arguments: Sequence[h.Value],
    ) -> None:
        """Give the results of a loop separate storage. They may alias its initial values, if no
        iteration runs, and a body may return its arguments."""
        others = dict.fromkeys((*initial, *(name for value in arguments for name in _names(value))))
        if node.results:
            self.work.append(h.Separate(node.results, tuple(others)))


def _integers(block: Arg) -> list[int]:
    items = block.items if isinstance(block, nodes.ListArg) else ()
    return [n.value for n in items if isinstance(n, nodes.Literal) and isinstance(n.value, int)]


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
    if not isinstance(node, nodes.Extern) or node.out is not None:
        return []
    foreign = node.target.partition(".")[0] not in _LIBRARIES
    mend = h.Mend.NOTHING if strict and foreign else h.Mend.ALL
    results = (buffers[name] for name in results_of(node))
    return [
        h.Conform(b.name, b.dtype, b.device, b.shape, b.strides, mend, node.target) for b in results
    ]
