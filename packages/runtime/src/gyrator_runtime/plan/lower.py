"""From Wrapper IR to plans."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

import torch
from attrs import evolve

from gyrator_ir.expr import Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import bound, captures, free_names, freed
from gyrator_ir.types import Device
from gyrator_runtime.host import DTYPES
from gyrator_runtime.native.program import (
    Buffer,
    Conform,
    Const,
    IntTuple,
    Launch,
    Layout,
    Move,
    Operate,
    Reg,
    Separate,
    SizeArg,
    TensorArg,
)
from gyrator_runtime.native.references import (
    Allocator,
    Branching,
    Calling,
    Carried,
    Conforming,
    HostFunction,
    Looping,
    Operating,
    Operator,
    Reference,
    Repeating,
    UserLaunch,
    Within,
)
from gyrator_runtime.native.shim import OPERATORS, load_shim, operator_address
from gyrator_runtime.plan.scope import Finished, Handle, Plans, Scope, combined, torch_object
from gyrator_runtime.plan.stored import StoredPlan

_KINDS = {dtype: str(name) for name, dtype in DTYPES.items()}
"""Names of PyTorch dtypes in the IR."""


def lower(program: h.HostProgram) -> StoredPlan:
    """Return a verified host program as plans; the last is that of the program itself."""
    plans = Plans()
    _program(program, plans)
    return StoredPlan.of(plans.encoded)


def _program(program: h.HostProgram, plans: Plans) -> Finished:
    # The names of subprograms are local to their program.
    inner = Plans(plans.encoded)
    for sub in program.subprograms:
        finished = _program(sub, inner)
        inner.subprograms[sub.name] = finished, sub.capture is not None
    scope = Scope(inner, len(program.parameters), boxed=True)
    scope.env.update({p.name: Handle(k) for k, p in enumerate(program.parameters)})
    *body, last = program.instructions
    write(scope, body)
    assert isinstance(last, h.Return)  # the verifier's GY-HOST-005
    return scope.finish([scope.value(v) for v in last.values])


def write(scope: Scope, instructions: Iterable[h.Instruction]) -> None:
    """Lower instructions in order. The caller lowers `Return`."""
    for i in instructions:
        _instruction(scope, i)


def _instruction(scope: Scope, i: h.Instruction) -> None:
    match i:
        case h.BindSize():
            method = HostFunction("stride_of" if i.stride else "size_of")
            scope.env[i.symbol.name] = scope.integer(method, (_object(scope, i.tensor), i.dim))
        case h.BindParameter():
            scope.env[i.symbol.name] = SizeArg(scope.tensor(i.name).register)
        case h.DefineSymbol():
            size = scope.size(i.expr)
            if not isinstance(size, int | SizeArg):
                size = scope.integer(HostFunction("integer"), (size,))
            scope.env[i.symbol.name] = size
        case h.BindConstant():
            scope.env[i.name] = scope.call(HostFunction("identity"), (Const(Carried(i.key)),))
        case h.Conform():
            _conform(scope, i)
        case h.Separate():
            registers, others = scope.registers(i.tensors), scope.registers(i.others)
            scope.instructions.append(Separate(registers, others, HostFunction("separate")))
        case h.AssertNoNan():
            scope.run(HostFunction("check_nan"), (_object(scope, i.tensor), Const(i.what)))
        case h.AssertTrue():
            what = Const(i.message), Const(i.error.value)
            scope.run(HostFunction("assert_true"), (scope.condition(i.condition), *what))
        case h.Allocate():
            scope.env[i.name] = _allocated(scope, scope.layout(i), i.device)
        case h.AllocatePool():
            layout = Layout((scope.size(i.bytes),), (1,), torch.uint8)
            scope.env[i.name] = _allocated(scope, layout, i.device)
        case h.AllocateFromPool():
            pool = scope.tensor(i.pool)
            layout = scope.layout(i, scope.size(i.offset))
            scope.env[i.name] = Handle(pool.register, layout, pool.own, pool.device, pooled=True)
        case h.Free():
            handle = scope.env.pop(i.name)
            if isinstance(handle, Handle):
                scope.free(handle)
        case h.Reuse():
            _reuse(scope, i)
        case h.View():
            _view(scope, i)
        case h.Launch():
            _launch(scope, i)
        case h.ExternCall():
            _extern_call(scope, i)
        case h.TmaDescriptor():
            form = (scope.sizes(i.shape), scope.sizes(i.block), scope.size(i.element_bytes))
            arguments = (_object(scope, i.tensor), *form, Const(i.stable))
            scope.env[i.name] = scope.call(HostFunction("tma_descriptor"), arguments)
        case h.TritonLaunch():
            _triton_launch(scope, i)
        case h.Copy():
            ends = (_object(scope, n) for n in (i.destination, i.source))
            scope.run(HostFunction("copy"), (*ends, Const(i.non_blocking)))
        case h.ReadScalar():
            read = HostFunction("read_scalar")
            scope.env[i.symbol.name] = scope.integer(read, (_object(scope, i.tensor),))
        case h.CollectiveStart():
            _call(scope, i.target, i.args, (), i.results)
        case h.CollectiveFinish():
            wait = Operator("_c10d_functional.wait_tensor.default")
            scope.run(wait, (_object(scope, i.tensor),))
        case h.WithDevice():
            _within(scope, i.body, lambda plan: Within("device", str(i.device), plan))
        case h.ProfileRange():
            _within(scope, i.body, lambda plan: Within("profile", i.label, plan))
        case h.Branch():
            _branch(scope, i)
        case h.Loop():
            _loop(scope, i)
        case h.Repeat():
            _repeat(scope, i)
        case h.CallProgram() | h.CallPartition():
            _call_program(scope, i)
        case h.Comment():
            pass
        case h.Return():
            raise AssertionError("the caller lowers it")
        case _:
            assert_never(i)


def _conform(scope: Scope, i: h.Conform) -> None:
    dtype, device = str(i.dtype), str(i.device)
    function = Conforming(len(i.shape), dtype, device, str(i.mend), i.tensor, i.what)
    register = scope.tensor(i.tensor).register
    instruction = Conform(register, function, scope.layout(i), torch.device(device))
    scope.instructions.append(instruction)


def _object(scope: Scope, name: str) -> Reg:
    """Return a tensor as an argument of a function of the host."""
    return scope.object(scope.tensor(name))


def _allocated(scope: Scope, layout: Layout, device: Device) -> Handle:
    args = (IntTuple(layout.sizes), IntTuple(layout.strides), Const(torch_object(layout.dtype)))
    handle = scope.call(Allocator(str(device)), args)
    return Handle(handle.register, own=layout, device=str(device))


def _reuse(scope: Scope, i: h.Reuse) -> None:
    source = scope.tensor(i.source)
    layout = scope.layout(i, source.offset)
    scope.env[i.name] = evolve(source, layout=None if layout == source.own else layout)
    del scope.env[i.source]


def _view(scope: Scope, i: h.View) -> None:
    source = scope.tensor(i.source)
    offset = combined(scope.size(i.offset), "mul", i.dtype.size)
    layout = scope.layout(i, combined(source.offset, "add", offset))
    register = scope.register()  # a new one, because the source may be dropped earlier
    scope.instructions.append(Move(register, source.register))
    scope.env[i.name] = evolve(source, register=register, layout=layout, pooled=False)


def _launch(scope: Scope, i: h.Launch) -> None:
    tensors = map(scope.tensor, i.tensors)
    buffers = tuple(Buffer(t.register, t.offset) for t in tensors)
    sizes = tuple(map(scope.size, i.sizes))
    launch = Launch(i.kernel, buffers, sizes, release_gil=True, name=i.kernel, overlap=i.overlap)
    scope.instructions.append(launch)


def _extern_call(scope: Scope, i: h.ExternCall) -> None:
    if i.out is None:
        _call(scope, i.target, i.args, i.kwargs, i.results)
        return
    outs = [(n, r) for n, r in zip(i.out_names, i.results, strict=True) if isinstance(r, str)]
    quick = _operate(scope, i.out, i.args, i.kwargs, dict(outs))
    if quick is not None:
        scope.instructions.append(quick)
        return
    kwargs = (*i.kwargs, *((n, h.Ref(r)) for n, r in outs))
    _call(scope, i.out, i.args, kwargs, ())


def _operate(
    scope: Scope,
    target: str,
    args: Sequence[h.Value],
    kwargs: Sequence[tuple[str, h.Value]],
    outs: Mapping[str, str],
) -> Operate | None:
    """Return the instruction for an operator that writes to its first tensor, or None if it must be
    called from Python."""
    shim = load_shim()
    if target not in OPERATORS or shim is None or outs.keys() != {"out"}:
        return None
    names = (outs["out"], *(a.name for a in args if isinstance(a, h.Ref)))
    tensors = tuple(t for n in names if isinstance(t := scope.env[n], Handle))
    if len(tensors) != 1 + len(args):
        return None
    numbers: dict[str, int | float] = {}
    keywords = OPERATORS[target][1]
    for name, value in kwargs:
        operand = scope.value(value)
        number = operand.value if isinstance(operand, Const) else operand
        if name not in keywords or type(number) not in (int, float):
            return None
        numbers[name] = number  # type: ignore[assignment]  # which mypy doesn't see by `type`
    out = tensors[0]
    device = torch.device(out.device).type if out.device else ""
    if out.dtype not in shim.dtypes or not device:
        return None
    # A device that this PyTorch lacks belongs to another machine, which looks up the address.
    is_local = device in shim.devices or device == "meta"
    if is_local and not operator_address(target, device):
        return None
    layouts = tuple(
        None if t.layout is None else (len(t.layout.sizes), _KINDS[t.layout.dtype]) for t in tensors
    )
    return Operate(
        Operating(target, layouts, tuple(numbers.items())),
        tuple(TensorArg(t.register, t.layout) for t in tensors),
        (target, device),
        tuple(float(numbers.get(k, 1)) for k in keywords),
    )


def _call(
    scope: Scope,
    target: str,
    args: Sequence[h.Value],
    kwargs: Sequence[tuple[str, h.Value]],
    results: Sequence[str | tuple[str, ...] | Sym | None],
) -> None:
    """Call a dispatcher op. `results` has an entry for each of its returns."""
    function = Operator(target)
    values = tuple(map(scope.value, args))
    named = tuple((k, scope.value(v)) for k, v in kwargs)
    if not any(r is not None for r in results):
        scope.run(function, values, named)
        return
    returned = scope.call(function, values, named)
    single = len(results) == 1
    for k, result in enumerate(results):
        if result is None:
            continue
        part = returned if single else scope.item(returned, k)
        match result:
            case str():
                scope.env[result] = part
            case Sym():
                scope.env[result.name] = SizeArg(part.register)
            case tuple():
                scope.env.update({n: scope.item(part, k) for k, n in enumerate(result)})
                scope.free(part)
    if not single:
        scope.free(returned)


def _triton_launch(scope: Scope, i: h.TritonLaunch) -> None:
    arguments = (*i.args, *i.constants)
    sizes = (scope.size(g) for grid in i.grid for g in grid)
    values = (*sizes, *(scope.value(v) for _, v in arguments))
    names = tuple(name for name, _ in arguments)
    scope.run(UserLaunch(i.kernel, tuple(map(len, i.grid)), names), values)


# Structure ------------------------------------------------------------------------------------


def _within(
    scope: Scope, body: Sequence[h.Instruction], reference: Callable[[int], Reference]
) -> None:
    names, freed_names = free_names(body), freed(body)
    results = tuple(n for n in bound(body) if n not in freed_names)
    inner = _nested(scope, names, names, body, results)
    args = tuple(map(scope.bound, names))
    scope.results(results, reference(inner.number), args, inner.integers)
    for name in names:
        handle = scope.env[name]
        if name in freed_names and isinstance(handle, Handle):
            scope.free(handle)


def _nested(
    scope: Scope,
    parameters: Sequence[str],
    like: Sequence[str],
    body: Sequence[h.Instruction],
    values: Sequence[str],
) -> Finished:
    inner = scope.nested(parameters, like)
    write(inner, body)
    return inner.finish([inner.bound(v) for v in values])


def _branch(scope: Scope, i: h.Branch) -> None:
    names = captures(i)
    then = _nested(scope, names, names, i.then, i.then_values)
    otherwise = _nested(scope, names, names, i.otherwise, i.otherwise_values)
    if isinstance(i.condition, h.Ref):
        test = scope.bound(i.condition.name)
    else:
        test = scope.condition(i.condition)
    function = Branching(then.number, otherwise.number)
    scope.results(i.results, function, (test, *map(scope.bound, names)), then.integers)


def _loop(scope: Scope, i: h.Loop) -> None:
    names = captures(i)
    parameters, like = (*i.carried, *names), (*i.initial, *names)
    test = _nested(scope, parameters, like, i.condition, (i.test,))
    body = _nested(scope, parameters, like, i.body, i.next)
    function = Looping(test.number, body.number, len(i.carried), i.stacked)
    scope.results(i.results, function, tuple(map(scope.bound, like)), body.integers)


def _repeat(scope: Scope, i: h.Repeat) -> None:
    names = captures(i)
    parameters, like = (*i.carried, *names), (*i.initial, *names)
    # The step number is the first parameter; any integer represents it here.
    scope.env[i.symbol.name] = 0
    body = _nested(scope, (i.symbol.name, *parameters), (i.symbol.name, *like), i.body, i.next)
    del scope.env[i.symbol.name]
    args = (scope.size(i.count), *map(scope.bound, like))
    scope.results(i.results, Repeating(body.number, len(i.carried)), args, body.integers)


def _call_program(scope: Scope, i: h.CallProgram | h.CallPartition) -> None:
    called, allowed = scope.plans.subprograms[i.program]
    partition = i.program if allowed and isinstance(i, h.CallPartition) else ""
    args = tuple(map(scope.value, i.args))
    scope.results(i.results, Calling(called.number, partition), args, called.integers)
