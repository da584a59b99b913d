"""One method an instruction. `BodyWriter.WRITERS` lists them; a test holds it complete."""

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from attrs import field, frozen

from gyrator_ir.expr import Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import binds, bound, free_names, freed, walk
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_wrapper_python.text import Lines, SizePrinter, condition, names, string

_OWN = re.compile(r"rt|p\d*|(then|otherwise|test|body)\d+")


@frozen
class BodyWriter:
    """Writes a sequence of instructions on the recorder called `recorder`.

    `tail` ends the names of this text's own, so that they are no names of the program.
    """

    out: Lines
    recorder: str
    depth: int = field(default=0)
    tail: str = ""
    size: SizePrinter = field(init=False)

    @size.default
    def _printer(self) -> SizePrinter:
        return SizePrinter(self.recorder)

    def body(self, instructions: Iterable[h.Instruction]) -> None:
        """Write the instructions in order."""
        for instruction in instructions:
            self.WRITERS[type(instruction)](self, instruction)

    def call(self, method: str, *args: str, into: str = "") -> None:
        """Write `into = recorder.method(args)`."""
        target = f"{into} = " if into else ""
        self.out.add(f"{target}{self.recorder}.{method}({', '.join(args)})")

    def value(self, value: h.Value) -> str:
        """Write an operand."""
        match value:
            case h.Ref(name):
                return name
            case Literal(constant):
                return f"float({str(constant)!r})" if _odd(constant) else repr(constant)
            case TypeArg(kind, text):
                return f"rt{self.tail}.{kind}({string(text)})"
            case h.ListValue(items):
                return f"[{', '.join(self.value(i) for i in items)}]"
        return self.size(value)

    # Inputs and symbols

    def bind_size(self, i: h.BindSize) -> None:
        """`s0 = p.size_of(x, 0)`."""
        method = "stride_of" if i.stride else "size_of"
        self.call(method, i.tensor, str(i.dim), into=i.symbol.name)

    def bind_parameter(self, i: h.BindParameter) -> None:
        """`s0 = p.integer(arg)`."""
        self.call("integer", i.name, into=i.symbol.name)

    def define_symbol(self, i: h.DefineSymbol) -> None:
        """`s3 = p.integer(2*s0)`."""
        self.call("integer", self.size(i.expr), into=i.symbol.name)

    def bind_constant(self, i: h.BindConstant) -> None:
        """`w = p.constant('w')`."""
        self.call("constant", string(i.key), into=i.name)

    # Checks

    def conform(self, i: h.Conform) -> None:
        """`p.conform(x, sizes, strides, dtype, device, mend, name, what)`."""
        self.call(
            "conform",
            i.tensor,
            self.size.tuple(i.shape),
            self.size.tuple(i.strides),
            string(i.dtype),
            string(i.device),
            string(i.mend),
            string(i.tensor),
            string(i.what),
        )

    def separate(self, i: h.Separate) -> None:
        """`p.separate((b,), (x, y))`."""
        self.call("separate", names(i.tensors), names(i.others))

    def assert_no_nan(self, i: h.AssertNoNan) -> None:
        """`p.assert_no_nan(x, what)`."""
        self.call("assert_no_nan", i.tensor, string(i.what))

    def assert_true(self, i: h.AssertTrue) -> None:
        """`p.assert_true(condition, (s0,), message)`."""
        self.call("assert_true", condition(i.condition), string(i.message))

    # Memory

    def allocate(self, i: h.Allocate) -> None:
        """`b = p.allocate(shape, strides, dtype, device)`."""
        where = (string(i.dtype), string(i.device))
        self.call(
            "allocate",
            self.size.tuple(i.shape),
            self.size.tuple(i.strides),
            *where,
            into=i.name,
        )

    def allocate_pool(self, i: h.AllocatePool) -> None:
        """`pool = p.pool(bytes, device)`."""
        self.call("pool", self.size(i.bytes), string(i.device), into=i.name)

    def allocate_from_pool(self, i: h.AllocateFromPool) -> None:
        """`b = p.from_pool(pool, offset, shape, strides, dtype)`."""
        at = (i.pool, self.size(i.offset), self.size.tuple(i.shape), self.size.tuple(i.strides))
        self.call("from_pool", *at, string(i.dtype), into=i.name)

    def free(self, i: h.Free) -> None:
        """`p.free(b)`."""
        self.call("free", i.name)

    def reuse(self, i: h.Reuse) -> None:
        """`b = p.reuse(a, shape, strides, dtype)`."""
        shape = (self.size.tuple(i.shape), self.size.tuple(i.strides), string(i.dtype))
        self.call("reuse", i.source, *shape, into=i.name)

    def view(self, i: h.View) -> None:
        """`v = p.view(x, shape, strides, offset, dtype)`."""
        shape = (
            self.size.tuple(i.shape),
            self.size.tuple(i.strides),
            self.size(i.offset),
            string(i.dtype),
        )
        self.call("view", i.source, *shape, into=i.name)

    # Work

    def launch(self, i: h.Launch) -> None:
        """`p.launch('k0', (x, b), (s0,))`."""
        self.call("launch", string(i.kernel), names(i.tensors), self.size.tuple(i.sizes))

    def extern_call(self, i: h.ExternCall) -> None:
        """`b = p.extern('aten.mm.default', (x, y), {})`, or with `out`, `p.extern('aten.mm.out',
        (x, y), {'out': b})`."""
        keywords = {k: self.value(v) for k, v in i.kwargs}
        if i.out is not None:
            outs = zip(i.out_names, i.results, strict=True)
            keywords |= {k: r for k, r in outs if isinstance(r, str)}
        kwargs = "".join(f"{string(k)}: {v}, " for k, v in keywords.items())
        target = string(i.target if i.out is None else i.out)
        args = "".join(f"{self.value(a)}, " for a in i.args)
        layout = "" if i.out is not None or not i.results else _results(i.results)
        pattern = f", results={layout}" if layout else ""
        into = _targets(i.results) if layout else ""
        self.call("extern", f"{target}, ({args}), {{{kwargs}}}{pattern}", into=into)

    def tma_descriptor(self, i: h.TmaDescriptor) -> None:
        """`d = p.tma_descriptor(x, shape, block, element_bytes, stable)`."""
        block = (
            self.size.tuple(i.shape),
            self.size.tuple(i.block),
            self.size(i.element_bytes),
            str(i.stable),
        )
        self.call("tma_descriptor", i.tensor, *block, into=i.name)

    def triton_launch(self, i: h.TritonLaunch) -> None:
        """`p.triton(kernel, grids, args, constants)`."""
        grid = "".join(f"{self.size.tuple(g)}, " for g in i.grid)
        args = "".join(f"{string(k)}: {self.value(v)}, " for k, v in i.args)
        constants = "".join(f"{string(k)}: {self.value(v)}, " for k, v in i.constants)
        table = (f"({grid})", f"{{{args}}}", f"{{{constants}}}")
        self.call("triton", string(i.kernel), *table)

    def copy(self, i: h.Copy) -> None:
        """`p.copy(destination, source, non_blocking)`."""
        self.call("copy", i.destination, i.source, str(i.non_blocking))

    def read_scalar(self, i: h.ReadScalar) -> None:
        """`u0 = p.read_scalar(x)`."""
        self.call("read_scalar", i.tensor, into=i.symbol.name)

    def collective_start(self, i: h.CollectiveStart) -> None:
        """`b = p.extern('_c10d_functional.all_reduce.default', ...)`."""
        args = "".join(f"{self.value(a)}, " for a in i.args)
        pattern = _results(i.results)
        into = _targets(i.results)
        self.call("extern", f"{string(i.target)}, ({args}), {{}}, results={pattern}", into=into)

    def collective_finish(self, i: h.CollectiveFinish) -> None:
        """`p.wait_collective(b)`."""
        self.call("wait_collective", i.tensor)

    # Structure

    def with_device(self, i: h.WithDevice) -> None:
        """A nested recording, run with the device current."""
        self._nested("with_device", string(i.device), i.body)

    def profile_range(self, i: h.ProfileRange) -> None:
        """A nested recording, run in a range of the profiler."""
        self._nested("profile_range", string(i.label), i.body)

    def branch(self, i: h.Branch) -> None:
        """Two nested recordings, of which each run takes one."""
        captured = tuple(dict.fromkeys(free_names(i.then) + free_names(i.otherwise)))
        captured = _merge(captured, i.then_values + i.otherwise_values, i.then + i.otherwise)
        then = self._function("then", captured, i.then, i.then_values)
        otherwise = self._function("otherwise", captured, i.otherwise, i.otherwise_values)
        if isinstance(i.condition, h.Ref):
            condition_text = i.condition.name
        else:
            condition_text = f"({condition(i.condition)})"
        args = (condition_text, then, otherwise, names(captured))
        self.call("branch", *args, into=names(i.results) if i.results else "")

    def loop(self, i: h.Loop) -> None:
        """Two nested recordings, condition and body, repeated."""
        inner = free_names(i.condition) + free_names(i.body)
        captured = tuple(n for n in dict.fromkeys(inner) if n not in i.carried)
        captured = _merge(captured, (i.test, *i.next), i.condition + i.body, i.carried)
        params = i.carried + captured
        test = self._function("test", params, i.condition, (i.test,))
        body = self._function("body", params, i.body, i.next)
        args = (test, body, names(i.initial), names(captured))
        self.call("loop", *args, into=names(i.results) if i.results else "")

    def call_program(self, i: h.CallProgram) -> None:
        """`b, = p.call_program('sub', (x,))`."""
        self._call_program("call_program", i)

    def call_partition(self, i: h.CallPartition) -> None:
        """`b, = p.call_partition('part0', (x,))`."""
        self._call_program("call_partition", i)

    def comment(self, i: h.Comment) -> None:
        """A comment line for every line of the text."""
        for line in i.text.splitlines():
            self.out.add(f"# {line}")

    def returns(self, i: h.Return) -> None:
        """`return p.finish((b, None))`."""
        values = "".join(f"{self.value(v)}, " for v in i.values)
        self.out.add(f"return {self.recorder}.finish(({values}))")

    def _call_program(self, method: str, i: h.CallProgram | h.CallPartition) -> None:
        args = "".join(f"{self.value(a)}, " for a in i.args)
        into = names(i.results) if i.results else ""
        self.call(method, string(i.program), f"({args})", into=into)

    def _nested(self, method: str, subject: str, body: tuple[h.Instruction, ...]) -> None:
        captured = free_names(body)
        gone = freed(body)
        kept = tuple(n for n in bound(body) if n not in gone)
        function = self._function("body", captured, body, kept)
        into = names(kept) if kept else ""
        self.call(method, subject, function, names(captured), into=into)
        for name in captured:
            if name in gone:
                self.call("free", name)

    def _function(
        self,
        purpose: str,
        parameters: tuple[str, ...],
        body: tuple[h.Instruction, ...],
        values: tuple[str, ...],
    ) -> str:
        recorder = f"p{self.depth + 1}{self.tail}"
        function = f"{purpose}{self.depth + 1}{self.tail}"
        self.out.add(f"def {function}({', '.join((recorder, *parameters))}):")
        with self.out.indent():
            BodyWriter(self.out, recorder, self.depth + 1, self.tail).body(body)
            self.out.add(f"return {recorder}.finish({names(values)})")
        return function

    WRITERS: ClassVar[Mapping[type, Callable[["BodyWriter", Any], None]]] = MappingProxyType({
        h.BindSize: bind_size, h.BindParameter: bind_parameter, h.DefineSymbol: define_symbol,
        h.BindConstant: bind_constant, h.Conform: conform, h.Separate: separate,
        h.AssertNoNan: assert_no_nan, h.AssertTrue: assert_true, h.Allocate: allocate,
        h.AllocatePool: allocate_pool, h.AllocateFromPool: allocate_from_pool, h.Free: free,
        h.Reuse: reuse, h.View: view, h.Launch: launch, h.ExternCall: extern_call,
        h.TmaDescriptor: tma_descriptor, h.TritonLaunch: triton_launch, h.Copy: copy,
        h.ReadScalar: read_scalar, h.CollectiveStart: collective_start,
        h.CollectiveFinish: collective_finish, h.WithDevice: with_device,
        h.ProfileRange: profile_range, h.Branch: branch, h.Loop: loop,
        h.CallProgram: call_program, h.CallPartition: call_partition, h.Comment: comment,
        h.Return: returns,
    })  # fmt: skip


