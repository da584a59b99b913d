"""A plan under construction, and the values of the names of its program."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from attrs import field

from gyrator_ir.define import define, frozen
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
    """A tensor of the program: a register, and its layout in the memory of the register's object.

    `layout` is set for a tensor in the memory of another one. Kernels need only the address; for a
    call, a tensor object is created.
    """

    register: int
    layout: Layout | None = None
    own: Layout | None = None
    """Layout of the object in the register, if known."""
    device: str = ""
    """Its device, if known."""
    pooled: bool = False
    """Allocated from a pool, which is freed as a whole."""

    @property
    def offset(self) -> Size:
        """Byte offset from the first element of the object in the register."""
        return 0 if self.layout is None else self.layout.offset

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype, if known."""
        layout = self.layout or self.own
        return None if layout is None else layout.dtype


Bound = Handle | int | SizeArg | SizeProgram
"""The value of a name: a tensor or opaque object, or an integer."""


@frozen
class Finished:
    """A finished plan: its index among the plans of its program, and which results are integers."""

    number: int
    integers: tuple[bool, ...]


@define(eq=False)
class Plans:
    """The finished plans of a program and its subprograms."""

    encoded: list[Encoded] = field(factory=list)
    subprograms: dict[str, tuple[Finished, bool]] = field(factory=dict)
    """Finished subprograms by name, and whether a device graph may replace each."""


@define(eq=False)
class Scope:
    """The plan of a straight-line program under construction."""

    plans: Plans
    n_args: int
    boxed: bool = False
    env: dict[str, Bound] = field(factory=dict)
    instructions: list[Instruction] = field(factory=list)
    _sizes: dict[Expr, Size] = field(factory=dict)
    _tensors: dict[int, dict[Handle, int]] = field(factory=dict)
    """For each register, the registers of tensor objects created for handles into its memory."""
    _registers: int = 0

    def __attrs_post_init__(self) -> None:
        self._registers = self.n_args

    # Names ------------------------------------------------------------------------------------

    def tensor(self, name: str) -> Handle:
        """Return the tensor of a name."""
        handle = self.env[name]
        assert isinstance(handle, Handle)
        return handle

    def registers(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the distinct registers of tensors."""
        return tuple(dict.fromkeys(self.tensor(n).register for n in names))

    def free(self, tensor: Handle) -> None:
        """Drop a tensor. The memory of a pooled one is freed with its pool."""
        tensors = self._tensors.get(tensor.register, {})
        for handle in [tensor] if tensor.pooled else list(tensors):
            if handle in tensors:
                self.instructions.append(Drop(tensors.pop(handle)))
        if not tensor.pooled:
            self.instructions.append(Drop(tensor.register))

    # Sizes ------------------------------------------------------------------------------------

    def size(self, e: Expr) -> Size:
        """Return the plan form of a size."""
        size = self._sizes.get(e)
        if size is None:
            size = self._sizes[e] = plan_size(size_code(e, self._symbol))
        return size

    def condition(self, cond: Any) -> Size:
        """Return the plan form of a condition: 1 if it is true, else 0."""
        return plan_size(size_code(cond, self._symbol))

    def sizes(self, exprs: Sequence[Expr]) -> IntTuple:
        """Return the plan form of a tuple of sizes."""
        return IntTuple(tuple(map(self.size, exprs)))

    def layout(
        self, i: h.Allocate | h.AllocateFromPool | h.Reuse | h.View | h.Conform, offset: Size = 0
    ) -> Layout:
        """Return the layout of an instruction's tensor at a byte offset."""
        sizes, strides = self.sizes(i.shape).items, self.sizes(i.strides).items
        return Layout(sizes, strides, DTYPES[i.dtype], offset)

    def _symbol(self, symbol: Sym) -> Code:
        value = self.env[symbol.name]
        assert not isinstance(value, Handle)
        return code_of(value)

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
        """Call a function with an integer result."""
        return SizeArg(self.call(function, args).register)

    def run(
        self,
        function: Reference,
        args: tuple[Value, ...],
        kwargs: tuple[tuple[str, Value], ...] = (),
    ) -> None:
        """Call a function for its side effect."""
        self.instructions.append(Call(None, function, args, kwargs))

    def item(self, source: Handle, index: int) -> Handle:
        """Extract one of several results."""
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
        """Call a function and bind names to the items of its result."""
        if not integers:
            self.run(function, tuple(args))
            return
        returned = self.call(function, tuple(args))
        for k, (name, is_int) in enumerate(zip(names, integers, strict=True)):
            item = self.item(returned, k)
            self.env[name] = SizeArg(item.register) if is_int else item
        self.free(returned)

    # Values -----------------------------------------------------------------------------------

    def object(self, handle: Handle) -> Reg:
        """Return a register with the tensor object, which is created if necessary."""
        layout = handle.layout
        if layout is None:
            return Reg(handle.register)
        registers = self._tensors.setdefault(handle.register, {})
        if handle not in registers:
            base, sizes = Reg(handle.register), (IntTuple(layout.sizes), IntTuple(layout.strides))
            if handle.own is not None and handle.own.dtype == layout.dtype:
                elements = combined(layout.offset, "floordiv", layout.dtype.itemsize)
                tensor = self.call(HostFunction("reinterpret"), (base, *sizes, elements))
            else:
                args = (base, *sizes, Const(torch_object(layout.dtype)), layout.offset)
                tensor = self.call(HostFunction("over_storage"), args)
            registers[handle] = tensor.register
        return Reg(registers[handle])

    def bound(self, name: str) -> Value:
        """Return the value of a name as an argument or result."""
        value = self.env[name]
        return self.object(value) if isinstance(value, Handle) else value

    def value(self, value: h.Value) -> Value:
        """Return an operand as an argument or result."""
        match value:
            case h.Ref(name):
                return self.bound(name)
            case Literal(constant):
                return Const(constant)
            case TypeArg(kind, text):
                return Const(TorchDevice(text) if kind == "device" else TorchObject(text))
            case h.ListValue(items):
                return _list_value(self, [self.value(i) for i in items])
        return self.size(value)

    # Ends and nested plans --------------------------------------------------------------------

    def finish(self, values: Sequence[Value]) -> Finished:
        """End the plan with its results, and encode it."""
        self.instructions.append(Return(tuple(values)))
        program = PlanProgram(
            self.n_args, self._registers, tuple(self.instructions), boxed=self.boxed
        )
        self.plans.encoded.append(encode(program))
        integers = tuple(isinstance(v, int | SizeArg | SizeProgram) for v in values)
        return Finished(len(self.plans.encoded) - 1, integers)

    def nested(self, parameters: Sequence[str], like: Sequence[str]) -> "Scope":
        """Start a nested plan whose parameters have the kinds of the names `like` in this scope."""
        inner = Scope(self.plans, len(parameters))
        for k, (name, outer) in enumerate(zip(parameters, like, strict=True)):
            inner.env[name] = Handle(k) if isinstance(self.env[outer], Handle) else SizeArg(k)
        return inner


def plan_size(code: Code) -> Size:
    """Return the plan form of a postfix program."""
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
    """Return the sum (`add`), product (`mul`) or quotient (`floordiv`) of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b if op == "add" else a * b if op == "mul" else a // b
    if op == "add" and (a == 0 or b == 0):
        return b if a == 0 else a
    return plan_size((*code_of(a), *code_of(b), (op, 0)))


def torch_object(dtype: torch.dtype) -> TorchObject:
    """Return the reference to a dtype."""
    return TorchObject(str(dtype).removeprefix("torch."))


def _list_value(scope: Scope, items: list[Value]) -> Value:
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
