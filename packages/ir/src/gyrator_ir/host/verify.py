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

Bodies of `with_device` and `profile` bind names in the enclosing sequence.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from attrs import frozen

from gyrator_ir.diagnostics import VerifyError
from gyrator_ir.expr import Cond, Expr, Sym, SymKind
from gyrator_ir.expr import Const as ConstExpr
from gyrator_ir.host.nodes import (
    Allocate,
    AllocateFromPool,
    AllocatePool,
    AssertNoNan,
    AssertTrue,
    BindConstant,
    BindParameter,
    BindSize,
    Branch,
    CallPartition,
    CallProgram,
    Capture,
    CollectiveFinish,
    CollectiveStart,
    Comment,
    Conform,
    Copy,
    DefineSymbol,
    ExternCall,
    Free,
    HostProgram,
    Instruction,
    Launch,
    ListValue,
    Loop,
    Parameter,
    ProfileRange,
    ReadScalar,
    Ref,
    Repeat,
    Return,
    Reuse,
    Separate,
    TmaDescriptor,
    TritonLaunch,
    Value,
    View,
    WithDevice,
)
from gyrator_ir.host.print import show_instruction
from gyrator_ir.host.walk import walk
from gyrator_ir.kernel.verify import verify_kernel
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_ir.types import DType

__all__ = ["verify"]

KINDS = ("tensor", "size", "opaque")
"""The kinds of parameters."""


def verify(program: HostProgram) -> HostProgram:
    """Return `program` unchanged, or raise `VerifyError` for the first violation."""
    for kernel in program.kernels:
        verify_kernel(kernel, program.origins)
    _Scope(program).run()
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

    def __init__(self, program: HostProgram) -> None:
        self.program = program
        self.kernels = {k.name: k for k in program.kernels}
        self.programs = {p.name: p for p in program.subprograms}
        self.constants = {c.key: c for c in program.constants}
        self.user_kernels = {k.key for k in program.user_kernels}
        self.ever: set[str] = set()
        """Every name bound so far, live or not."""
        self.live: dict[str, _Bound] = {}
        self.symbols: set[Sym] = set()
        self.freeable: set[str] | None = None
        """Names that may be freed here; None for all."""
        self.at: Instruction | None = None

    def fail(self, number: int, message: str) -> NoReturn:
        """Raise the error of invariant `number` at the current instruction."""
        where = "" if self.at is None else show_instruction(self.at)[0]
        raise VerifyError.of(f"GY-HOST-{number:03}", message, where)

    def run(self) -> None:
        """Check the whole program."""
        program = self.program
        if len(self.kernels) != len(program.kernels):
            self.fail(11, "two kernels have the same name")
        if len(self.programs) != len(program.subprograms):
            self.fail(7, "two subprograms have the same name")
        for p in program.parameters:
            if type(p) is not Parameter or p.kind not in KINDS:
                self.fail(16, f"{p!r} is not a parameter of kind {', '.join(KINDS)}")
            self.bind(p.name, _Bound(p.kind))
        body = program.instructions
        if not body or type(body[-1]) is not Return:
            self.fail(5, f"program {program.name!r} does not end with `return`")
        self.sequence(body[:-1])
        self.at = body[-1]
        for value in body[-1].values:
            self.value(value)
        self.at = None
        if program.capture is not None:
            self.captured(program.capture)

    def captured(self, capture: Capture) -> None:
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
            if reason := i.uncaptured if isinstance(i, ExternCall) else default:
                self.fail(17, f"this cannot be captured in a graph: {reason}")

    def sequence(self, instructions: Sequence[Instruction]) -> None:
        """Check instructions in order."""
        for i in instructions:
            self.at = i
            check = _CHECKS.get(type(i))
            if check is None:
                self.at = None
                self.fail(16, f"{i!r} is not an instruction")
            check(self, i)

    # Names and symbols ------------------------------------------------------------------------

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

    def value(self, value: Value) -> None:
        """Check an operand."""
        match value:
            case Ref(name):
                self.use(name)
            case Expr():
                self.exprs((value,))
            case ListValue(items):
                for item in items:
                    self.value(item)
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


