"""One emitter function per instruction. `WRITERS` lists them; a test checks that it is complete."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from gyrator_ir.expr import Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import binds, programs, walk
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_wrapper_python.text import Lines, SizePrinter, names, string


@frozen
class Writer:
    """Emits instructions as lines of Python; `rt` is the name of the runtime in the text."""

    out: Lines
    rt: str
    size: SizePrinter = field(init=False)

    @size.default
    def _printer(self) -> SizePrinter:
        return SizePrinter(self.rt)

    def body(self, instructions: Iterable[h.Instruction]) -> None:
        """Emit the instructions in order."""
        for instruction in instructions:
            WRITERS[type(instruction)](self, instruction)

    def block(self, head: str, instructions: Iterable[h.Instruction], *last: str) -> None:
        """Emit a block: a head line, and below it instructions and further lines."""
        self.out.add(head)
        with self.out.indent():
            before = self.out.count
            self.body(instructions)
            for line in last:
                self.out.add(line)
            if self.out.count == before:
                self.out.add("pass")

    def call(self, method: str, *args: str, into: str = "") -> None:
        """Emit `into = rt.method(args)`."""
        target = f"{into} = " if into else ""
        self.out.add(f"{target}{self.rt}.{method}({', '.join(args)})")

    def value(self, value: h.Value) -> str:
        """Format an operand."""
        match value:
            case h.Ref(name):
                return name
            case Literal(constant):
                return f"float({str(constant)!r})" if _non_finite(constant) else repr(constant)
            case TypeArg(kind, text):
                return f"{self.rt}.{'device' if kind == 'device' else 'typed'}({string(text)})"
            case h.ListValue(items):
                return f"[{', '.join(self.value(i) for i in items)}]"
        return self.size(value)

    def values(self, values: Iterable[h.Value]) -> str:
        """Format a tuple of operands."""
        return names(tuple(map(self.value, values)))

    def table(
        self, rows: Iterable[tuple[str, h.Value]], more: Iterable[tuple[str, str]] = ()
    ) -> str:
        """Format a dictionary of operands, and of names."""
        text = [*((k, self.value(v)) for k, v in rows), *more]
        return f"{{{', '.join(f'{string(k)}: {v}' for k, v in text)}}}"

    def layout(
        self, i: h.Allocate | h.AllocateFromPool | h.Reuse | h.View | h.Conform
    ) -> tuple[str, str, str]:
        """Format sizes, strides and dtype."""
        return self.size.tuple(i.shape), self.size.tuple(i.strides), string(i.dtype)


# Inputs and symbols ---------------------------------------------------------------------------


def _bind_size(w: Writer, i: h.BindSize) -> None:
    """`s0 = x.size(0)`."""
    w.out.add(f"{i.symbol.name} = {i.tensor}.{'stride' if i.stride else 'size'}({i.dim})")


def _bind_parameter(w: Writer, i: h.BindParameter) -> None:
    """`s0 = n`."""
    w.out.add(f"{i.symbol.name} = {i.name}")


def _define_symbol(w: Writer, i: h.DefineSymbol) -> None:
    """`s3 = 2*s0`."""
    w.out.add(f"{i.symbol.name} = {w.size(i.expr)}")


def _bind_constant(w: Writer, i: h.BindConstant) -> None:
    """`w = rt.constant('layer.w')`."""
    w.call("constant", string(i.key), into=i.name)


# Checks ---------------------------------------------------------------------------------------


def _conform(w: Writer, i: h.Conform) -> None:
    """`x = rt.conform(x, sizes, strides, dtype, device, mend, name, what)`."""
    more = map(string, (i.device, i.mend, i.tensor, i.what))
    w.call("conform", i.tensor, *w.layout(i), *more, into=i.tensor)


def _separate(w: Writer, i: h.Separate) -> None:
    """`(b,) = rt.separate((b,), (x, y))`."""
    tensors = names(tuple(dict.fromkeys(i.tensors)))
    w.call("separate", tensors, names(i.others), into=tensors)


def _assert_no_nan(w: Writer, i: h.AssertNoNan) -> None:
    """`rt.assert_no_nan(x, what)`."""
    w.call("assert_no_nan", i.tensor, string(i.what))


def _assert_true(w: Writer, i: h.AssertTrue) -> None:
    """`rt.assert_true(s0 < 8, message)`."""
    w.call("assert_true", w.size(i.condition), string(i.message))


# Memory ---------------------------------------------------------------------------------------


def _allocate(w: Writer, i: h.Allocate) -> None:
    """`b = rt.allocate(sizes, strides, dtype, device)`."""
    w.call("allocate", *w.layout(i), string(i.device), into=i.name)


def _allocate_pool(w: Writer, i: h.AllocatePool) -> None:
    """`pool = rt.pool(bytes, device)`."""
    w.call("pool", w.size(i.bytes), string(i.device), into=i.name)


def _allocate_from_pool(w: Writer, i: h.AllocateFromPool) -> None:
    """`b = rt.from_pool(pool, offset, sizes, strides, dtype)`."""
    w.call("from_pool", i.pool, w.size(i.offset), *w.layout(i), into=i.name)


def _free(w: Writer, i: h.Free) -> None:
    """`del b`."""
    w.out.add(f"del {i.name}")


def _reuse(w: Writer, i: h.Reuse) -> None:
    """`b = rt.reuse(a, sizes, strides, dtype); del a`."""
    w.call("reuse", i.source, *w.layout(i), into=i.name)
    w.out.add(f"del {i.source}")


def _view(w: Writer, i: h.View) -> None:
    """`v = rt.view(x, sizes, strides, dtype, offset)`."""
    w.call("view", i.source, *w.layout(i), w.size(i.offset), into=i.name)


# Work -----------------------------------------------------------------------------------------


def _launch(w: Writer, i: h.Launch) -> None:
    """`rt.launch('k0', (x, b), (s0,))`."""
    w.call("launch", string(i.kernel), names(i.tensors), w.size.tuple(i.sizes))


def _extern_call(w: Writer, i: h.ExternCall) -> None:
    """`b = rt.extern('aten.mm.default', (x, y), {})`, or with `out`, `rt.extern('aten.mm.out',
    (x, y), {'out': b})`."""
    if i.out is not None:
        outs = zip(i.out_names, i.results, strict=True)
        table = w.table(i.kwargs, [(k, r) for k, r in outs if isinstance(r, str)])
        w.call("extern", string(i.out), w.values(i.args), table)
        return
    into = _targets(i.results)
    w.call("extern", string(i.target), w.values(i.args), w.table(i.kwargs), into=into)


def _tma_descriptor(w: Writer, i: h.TmaDescriptor) -> None:
    """`d = rt.tma_descriptor(x, shape, block, element_bytes, stable)`."""
    form = (w.size.tuple(i.shape), w.size.tuple(i.block), w.size(i.element_bytes))
    w.call("tma_descriptor", i.tensor, *form, str(i.stable), into=i.name)


def _triton_launch(w: Writer, i: h.TritonLaunch) -> None:
    """`rt.triton(kernel, grids, arguments)`."""
    grids = names(tuple(map(w.size.tuple, i.grid)))
    w.call("triton", string(i.kernel), grids, w.table((*i.args, *i.constants)))


def _copy(w: Writer, i: h.Copy) -> None:
    """`rt.copy(destination, source, non_blocking)`."""
    w.call("copy", i.destination, i.source, str(i.non_blocking))


def _read_scalar(w: Writer, i: h.ReadScalar) -> None:
    """`u0 = rt.read_scalar(x)`."""
    w.call("read_scalar", i.tensor, into=i.symbol.name)


def _collective_start(w: Writer, i: h.CollectiveStart) -> None:
    """`b = rt.extern('_c10d_functional.all_reduce.default', ...)`."""
    w.call("extern", string(i.target), w.values(i.args), "{}", into=_targets(i.results))


def _collective_finish(w: Writer, i: h.CollectiveFinish) -> None:
    """`rt.wait_collective(b)`."""
    w.call("wait_collective", i.tensor)


# Structure ------------------------------------------------------------------------------------


def _with_device(w: Writer, i: h.WithDevice) -> None:
    """`with rt.device_guard('cuda:1'):`."""
    w.block(f"with {w.rt}.device_guard({string(i.device)}):", i.body)


def _profile_range(w: Writer, i: h.ProfileRange) -> None:
    """`with rt.profile_range('label'):`."""
    w.block(f"with {w.rt}.profile_range({string(i.label)}):", i.body)


def _branch(w: Writer, i: h.Branch) -> None:
    """`if` and `else`, each ending with the assignment of the results."""
    condition = i.condition.name if isinstance(i.condition, h.Ref) else w.size(i.condition)
    w.block(f"if {condition}:", i.then, *_assigned(i.results, i.then_values))
    w.block("else:", i.otherwise, *_assigned(i.results, i.otherwise_values))


def _loop(w: Writer, i: h.Loop) -> None:
    """`while True`, with a `break` if the condition is false."""
    for line in _assigned(i.carried, i.initial):
        w.out.add(line)
    rows = f"{w.rt}_rows"
    if i.stacked:
        w.out.add(f"{rows} = []")
    w.block("while True:", i.condition, f"if not {i.test}:", "    break")
    with w.out.indent():
        w.body(i.body)
        for line in _assigned(i.carried, i.next):
            w.out.add(line)
        if i.stacked:
            w.out.add(f"{rows}.append({names(i.carried)})")
    if i.stacked:
        w.call("stack", f"{rows} or [{names(i.carried)}]", into=names(i.results))
        return
    for line in _assigned(i.results, i.carried):
        w.out.add(line)


def _repeat(w: Writer, i: h.Repeat) -> None:
    """`for s0 in range(count)`."""
    for line in _assigned(i.carried, i.initial):
        w.out.add(line)
    carry = _assigned(i.carried, i.next)
    w.block(f"for {i.symbol.name} in range({w.size(i.count)}):", i.body, *carry)
    for line in _assigned(i.results, i.carried):
        w.out.add(line)


def _call_program(w: Writer, i: h.CallProgram | h.CallPartition) -> None:
    """`(b,) = rt.call_program('sub', (x,))`."""
    method = "call_program" if isinstance(i, h.CallProgram) else "call_partition"
    into = names(i.results) if i.results else ""
    w.call(method, string(i.program), w.values(i.args), into=into)


def _comment(w: Writer, i: h.Comment) -> None:
    """A comment line for every line of the text."""
    for line in i.text.splitlines():
        w.out.add(f"# {line}")


def _return(w: Writer, i: h.Return) -> None:
    """`return (b, None)`."""
    w.out.add(f"return {w.values(i.values)}")


WRITERS: Mapping[type, Callable[[Writer, Any], None]] = MappingProxyType({
    h.BindSize: _bind_size, h.BindParameter: _bind_parameter, h.DefineSymbol: _define_symbol,
    h.BindConstant: _bind_constant, h.Conform: _conform, h.Separate: _separate,
    h.AssertNoNan: _assert_no_nan, h.AssertTrue: _assert_true, h.Allocate: _allocate,
    h.AllocatePool: _allocate_pool, h.AllocateFromPool: _allocate_from_pool,
    h.Free: _free, h.Reuse: _reuse, h.View: _view,
    h.Launch: _launch, h.ExternCall: _extern_call, h.TmaDescriptor: _tma_descriptor,
    h.TritonLaunch: _triton_launch, h.Copy: _copy, h.ReadScalar: _read_scalar,
    h.CollectiveStart: _collective_start, h.CollectiveFinish: _collective_finish,
    h.WithDevice: _with_device,
    h.ProfileRange: _profile_range, h.Branch: _branch, h.Loop: _loop,
    h.Repeat: _repeat,
    h.CallProgram: _call_program, h.CallPartition: _call_program, h.Comment: _comment,
    h.Return: _return,
})  # fmt: skip
"""The emitter function of each instruction class."""


def runtime_name(program: h.HostProgram) -> str:
    """Return a name for the runtime in a program's text that the program does not use."""
    used = {p.name for p in program.parameters}
    for i in walk(program.instructions):
        used.update(binds(i))
        if isinstance(i, h.Loop | h.Repeat):
            used.update(i.carried)
        if isinstance(i, h.Repeat):
            used.add(i.symbol.name)
    name = "rt"
    while name in used or f"{name}_rows" in used:
        name += "_"
    return name


