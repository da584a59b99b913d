"""Encoding of a `PlanProgram` as the words that gyrunner.cpp and `pure` execute.

Each distinct size becomes one integer slot. Constants are in the initial slots; other sizes are
evaluated just before the first instruction that uses them, which dominates all later uses because
plans are straight-line code. `ready` fills in the addresses.
"""

import struct
from itertools import groupby
from typing import assert_never

from gyrator_runtime.native import program as p
from gyrator_runtime.native import words as codes
from gyrator_runtime.native.kernels import CheckHandler, Checks, KernelFunction
from gyrator_runtime.native.program import PlanProgram, Size, SizeArg, SizeProgram
from gyrator_runtime.native.ready import Encoded
from gyrator_runtime.native.shim import load_shim

_EXPR = {name: number for number, name in enumerate(codes.EXPR_OPS)}


def encode(program: PlanProgram) -> Encoded:
    """Return the encoded form of `program`. ValueError if a register does not exist."""
    _check_registers(program)
    out = _Encoder()
    out.run(program.instructions)
    return Encoded(
        n_args=program.n_args,
        n_regs=program.n_regs,
        boxed=program.boxed,
        code=out.code,
        ints=out.ints,
        consts=out.consts,
        launches=out.called,
        groups=out.groups,
        operators=out.operators,
        devices=out.devices,
    )


class _Encoder:
    def __init__(self) -> None:
        self.code: list[int] = []
        self.ints: list[int] = []
        self.consts: list[object] = []
        self.called: list[tuple[KernelFunction | str, str, Checks | CheckHandler]] = []
        self.groups: list[int] = []
        self.operators: list[tuple[int, str, str]] = []
        self.devices: list[tuple[int, str]] = []
        self.slots: dict[Size, int] = {}
        self.readers: dict[int, list[Size]] = {}
        """By register, the sizes that read it, a superset of those in `slots`."""
        self.const_slots: dict[int, int] = {}

    def run(self, instructions: tuple[p.Instruction, ...]) -> None:
        for _, group in groupby(instructions, _shared_launch):
            launches: list[p.Launch] = []
            for instruction in group:
                if isinstance(instruction, p.Launch):
                    launches.append(instruction)
                else:
                    self.other(instruction)
            if launches:
                self.launches(launches)
        self.code.append(codes.END)

    def other(
        self,
        instruction: p.Call
        | p.Operate
        | p.Conform
        | p.Separate
        | p.Drop
        | p.GetItem
        | p.Move
        | p.Return,
    ) -> None:
        code = self.code
        match instruction:
            case p.Call():
                self.call(instruction)
            case p.Operate():
                self.operate(instruction)
            case p.Conform():
                self.conform(instruction)
            case p.Separate(registers, others, function):
                counts = (self.const(function), len(registers), len(others))
                code += (codes.SEPARATE, *counts, *registers, *others)
                for register in registers:
                    self.forget(register)
            case p.Drop(register):
                code += (codes.DROP, register)
            case p.GetItem(target, source, index):
                code += (codes.GET_ITEM, target, source, index)
                self.forget(target)
            case p.Move(target, source):
                code += (codes.MOVE, target, source)
                self.forget(target)
            case p.Return(values):
                words = [w for v in values for w in self.value(v)]
                code += (codes.RETURN, len(values), *words)
            case _:
                assert_never(instruction)

    def launches(self, group: list[p.Launch]) -> None:
        words: list[int] = []
        for launch in group:
            buffers = [
                (b.register, -1 if b.offset == 0 else self.slot(b.offset)) for b in launch.buffers
            ]
            sizes = [self.slot(s) for s in launch.sizes]
            words += (0, len(self.called), len(buffers), len(sizes), 0, int(launch.overlap))
            words += (w for pair in buffers for w in pair)
            words += sizes
            self.called.append((launch.kernel, launch.name, launch.handler or launch.checks))
        pointers = sum(len(launch.buffers) for launch in group)
        sizes_count = sum(len(launch.sizes) for launch in group)
        self.groups.append(len(self.code))
        header = (codes.LAUNCH, int(group[0].release_gil), len(group), pointers, sizes_count)
        self.code += (*header, *words)

    def call(self, call: p.Call) -> None:
        target = -1 if call.target is None else call.target
        values = (*call.args, *(v for _, v in call.kwargs))
        function = self.const(call.function)
        static = [_static(v) for v in call.args]
        if not call.kwargs and all(is_static for is_static, _ in static):
            prebuilt = self.const(tuple(value for _, value in static))
            self.code += (codes.CALL_TUPLE, target, function, prebuilt)
        else:
            names = self.const(tuple(n for n, _ in call.kwargs)) if call.kwargs else -1
            words = [w for v in values for w in self.value(v)]
            self.code += (codes.CALL, target, function, names, len(values), *words)
        if call.target is not None:
            self.forget(call.target)

    def operate(self, operate: p.Operate) -> None:
        shim = load_shim()
        dtypes = {} if shim is None else shim.dtypes
        layouts = [t.layout for t in operate.tensors if t.layout is not None]
        if sum(1 + 2 * len(layout.sizes) for layout in layouts) > codes.MAX_WORDS:
            raise ValueError(
                f"an operator has more than {codes.MAX_WORDS} offsets, sizes and strides"
            )
        direct = (
            len(operate.tensors) in codes.DIRECT_TENSORS
            and len(operate.numbers) == 2 * (len(operate.tensors) - 3)
            and all(x.dtype in dtypes and len(x.sizes) <= codes.MAX_DIMS for x in layouts)
        )
        words: list[int] = []
        for tensor in operate.tensors:
            layout = tensor.layout
            if layout is None:
                words += (tensor.register, -1)
                continue
            kind = (dtypes.get(layout.dtype, -1), layout.dtype.itemsize)
            slots = [self.slot(s) for s in (layout.offset, *layout.sizes, *layout.strides)]
            words += (tensor.register, len(layout.sizes), *kind, *slots)
        words += struct.unpack(
            f"={len(operate.numbers)}q", struct.pack(f"={len(operate.numbers)}d", *operate.numbers)
        )
        if direct and operate.operator is not None:
            self.operators.append((len(self.code) + 1, *operate.operator))
        counts = (len(operate.tensors), len(operate.numbers))
        self.code += (codes.OPERATE, 0, self.const(operate.function), *counts, *words)

    def conform(self, conform: p.Conform) -> None:
        shim = load_shim()
        layout, device = conform.layout, conform.device
        dtype = -1
        if shim is not None and len(layout.sizes) <= codes.MAX_DIMS:
            dtype = shim.every_dtype.get(layout.dtype, -1)
        slots = [self.slot(s) for s in (*layout.sizes, *layout.strides)]
        function = self.const(conform.function)
        header = (conform.register, function, dtype, -1, -1, len(layout.sizes))
        self.devices.append((len(self.code) + 4, str(device)))
        self.code += (codes.CONFORM, *header, *slots)
        self.forget(conform.register)

    def value(self, value: p.Value) -> tuple[int, ...]:
        is_static, static = _static(value)
        if is_static:
            return (codes.ARG_CONST, self.const(static))
        match value:
            case p.Reg(register):
                return (codes.ARG_REG, register)
            case p.IntTuple(items):
                return (codes.ARG_INT_TUPLE, len(items), *(self.slot(i) for i in items))
            case int() | SizeArg() | SizeProgram():
                return (codes.ARG_INT, self.slot(value))
            case _:
                raise TypeError(f"not a plan value: {value!r}")

    def slot(self, size: Size) -> int:
        if isinstance(size, int):
            if size not in self.const_slots:
                self.const_slots[size] = self.new_slot(size)
            return self.const_slots[size]
        if size in self.slots:
            return self.slots[size]
        if isinstance(size, SizeArg):
            slot = self.new_slot(0)
            self.code += (codes.LOAD_INT, slot, size.register)
        else:
            words: list[int] = []
            for name, operand in size.code:
                word = self.slot(SizeArg(operand)) if name == "arg" else operand
                words += (_EXPR[name], word)
            slot = self.new_slot(0)
            self.code += (codes.EVAL, slot, len(size.code), *words)
        self.slots[size] = slot
        for register in _registers(size):
            self.readers.setdefault(register, []).append(size)
        return slot

    def forget(self, register: int) -> None:
        """Invalidate the sizes that read `register`, which was just written."""
        for size in self.readers.pop(register, ()):
            self.slots.pop(size, None)

    def new_slot(self, value: int) -> int:
        self.ints.append(value)
        return len(self.ints) - 1

    def const(self, value: object) -> int:
        self.consts.append(value)
        return len(self.consts) - 1