# Instructions -----------------------------------------------------------------------------


def _bind_size(v: _Scope, i: BindSize) -> None:
    v.use(i.tensor, "tensor")
    v.bind_symbol(i.symbol)


def _bind_parameter(v: _Scope, i: BindParameter) -> None:
    v.use(i.name, "size")
    v.bind_symbol(i.symbol)


def _define_symbol(v: _Scope, i: DefineSymbol) -> None:
    v.exprs((i.expr,))
    v.bind_symbol(i.symbol)


def _read_scalar(v: _Scope, i: ReadScalar) -> None:
    v.use(i.tensor, "tensor")
    v.bind_symbol(i.symbol)


def _bind_constant(v: _Scope, i: BindConstant) -> None:
    constant = v.constants.get(i.key)
    if constant is None:
        v.fail(12, f"there is no constant {i.key!r}")
    v.bind(i.name, _Bound("tensor", constant.buffer.dtype))


def _uses_tensor(v: _Scope, i: AssertNoNan | CollectiveFinish) -> None:
    v.use(i.tensor, "tensor")


def _conform(v: _Scope, i: Conform) -> None:
    v.use(i.tensor, "tensor")
    v.layout(i.shape, i.strides)


def _separate(v: _Scope, i: Separate) -> None:
    for name in (*i.tensors, *i.others):
        v.use(name, "tensor")


def _assert_true(v: _Scope, i: AssertTrue) -> None:
    v.exprs((i.condition,))


def _allocate(v: _Scope, i: Allocate) -> None:
    v.layout(i.shape, i.strides)
    v.bind(i.name, _Bound("tensor", i.dtype, _bytes(i.dtype, i.shape, i.strides)))


def _allocate_pool(v: _Scope, i: AllocatePool) -> None:
    v.exprs((i.bytes,))
    v.bind(i.name, _Bound("pool"))


def _allocate_from_pool(v: _Scope, i: AllocateFromPool) -> None:
    v.use(i.pool, "pool")
    v.exprs((i.offset,))
    v.layout(i.shape, i.strides)
    v.bind(i.name, _Bound("tensor", i.dtype, _bytes(i.dtype, i.shape, i.strides)))


def _drop(v: _Scope, name: str) -> None:
    if v.freeable is not None and name not in v.freeable:
        v.fail(13, f"{name!r} was bound outside of this body")
    del v.live[name]


def _free(v: _Scope, i: Free) -> None:
    v.use(i.name)
    _drop(v, i.name)


def _reuse(v: _Scope, i: Reuse) -> None:
    available = v.use(i.source, "tensor").bytes
    v.layout(i.shape, i.strides)
    needed = _bytes(i.dtype, i.shape, i.strides)
    if available is not None and needed is not None and needed > available:
        v.fail(15, f"{i.source!r} has {available} bytes, {i.name!r} needs {needed}")
    _drop(v, i.source)
    v.bind(i.name, _Bound("tensor", i.dtype, available))


def _view(v: _Scope, i: View) -> None:
    v.use(i.source, "tensor")
    v.layout(i.shape, i.strides)
    v.exprs((i.offset,))
    v.bind(i.name, _Bound("tensor", i.dtype))


def _launch(v: _Scope, i: Launch) -> None:
    kernel = v.kernels.get(i.kernel)
    if kernel is None:
        v.fail(4, f"there is no kernel {i.kernel!r}")
    if len(i.tensors) != len(kernel.parameters) or len(i.sizes) != len(kernel.sizes):
        v.fail(
            4,
            f"{i.kernel!r} takes {len(kernel.parameters)} tensor(s) and "
            f"{len(kernel.sizes)} size(s), got {len(i.tensors)} and {len(i.sizes)}",
        )
    for name, parameter in zip(i.tensors, kernel.parameters, strict=True):
        dtype = v.use(name, "tensor").dtype
        if dtype is not None and dtype.part is not parameter.dtype:
            v.fail(14, f"{name!r} is {dtype}, {parameter.name!r} is {parameter.dtype}")
    v.exprs(i.sizes)


