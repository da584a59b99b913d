"""The invariants of host programs, checked at every stage boundary.

GY-HOST-001  every name is an identifier and bound once
GY-HOST-002  a name is bound before it is used, and not used after `free` or `reuse`; names bound in
             the body of a branch or a loop are local to it
GY-HOST-003  a symbol is bound once, before it is used, and is a size (s.. or u..)
GY-HOST-004  a launch refers to an existing kernel, and passes one tensor per parameter and one
             value per size
GY-HOST-005  `return` is the last instruction of every program, and occurs nowhere else
GY-HOST-006  branches and loops have as many values as results
GY-HOST-007  a call refers to an existing subprogram, passes one value per parameter, and has as
             many results as the subprogram returns
GY-HOST-008  a layout has as many strides as sizes
GY-HOST-009  the results of an out-variant are tensors, each with a keyword
GY-HOST-010  a name denotes the kind of object that its context requires: a tensor, pool or size
GY-HOST-011  kernels have unique names and are valid by themselves (`GY-KERNEL-...`)
GY-HOST-012  referenced constants and user kernels exist
GY-HOST-013  the body of a branch or a loop frees only names that it bound
GY-HOST-014  a tensor has the element type of the kernel's parameter
GY-HOST-015  a reused storage is at least as large as the new tensor
GY-HOST-016  parameters and instructions are of the classes of this level
GY-HOST-017  a program that can be captured in a graph has only tensor parameters, and does not wait
             for the host or another process; a partition is such a program
GY-HOST-018  a launch that may start before the previous one ends follows a launch, and only
             instructions that queue no work are between them; its kernel may overlap launches

Bodies of `with_device` and `profile` bind names in the enclosing sequence.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn, assert_never

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import VerifyError
from gyrator_ir.expr import Cond, Expr, Sym, SymKind
from gyrator_ir.expr import Const as ConstExpr
from gyrator_ir.host import nodes as h
from gyrator_ir.host.print import show_instruction
from gyrator_ir.host.walk import walk
from gyrator_ir.kernel.nodes import KernelGroup, Launchable
from gyrator_ir.kernel.verify import verify_kernel
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_ir.types import DType

__all__ = ["verify"]

_Structure = (
    h.WithDevice | h.ProfileRange | h.Branch | h.Loop | h.Repeat | h.CallProgram | h.CallPartition
    | h.Comment | h.Return
)  # fmt: skip
"""Instructions that contain or call others, or end a program."""

KINDS = ("tensor", "size", "opaque")
"""The kinds of parameters."""


def verify(program: h.HostProgram) -> h.HostProgram:
    """Return `program` unchanged, or raise `VerifyError` for the first violation."""
    for kernel in program.kernels:
        verify_kernel(kernel, program.origins)
    _Program(program).run()
    for sub in program.subprograms:
        verify(sub)
    return program


@frozen
class _Bound:
    """The object that a name denotes, with the `dtype` and `bytes` of a tensor if known."""

    kind: str
    dtype: DType | None = None
    bytes: int | None = None


_TENSOR = _Bound("tensor")


class _Scope:
    """The names and symbols bound so far, as the instructions of a program are visited in order."""

    def __init__(self) -> None:
        self.ever: set[str] = set()
        """Every name bound so far, live or not."""
        self.live: dict[str, _Bound] = {}
        self.symbols: set[Sym] = set()
        self.freeable: set[str] | None = None
        """Names that may be freed here; None for all."""
        self.at: h.Instruction | None = None

    def fail(self, number: int, message: str) -> NoReturn:
        """Raise the error of invariant `number` at the current instruction."""
        where = "" if self.at is None else show_instruction(self.at)[0]
        raise VerifyError.of(f"GY-HOST-{number:03}", message, where)

    def bind(self, name: str, bound: _Bound) -> None:
        """Bind a new name."""
        if name in self.ever:
            self.fail(1, f"name {name!r} is bound twice")
        if type(name) is not str or not name.isidentifier():
            self.fail(1, f"{name!r} is not an identifier")
        self.ever.add(name)
        self.live[name] = bound
        if self.freeable is not None:
            self.freeable.add(name)

    def bind_symbol(self, symbol: Sym) -> None:
        """Bind a new symbol."""
        if symbol.kind not in (SymKind.SIZE, SymKind.UNBACKED):
            self.fail(3, f"symbol {symbol.name!r} is not a size (s.. or u..)")
        if symbol in self.symbols:
            self.fail(3, f"symbol {symbol.name!r} is bound twice")
        self.symbols.add(symbol)

    def use(self, name: str, *kinds: str) -> _Bound:
        """Return the object that a live name denotes, checking that it is of one of `kinds`, if any
        are passed."""
        bound = self.live.get(name)
        if bound is None:
            self.fail(2, f"{name!r} is {'no longer bound' if name in self.ever else 'not bound'}")
        if kinds and bound.kind not in kinds:
            self.fail(10, f"expected a {' or '.join(kinds)}, but {name!r} is a {bound.kind}")
        return bound

    def exprs(self, exprs: Iterable[Expr | Cond]) -> None:
        """Check that the symbols of expressions are bound."""
        for e in exprs:
            if not isinstance(e, Expr | Cond):
                self.fail(16, f"{e!r} is not an expression")
            if not e.free_symbols <= self.symbols:
                names = sorted(s.name for s in e.free_symbols - self.symbols)
                self.fail(3, f"symbol {names[0]!r} is not bound")

    def value(self, value: h.Value) -> None:
        """Check an operand."""
        match value:
            case h.Ref(name):
                self.use(name)
            case Expr():
                self.exprs((value,))
            case h.ListValue(items):
                self.values(items)
            case Literal() | TypeArg():
                pass
            case _:
                self.fail(16, f"{value!r} is not an operand")

    def layout(self, shape: Sequence[Expr], strides: Sequence[Expr]) -> None:
        """Check sizes and strides."""
        if len(shape) != len(strides):
            self.fail(8, f"{len(shape)} sizes and {len(strides)} strides")
        self.exprs(shape)
        self.exprs(strides)

    def tensors(self, *names: str) -> None:
        """Check that live names denote tensors."""
        for name in names:
            self.use(name, "tensor")

    def values(self, values: Iterable[h.Value]) -> None:
        """Check operands."""
        for value in values:
            self.value(value)

    def allocated(self, i: h.Allocate | h.AllocateFromPool) -> None:
        """Check the layout of a new tensor, and bind it."""
        self.layout(i.shape, i.strides)
        self.bind(i.name, _Bound("tensor", i.dtype, _bytes(i.dtype, i.shape, i.strides)))

    def drop(self, name: str) -> None:
        """Unbind a live name."""
        if self.freeable is not None and name not in self.freeable:
            self.fail(13, f"{name!r} was bound outside of this body")
        del self.live[name]

    def results(self, results: Iterable[str | tuple[str, ...] | Sym | None]) -> None:
        """Bind the results of a call."""
        for result in results:
            match result:
                case str():
                    self.bind(result, _TENSOR)
                case tuple():
                    self.results(result)
                case Sym():
                    self.bind_symbol(result)
                case None:
                    pass
                case _:
                    self.fail(16, f"{result!r} is not a result")


class _Program(_Scope):
    """The checks of a program."""

    def __init__(self, program: h.HostProgram) -> None:
        super().__init__()
        self.program = program
        self.kernels = {k.name: k for k in program.kernels}
        self.programs = {p.name: p for p in program.subprograms}
        self.constants = {c.key: c for c in program.constants}
        self.user_kernels = {k.key for k in program.user_kernels}

    def run(self) -> None:
        """Check the whole program."""
        program = self.program
        if len(self.kernels) != len(program.kernels):
            self.fail(11, "two kernels have the same name")
        if len(self.programs) != len(program.subprograms):
            self.fail(7, "two subprograms have the same name")
        for p in program.parameters:
            if type(p) is not h.Parameter or p.kind not in KINDS:
                self.fail(16, f"{p!r} is not a parameter of kind {', '.join(KINDS)}")
            self.bind(p.name, _Bound(p.kind))
        body = program.instructions
        if not body or type(body[-1]) is not h.Return:
            self.fail(5, f"program {program.name!r} does not end with `return`")
        self.sequence(body[:-1])
        self.at = body[-1]
        for value in body[-1].values:
            self.value(value)
        self.at = None
        if program.capture is not None:
            self.captured(program.capture)

    def captured(self, capture: h.Capture) -> None:
        """Check that the program can be captured in a graph."""
        parameters = self.program.parameters
        for p in parameters:
            if p.kind != "tensor":
                self.fail(17, f"a graph cannot have a {p.kind} parameter ({p.name!r})")
        if not all(0 <= index < len(parameters) for index in capture.mutated):
            indices = list(capture.mutated)
            self.fail(17, f"{indices} are not indices of the {len(parameters)} parameters")
        for i in walk(self.program.instructions):
            self.at = i
            default = _UNCAPTURED.get(type(i), "")
            if reason := i.uncaptured if isinstance(i, h.ExternCall) else default:
                self.fail(17, f"this cannot be captured in a graph: {reason}")

    def sequence(self, instructions: Sequence[h.Instruction]) -> None:
        """Check instructions in order."""
        queued: h.Instruction | None = None
        for i in instructions:
            self.at = i
            if type(i) not in h.INSTRUCTIONS:
                self.at = None
                self.fail(16, f"{i!r} is not an instruction")
            self.instruction(i)
            if isinstance(i, h.Launch) and i.overlap and not isinstance(queued, h.Launch):
                self.fail(18, "no launch precedes the launch")
            queued = queued if isinstance(i, h.ASIDE) else i

    def instruction(self, i: h.Instruction) -> None:
        """Check an instruction, and bind what it defines."""
        match i:
            case h.BindSize() | h.ReadScalar():
                self.tensors(i.tensor)
                self.bind_symbol(i.symbol)
            case h.BindParameter():
                self.use(i.name, "size")
                self.bind_symbol(i.symbol)
            case h.DefineSymbol():
                self.exprs((i.expr,))
                self.bind_symbol(i.symbol)
            case h.BindConstant():
                constant = self.constants.get(i.key)
                if constant is None:
                    self.fail(12, f"there is no constant {i.key!r}")
                self.bind(i.name, _Bound("tensor", constant.buffer.dtype))
            case h.Conform():
                self.tensors(i.tensor)
                self.layout(i.shape, i.strides)
            case h.Separate():
                self.tensors(*i.tensors, *i.others)
            case h.AssertNoNan() | h.CollectiveFinish():
                self.tensors(i.tensor)
            case h.AssertTrue():
                self.exprs((i.condition,))
            case h.Allocate():
                self.allocated(i)
            case h.AllocatePool():
                self.exprs((i.bytes,))
                self.bind(i.name, _Bound("pool"))
            case h.AllocateFromPool():
                self.use(i.pool, "pool")
                self.exprs((i.offset,))
                self.allocated(i)
            case h.Free():
                self.use(i.name)
                self.drop(i.name)
            case h.Reuse():
                self._reuse(i)
            case h.View():
                self.tensors(i.source)
                self.layout(i.shape, i.strides)
                self.exprs((i.offset,))
                self.bind(i.name, _Bound("tensor", i.dtype))
            case h.Launch():
                self._launch(i)
            case h.ExternCall():
                self._extern(i)
            case h.TmaDescriptor():
                self.tensors(i.tensor)
                self.exprs((*i.shape, *i.block, i.element_bytes))
                self.bind(i.name, _Bound("descriptor"))
            case h.TritonLaunch():
                if i.kernel not in self.user_kernels:
                    self.fail(12, f"there is no user kernel {i.kernel!r}")
                self.exprs(size for sizes in i.grid for size in sizes)
                self.values(value for _, value in (*i.args, *i.constants))
            case h.Copy():
                self.tensors(i.destination, i.source)
            case h.CollectiveStart():
                self.values(i.args)
                self.results(i.results)
            case _:
                self.structure(i)

    def structure(self, i: _Structure) -> None:
        """Check an instruction that contains others, or ends a program."""
        match i:
            case h.WithDevice() | h.ProfileRange():
                self.sequence(i.body)
                self.at = i
            case h.Branch():
                self._branch(i)
            case h.Loop() | h.Repeat():
                self._loop(i)
            case h.CallProgram() | h.CallPartition():
                self._call(i)
            case h.Comment():
                pass
            case h.Return():
                self.fail(5, "`return` is not the last instruction")
            case _:
                assert_never(i)

    def _reuse(self, i: h.Reuse) -> None:
        available = self.use(i.source, "tensor").bytes
        self.layout(i.shape, i.strides)
        needed = _bytes(i.dtype, i.shape, i.strides)
        if available is not None and needed is not None and needed > available:
            self.fail(15, f"{i.source!r} has {available} bytes, {i.name!r} needs {needed}")
        self.drop(i.source)
        self.bind(i.name, _Bound("tensor", i.dtype, available))

    def _launch(self, i: h.Launch) -> None:
        kernel = self.kernels.get(i.kernel)
        if kernel is None:
            self.fail(4, f"there is no kernel {i.kernel!r}")
        if len(i.tensors) != len(kernel.parameters) or len(i.sizes) != len(kernel.sizes):
            self.fail(
                4,
                f"{i.kernel!r} takes {len(kernel.parameters)} tensor(s) and "
                f"{len(kernel.sizes)} size(s), got {len(i.tensors)} and {len(i.sizes)}",
            )
        if i.overlap and not _overlaps(kernel):
            self.fail(18, f"{i.kernel!r} starts after earlier launches")
        for name, parameter in zip(i.tensors, kernel.parameters, strict=True):
            dtype = self.use(name, "tensor").dtype
            if dtype is not None and dtype.part is not parameter.dtype:
                self.fail(14, f"{name!r} is {dtype}, {parameter.name!r} is {parameter.dtype}")
        self.exprs(i.sizes)

    def _extern(self, i: h.ExternCall) -> None:
        self.values((*i.args, *(value for _, value in i.kwargs)))
        if i.out is None:
            self.results(i.results)
            return
        named = [r for r in i.results if isinstance(r, str)]
        if len(named) != len(i.results) or len(i.out_names) != len(i.results):
            self.fail(
                9,
                f"{i.out!r} needs a tensor and a keyword for each of {len(i.results)} result(s), "
                f"got the keywords {list(i.out_names)}",
            )
        self.tensors(*named)

    def _body(
        self, instructions: Sequence[h.Instruction], names: Sequence[str], at: h.Instruction
    ) -> list[_Bound]:
        """Check a body in a scope of its own; return the objects that `names` denote at its
        end."""
        live, symbols, freeable = dict(self.live), set(self.symbols), self.freeable
        self.freeable = set()
        self.sequence(instructions)
        self.at = at
        values = [self.use(name) for name in names]
        self.live, self.symbols, self.freeable = live, symbols, freeable
        return values

    def _branch(self, i: h.Branch) -> None:
        if isinstance(i.condition, h.Ref):
            self.tensors(i.condition.name)
        else:
            self.exprs((i.condition,))
        counts = {len(i.then_values), len(i.otherwise_values), len(i.results)}
        if len(counts) != 1:
            self.fail(
                6,
                f"{len(i.results)} result(s), but {len(i.then_values)} and "
                f"{len(i.otherwise_values)} value(s)",
            )
        then = self._body(i.then, i.then_values, i)
        otherwise = self._body(i.otherwise, i.otherwise_values, i)
        for name, a, b in zip(i.results, then, otherwise, strict=True):
            self.bind(name, _Bound(a.kind, a.dtype if a.dtype is b.dtype else None))

    def _loop(self, i: h.Loop | h.Repeat) -> None:
        counts = {len(i.carried), len(i.initial), len(i.next), len(i.results)}
        if len(counts) != 1:
            self.fail(
                6,
                f"{len(i.carried)} carried, {len(i.initial)} initial and {len(i.next)} next "
                f"value(s), {len(i.results)} result(s)",
            )
        if isinstance(i, h.Repeat):
            self.exprs((i.count,))
        bounds = [self.use(name) for name in i.initial]
        carried = [_Bound(bound.kind, bound.dtype) for bound in bounds]
        live, symbols = dict(self.live), set(self.symbols)
        if isinstance(i, h.Repeat):
            self.bind_symbol(i.symbol)
        for name, bound in zip(i.carried, carried, strict=True):
            self.bind(name, bound)
        if isinstance(i, h.Loop):
            (test,) = self._body(i.condition, (i.test,), i)
            if test.kind != "tensor":
                self.fail(10, f"expected a tensor, but {i.test!r} is a {test.kind}")
        self._body(i.body, i.next, i)
        self.live, self.symbols = live, symbols
        for name, bound in zip(i.results, carried, strict=True):
            self.bind(name, bound)

    def _call(self, i: h.CallProgram | h.CallPartition) -> None:
        program = self.programs.get(i.program)
        if program is None:
            self.fail(7, f"there is no subprogram {i.program!r}")
        last = program.instructions[-1] if program.instructions else None
        returned = len(last.values) if isinstance(last, h.Return) else 0
        if len(i.args) != len(program.parameters) or len(i.results) != returned:
            self.fail(
                7,
                f"{i.program!r} takes {len(program.parameters)} value(s) and returns {returned}, "
                f"got {len(i.args)} and {len(i.results)}",
            )
        if isinstance(i, h.CallPartition) and program.capture is None:
            self.fail(17, f"{i.program!r} does not declare the device of its graph")
        self.values(i.args)
        self.results(i.results)


_UNCAPTURED: Mapping[type, str] = MappingProxyType(
    {
        h.AssertNoNan: "the host reads a tensor",
        h.ReadScalar: "the host reads a number",
        h.Copy: "it copies from one device to another",
        h.CollectiveStart: "other processes take part in it",
        h.CollectiveFinish: "it waits for other processes",
        h.Branch: "the host chooses between programs",
        h.Loop: "the host decides when it ends",
        h.Repeat: "the host repeats a program",
        h.CallProgram: "it calls a program",
        h.CallPartition: "it calls a program",
    }
)
"""The reasons why instructions cannot be captured in a graph, by class."""


def _bytes(dtype: DType, shape: Sequence[Expr], strides: Sequence[Expr]) -> int | None:
    """Return the number of bytes that a layout spans, or None if it is not constant."""
    last = 0
    for size, stride in zip(shape, strides, strict=True):
        if type(size) is not ConstExpr or type(stride) is not ConstExpr:
            return None
        if size.value == 0:
            return 0
        last += (size.value - 1) * stride.value
    return (last + 1) * dtype.size


def _overlaps(kernel: Launchable) -> bool:
    members = kernel.kernels if isinstance(kernel, KernelGroup) else (kernel,)
    return all(k.overlap is not None for k in members)
