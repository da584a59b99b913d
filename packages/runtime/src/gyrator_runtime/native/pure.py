"""The same plans without a native module: slower, same behaviour.

Used where Python's headers or a compiler are missing, and as the reading that the native runner
is tested against.
"""

import ctypes
import operator
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import torch

from gyrator_runtime.native.encode import encode
from gyrator_runtime.native.program import (
    Call,
    CheckHandler,
    Conform,
    Const,
    Drop,
    GetItem,
    IntTuple,
    Launch,
    Move,
    Operate,
    PlanProgram,
    Reg,
    Return,
    Separate,
    Size,
    SizeArg,
    SizeProgram,
    TensorArg,
    Value,
    check_handler,
)

_LIMIT = 1 << 63
_Kernel = Callable[[Any, Any], int]


class PurePlan:
    """Executes a `PlanProgram` in Python; kernels are called through ctypes."""

    def __init__(self, program: PlanProgram) -> None:
        encode(program)  # the same refusals as the native runner
        self._program = program
        self._kernels: list[tuple[_Kernel, CheckHandler]] = [
            (_foreign(launch), check_handler(launch)) for launch in program.launches
        ]
        self._timings = [[0, 0, 0] for _ in program.launches]
        self._pid = os.getpid()

    def __call__(self, *args: object) -> object:
        """Run the plan; see `PlanProgram` for arguments and result."""
        program = self._program
        values = _bound(program, args)
        if os.getpid() != self._pid:
            # A forked child inherits libgomp's record of a pool without its threads, and would
            # wait for them for ever.
            self._pid = os.getpid()
            torch.set_num_threads(1)
        del args
        regs: list[object] = [*values, *(_EMPTY for _ in range(program.n_regs - program.n_args))]
        del values
        step = 0
        for instruction in program.instructions:
            match instruction:
                case Launch():
                    self._launch(step, instruction, regs)
                    step += 1
                case Call(target, function):
                    result = function(
                        *[_value(v, regs) for v in instruction.args],
                        **{n: _value(v, regs) for n, v in instruction.kwargs},
                    )
                    if target is not None:
                        regs[target] = result
                    del result
                case Operate(function, tensors):
                    objects = tuple(_filled(regs, t.register) for t in tensors)
                    function(objects, _layout_sizes(tensors, regs))
                    del objects
                case Conform(register, function, layout):
                    sizes = tuple(_size(s, regs) for s in (*layout.sizes, *layout.strides))
                    regs[register] = function(_read(regs, register), sizes)
                case Separate(registers, others, function):
                    mine, theirs = (tuple(_read(regs, r) for r in t) for t in (registers, others))
                    for register, own in zip(registers, function(mine, theirs), strict=True):
                        regs[register] = own
                    del mine, theirs
                case Drop(register):
                    regs[register] = _EMPTY
                case GetItem(target, source, index):
                    regs[target] = _read(regs, source)[index]
                case Move(target, source):
                    regs[target] = regs[source]
                case Return(returned):
                    return tuple(_value(v, regs) for v in returned)
        return None

    def timings(self) -> list[tuple[int, int, int]]:
        """Rows (calls, total ns, least ns), one a launch; empty unless the plan is timed."""
        if not self._program.timed:
            return []
        return [(count, total, least) for count, total, least in self._timings]

    def _launch(self, step: int, launch: Launch, regs: list[object]) -> None:
        kernel, handler = self._kernels[step]
        objects = tuple(_filled(regs, b.register) for b in launch.buffers)
        addresses = [
            _address(obj, _size(b.offset, regs))
            for obj, b in zip(objects, launch.buffers, strict=True)
        ]
        sizes = tuple(_size(s, regs) for s in launch.sizes)
        pointer_array = (ctypes.c_void_p * len(addresses))(*addresses)
        size_array = (ctypes.c_int64 * len(sizes))(*sizes)
        begin = time.perf_counter_ns()
        if launch.device is not None:
            status = launch.device.launch(addresses, sizes)
        else:
            status = kernel(pointer_array, size_array)
        if self._program.timed:
            spent = time.perf_counter_ns() - begin
            row = self._timings[step]
            row[0] += 1
            row[1] += spent
            row[2] = spent if row[2] == 0 else min(row[2], spent)
        if status:
            error = handler(status, objects, sizes)
            if isinstance(error, BaseException):
                raise error
            raise RuntimeError(f"gyrator: check {status} of a kernel failed")


class _Empty:
    """What a register holds before its first write and after a drop."""


_EMPTY = _Empty()


def _foreign(launch: Launch) -> _Kernel:
    # A CFUNCTYPE call releases the interpreter's lock, a PYFUNCTYPE call keeps it.
    kind = ctypes.CFUNCTYPE if launch.release_gil else ctypes.PYFUNCTYPE
    return kind(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(launch.address)


def _bound(program: PlanProgram, args: tuple[object, ...]) -> list[object]:
    if not program.boxed:
        if len(args) != program.n_args:
            raise TypeError(f"gyrator: a plan of {program.n_args} arguments got {len(args)}")
        return list(args)
    box = args[0] if len(args) == 1 else None
    if type(box) is not list or len(box) != program.n_args:
        raise TypeError(f"gyrator: a boxed plan wants one list of {program.n_args} arguments")
    values = list(box)
    box.clear()
    return values


def _filled(regs: list[object], register: int) -> object:
    value = regs[register]
    if value is _EMPTY:
        raise RuntimeError("gyrator: a launch reads an empty register")
    return value


def _read(regs: Sequence[object], register: int) -> Any:
    value = regs[register]
    if value is _EMPTY:
        raise RuntimeError("gyrator: an argument is an empty register")
    return value


def _address(value: object, offset: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"gyrator: a kernel wants a tensor, got {type(value).__name__}")
    address = value.data_ptr()
    if not address and value.numel():  # fake and meta tensors claim elements that are not there
        raise RuntimeError(f"gyrator: a kernel got a {type(value).__name__} without memory")
    return address + offset if address else None


def _value(value: Value, regs: list[object]) -> object:
    match value:
        case Reg(register):
            return _read(regs, register)
        case Const(known):
            return known
        case IntTuple(items):
            return tuple(_size(i, regs) for i in items)
        case _:
            return _size(value, regs)


def _layout_sizes(tensors: tuple[TensorArg, ...], regs: list[object]) -> tuple[int, ...]:
    layouts = (t.layout for t in tensors if t.layout is not None)
    sizes = (s for x in layouts for s in (x.offset, *x.sizes, *x.strides))
    return tuple(_size(s, regs) for s in sizes)


def _size(size: Size, regs: list[object]) -> int:
    match size:
        case int():
            return size
        case SizeArg(register):
            return _int64(_read(regs, register))
        case SizeProgram(code):
            return evaluate(code, regs)


def evaluate(code: Sequence[tuple[str, int]], regs: Sequence[object]) -> int:
    """Return the value of a `SizeProgram`'s code; `("arg", k)` reads item k of `regs`."""
    stack: list[int] = []
    for name, operand in code:
        if name == "arg":
            stack.append(_int64(_read(regs, operand)))
        elif name == "const":
            stack.append(operand)
        else:
            b = stack.pop()
            stack.append(_int64(_apply(name, stack.pop(), b)))
    return stack[0]


def _apply(name: str, a: int, b: int) -> int:
    match name:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case "floordiv":
            return a // b
        case _:
            return a % b


def _int64(value: SupportsIndex) -> int:
    value = operator.index(value)
    if not -_LIMIT <= value < _LIMIT:
        raise OverflowError("gyrator: a size expression leaves the 64-bit range")
    return value
