"""What must hold of every host program between two stages.

GY-HOST-001  every name is an identifier, and is bound once
GY-HOST-002  a name is bound before it is used, and not used after `free` or `reuse`; what the
             bodies of a branch or a loop bind is not seen outside of them
GY-HOST-003  a symbol is bound before it is used, once, and is a size (s.. or u..)
GY-HOST-004  a launch names a kernel and passes one tensor a parameter, and one value a size
GY-HOST-005  `return` is the last instruction of a program, and of no other sequence
GY-HOST-006  a branch and a loop have as many values as they have results
GY-HOST-007  a call names a subprogram, passes one value a parameter, and takes as many results as
             it returns
GY-HOST-008  a layout has as many strides as sizes
GY-HOST-009  an out-variant has a name for each result, which is a tensor
GY-HOST-010  a name stands for what its place wants: a tensor, a pool, a size
GY-HOST-011  kernels have names of their own, and hold by themselves (`GY-KERNEL-...`)
GY-HOST-012  constants and user kernels that are named exist
GY-HOST-013  the bodies of a branch or a loop free only what they bound
GY-HOST-014  a tensor has the element type of the kernel's parameter
GY-HOST-015  what is reused is at least as large as what takes it over
GY-HOST-016  parameters and instructions are of the classes of this level
GY-HOST-017  a program that a graph may stand for takes tensors, and nothing in it waits for the
             host or for another process; a partition is such a program

Bodies of `with_device` and `profile` bind names in the sequence around them.
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
"""What a parameter may be."""


def verify(program: HostProgram) -> HostProgram:
    """Return `program` unchanged, or raise `VerifyError` for the first thing that is wrong."""
    for kernel in program.kernels:
        verify_kernel(kernel, program.origins)
    _Scope(program).run()
    for sub in program.subprograms:
        verify(sub)
    return program


@frozen
class _Bound:
    """What a name stands for; `dtype` and `bytes` of a tensor where they are known."""

    kind: str
    dtype: DType | None = None
    bytes: int | None = None


_TENSOR = _Bound("tensor")


class _Scope:
    """What is bound while the instructions of one program are walked."""

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
            self.fail(11, "two kernels have one name")
        if len(self.programs) != len(program.subprograms):
            self.fail(7, "two subprograms have one name")
        for p in program.parameters:
            if type(p) is not Parameter or p.kind not in KINDS:
                self.fail(16, f"{p!r} is no parameter of kind {', '.join(KINDS)}")
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
        """Check that a graph can stand for the program."""
        parameters = self.program.parameters
        for p in parameters:
            if p.kind != "tensor":
                self.fail(17, f"a graph takes no {p.kind} ({p.name!r})")
        if not all(0 <= place < len(parameters) for place in capture.mutated):
            self.fail(17, f"{list(capture.mutated)} are no places of {len(parameters)} parameters")
        for i in walk(self.program.instructions):
            self.at = i
            if why := i.uncaptured if isinstance(i, ExternCall) else _UNCAPTURED.get(type(i), ""):
                self.fail(17, f"no graph can hold this: {why}")

    def sequence(self, instructions: Sequence[Instruction]) -> None:
        """Check instructions in order."""
        for i in instructions:
            self.at = i
            check = _CHECKS.get(type(i))
            if check is None:
                self.at = None
                self.fail(16, f"{i!r} is no instruction")
            check(self, i)

    # Names and symbols ------------------------------------------------------------------------

    def bind(self, name: str, bound: _Bound) -> None:
        """Bring a new name into being."""
        if name in self.ever:
            self.fail(1, f"name {name!r} is bound twice")
        if type(name) is not str or not name.isidentifier():
            self.fail(1, f"{name!r} is no identifier")
        self.ever.add(name)
        self.live[name] = bound
        if self.freeable is not None:
            self.freeable.add(name)

    def bind_symbol(self, symbol: Sym) -> None:
        """Bring a new symbol into being."""
        if symbol.kind not in (SymKind.SIZE, SymKind.UNBACKED):
            self.fail(3, f"symbol {symbol.name!r} is no size (s.. or u..)")
        if symbol in self.symbols:
            self.fail(3, f"symbol {symbol.name!r} is bound twice")
        self.symbols.add(symbol)

    def use(self, name: str, *kinds: str) -> _Bound:
        """Return what a live name stands for; anything if no kinds are named."""
        bound = self.live.get(name)
        if bound is None:
            gone = name in self.ever
            self.fail(2, f"{name!r} is {'not bound any more' if gone else 'not bound'}")
        if kinds and bound.kind not in kinds:
            self.fail(10, f"{name!r} is a {bound.kind}, a {' or '.join(kinds)} was expected")
        return bound

    def exprs(self, exprs: Iterable[Expr | Cond]) -> None:
        """Check that the symbols of expressions are bound."""
        for e in exprs:
            if not isinstance(e, Expr | Cond):
                self.fail(16, f"{e!r} is no expression")
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
                self.fail(16, f"{value!r} is no operand")

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
    there = v.use(i.source, "tensor").bytes
    v.layout(i.shape, i.strides)
    wanted = _bytes(i.dtype, i.shape, i.strides)
    if there is not None and wanted is not None and wanted > there:
        v.fail(15, f"{i.source!r} has {there} bytes, {i.name!r} needs {wanted}")
    _drop(v, i.source)
    v.bind(i.name, _Bound("tensor", i.dtype, there))


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
                v.fail(16, f"{result!r} is no result")


def _out(v: _Scope, i: ExternCall) -> None:
    named = [r for r in i.results if isinstance(r, str)]
    if len(named) != len(i.results) or len(i.out_names) != len(i.results):
        v.fail(
            9,
            f"{i.out!r} wants a tensor and a name for each of {len(i.results)} result(s), "
            f"got the names {list(i.out_names)}",
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
    """Check a body in a scope of its own; return what `names` stand for at its end."""
    live, symbols, freeable = dict(v.live), set(v.symbols), v.freeable
    v.freeable = set()
    v.sequence(instructions)
    v.at = at
    found = [v.use(name) for name in names]
    v.live, v.symbols, v.freeable = live, symbols, freeable
    return found


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
        v.fail(10, f"{i.test!r} is a {test.kind}, a tensor was expected")
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
    found = v.programs.get(i.program)
    if found is None:
        v.fail(7, f"there is no subprogram {i.program!r}")
    last = found.instructions[-1] if found.instructions else None
    returned = len(last.values) if isinstance(last, Return) else 0
    if len(i.args) != len(found.parameters) or len(i.results) != returned:
        v.fail(
            7,
            f"{i.program!r} takes {len(found.parameters)} value(s) and returns {returned}, "
            f"got {len(i.args)} and {len(i.results)}",
        )
    if type(i) is CallPartition and found.capture is None:
        v.fail(17, f"{i.program!r} does not say which device's graph may stand for it")
    for value in i.args:
        v.value(value)
    for name in i.results:
        v.bind(name, _TENSOR)


def _return(v: _Scope, _: Return) -> None:
    v.fail(5, "`return` stands in the middle")


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
"""How each class of instruction is checked."""

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
"""Why no graph can hold instructions."""


def _bytes(dtype: DType, shape: Sequence[Expr], strides: Sequence[Expr]) -> int | None:
    """Return the bytes that a layout spans, or None where they are no constant."""
    last = 0
    for size, stride in zip(shape, strides, strict=True):
        if type(size) is not ConstExpr or type(stride) is not ConstExpr:
            return None
        if size.value == 0:
            return 0
        last += (size.value - 1) * stride.value
    return (last + 1) * dtype.size
