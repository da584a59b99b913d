"""A baseline scheduler: one kernel per operation, no buffer reuse, everything freed at the end.

It makes no decisions, so that the stages after the scheduler can be tested independently of it.
"""

from attrs import evolve

from gyrator_ir.body.rewrite import expressions, reads, writes
from gyrator_ir.expr import ZERO, Expr, Sym, SymKind, sorted_symbols
from gyrator_ir.host import nodes as h
from gyrator_ir.kernel.nodes import Kernel, Level, Lifetime, Schedule, ScheduleNode, Stage
from gyrator_ir.kernel.verify import accessed
from gyrator_ir.loop import nodes as loop
from gyrator_ir.loop.nodes import Buffer, Input, LoopProgram, TensorInput, TensorRef
from gyrator_ir.loop.uses import inner_of, statements_of
from gyrator_ir.types import Device


def baseline_schedule(program: LoopProgram) -> Schedule:
    """Return a schedule with a kernel for each loop operation, in order."""
    buffers = {b.name: b for b in program.all_buffers}
    nodes = tuple(_node(op, buffers) for op in program.operations)
    schedule = Schedule(
        program.name,
        program.inputs,
        program.constants,
        program.buffers,
        nodes,
        program.outputs,
        (),
        (),
        program.facts,
        program.origins,
        tuple(map(baseline_schedule, program.subprograms)),
        program.user_kernels,
    )
    return evolve(schedule, lifetimes=_lifetimes(schedule))


def _node(op: loop.Operation, buffers: dict[str, Buffer]) -> ScheduleNode:
    if not isinstance(op, loop.LoopOperation):
        return op
    axes, inner = op.axes, inner_of(op)
    if isinstance(op, loop.Reduction):
        stages = [Stage(Level.INNER, (*op.body, op.reduce)), Stage(Level.OUTER, op.stores)]
    else:
        stages = [Stage(Level.INNER if inner else Level.OUTER, statements_of(op))]
    statements = [s for stage in stages for s in stage.body]
    used = {**dict.fromkeys(reads(statements)), **dict.fromkeys(writes(statements))}
    exprs: list[Expr] = [a.extent for a in (*axes, *inner)]
    exprs += [e for s in statements for e in expressions(s)]
    sizes = {s for e in exprs for s in e.free_symbols if s.kind in (SymKind.SIZE, SymKind.UNBACKED)}
    return Kernel(
        f"k_{op.name}",
        buffers[next(iter(used))].device if used else Device("cpu"),
        axes,
        inner,
        tuple(stages),
        (),
        tuple(buffers[name] for name in used),
        sorted_symbols(sizes),
        origins=op.origins,
    )


def _lifetimes(schedule: Schedule) -> tuple[Lifetime, ...]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(schedule.nodes):
        names = accessed(node)
        for name in names:
            first.setdefault(name, position)
            last[name] = position
    for output in schedule.outputs:
        if isinstance(output, TensorRef):
            last[output.buffer] = len(schedule.nodes)
    return tuple(Lifetime(b.name, first[b.name], last[b.name]) for b in schedule.buffers)


def baseline_host(schedule: Schedule) -> h.HostProgram:
    """Return a host program that runs the nodes of a schedule in order.

    Raises:
        NotImplementedError: for a node that is neither a kernel, an extern call, a scalar read nor
            an assertion.
    """
    host = _Host(schedule)
    host.prologue()
    for position, node in enumerate(schedule.nodes):
        host.node(node, position)
    host.epilogue()
    parameters = tuple(_parameter(i) for i in schedule.inputs)
    return h.HostProgram(
        schedule.name,
        parameters,
        schedule.constants,
        schedule.kernels,
        tuple(host.out),
        schedule.facts,
        schedule.origins,
        tuple(map(baseline_host, schedule.subschedules)),
        schedule.user_kernels,
    )