def kernels_used(program: h.HostProgram) -> tuple[str, ...]:
    """Return the kernels that a program and its subprograms launch, by first use."""
    every = (i for p in programs(program) for i in walk(p.instructions))
    return tuple(dict.fromkeys(i.kernel for i in every if isinstance(i, h.Launch)))


def constants_used(program: h.HostProgram) -> tuple[str, ...]:
    """Return the keys of the constants that a program and its subprograms bind, by first use."""
    every = (i for p in programs(program) for i in walk(p.instructions))
    return tuple(dict.fromkeys(i.key for i in every if isinstance(i, h.BindConstant)))


def _assigned(targets: tuple[str, ...], values: tuple[str, ...]) -> tuple[str, ...]:
    return (f"{names(targets)} = {names(values)}",) if targets else ()


def _targets(results: tuple[str | tuple[str, ...] | Sym | None, ...]) -> str:
    """Format the assignment target of an op's results."""
    if all(r is None for r in results):
        return ""
    parts = tuple(map(_target, results))
    return parts[0] if len(parts) == 1 else names(parts)


def _target(result: str | tuple[str, ...] | Sym | None) -> str:
    match result:
        case str():
            return result
        case tuple():
            return names(result)
        case Sym():
            return result.name
    return "_"


def _non_finite(constant: object) -> bool:
    return isinstance(constant, float) and (
        constant != constant or constant in (float("inf"), -float("inf"))
    )