def _extern(v: _Scope, i: ExternCall) -> None:
    for value in (*i.args, *(value for _, value in i.kwargs)):
        v.value(value)
    if i.out is not None:
        _out(v, i)
        return
    for result in i.results:
        match result:
            case str():
                v.bind(result, _TENSOR)
            case tuple():
                for name in result:
                    v.bind(name, _TENSOR)
            case Sym():
                v.bind_symbol(result)
            case None:
                pass
            case _:
                v.fail(16, f"{result!r} is not a result")


def _out(v: _Scope, i: ExternCall) -> None:
    named = [r for r in i.results if isinstance(r, str)]
    if len(named) != len(i.results) or len(i.out_names) != len(i.results):
        v.fail(
            9,
            f"{i.out!r} needs a tensor and a keyword for each of {len(i.results)} result(s), "
            f"got the keywords {list(i.out_names)}",
        )
    for name in named:
        v.use(name, "tensor")


def _tma(v: _Scope, i: TmaDescriptor) -> None:
    v.use(i.tensor, "tensor")
    v.exprs((*i.shape, *i.block, i.element_bytes))
    v.bind(i.name, _Bound("descriptor"))


def _triton(v: _Scope, i: TritonLaunch) -> None:
    if i.kernel not in v.user_kernels:
        v.fail(12, f"there is no user kernel {i.kernel!r}")
    for sizes in i.grid:
        v.exprs(sizes)
    for _, value in (*i.args, *i.constants):
        v.value(value)


def _copy(v: _Scope, i: Copy) -> None:
    v.use(i.destination, "tensor")
    v.use(i.source, "tensor")


def _collective(v: _Scope, i: CollectiveStart) -> None:
    for value in i.args:
        v.value(value)
    for name in i.results:
        v.bind(name, _TENSOR)


# Structure --------------------------------------------------------------------------------


def _with(v: _Scope, i: WithDevice | ProfileRange) -> None:
    v.sequence(i.body)
    v.at = i


def _body(
    v: _Scope, instructions: Sequence[Instruction], names: Sequence[str], at: Instruction
) -> list[_Bound]:
    """Check a body in a scope of its own, and return the objects that `names` denote at its end."""
    live, symbols, freeable = dict(v.live), set(v.symbols), v.freeable
    v.freeable = set()
    v.sequence(instructions)
    v.at = at
    values = [v.use(name) for name in names]
    v.live, v.symbols, v.freeable = live, symbols, freeable
    return values


def _branch(v: _Scope, i: Branch) -> None:
    if isinstance(i.condition, Ref):
        v.use(i.condition.name, "tensor")
    else:
        v.exprs((i.condition,))
    counts = {len(i.then_values), len(i.otherwise_values), len(i.results)}
    if len(counts) != 1:
        v.fail(
            6,
            f"{len(i.results)} result(s), but {len(i.then_values)} and "
            f"{len(i.otherwise_values)} value(s)",
        )
    then = _body(v, i.then, i.then_values, i)
    otherwise = _body(v, i.otherwise, i.otherwise_values, i)
    for name, a, b in zip(i.results, then, otherwise, strict=True):
        v.bind(name, _Bound(a.kind, a.dtype if a.dtype is b.dtype else None))