def _parameter(i: Input) -> h.Parameter:
    match i:
        case TensorInput(buffer):
            return h.Parameter(buffer.name, "tensor")
        case loop.SizeInput(_, name):
            return h.Parameter(name, "size")
        case loop.OpaqueInput(name):
            return h.Parameter(name, "opaque")


class _Host:
    """Builds the instructions of a host program."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.out: list[h.Instruction] = []
        self.symbols: set[Sym] = set()
        self.views = 0
        self.buffers = {b.name: b for b in schedule.all_buffers}
        self.lives = {life.buffer: life for life in schedule.lifetimes}

    def prologue(self) -> None:
        tensors = [i.buffer for i in self.schedule.inputs if isinstance(i, TensorInput)]
        checks: list[h.Instruction] = []
        for i in self.schedule.inputs:
            if not isinstance(i, loop.SizeInput):
                continue
            if isinstance(i.expr, Sym) and i.expr not in self.symbols:
                self.symbols.add(i.expr)
                self.out.append(h.BindParameter(i.expr, i.name))
            elif not i.expr.free_symbols:
                symbol = Sym(f"s_{i.name}")
                self.out.append(h.BindParameter(symbol, i.name))
                checks.append(h.AssertTrue(symbol.eq(i.expr), f"{i.name} has changed"))
        for b in tensors:
            for dim, size in enumerate(b.shape):
                if isinstance(size, Sym) and size not in self.symbols:
                    self.symbols.add(size)
                    self.out.append(h.BindSize(size, b.name, dim))
        self.out += checks
        self.out += [
            h.Conform(b.name, b.dtype, b.device, b.shape, b.strides, h.Mend.NOTHING)
            for b in tensors
        ]
        self.out += [h.BindConstant(c.buffer.name, c.key) for c in self.schedule.constants]

    def node(self, node: ScheduleNode, position: int) -> None:
        for b in self.schedule.buffers:
            if self.lives[b.name].first == position and not self._made_by_call(b.name, node):
                self.out.append(h.Allocate(b.name, b.dtype, b.device, b.shape, b.strides))
        match node:
            case Kernel(name=name, parameters=parameters, sizes=sizes):
                self.out.append(h.Launch(name, tuple(p.name for p in parameters), sizes))
            case loop.Extern():
                self._extern(node)
            case loop.ScalarRead(_, source, symbol):
                self.out.append(h.ReadScalar(symbol, self._tensor(source)))
            case loop.AssertCond(_, condition, message):
                self.out.append(h.AssertTrue(condition, message, node.error))
            case _:
                raise NotImplementedError(f"a {type(node).__name__} in a baseline host program")
        for life in self.schedule.lifetimes:
            if life.last == position:
                self.out.append(h.Free(life.buffer))

    def epilogue(self) -> None:
        values = tuple(self._value(o) for o in self.schedule.outputs)
        self.out.append(h.Return(values))

    def _made_by_call(self, name: str, node: ScheduleNode) -> bool:
        if not isinstance(node, loop.Extern) or node.out is not None:
            return False
        return any(name == r or (isinstance(r, tuple) and name in r) for r in node.results)

    def _extern(self, op: loop.Extern) -> None:
        self.out.append(
            h.ExternCall(
                op.target,
                tuple(self._value(a) for a in op.args),
                tuple((key, self._value(a)) for key, a in op.kwargs),
                op.results,
                op.out,
                op.out_names,
            )
        )

    def _tensor(self, ref: TensorRef) -> str:
        b = self.buffers[ref.buffer]
        same = (ref.dtype, ref.shape, ref.strides) == (b.dtype, b.shape, b.strides)
        if same and ref.offset is ZERO:
            return ref.buffer
        name = f"view{self.views}"
        self.views += 1
        self.out.append(h.View(name, ref.buffer, ref.dtype, ref.shape, ref.strides, ref.offset))
        return name

    def _value(self, arg: loop.Arg) -> h.Value:
        match arg:
            case TensorRef():
                return h.Ref(self._tensor(arg))
            case loop.ListArg(items):
                return h.ListValue(tuple(map(self._value, items)))
        return arg