def _shared_launch(instruction: p.Instruction) -> bool | None:
    """Return a key that is equal for launches that may be encoded together, None for others."""
    return instruction.release_gil if isinstance(instruction, p.Launch) else None


def _static(value: p.Value) -> tuple[bool, object]:
    match value:
        case p.Const(known):
            return True, known
        case int():
            return True, value
        case p.IntTuple(items) if all(isinstance(i, int) for i in items):
            return True, items
        case _:
            return False, None


def _registers(size: SizeArg | SizeProgram) -> tuple[int, ...]:
    """Return the registers that a size reads."""
    if isinstance(size, SizeArg):
        return (size.register,)
    return tuple({operand: None for name, operand in size.code if name == "arg"})


def _sizes(value: p.Value) -> tuple[Size, ...]:
    match value:
        case p.IntTuple(items):
            return items
        case SizeArg() | SizeProgram():
            return (value,)
        case _:
            return ()


def _check_registers(program: PlanProgram) -> None:
    used: set[int] = set()
    sizes: list[Size] = []
    values: list[p.Value] = []
    for instruction in program.instructions:
        match instruction:
            case p.Launch():
                used.update(b.register for b in instruction.buffers)
                sizes += (b.offset for b in instruction.buffers)
                sizes += instruction.sizes
            case p.Call():
                used.update(() if instruction.target is None else (instruction.target,))
                values += (*instruction.args, *(v for _, v in instruction.kwargs))
            case p.Operate():
                used.update(t.register for t in instruction.tensors)
                for layouts in (t.layout for t in instruction.tensors if t.layout is not None):
                    sizes += (layouts.offset, *layouts.sizes, *layouts.strides)
            case p.Conform(register, _, layout):
                used.add(register)
                sizes += (*layout.sizes, *layout.strides)
            case p.Separate(registers, others, _):
                used.update((*registers, *others))
            case p.Drop(register):
                used.add(register)
            case p.GetItem(target, source, _) | p.Move(target, source):
                used |= {target, source}
            case p.Return(returned):
                values += returned
            case _:
                assert_never(instruction)
    for value in values:
        if isinstance(value, p.Reg):
            used.add(value.register)
        sizes += _sizes(value)
    for size in sizes:
        if isinstance(size, SizeArg):
            used.add(size.register)
        elif isinstance(size, SizeProgram):
            used.update(k for name, k in size.code if name == "arg")
    bad = sorted(r for r in used if not 0 <= r < program.n_regs)
    if bad or not 0 <= program.n_args <= program.n_regs:
        raise ValueError(f"a plan of {program.n_regs} registers uses {bad or program.n_args}")
