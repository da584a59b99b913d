"""Translation of instructions to nodes."""

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, assert_never

import torch

from gyrator_ir.expr import Expr
from gyrator_ir.host import nodes as h
from gyrator_ir.host.print import show_instruction
from gyrator_ir.host.walk import bound, captures, free_names, freed
from gyrator_ir.types import DType
from gyrator_wrapper_fx import ops
from gyrator_wrapper_fx.scope import DTYPES, Scope, Start, device_of, overload
from gyrator_wrapper_fx.triton import triton_launch

_ATEN = torch.ops.aten


def write(scope: Scope, instructions: Iterable[h.Instruction]) -> None:
    """Translate instructions in order; the owner of the graph translates `Return`."""
    for instruction in instructions:
        _instruction(scope, instruction)


def _instruction(scope: Scope, i: h.Instruction) -> None:
    match i:
        case h.BindSize():
            _bind_size(scope, i)
        case h.BindParameter():
            scope.bind(i.symbol.name, scope.env[i.name])
        case h.DefineSymbol():
            scope.bind(i.symbol.name, scope.size(i.expr))
        case h.BindConstant():
            _bind_constant(scope, i)
        case h.Conform():
            _conform(scope, i)
        case h.Separate():
            _separate(scope, i)
        case h.AssertNoNan():
            scope.call(ops.assert_no_nan, scope.env[i.tensor], i.what or i.tensor)
        case h.AssertTrue():
            scope.call(ops.assert_true, scope.size(i.condition), i.message, i.error.value)
        case h.Allocate():
            _allocate(scope, i)
        case h.AllocatePool():
            _allocate_pool(scope, i)
        case h.AllocateFromPool():
            _allocate_from_pool(scope, i)
        case h.Free():
            del scope.env[i.name]
        case h.Reuse():
            _strided(scope, i, None)
            del scope.env[i.source]
        case h.View():
            _strided(scope, i, i.offset)
        case h.Launch():
            _launch(scope, i)
        case h.ExternCall():
            _extern_call(scope, i)
        case h.TmaDescriptor():
            scope.bind(i.name, scope.env[i.tensor])
            scope.descriptors[i.name] = i
        case h.TritonLaunch():
            triton_launch(scope, i)
        case h.Copy():
            ends = (scope.env[i.destination], scope.env[i.source])
            scope.call(_ATEN.copy_.default, *ends, i.non_blocking)
        case h.ReadScalar():
            name = i.symbol.name
            scope.bind(name, scope.call(ops.read_scalar, scope.env[i.tensor], name=name))
        case h.CollectiveStart():
            _collective_start(scope, i)
        case h.CollectiveFinish():
            wait = overload("_c10d_functional.wait_tensor.default")
            scope.bind(i.tensor, scope.call(wait, scope.env[i.tensor]))
        case h.WithDevice():
            _within(scope, ops.within_device, device_of(i.device), i.body)
        case h.ProfileRange():
            _within(scope, ops.within_profile, i.label, i.body)
        case h.Branch():
            _branch(scope, i)
        case h.Loop():
            _loop(scope, i)
        case h.Repeat():
            _repeat(scope, i)
        case h.CallProgram() | h.CallPartition():
            _call_program(scope, i)
        case h.Comment():
            scope.comment(i.text)
        case h.Return():
            pass  # `Scope.finish` sets the results
        case _:
            assert_never(i)


def _bind_size(scope: Scope, i: h.BindSize) -> None:
    function = _ATEN.sym_stride.int if i.stride else _ATEN.sym_size.int
    name = i.symbol.name
    scope.bind(name, scope.call(function, scope.env[i.tensor], i.dim, name=name))


def _bind_constant(scope: Scope, i: h.BindConstant) -> None:
    if i.key not in scope.constants:
        name = scope.free_attribute("constant_" + re.sub(r"\W", "_", i.key))
        node = scope.attribute(name, scope.context.constants[i.key])
        scope.constants[i.key] = scope.noted(node, {"constant": i.key})
    scope.bind(i.name, scope.constants[i.key])


def _conform(scope: Scope, i: h.Conform) -> None:
    layout = (scope.size.all(i.shape), scope.size.all(i.strides))
    where = (DTYPES[i.dtype], device_of(i.device), str(i.mend), i.tensor, i.what)
    scope.bind(i.tensor, scope.call(ops.conform, scope.env[i.tensor], *layout, *where))


def _separate(scope: Scope, i: h.Separate) -> None:
    names = tuple(dict.fromkeys(i.tensors))
    others = tuple(scope.env[n] for n in i.others)
    separated = scope.call(ops.separate, tuple(scope.env[n] for n in names), others)
    for k, name in enumerate(names):
        scope.bind(name, scope.call(operator.getitem, separated, k))


def _allocate(scope: Scope, i: h.Allocate) -> None:
    layout = (scope.size.all(i.shape), scope.size.all(i.strides))
    where: dict[str, Any] = {"dtype": DTYPES[i.dtype], "device": device_of(i.device)}
    node = scope.call(torch.empty_strided, *layout, name=i.name, **where)
    scope.bind(i.name, node, Start(i.dtype))


def _allocate_pool(scope: Scope, i: h.AllocatePool) -> None:
    where: dict[str, Any] = {"dtype": torch.uint8, "device": device_of(i.device)}
    size = (scope.size(i.bytes),)
    node = scope.call(torch.empty_strided, size, (1,), name=i.name, **where)
    scope.bind(i.name, node, Start(DType.U8))


