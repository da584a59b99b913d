"""A plan while it is made, and what the names of its program stand for."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from attrs import define, field, frozen

from gyrator_ir.expr import Expr, Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_runtime.host import DTYPES
from gyrator_runtime.native.encode import encode
from gyrator_runtime.native.program import (
    Call,
    Const,
    Drop,
    GetItem,
    Instruction,
    IntTuple,
    Layout,
    PlanProgram,
    Reg,
    Return,
    Size,
    SizeArg,
    SizeProgram,
    Value,
)
from gyrator_runtime.native.ready import Encoded
from gyrator_runtime.native.references import HostFunction, Reference, TorchDevice, TorchObject
from gyrator_runtime.plan.sizes import Code, size_code


@frozen(eq=False)
class Handle:
    """A tensor of the program: a register, and where in it.

    `layout` is set for a tensor that lies in another one's memory: kernels need only the
    address, and a call gets a tensor made for it.
    """

    register: int
    layout: Layout | None = None
    own: Layout | None = None
    """What the object in the register is, where that is known."""
    device: str = ""
    """Where it lies, where that is known."""
    pooled: bool = False
    """In a pool, which is freed as a whole."""

    @property
    def offset(self) -> Size:
        """Bytes after the first element of the object in the register."""
        return 0 if self.layout is None else self.layout.offset

    @property
    def dtype(self) -> torch.dtype | None:
        """The element type, where it is known."""
        layout = self.layout or self.own
        return None if layout is None else layout.dtype


Bound = Handle | int | SizeArg | SizeProgram
"""What a name stands for: a tensor (or something opaque), or an integer."""


@frozen
class Finished:
    """A plan among those of its program, and which of its results are integers."""

    number: int
    integers: tuple[bool, ...]


@define(eq=False)
class Plans:
    """The plans of a program and its subprograms, as far as they are made."""

    made: list[Encoded] = field(factory=list)
    subprograms: dict[str, tuple[Finished, bool]] = field(factory=dict)
    """By name; and whether a device's graph may stand for one."""