def tail_for(program: h.HostProgram) -> str:
    """Return what must end the names of a text's own, such as `rt` and `p1`, to be new ones."""
    used = {p.name for p in program.parameters}
    for i in walk(program.instructions):
        used.update(binds(i))
        if isinstance(i, h.Loop):
            used.update(i.carried)
    tail = ""
    while any(_OWN.fullmatch(name.removesuffix(tail)) for name in used if name.endswith(tail)):
        tail += "_"
    return tail


def kernels_used(program: h.HostProgram) -> tuple[str, ...]:
    """Return the kernels that a program and its subprograms launch, by first use."""
    launches = (
        i.kernel
        for p in _programs(program)
        for i in walk(p.instructions)
        if isinstance(i, h.Launch)
    )
    return tuple(dict.fromkeys(launches))


def constants_used(program: h.HostProgram) -> tuple[str, ...]:
    """Return the keys of the constants that a program and its subprograms bind, by first use."""
    binds = (
        i.key
        for p in _programs(program)
        for i in walk(p.instructions)
        if isinstance(i, h.BindConstant)
    )
    return tuple(dict.fromkeys(binds))


def _programs(program: h.HostProgram) -> tuple[h.HostProgram, ...]:
    return (*(p for s in program.subprograms for p in _programs(s)), program)


def _merge(
    captured: tuple[str, ...],
    values: tuple[str, ...],
    body: tuple[h.Instruction, ...],
    known: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Add to `captured` those of `values` that the body does not bind."""
    inside = {*bound(body), *known, *captured}
    return captured + tuple(dict.fromkeys(v for v in values if v not in inside))


def _targets(results: tuple[str | tuple[str, ...] | Sym | None, ...]) -> str:
    flat: list[str] = []
    for r in results:
        match r:
            case str():
                flat.append(r)
            case tuple():
                flat.extend(r)
            case Sym():
                flat.append(r.name)
    return names(tuple(flat)) if flat else ""


def _results(results: tuple[str | tuple[str, ...] | Sym | None, ...]) -> str:
    """Write how returns map to names: 1 for a tensor, `int` for an integer, n in a list for n."""
    parts = []
    for r in results:
        match r:
            case str():
                parts.append("'tensor'")
            case tuple():
                parts.append(str(len(r)))
            case Sym():
                parts.append("'size'")
            case None:
                parts.append("None")
    return f"({''.join(f'{p}, ' for p in parts)})"


def _odd(constant: object) -> bool:
    return isinstance(constant, float) and (
        constant != constant or constant in (float("inf"), -float("inf"))
    )