def _allocate_from_pool(scope: Scope, i: h.AllocateFromPool) -> None:
    layout = (scope.size.all(i.shape), scope.size.all(i.strides))
    at = (scope.env[i.pool], scope.size(i.offset))
    scope.bind(i.name, scope.call(ops.from_pool, *at, *layout, DTYPES[i.dtype], name=i.name))


def _strided(scope: Scope, i: h.Reuse | h.View, offset: Expr | None) -> None:
    source, known_start = scope.env[i.source], scope.starts.get(i.source)
    layout = (scope.size.all(i.shape), scope.size.all(i.strides))
    if known_start is not None and known_start.dtype is i.dtype:
        start = known_start.offset if offset is None else known_start.offset + offset
        node = scope.call(torch.as_strided, source, *layout, scope.size(start), name=i.name)
        scope.bind(i.name, node, Start(i.dtype, start))
        return
    shift = 0 if offset is None else scope.size(offset)
    scope.bind(i.name, scope.call(ops.view, source, *layout, shift, DTYPES[i.dtype], name=i.name))


def _launch(scope: Scope, i: h.Launch) -> None:
    program = scope.context.program
    kernel = scope.context.kernel(i.kernel)
    at = {p.name: position for position, p in enumerate(kernel.parameters)}
    writes = tuple(at[name] for name in kernel.writes)
    rows = (program.origins[row] for row in kernel.origins)
    meta = {
        "reads": tuple(at[name] for name in kernel.reads),
        "writes": writes,
        "origins": tuple((o.node, o.target, o.location) for o in rows),
    }
    table = scope.attribute("kernels", scope.context.kernels)
    tensors = tuple(scope.env[t] for t in i.tensors)
    sizes = scope.size.all(i.sizes)
    scope.call(
        ops.launch, table, i.kernel, tensors, sizes,
        name=i.kernel, meta=meta, writes=writes,
    )  # fmt: skip


def _extern_call(scope: Scope, i: h.ExternCall) -> None:
    where = show_instruction(i)[0]
    args = tuple(scope.value(a) for a in i.args)
    kwargs = {name: scope.value(v) for name, v in i.kwargs}
    if i.out is not None:
        outs = zip(i.out_names, i.results, strict=True)
        kwargs |= {name: scope.env[str(result)] for name, result in outs}
        scope.noted(scope.graph.call_function(overload(i.out, where), args, kwargs), {})
        return
    single = i.results[0] if len(i.results) == 1 else None
    name = str(getattr(single, "name", single)) if isinstance(single, str | Expr) else None
    function = overload(i.target, where)
    node = scope.graph.create_node("call_function", function, args, kwargs, name)
    scope.bind_results(i.results, scope.noted(node, {}))


def _collective_start(scope: Scope, i: h.CollectiveStart) -> None:
    args = tuple(scope.value(a) for a in i.args)
    name = i.results[0] if len(i.results) == 1 else None
    node = scope.call(overload(i.target, show_instruction(i)[0]), *args, name=name)
    scope.bind_results(i.results, node)


def _within(
    scope: Scope, function: Callable[..., Any], subject: Any, body: tuple[h.Instruction, ...]
) -> None:
    names = scope.with_sizes(free_names(body))
    released = freed(body)
    results = tuple(n for n in bound(body) if n not in released)
    inner = scope.nested("body", names, body, results)
    scope.unpack(results, scope.call(function, subject, inner, _operands(scope, names)))
    for name in released & scope.env.keys():
        del scope.env[name]


def _branch(scope: Scope, i: h.Branch) -> None:
    names = scope.with_sizes(captures(i))
    then = scope.nested("then", names, i.then, i.then_values)
    otherwise = scope.nested("otherwise", names, i.otherwise, i.otherwise_values)
    condition = i.condition
    test = scope.env[condition.name] if isinstance(condition, h.Ref) else scope.size(condition)
    operands = _operands(scope, names)
    scope.unpack(i.results, scope.call(ops.branch, test, then, otherwise, operands))


def _loop(scope: Scope, i: h.Loop) -> None:
    names = scope.with_sizes(captures(i))
    parameters = (*i.carried, *names)
    condition = scope.nested("test", parameters, i.condition, (i.test,))
    body = scope.nested("body", parameters, i.body, i.next)
    initial = tuple(scope.env[n] for n in i.initial)
    function = ops.stacking_loop if i.stacked else ops.loop
    result = scope.call(function, condition, body, initial, _operands(scope, names))
    scope.unpack(i.results, result)


def _repeat(scope: Scope, i: h.Repeat) -> None:
    names, symbol = scope.with_sizes(captures(i)), i.symbol.name
    body = scope.nested("body", (symbol, *i.carried, *names), i.body, i.next)
    initial = tuple(scope.env[n] for n in i.initial)
    count = scope.size(i.count)
    result = scope.call(ops.repeat, body, count, initial, _operands(scope, names))
    scope.unpack(i.results, result)


def _operands(scope: Scope, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(scope.env[n] for n in names)


def _call_program(scope: Scope, i: h.CallProgram | h.CallPartition) -> None:
    if i.program not in scope.programs:
        name = scope.programs[i.program] = scope.free_attribute(i.program)
        scope.root.add_module(name, scope.context.subprograms[i.program])
    args = tuple(scope.value(a) for a in i.args)
    node = scope.graph.call_module(scope.programs[i.program], args)
    sub = next(s for s in scope.context.program.subprograms if s.name == i.program)
    capture = sub.capture if isinstance(i, h.CallPartition) else None
    scope.noted(node, {} if capture is None else {"capture": str(capture.device)})
    scope.unpack(i.results, node)
