"""Recording a host program: the calls of its text become a plan that runs natively.

The text that `gyrator_wrapper_python` writes defines `build(rt)`, which this module runs once, when
a program is loaded. `rt` is a `HostRuntime`; `rt.program(...)` gives a `Recorder` whose methods are
the instructions of the Wrapper IR. Handles stand for tensors, `Size` values for integers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen

from gyrator_runtime import host
from gyrator_runtime.native.load import Plan, Runner
from gyrator_runtime.native.program import (
    Buffer,
    Call,
    Const,
    Drop,
    GetItem,
    Instruction,
    IntTuple,
    Launch,
    PlanProgram,
    Reg,
    Return,
    SizeArg,
    SizeProgram,
    Value,
)
from gyrator_runtime.native.program import Size as PlanSize


@frozen
class LoadedKernel:
    """A kernel that can be launched."""

    name: str
    address: int
    """Of a function `int64_t f(void *const *buffers, const int64_t *sizes)`."""
    checks: tuple[tuple[type[BaseException], str], ...] = ()
    """What a return of 1, 2, ... raises."""
    release_gil: bool = True


@frozen(eq=False)
class Handle:
    """A tensor of the program that is being recorded: a register, and where in it.

    `layout` is set for a tensor that lies in another one's memory: kernels need only the
    address, and a call gets a tensor made for it.
    """

    register: int
    offset: PlanSize = 0
    layout: tuple[tuple["Size | int", ...], tuple["Size | int", ...], torch.dtype] | None = None
    pooled: bool = False
    """In a pool, which is freed as a whole."""


@frozen(eq=False)
class Size:
    """An integer of the program that is being recorded; arithmetic gives another one."""

    code: tuple[tuple[str, int], ...]

    def _with(self, op: str, other: "Size | int", swap: bool = False) -> "Size":
        mine, theirs = self.code, _code(other)
        return Size((*theirs, *mine, (op, 0)) if swap else (*mine, *theirs, (op, 0)))

    def __add__(self, other: "Size | int") -> "Size":
        return self._with("add", other)

    def __radd__(self, other: int) -> "Size":
        return self._with("add", other, swap=True)

    def __sub__(self, other: "Size | int") -> "Size":
        return self._with("sub", other)

    def __rsub__(self, other: int) -> "Size":
        return self._with("sub", other, swap=True)

    def __mul__(self, other: "Size | int") -> "Size":
        return self._with("mul", other)

    def __rmul__(self, other: int) -> "Size":
        return self._with("mul", other, swap=True)

    def __floordiv__(self, other: "Size | int") -> "Size":
        return self._with("floordiv", other)

    def __rfloordiv__(self, other: int) -> "Size":
        return self._with("floordiv", other, swap=True)

    def __mod__(self, other: "Size | int") -> "Size":
        return self._with("mod", other)

    def __rmod__(self, other: int) -> "Size":
        return self._with("mod", other, swap=True)

    def __neg__(self) -> "Size":
        return self._with("mul", -1)

    def __pow__(self, power: int) -> "Size":
        result = self
        for _ in range(power - 1):
            result = result * self
        return result


AnySize = Size | int


def _code(size: AnySize) -> tuple[tuple[str, int], ...]:
    return (("const", size),) if isinstance(size, int) else size.code


def _plan_size(size: AnySize) -> PlanSize:
    if isinstance(size, int):
        return size
    if len(size.code) == 1:
        op, operand = size.code[0]
        return SizeArg(operand) if op == "arg" else operand
    return SizeProgram(size.code)


@frozen
class Recorded:
    """A finished recording: the plan, and which of its results are integers."""

    plan: Plan
    integers: tuple[bool, ...]


@define
class HostRuntime:
    """What a host program needs when it is loaded: kernels, constants, and a runner."""

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
    _subprograms: dict[str, Recorded] = field(factory=dict)

    def program(self, name: str, parameters: Sequence[str]) -> "Recorder":
        """Start recording a program; it is called with one list, which it empties."""
        return Recorder(self, name, len(parameters), boxed=True)

    def subprogram(
        self, name: str, build: Callable[["HostRuntime"], Recorded], capture: str
    ) -> None:
        """Record a subprogram, for `Recorder.call_program`."""
        self._subprograms[name] = build(self)

    def recorded(self, name: str) -> Recorded:
        """Return a subprogram recorded before."""
        return self._subprograms[name]

    def dtype(self, name: str) -> torch.dtype:
        """Return `torch.<name>`."""
        found = getattr(torch, name)
        if not isinstance(found, torch.dtype):
            raise TypeError(f"torch.{name} is not a dtype")
        return found

    def device(self, name: str) -> torch.device:
        """Return `torch.device(name)`."""
        return torch.device(name)

    def layout(self, name: str) -> torch.layout:
        """Return `torch.<name>`."""
        found = getattr(torch, name)
        if not isinstance(found, torch.layout):
            raise TypeError(f"torch.{name} is not a layout")
        return found

    def memory_format(self, name: str) -> torch.memory_format:
        """Return `torch.<name>`."""
        found = getattr(torch, name)
        if not isinstance(found, torch.memory_format):
            raise TypeError(f"torch.{name} is not a memory format")
        return found


@define
class Recorder:
    """Collects the plan of one straight-line program."""

    rt: HostRuntime
    name: str
    n_args: int
    boxed: bool = False
    instructions: list[Instruction] = field(factory=list)
    _launched: list[str] = field(factory=list)
    _registers: int = 0

    def __attrs_post_init__(self) -> None:
        self._registers = self.n_args

    @property
    def parameters(self) -> tuple[Handle, ...]:
        """The arguments, in order."""
        return tuple(Handle(k) for k in range(self.n_args))

    # Integers

    def integer(self, value: Handle | AnySize) -> AnySize:
        """Return an integer argument, or a computed size, as a size held in a register."""
        if isinstance(value, Handle):
            return Size((("arg", value.register),))
        if isinstance(value, int) or len(value.code) == 1:
            return value
        return self._size_call(int, (_plan_size(value),))

    def size_of(self, tensor: Handle, dim: int) -> Size:
        """Return a size of a tensor."""
        return self._size_call(torch.Tensor.size, (Reg(tensor.register), dim))

    def stride_of(self, tensor: Handle, dim: int) -> Size:
        """Return a stride of a tensor, in elements."""
        return self._size_call(torch.Tensor.stride, (Reg(tensor.register), dim))

    def minimum(self, first: AnySize, *others: AnySize) -> AnySize:
        """Return the smallest of some integers."""
        return _fold("min", first, others)

    def maximum(self, first: AnySize, *others: AnySize) -> AnySize:
        """Return the largest of some integers."""
        return _fold("max", first, others)

    def select(
        self,
        test: Callable[..., bool],
        symbols: tuple[AnySize, ...],
        a: AnySize,
        b: AnySize,
    ) -> Size:
        """Return `a` where a condition on sizes holds, else `b`."""
        sizes = tuple(_plan_size(s) for s in (a, b, *symbols))
        return self._size_call(lambda x, y, *s: x if test(*s) else y, sizes)

    # Checks

    def assert_size_stride(
        self,
        tensor: Handle,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        what: str,
    ) -> None:
        """Raise AssertionError unless sizes and strides are these."""
        args = (self._reg(tensor), _tuple(shape), _tuple(strides), Const(what))
        self._call(host.assert_size_stride, args, result=False)

    def assert_alignment(self, tensor: Handle, alignment: int) -> None:
        """Raise AssertionError unless the data pointer is a multiple of `alignment` bytes."""
        self._call(host.assert_alignment, (self._reg(tensor), alignment), result=False)

    def assert_no_nan(self, tensor: Handle, what: str) -> None:
        """Raise AssertionError if a floating-point tensor holds NaN or infinity."""
        self._call(host.check_nan, (self._reg(tensor), Const(what)), result=False)

    def assert_true(
        self, test: Callable[..., bool], symbols: tuple[AnySize, ...], message: str
    ) -> None:
        """Raise RuntimeError unless a condition on sizes holds."""

        def check(*values: int) -> None:
            if not test(*values):
                raise RuntimeError(message)

        self._call(check, tuple(_plan_size(s) for s in symbols), result=False)

    # Memory

    def constant(self, key: str) -> Handle:
        """Return a tensor that the program carries."""
        return self._call(host.identity, (Const(self.rt.constants[key]),))

    def allocate(
        self,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        dtype: str,
        device: str,
        pinned: bool = False,
    ) -> Handle:
        """Return a new strided tensor, uninitialised."""
        function, extra = host.allocator(host.DTYPES[dtype], device, pinned)
        args: tuple[Value, ...] = (_tuple(shape), _tuple(strides), *(Const(e) for e in extra))
        return self._call(function, args)

    def pool(self, nbytes: AnySize, device: str) -> Handle:
        """Return memory that tensors are placed in."""
        return self.allocate((nbytes,), (1,), "u8", device)

    def from_pool(
        self,
        pool: Handle,
        offset: AnySize,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        dtype: str,
    ) -> Handle:
        """Return a tensor at a byte offset of a pool."""
        layout = (shape, strides, host.DTYPES[dtype])
        return Handle(pool.register, _plan_size(offset), layout, pooled=True)

    def workspace(self, nbytes: AnySize, device: str, zeroed: bool) -> Handle:
        """Return scratch bytes for kernels."""
        scratch = self.pool(nbytes, device)
        if zeroed:
            self._call(torch.Tensor.zero_, (Reg(scratch.register),), result=False)
        return scratch

    def free(self, tensor: Handle) -> None:
        """Drop a tensor. One that lies in a pool stays until the pool goes."""
        if not tensor.pooled:
            self.instructions.append(Drop(tensor.register))

    def reuse(
        self,
        source: Handle,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        dtype: str,
    ) -> Handle:
        """Return a tensor over the storage of `source`, which is dropped."""
        layout = (shape, strides, host.DTYPES[dtype])
        return Handle(source.register, source.offset, layout, source.pooled)

    def view(
        self,
        source: Handle,
        shape: tuple[AnySize, ...],
        strides: tuple[AnySize, ...],
        offset: AnySize,
        dtype: str,
    ) -> Handle:
        """Return a strided view of a tensor, `offset` counted from its first element."""
        base = self._reg(source)
        layout = (_tuple(shape), _tuple(strides), _plan_size(offset), Const(host.DTYPES[dtype]))
        return self._call(host.view, (base, *layout))

    # Work

    def launch(
        self,
        kernel: str,
        tensors: tuple[Handle, ...],
        sizes: tuple[AnySize, ...],
        stream: Handle | None = None,
    ) -> None:
        """Run a kernel."""
        loaded = self.rt.kernels[kernel]
        self._launched.append(kernel)
        self.instructions.append(
            Launch(
                loaded.address,
                tuple(Buffer(t.register, t.offset) for t in tensors),
                tuple(_plan_size(s) for s in sizes),
                loaded.checks,
                release_gil=loaded.release_gil,
                name=loaded.name,
            )
        )

    def extern(
        self,
        target: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: tuple[str | int | None, ...] = (),
    ) -> Any:
        """Call a dispatcher op. `results` describes its returns: 'tensor', 'size', the length of a
        tensor list, or None for one that is not used. The tuple of all used ones comes back."""
        function = host.extern(target)
        values = tuple(self._value(a) for a in args)
        named = tuple((k, self._value(v)) for k, v in kwargs.items())
        if not any(r is not None for r in results):
            self._call(function, values, named, result=False)
            return ()
        whole = self._call(function, values, named)
        found: list[Handle | Size] = []
        parts = (
            [whole]
            if len(results) == 1
            else [self._item(whole, k) if r is not None else whole for k, r in enumerate(results)]
        )
        for part, kind in zip(parts, results, strict=True):
            match kind:
                case "tensor":
                    found.append(part)
                case "size":
                    found.append(Size((("arg", part.register),)))
                case int():
                    found.extend(self._item(part, k) for k in range(kind))
                    self.free(part)
        if len(results) > 1:
            self.free(whole)
        return tuple(found)

    def copy(self, destination: Handle, source: Handle, non_blocking: bool) -> None:
        """Copy a tensor into another."""
        args = (self._reg(destination), self._reg(source), Const(non_blocking))
        self._call(host.copy, args, result=False)

    def read_scalar(self, tensor: Handle) -> Size:
        """Return the value of a one-element integer tensor."""
        return self._size_call(host.read_scalar, (self._reg(tensor),))

    def triton(
        self,
        kernel: str,
        grid: tuple[tuple[AnySize, ...], ...],
        args: dict[str, Any],
        constants: dict[str, Any],
        stream: Handle | None = None,
    ) -> None:
        """Launch a user's Triton kernel: `rt.triton_kernels[kernel](grid, arguments)`."""
        function = self.rt.triton_kernels[kernel]
        names = (*args, *constants)
        shape = tuple(len(g) for g in grid)

        def launch(*values: Any) -> None:
            flat = iter(values)
            grids = [tuple(next(flat) for _ in range(n)) for n in shape]
            function(grids, dict(zip(names, flat, strict=True)))

        sizes = tuple(_plan_size(s) for g in grid for s in g)
        given = tuple(self._value(v) for v in (*args.values(), *constants.values()))
        self._call(launch, (*sizes, *given), result=False)

    def tma_descriptor(
        self,
        tensor: Handle,
        shape: tuple[AnySize, ...],
        block: tuple[AnySize, ...],
        element_bytes: AnySize,
        stable: bool,
    ) -> Handle:
        """Return a tensor-map descriptor, for a user's Triton kernel."""
        layout = (_tuple(shape), _tuple(block), _plan_size(element_bytes), Const(stable))
        return self._call(host.tma_descriptor, (self._reg(tensor), *layout))

    # Streams and events

    def stream(self, device: str, current: bool) -> Handle:
        """Return the caller's stream of a device, or a new one."""
        return self._call(host.stream, (Const(device), Const(current)))

    def event(self, device: str) -> Handle:
        """Return a new event of a device."""
        return self._call(host.event, (Const(device),))

    def record_event(self, event: Handle, stream: Handle) -> None:
        """Record an event on a stream."""
        args = (Reg(event.register), Reg(stream.register))
        self._call(host.record_event, args, result=False)

    def wait_event(self, event: Handle, stream: Handle) -> None:
        """Make a stream wait for an event."""
        self._call(host.wait_event, (Reg(event.register), Reg(stream.register)), result=False)

    def with_stream(
        self, stream: Handle, body: Callable[..., Recorded], captured: tuple[Any, ...]
    ) -> tuple[Handle | Size, ...]:
        """Run `body` with a stream current."""
        inner = self._nested(body, captured)

        def run(current: Any, *args: object) -> object:
            with host.stream_guard(current):
                return inner.plan(*args)

        return self._results(run, (stream, *captured), inner.integers)

    def wait_collective(self, tensor: Handle) -> None:
        """Wait for the collective that fills a tensor."""
        function = host.extern("_c10d_functional.wait_tensor.default")
        self._call(function, (self._reg(tensor),), result=False)

    # Structure

    def with_context(
        self,
        context: Callable[[], Any],
        body: Callable[..., Recorded],
        captured: tuple[Handle | AnySize, ...],
    ) -> tuple[Handle | Size, ...]:
        """Record `body` apart; run it inside a context manager, made anew each time."""
        inner = self._nested(body, captured)

        def run(*args: object) -> object:
            with context():
                return inner.plan(*args)

        return self._results(run, captured, inner.integers)

    def with_device(
        self, device: str, body: Callable[..., Recorded], captured: tuple[Any, ...]
    ) -> tuple[Handle | Size, ...]:
        """Run `body` with a device current."""
        return self.with_context(lambda: host.device_guard(device), body, captured)

    def profile_range(
        self, label: str, body: Callable[..., Recorded], captured: tuple[Any, ...]
    ) -> tuple[Handle | Size, ...]:
        """Run `body` in a named range of the profiler."""
        return self.with_context(lambda: host.profile_range(label), body, captured)

    def branch(
        self,
        condition: Handle | tuple[Callable[..., bool], tuple[AnySize, ...]],
        then: Callable[..., Recorded],
        otherwise: Callable[..., Recorded],
        captured: tuple[Any, ...],
    ) -> tuple[Handle | Size, ...]:
        """Run one of two bodies."""
        yes, no = self._nested(then, captured), self._nested(otherwise, captured)
        if isinstance(condition, Handle):
            inputs: tuple[Any, ...] = (condition,)
            test: Callable[..., bool] = bool
        else:
            test, inputs = condition
        n = len(inputs)

        def run(*args: object) -> object:
            return (yes if test(*args[:n]) else no).plan(*args[n:])

        return self._results(run, (*inputs, *captured), yes.integers)

    def loop(
        self,
        condition: Callable[..., Recorded],
        body: Callable[..., Recorded],
        initial: tuple[Any, ...],
        captured: tuple[Any, ...],
    ) -> tuple[Handle | Size, ...]:
        """Replace the carried values by what `body` gives, while `condition` gives true."""
        test, step = (self._nested(f, (*initial, *captured)) for f in (condition, body))
        n = len(initial)

        def run(*args: object) -> object:
            carried: Any = args[:n]
            rest = args[n:]
            while test.plan(*carried, *rest)[0]:  # type: ignore[index]
                carried = step.plan(*carried, *rest)
            return carried

        return self._results(run, (*initial, *captured), step.integers)

    def call_program(
        self, program: str, args: tuple[Any, ...], results: int
    ) -> tuple[Handle | Size, ...]:
        """Run a subprogram."""
        inner = self.rt.recorded(program)
        return self._results(lambda *a: inner.plan(list(a)), args, inner.integers)

    def call_partition(
        self, program: str, args: tuple[Any, ...], results: int
    ) -> tuple[Handle | Size, ...]:
        """Run a subprogram that may be captured; on devices without capture, just run it."""
        return self.call_program(program, args, results)

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

    # The plan

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
        if handle.layout is None:
            return Reg(handle.register)
        shape, strides, dtype = handle.layout
        args = (Reg(handle.register), _tuple(shape), _tuple(strides), Const(dtype), handle.offset)
        return Reg(self._call(host.over_storage, args).register)

    def _value(self, value: Any) -> Value:
        match value:
            case Handle():
                return self._reg(value)
            case Size():
                return _plan_size(value)
            case list() if any(isinstance(v, Handle) for v in value):
                items = tuple(self._value(v) for v in value)
                return Reg(self._call(host.pack, items).register)
            case list() | tuple() if any(isinstance(v, Size) for v in value):
                return _tuple(tuple(value))
            case _:
                return Const(value)

    def _nested(self, body: Callable[..., Recorded], captured: tuple[Any, ...]) -> Recorded:
        inner = Recorder(self.rt, self.name, len(captured))
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


def _fold(op: str, first: AnySize, others: tuple[AnySize, ...]) -> Size:
    code = _code(first)
    for other in others:
        code = (*code, *_code(other), (op, 0))
    return Size(code)


def _tuple(sizes: tuple[AnySize, ...]) -> IntTuple:
    return IntTuple(tuple(_plan_size(s) for s in sizes))
