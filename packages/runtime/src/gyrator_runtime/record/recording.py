"""The growing plan: its registers, calls and nested recordings, on which the families build."""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field

from gyrator_runtime import host
from gyrator_runtime.native.load import Plan, Runner
from gyrator_runtime.native.program import (
    Call,
    Const,
    Drop,
    GetItem,
    Instruction,
    IntTuple,
    PlanProgram,
    Reg,
    Return,
    Value,
)
from gyrator_runtime.record.values import (
    Handle,
    LoadedKernel,
    Recorded,
    Size,
    Subprogram,
    plan_size,
    size_of,
    size_tuple,
)


@define
class Surroundings:
    """What a host program finds when it is loaded: kernels, constants, and a runner."""

    runner: Runner
    kernels: Mapping[str, LoadedKernel]
    constants: Mapping[str, Any]
    triton_kernels: Mapping[str, Callable[[list[Any], dict[str, Any]], None]] = field(factory=dict)
    """Launchers of users' Triton kernels, by key."""
    fx_compiler: Callable[[Any], Callable[..., Any]] | None = None
    """What takes the graph of an FX host program; None runs the graph itself."""
    timed: bool = False
    """Keep the time of each launch, for reports."""
    launches: list[tuple[str, Plan, int]] = field(factory=list)
    """(kernel, plan, row of its timings) of every recorded launch."""
    device_graph: Callable[[str, Plan], Callable[[list[Any]], object]] | None = None
    """Makes the plan of a partition, given by name, replay a captured graph of its device; None
    runs it as it is."""
    subprograms: dict[str, Subprogram] = field(factory=dict)
    """Those recorded so far, by name."""


@define
class Recording:
    """The plan of one straight-line program, as far as it is recorded."""

    rt: Surroundings
    name: str
    n_args: int
    boxed: bool = False
    instructions: list[Instruction] = field(factory=list)
    _launched: list[str] = field(factory=list)
    _made: dict[int, dict[Handle, int]] = field(factory=dict)
    """By register, those of the tensors that were made for handles with a layout in it."""
    _registers: int = 0

    def __attrs_post_init__(self) -> None:
        self._registers = self.n_args

    @property
    def parameters(self) -> tuple[Handle, ...]:
        """The arguments, in order."""
        return tuple(Handle(k) for k in range(self.n_args))

    def free(self, tensor: Handle) -> None:
        """Drop a tensor. One that lies in a pool stays until the pool goes."""
        made = self._made.get(tensor.register, {})
        for handle in [tensor] if tensor.pooled else list(made):
            if handle in made:
                self.instructions.append(Drop(made.pop(handle)))
        if not tensor.pooled:
            self.instructions.append(Drop(tensor.register))

    def finish(self, values: tuple[Any, ...]) -> Recorded:
        """End the recording with the program's results."""
        returned = tuple(self._value(v) for v in values)
        self.instructions.append(Return(returned))
        program = PlanProgram(
            self.n_args,
            self._registers,
            tuple(self.instructions),
            boxed=self.boxed,
            timed=self.rt.timed,
        )
        plan = self.rt.runner.plan(program)
        self.rt.launches.extend((name, plan, row) for row, name in enumerate(self._launched))
        integers = tuple(isinstance(v, Size) for v in values)
        return Recorded(plan, integers)

    def _register(self) -> int:
        self._registers += 1
        return self._registers - 1

    def _call(
        self,
        function: Callable[..., Any],
        args: tuple[Value, ...],
        kwargs: tuple[tuple[str, Value], ...] = (),
        result: bool = True,
    ) -> Handle:
        target = self._register() if result else None
        self.instructions.append(Call(target, function, args, kwargs))
        return Handle(-1 if target is None else target)

    def _size_call(self, function: Callable[..., Any], args: tuple[Value, ...]) -> Size:
        return Size((("arg", self._call(function, args).register),))

    def _item(self, source: Handle, index: int) -> Handle:
        target = self._register()
        self.instructions.append(GetItem(target, source.register, index))
        return Handle(target)

    def _reg(self, handle: Handle) -> Reg:
        """Return a register that holds the tensor itself, made if it lies in another's memory."""
        layout = handle.layout
        if layout is None:
            return Reg(handle.register)
        known = self._made.setdefault(handle.register, {})
        if handle not in known:
            base, sizes = Reg(handle.register), (IntTuple(layout.sizes), IntTuple(layout.strides))
            if handle.own is not None and handle.own.dtype == layout.dtype:
                elements = plan_size(size_of(layout.offset) // layout.dtype.itemsize)
                made = self._call(host.reinterpret, (base, *sizes, elements))
            else:
                given = (base, *sizes, Const(layout.dtype), layout.offset)
                made = self._call(host.over_storage, given)
            known[handle] = made.register
        return Reg(known[handle])

    def _value(self, value: Any) -> Value:
        match value:
            case Handle():
                return self._reg(value)
            case Size():
                return plan_size(value)
            case list() if any(isinstance(v, Handle) for v in value):
                items = tuple(self._value(v) for v in value)
                return Reg(self._call(host.pack, items).register)
            case list() | tuple() if any(isinstance(v, Size) for v in value):
                return size_tuple(tuple(value))
            case _:
                return Const(value)

    def _nested(self, body: Callable[..., Recorded], captured: tuple[Any, ...]) -> Recorded:
        inner = type(self)(self.rt, self.name, len(captured))
        passed = (
            Size((("arg", p.register),)) if isinstance(c, Size | int) else p
            for p, c in zip(inner.parameters, captured, strict=True)
        )
        return body(inner, *passed)

    def _results(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        integers: tuple[bool, ...],
    ) -> tuple[Handle | Size, ...]:
        whole = self._call(function, tuple(self._value(a) for a in args), result=bool(integers))
        found = [self._item(whole, k) for k in range(len(integers))]
        if integers:
            self.free(whole)
        return tuple(
            Size((("arg", h.register),)) if is_int else h
            for h, is_int in zip(found, integers, strict=True)
        )
