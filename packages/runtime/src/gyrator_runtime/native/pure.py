"""Execution of plans without the native module: slower, with the same behaviour.

Used without Python's headers or a compiler, and as the reference for tests of the native runner.
"""

import ctypes
import operator
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import torch
from attrs import field

from gyrator_ir.define import define
from gyrator_runtime.native import words as codes
from gyrator_runtime.native.kernels import DeviceLaunch, KernelFunction, TensorLaunch
from gyrator_runtime.native.ready import Ready

_LIMIT = 1 << 63
_Kernel = Callable[[Any, Any], int]


class PurePlan:
    """Executes an encoded plan in Python, and its kernels through ctypes."""

    def __init__(self, ready: Ready) -> None:
        self._ready = ready
        self._code = ready.code.tolist()
        self._foreign: dict[tuple[KernelFunction, bool], _Kernel] = {}
        self._timings = [[0, 0, 0] for _ in ready.kernels]
        self._pid = os.getpid()

    def __call__(self, *args: object) -> object:
        """Run the plan. See `PlanProgram` for the arguments and the result."""
        ready = self._ready
        values = _bound(ready, args)
        if os.getpid() != self._pid:
            # A forked child inherits the state of libgomp's thread pool but not its threads, and
            # would wait for them forever.
            self._pid = os.getpid()
            torch.set_num_threads(1)
        del args
        values += [_EMPTY] * (ready.n_regs - ready.n_args)
        return _Run(self, self._code, values, ready.ints.tolist()).run()

    def timings(self) -> list[tuple[int, int, int]]:
        """Return rows (calls, total ns, minimum ns), one per launch; empty unless the plan is
        timed."""
        if not self._ready.timed:
            return []
        return [(count, total, least) for count, total, least in self._timings]

    def const(self, place: int) -> Any:
        """Return a constant by its index."""
        return self._ready.consts[place]

    def launch(
        self, step: int, release: bool, objects: Sequence[Any], offsets: Sequence[int],
        sizes: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Run the kernel of a launch."""
        kernel = self._ready.kernels[step]
        begin = time.perf_counter_ns()
        if isinstance(kernel, TensorLaunch):
            status = kernel.launch(objects, offsets, sizes)
        else:
            addresses = [_address(o, at) for o, at in zip(objects, offsets, strict=True)]
            status = self._launch(kernel, release, addresses, sizes)
        if self._ready.timed:
            spent = time.perf_counter_ns() - begin
            row = self._timings[step]
            row[0] += 1
            row[1] += spent
            row[2] = spent if row[2] == 0 else min(row[2], spent)
        if status:
            error = self._ready.handlers[step](status, tuple(objects), sizes)
            if isinstance(error, BaseException):
                raise error
            raise RuntimeError(f"gyrator: check {status} of a kernel failed")

    def _launch(
        self, kernel: int | DeviceLaunch, release: bool, addresses: list[int | None],
        sizes: tuple[int, ...],
    ) -> int:  # fmt: skip
        if not isinstance(kernel, int):
            return kernel.launch(addresses, sizes)
        pointer_array = (ctypes.c_void_p * len(addresses))(*addresses)
        size_array = (ctypes.c_int64 * len(sizes))(*sizes)
        return self._function(kernel, release)(pointer_array, size_array)

    def _function(self, address: int, release: bool) -> _Kernel:
        function = self._foreign.get((address, release))
        if function is None:
            # A CFUNCTYPE call releases the GIL, a PYFUNCTYPE call keeps it.
            kind = ctypes.CFUNCTYPE if release else ctypes.PYFUNCTYPE
            foreign = kind(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(address)
            function = self._foreign[address, release] = foreign
        return function


class _Empty:
    """The value of a register before its first write and after a drop."""


_EMPTY = _Empty()


@define(eq=False)
class _Run:
    """One call of a plan."""

    plan: PurePlan
    code: list[int]
    regs: list[Any]
    ints: list[int]
    at: int = 0
    result: Any = field(default=None)

    def run(self) -> Any:
        """Execute words up to a return or the end."""
        while (step := _STEPS.get(self.word())) is not None:
            step(self)
        return self.result

    def word(self) -> int:
        """Return the next word."""
        self.at += 1
        return self.code[self.at - 1]

    def words(self, count: int) -> list[int]:
        """Return the next words."""
        self.at += count
        return self.code[self.at - count : self.at]

    def slots(self, count: int) -> tuple[int, ...]:
        """Return the integers in the slots given by the next words."""
        return tuple(self.ints[w] for w in self.words(count))

    def read(self, register: int, what: str = "an argument") -> Any:
        """Return the value of a register."""
        value = self.regs[register]
        if value is _EMPTY:
            raise RuntimeError(f"gyrator: {what} is an empty register")
        return value

    def value(self) -> Any:
        """Return the next argument."""
        kind, place = self.words(2)
        if kind == codes.ARG_REG:
            return self.read(place)
        if kind == codes.ARG_CONST:
            return self.plan.const(place)
        if kind == codes.ARG_INT:
            return self.ints[place]
        return self.slots(place)

    def put(self, register: int, value: Any) -> None:
        """Write to a register; -1 discards the value."""
        if register >= 0:
            self.regs[register] = value

    # Instructions

    def load_int(self) -> None:
        slot, register = self.words(2)
        self.ints[slot] = _int64(self.read(register))

    def evaluate(self) -> None:
        slot, count = self.words(2)
        words = self.words(2 * count)
        code = [(codes.EXPR_OPS[words[k]], words[k + 1]) for k in range(0, 2 * count, 2)]
        self.ints[slot] = evaluate(code, self.ints)

    def launch(self) -> None:
        release, count, _, _ = self.words(4)
        for _ in range(count):
            _, step, buffers, sizes, _, _ = self.words(6)
            pairs = [self.words(2) for _ in range(buffers)]
            objects = [self.read(r, "a tensor of a launch") for r, _ in pairs]
            offsets = [0 if slot < 0 else self.ints[slot] for _, slot in pairs]
            self.plan.launch(step, bool(release), objects, offsets, self.slots(sizes))
            del objects

    def call_tuple(self) -> None:
        target, function, args = self.words(3)
        self.put(target, self.plan.const(function)(*self.plan.const(args)))

    def call(self) -> None:
        target, function, keywords, count = self.words(4)
        names = self.plan.const(keywords) if keywords >= 0 else ()
        values = [self.value() for _ in range(count)]
        first = count - len(names)
        named = dict(zip(names, values[first:], strict=True))
        self.put(target, self.plan.const(function)(*values[:first], **named))

    def drop(self) -> None:
        self.regs[self.word()] = _EMPTY

    def get_item(self) -> None:
        target, source, index = self.words(3)
        self.regs[target] = self.read(source)[index]

    def move(self) -> None:
        target, source = self.words(2)
        self.regs[target] = self.regs[source]

    def operate(self) -> None:
        _, function, tensors, numbers = self.words(4)
        objects: list[Any] = []
        layouts: list[int] = []
        for _ in range(tensors):
            register, rank = self.words(2)
            objects.append(self.read(register, "a tensor of an operator"))
            if rank >= 0:
                self.words(2)
                layouts += self.slots(1 + 2 * rank)
        self.words(numbers)
        self.plan.const(function)(tuple(objects), tuple(layouts))

    def conform(self) -> None:
        register, function, _, _, _, rank = self.words(6)
        sizes = self.slots(2 * rank)
        self.regs[register] = self.plan.const(function)(self.read(register), sizes)

    def separate(self) -> None:
        function, n, m = self.words(3)
        registers, others = self.words(n), self.words(m)
        tensors, other_tensors = (tuple(map(self.read, r)) for r in (registers, others))
        results = self.plan.const(function)(tensors, other_tensors)
        for register, tensor in zip(registers, results, strict=True):
            self.regs[register] = tensor

    def returned(self) -> None:
        self.result = tuple(self.value() for _ in range(self.word()))
        self.at = len(self.code) - 1


_STEPS: dict[int, Callable[[_Run], None]] = {
    codes.LOAD_INT: _Run.load_int,
    codes.EVAL: _Run.evaluate,
    codes.LAUNCH: _Run.launch,
    codes.CALL_TUPLE: _Run.call_tuple,
    codes.CALL: _Run.call,
    codes.DROP: _Run.drop,
    codes.GET_ITEM: _Run.get_item,
    codes.MOVE: _Run.move,
    codes.OPERATE: _Run.operate,
    codes.CONFORM: _Run.conform,
    codes.SEPARATE: _Run.separate,
    codes.RETURN: _Run.returned,
}


def _bound(ready: Ready, args: tuple[object, ...]) -> list[object]:
    if not ready.boxed:
        if len(args) != ready.n_args:
            raise TypeError(f"gyrator: a plan of {ready.n_args} arguments got {len(args)}")
        return list(args)
    box = args[0] if len(args) == 1 else None
    if type(box) is not list or len(box) != ready.n_args:
        raise TypeError(f"gyrator: a boxed plan wants one list of {ready.n_args} arguments")
    values = list(box)
    box.clear()
    return values


def _address(value: object, offset: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"gyrator: a kernel wants a tensor, got {type(value).__name__}")
    address = value.data_ptr()
    if not address and value.numel():  # fake and meta tensors have elements but no memory
        raise RuntimeError(f"gyrator: a kernel got a {type(value).__name__} without memory")
    return address + offset if address else None


def evaluate(code: Sequence[tuple[str, int]], numbers: Sequence[Any]) -> int:
    """Return the value of a `SizeProgram`'s code; `("arg", k)` reads item k of `numbers`."""
    stack: list[int] = []
    at = 0
    while at < len(code):
        name, operand = code[at]
        at += 1
        if name == "arg":
            stack.append(_int64(numbers[operand]))
        elif name == "const":
            stack.append(operand)
        elif name == "skip" or name == "unless":
            at += operand if name == "skip" or not stack.pop() else 0
        else:
            b = stack.pop()
            stack.append(_int64(_OPERATIONS[name](stack.pop(), b)))
    return stack[0]


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
}


def _int64(value: SupportsIndex) -> int:
    value = int(operator.index(value))
    if not -_LIMIT <= value < _LIMIT:
        raise OverflowError("gyrator: a size expression leaves the 64-bit range")
    return value