@define(eq=False)
class Scope:
    """The plan of one straight-line program."""

    plans: Plans
    n_args: int
    boxed: bool = False
    env: dict[str, Bound] = field(factory=dict)
    instructions: list[Instruction] = field(factory=list)
    _sizes: dict[Expr, Size] = field(factory=dict)
    _made: dict[int, dict[Handle, int]] = field(factory=dict)
    """By register, those of the tensors that were made for handles with a layout in it."""
    _registers: int = 0

    def __attrs_post_init__(self) -> None:
        self._registers = self.n_args

    # Names ------------------------------------------------------------------------------------

    def tensor(self, name: str) -> Handle:
        """Return the tensor that a name stands for."""
        found = self.env[name]
        assert isinstance(found, Handle)
        return found

    def registers(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the registers of tensors, each once."""
        return tuple(dict.fromkeys(self.tensor(n).register for n in names))

    def free(self, tensor: Handle) -> None:
        """Drop a tensor. One that lies in a pool stays until the pool goes."""
        made = self._made.get(tensor.register, {})
        for handle in [tensor] if tensor.pooled else list(made):
            if handle in made:
                self.instructions.append(Drop(made.pop(handle)))
        if not tensor.pooled:
            self.instructions.append(Drop(tensor.register))

    # Sizes ------------------------------------------------------------------------------------

    def size(self, e: Expr) -> Size:
        """Return a size as plans take it."""
        found = self._sizes.get(e)
        if found is None:
            found = self._sizes[e] = plan_size(size_code(e, self._symbol))
        return found

    def condition(self, cond: Any) -> Size:
        """Return 1 where a condition holds, else 0."""
        return plan_size(size_code(cond, self._symbol))

    def sizes(self, exprs: Sequence[Expr]) -> IntTuple:
        """Return a tuple of sizes as plans take it."""
        return IntTuple(tuple(map(self.size, exprs)))

    def layout(
        self, i: h.Allocate | h.AllocateFromPool | h.Reuse | h.View | h.Conform, offset: Size = 0
    ) -> Layout:
        """Return the layout of an instruction's tensor at an offset in bytes."""
        sizes, strides = self.sizes(i.shape).items, self.sizes(i.strides).items
        return Layout(sizes, strides, DTYPES[i.dtype], offset)

    def _symbol(self, symbol: Sym) -> Code:
        found = self.env[symbol.name]
        assert not isinstance(found, Handle)
        return code_of(found)

    # Instructions -----------------------------------------------------------------------------

    def register(self) -> int:
        """Return a new register."""
        self._registers += 1
        return self._registers - 1

    def call(
        self,
        function: Reference,
        args: tuple[Value, ...],
        kwargs: tuple[tuple[str, Value], ...] = (),
    ) -> Handle:
        """Call a function for its result."""
        target = self.register()
        self.instructions.append(Call(target, function, args, kwargs))
        return Handle(target)

    def integer(self, function: Reference, args: tuple[Value, ...]) -> SizeArg:
        """Call a function whose result is an integer."""
        return SizeArg(self.call(function, args).register)

    def run(
        self,
        function: Reference,
        args: tuple[Value, ...],
        kwargs: tuple[tuple[str, Value], ...] = (),
    ) -> None:
        """Call a function for its effect."""
        self.instructions.append(Call(None, function, args, kwargs))

    def item(self, source: Handle, index: int) -> Handle:
        """Take one of several results."""
        target = self.register()
        self.instructions.append(GetItem(target, source.register, index))
        return Handle(target)

    def results(
        self,
        names: Sequence[str],
        function: Reference,
        args: Sequence[Value],
        integers: tuple[bool, ...],
    ) -> None:
        """Bind names to the items of what a function returns."""
        if not integers:
            self.run(function, tuple(args))
            return
        whole = self.call(function, tuple(args))
        for k, (name, is_int) in enumerate(zip(names, integers, strict=True)):
            found = self.item(whole, k)
            self.env[name] = SizeArg(found.register) if is_int else found
        self.free(whole)

    # Values -----------------------------------------------------------------------------------

    def object(self, handle: Handle) -> Reg:
        """Return a register that holds the tensor itself, made if it lies in another's memory."""
        layout = handle.layout
        if layout is None:
            return Reg(handle.register)
        known = self._made.setdefault(handle.register, {})
        if handle not in known:
            base, sizes = Reg(handle.register), (IntTuple(layout.sizes), IntTuple(layout.strides))
            if handle.own is not None and handle.own.dtype == layout.dtype:
                elements = combined(layout.offset, "floordiv", layout.dtype.itemsize)
                made = self.call(HostFunction("reinterpret"), (base, *sizes, elements))
            else:
                given = (base, *sizes, Const(torch_object(layout.dtype)), layout.offset)
                made = self.call(HostFunction("over_storage"), given)
            known[handle] = made.register
        return Reg(known[handle])

    def bound(self, name: str) -> Value:
        """Return what a name stands for as an argument or a result."""
        found = self.env[name]
        return self.object(found) if isinstance(found, Handle) else found

    def value(self, value: h.Value) -> Value:
        """Return an operand as an argument or a result."""
        match value:
            case h.Ref(name):
                return self.bound(name)
            case Literal(constant):
                return Const(constant)
            case TypeArg(kind, text):
                return Const(TorchDevice(text) if kind == "device" else TorchObject(text))
            case h.ListValue(items):
                return _listed(self, [self.value(i) for i in items])
        return self.size(value)

    # Ends and nested plans --------------------------------------------------------------------

    def finish(self, values: Sequence[Value]) -> Finished:
        """End the plan with its results."""
        self.instructions.append(Return(tuple(values)))
        program = PlanProgram(
            self.n_args, self._registers, tuple(self.instructions), boxed=self.boxed
        )
        self.plans.made.append(encode(program))
        integers = tuple(isinstance(v, int | SizeArg | SizeProgram) for v in values)
        return Finished(len(self.plans.made) - 1, integers)

    def nested(self, parameters: Sequence[str], like: Sequence[str]) -> "Scope":
        """Begin a plan whose parameters get what the names `like` stand for here."""
        inner = Scope(self.plans, len(parameters))
        for k, (name, outer) in enumerate(zip(parameters, like, strict=True)):
            inner.env[name] = Handle(k) if isinstance(self.env[outer], Handle) else SizeArg(k)
        return inner


def plan_size(code: Code) -> Size:
    """Return a postfix program as plans take sizes."""
    if len(code) == 1:
        op, operand = code[0]
        return SizeArg(operand) if op == "arg" else operand
    return SizeProgram(code)


def code_of(size: Size) -> Code:
    """Return the postfix program of a size."""
    match size:
        case int():
            return (("const", size),)
        case SizeArg(register):
            return (("arg", register),)
        case SizeProgram(code):
            return code


def combined(a: Size, op: str, b: Size) -> Size:
    """Return the sum (`add`), the product (`mul`) or the quotient (`floordiv`) of sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b if op == "add" else a * b if op == "mul" else a // b
    if op == "add" and (a == 0 or b == 0):
        return b if a == 0 else a
    return plan_size((*code_of(a), *code_of(b), (op, 0)))


def torch_object(dtype: torch.dtype) -> TorchObject:
    """Return what stands for an element type."""
    return TorchObject(str(dtype).removeprefix("torch."))


def _listed(scope: Scope, items: list[Value]) -> Value:
    if any(isinstance(i, Reg) for i in items):
        return Reg(scope.call(HostFunction("pack"), tuple(items)).register)
    if any(isinstance(i, SizeArg | SizeProgram) for i in items):
        return IntTuple(tuple(_integer(i) for i in items))
    return Const([i.value if isinstance(i, Const) else i for i in items])


def _integer(value: Value) -> Size:
    if isinstance(value, Const) and type(value.value) is int:
        return value.value
    assert isinstance(value, int | SizeArg | SizeProgram)
    return value
