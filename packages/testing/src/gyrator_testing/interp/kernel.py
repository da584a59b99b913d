"""The reference meaning of Kernel IR."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyrator_ir.body.nodes import Reduce, ScanStep, SortStep
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Lifetime, Schedule
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.types import DType
from gyrator_testing.interp.body import Block, Cell, Frame, Memory, blocks
from gyrator_testing.interp.calls import Machine, bind_constants, bind_inputs, find_program
from gyrator_testing.interp.dtypes import DTYPES, NUMPY, Array, poison, poisoned
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.externs import DEFAULT, Externs
from gyrator_testing.interp.index import Environment, Number, integer
from gyrator_testing.interp.loop import NO_CONSTANTS
from gyrator_testing.interp.memory import parts, span

__all__ = ["run_kernel", "run_schedule"]


def run_kernel(kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    """Run one kernel on flat storages, which it writes.

    Args:
        kernel: one that verifies.
        buffers: for each name of `kernel.parameters` a flat array of its dtype, or of the complex
            dtype whose component it is, at least as long as the span of the parameter.
        sizes: the value of each of `kernel.sizes`, by the name of the symbol.

    Raises:
        InterpreterError: when the kernel or its arguments break a rule.
        IndexError: when a checked index is out of range.
    """
    cells, env = cells_of(kernel, buffers, sizes)
    for block in blocks(kernel.axes, kernel.inner, env):
        _block(kernel, block, cells, env)


def _as_moved(storage: Array, dtype: DType) -> Array:
    """Return a storage as elements of the type that a kernel declares, which is an integer for
    narrow floats that are only moved."""
    element = NUMPY[dtype]
    narrow = DTYPES[storage.dtype].is_narrow_float and dtype.is_int
    same = storage.dtype.itemsize == element.itemsize
    return storage.view(element) if narrow and same else storage


def cells_of(
    kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]
) -> tuple[dict[str, Cell], dict[Sym, Number]]:
    """Return the cells and symbols for running a kernel on storages; see `run_kernel`."""
    env: dict[Sym, Number] = {}
    for symbol in kernel.sizes:
        if symbol.name not in sizes:
            raise InterpreterError.of("GY-INTERP-001", f"symbol {symbol.name!r} has no value")
        env[symbol] = sizes[symbol.name]
    cells: dict[str, Cell] = {}
    for p in kernel.parameters:
        if p.name not in buffers:
            raise InterpreterError.of("GY-INTERP-001", f"buffer {p.name!r} has no storage")
        storage = _as_moved(parts(buffers[p.name]), p.dtype)
        size = span(p, env) if _free(p) <= env.keys() else storage.size
        if storage.dtype != NUMPY[p.dtype] or storage.ndim != 1 or storage.size < size:
            raise InterpreterError.of(
                "GY-INTERP-002",
                f"{p.name!r} wants {size} elements of {p.dtype} in one dimension, "
                f"got {storage.dtype}{list(storage.shape)}",
            )
        cells[p.name] = Cell(storage, size)
    for s in kernel.totals:
        cells[s.buffer].storage[: cells[s.buffer].span] = 0
    return cells, env


def _free(buffer: Buffer) -> set[Sym]:
    """Return the symbols of a layout; the kernel may not use all of them."""
    return {symbol for e in (*buffer.shape, *buffer.strides) for symbol in e.free_symbols}


def _block(kernel: Kernel, block: Block, cells: Memory, env: Environment) -> None:
    count = math.prod(block.points)
    ones = (1,) * len(block.line)
    point = np.arange(count, dtype=np.int64).reshape(block.points + ones)
    memory = dict(cells)
    for local in kernel.locals:
        extent = integer(local.extent, env)
        memory[local.name] = Cell(poisoned(local.dtype, count * extent), extent, point * extent)
    shared = Frame(block.points + ones, memory, dict(env) | block.symbols)
    for stage in kernel.stages:
        if stage.level is Level.OUTER:
            for axis in kernel.inner:
                shared.symbols.pop(axis.symbol, None)
            shared.run(s for s in stage.body if not isinstance(s, Reduce | ScanStep | SortStep))
            continue
        symbols = shared.symbols | block.symbols
        frame = Frame(block.points + block.line, memory, symbols, dict(shared.values))
        for s in stage.body:
            if isinstance(s, Reduce | ScanStep | SortStep):
                frame.collect(s, len(block.points))
            else:
                frame.run((s,))
            if isinstance(s, Reduce):
                shared.values.update({name: frame.values.pop(name) for name in s.names})


def run_schedule(
    schedule: Schedule,
    inputs: Sequence[object],
    constants: Mapping[str, Array] = NO_CONSTANTS,
    externs: Externs = DEFAULT,
) -> list[Any]:
    """Run a schedule and return its outputs; arguments and results are those of `run_loop`.

    Buffers share storages according to their lifetimes and are poisoned at the end of them, which
    exposes uses outside a lifetime.
    """
    buffers = [i.buffer for i in schedule.inputs if hasattr(i, "buffer")]
    buffers += [c.buffer for c in schedule.constants]
    declared = {b.name: b for b in (*buffers, *schedule.buffers)}

    def run_named(name: str, operands: Sequence[object]) -> list[Any]:
        return run_schedule(find_program(schedule.subschedules, name), operands, constants, externs)

    machine = Machine(declared, externs, run_named)
    bind_inputs(machine, schedule.inputs, inputs)
    bind_constants(machine, schedule.constants, constants)
    lives = {life.buffer: life for life in schedule.lifetimes}
    pending = [b.name for b in schedule.buffers]
    for position, node in enumerate(schedule.nodes):
        for name in tuple(pending):
            if _due(name, lives.get(name), position, machine):
                pending.remove(name)
                if name in machine.storage:
                    continue
                machine.storage[name] = _storage(name, lives.get(name), machine)
        if isinstance(node, Kernel):
            sizes = {s.name: integer(s, machine.symbols) for s in node.sizes}
            run_kernel(node, machine.storage, sizes)
        else:
            machine.run(node)
        for life in schedule.lifetimes:
            if life.last == position and life.buffer in machine.storage:
                _end(life, lives, machine)
    return [machine.output(o) for o in schedule.outputs]


def _due(name: str, life: Lifetime | None, position: int, machine: Machine) -> bool:
    declared = machine.buffers[name]
    exprs = declared.shape + declared.strides
    known = all(s in machine.symbols for e in exprs for s in e.free_symbols)
    return known and (life is None or life.first <= position)


def _storage(name: str, life: Lifetime | None, machine: Machine) -> Array:
    declared = machine.buffers[name]
    size = span(declared, machine.symbols)
    if life is None or life.reuses is None:
        return poisoned(declared.dtype, size)
    if life.reuses not in machine.storage:
        raise InterpreterError.of(
            "GY-INTERP-001", f"{name!r} takes over {life.reuses!r}, which has no storage"
        )
    raw = machine.storage[life.reuses].view(np.uint8)
    if raw.size < size * declared.dtype.size:
        raise InterpreterError.of(
            "GY-INTERP-003",
            f"{name!r} needs {size * declared.dtype.size} bytes of {life.reuses!r}, "
            f"which has {raw.size}",
        )
    return raw[: size * declared.dtype.size].view(NUMPY[declared.dtype])


def _end(life: Lifetime, lives: Mapping[str, Lifetime], machine: Machine) -> None:
    """Poison a storage at the end of its lifetime, unless another buffer has just reused it in
    place."""
    heirs = [x for x in lives.values() if x.reuses == life.buffer and x.first == life.last]
    if not heirs:
        poison(machine.storage[life.buffer])