def _loop(v: _Scope, i: Loop) -> None:
    counts = {len(i.carried), len(i.initial), len(i.next), len(i.results)}
    if len(counts) != 1:
        v.fail(
            6,
            f"{len(i.carried)} carried, {len(i.initial)} initial and {len(i.next)} next "
            f"value(s), {len(i.results)} result(s)",
        )
    initial = [v.use(name) for name in i.initial]
    live = dict(v.live)
    for name, bound in zip(i.carried, initial, strict=True):
        v.bind(name, _Bound(bound.kind, bound.dtype))
    (test,) = _body(v, i.condition, (i.test,), i)
    if test.kind != "tensor":
        v.fail(10, f"expected a tensor, but {i.test!r} is a {test.kind}")
    _body(v, i.body, i.next, i)
    v.live = live
    for name, bound in zip(i.results, initial, strict=True):
        v.bind(name, _Bound(bound.kind, bound.dtype))


def _repeat(v: _Scope, i: Repeat) -> None:
    counts = {len(i.carried), len(i.initial), len(i.next), len(i.results)}
    if len(counts) != 1:
        v.fail(
            6,
            f"{len(i.carried)} carried, {len(i.initial)} initial and {len(i.next)} next "
            f"value(s), {len(i.results)} result(s)",
        )
    v.exprs((i.count,))
    initial = [v.use(name) for name in i.initial]
    live, symbols = dict(v.live), set(v.symbols)
    v.bind_symbol(i.symbol)
    for name, bound in zip(i.carried, initial, strict=True):
        v.bind(name, _Bound(bound.kind, bound.dtype))
    _body(v, i.body, i.next, i)
    v.live, v.symbols = live, symbols
    for name, bound in zip(i.results, initial, strict=True):
        v.bind(name, _Bound(bound.kind, bound.dtype))


def _call(v: _Scope, i: CallProgram | CallPartition) -> None:
    program = v.programs.get(i.program)
    if program is None:
        v.fail(7, f"there is no subprogram {i.program!r}")
    last = program.instructions[-1] if program.instructions else None
    returned = len(last.values) if isinstance(last, Return) else 0
    if len(i.args) != len(program.parameters) or len(i.results) != returned:
        v.fail(
            7,
            f"{i.program!r} takes {len(program.parameters)} value(s) and returns {returned}, "
            f"got {len(i.args)} and {len(i.results)}",
        )
    if type(i) is CallPartition and program.capture is None:
        v.fail(17, f"{i.program!r} does not declare the device of its graph")
    for value in i.args:
        v.value(value)
    for name in i.results:
        v.bind(name, _TENSOR)


def _return(v: _Scope, _: Return) -> None:
    v.fail(5, "`return` is not the last instruction")


_CHECKS: Mapping[type, Callable[[_Scope, Any], None]] = MappingProxyType(
    {
        BindSize: _bind_size,
        BindParameter: _bind_parameter,
        DefineSymbol: _define_symbol,
        ReadScalar: _read_scalar,
        BindConstant: _bind_constant,
        Conform: _conform,
        Separate: _separate,
        AssertNoNan: _uses_tensor,
        AssertTrue: _assert_true,
        Allocate: _allocate,
        AllocatePool: _allocate_pool,
        AllocateFromPool: _allocate_from_pool,
        Free: _free,
        Reuse: _reuse,
        View: _view,
        Launch: _launch,
        ExternCall: _extern,
        TmaDescriptor: _tma,
        TritonLaunch: _triton,
        Copy: _copy,
        CollectiveStart: _collective,
        CollectiveFinish: _uses_tensor,
        WithDevice: _with,
        ProfileRange: _with,
        Branch: _branch,
        Loop: _loop,
        Repeat: _repeat,
        CallProgram: _call,
        CallPartition: _call,
        Comment: lambda *_: None,
        Return: _return,
    }
)
"""The check of each instruction class."""

_UNCAPTURED: Mapping[type, str] = MappingProxyType(
    {
        AssertNoNan: "the host reads a tensor",
        ReadScalar: "the host reads a number",
        Copy: "it copies from one device to another",
        CollectiveStart: "other processes take part in it",
        CollectiveFinish: "it waits for other processes",
        Branch: "the host chooses between programs",
        Loop: "the host decides when it ends",
        Repeat: "the host repeats a program",
        CallProgram: "it calls a program",
        CallPartition: "it calls a program",
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
