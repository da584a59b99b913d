"""Emission of instructions as lines of Python."""

import math
from collections.abc import Iterable
from typing import assert_never

from attrs import field

from gyrator_ir.define import frozen
from gyrator_ir.expr import Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import binds, walk
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
            self.write(instruction)

    def block(self, head: str, instructions: Iterable[h.Instruction], *last: str) -> None:
        """Emit a block: a head line, and below it instructions and further lines."""
        self.out.add(head)
        with self.out.indent():
            before = self.out.count
            self.body(instructions)
            self.out.add(*last)
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
                wraps = isinstance(constant, float) and not math.isfinite(constant)
                return f"float({str(constant)!r})" if wraps else repr(constant)
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

    # Instructions -----------------------------------------------------------------------------

    def write(self, i: h.Instruction) -> None:
        """Emit an instruction."""
        add, call, size = self.out.add, self.call, self.size
        match i:
            case h.BindSize():
                method = "stride" if i.stride else "size"
                add(f"{i.symbol.name} = {i.tensor}.{method}({i.dim})")
            case h.BindParameter():
                add(f"{i.symbol.name} = {i.name}")
            case h.DefineSymbol():
                add(f"{i.symbol.name} = {size(i.expr)}")
            case h.BindConstant():
                call("constant", string(i.key), into=i.name)
            case h.Conform():
                more = map(string, (i.device, i.mend, i.tensor, i.what))
                call("conform", i.tensor, *self.layout(i), *more, into=i.tensor)
            case h.Separate():
                tensors = names(tuple(dict.fromkeys(i.tensors)))
                call("separate", tensors, names(i.others), into=tensors)
            case h.AssertNoNan():
                call("assert_no_nan", i.tensor, string(i.what))
            case h.AssertTrue():
                call("assert_true", size(i.condition), string(i.message), string(i.error))
            case h.Allocate():
                call("allocate", *self.layout(i), string(i.device), into=i.name)
            case h.AllocatePool():
                call("pool", size(i.bytes), string(i.device), into=i.name)
            case h.AllocateFromPool():
                call("from_pool", i.pool, size(i.offset), *self.layout(i), into=i.name)
            case h.Free():
                add(f"del {i.name}")
            case h.Reuse():
                call("reuse", i.source, *self.layout(i), into=i.name)
                add(f"del {i.source}")
            case h.View():
                call("view", i.source, *self.layout(i), size(i.offset), into=i.name)
            case h.Launch():
                call("launch", string(i.kernel), names(i.tensors), size.tuple(i.sizes))
            case h.ExternCall() | h.CollectiveStart():
                self._extern(i)
            case h.TmaDescriptor():
                form = (size.tuple(i.shape), size.tuple(i.block), size(i.element_bytes))
                call("tma_descriptor", i.tensor, *form, str(i.stable), into=i.name)
            case h.TritonLaunch():
                grids = names(tuple(map(size.tuple, i.grid)))
                call("triton", string(i.kernel), grids, self.table((*i.args, *i.constants)))
            case h.Copy():
                call("copy", i.destination, i.source, str(i.non_blocking))
            case h.ReadScalar():
                call("read_scalar", i.tensor, into=i.symbol.name)
            case h.CollectiveFinish():
                call("wait_collective", i.tensor)
            case h.WithDevice():
                self.block(f"with {self.rt}.device_guard({string(i.device)}):", i.body)
            case h.ProfileRange():
                self.block(f"with {self.rt}.profile_range({string(i.label)}):", i.body)
            case h.Branch():
                self._branch(i)
            case h.Loop():
                self._loop(i)
            case h.Repeat():
                self._repeat(i)
            case h.CallProgram() | h.CallPartition():
                method = "call_program" if isinstance(i, h.CallProgram) else "call_partition"
                into = names(i.results) if i.results else ""
                call(method, string(i.program), self.values(i.args), into=into)
            case h.Comment():
                for line in i.text.splitlines():
                    add(f"# {line}")
            case h.Return():
                add(f"return {self.values(i.values)}")
            case _:
                assert_never(i)

    def _extern(self, i: h.ExternCall | h.CollectiveStart) -> None:
        """Emit `b = rt.extern('aten.mm.default', (x, y), {})`, or for an op that writes to its
        results, `rt.extern('aten.mm.out', (x, y), {'out': b})`."""
        target, into, kwargs = i.target, _targets(i.results), "{}"
        if isinstance(i, h.ExternCall):
            outs = zip(i.out_names, i.results, strict=True) if i.out is not None else ()
            kwargs = self.table(i.kwargs, [(k, r) for k, r in outs if isinstance(r, str)])
            if i.out is not None:
                target, into = i.out, ""
        self.call("extern", string(target), self.values(i.args), kwargs, into=into)

    def _branch(self, i: h.Branch) -> None:
        condition = i.condition.name if isinstance(i.condition, h.Ref) else self.size(i.condition)
        self.block(f"if {condition}:", i.then, *_assigned(i.results, i.then_values))
        self.block("else:", i.otherwise, *_assigned(i.results, i.otherwise_values))

    def _loop(self, i: h.Loop) -> None:
        """Emit `while True`, with a `break` if the condition is false."""
        rows = f"{self.rt}_rows"
        self.out.add(*_assigned(i.carried, i.initial))
        if i.stacked:
            self.out.add(f"{rows} = []")
        self.block("while True:", i.condition, f"if not {i.test}:", "    break")
        with self.out.indent():
            self.body(i.body)
            self.out.add(*_assigned(i.carried, i.next))
            if i.stacked:
                self.out.add(f"{rows}.append({names(i.carried)})")
        if i.stacked:
            self.call("stack", f"{rows} or [{names(i.carried)}]", into=names(i.results))
        else:
            self.out.add(*_assigned(i.results, i.carried))

    def _repeat(self, i: h.Repeat) -> None:
        """Emit `for s0 in range(count)`."""
        self.out.add(*_assigned(i.carried, i.initial))
        carry = _assigned(i.carried, i.next)
        self.block(f"for {i.symbol.name} in range({self.size(i.count)}):", i.body, *carry)
        self.out.add(*_assigned(i.results, i.carried))


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
