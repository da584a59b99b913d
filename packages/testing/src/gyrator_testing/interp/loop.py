"""The reference meaning of Loop IR: operations in order, each at all its points at once."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gyrator_ir.loop.nodes import (
    LoopOperation,
    LoopProgram,
    Operation,
    Pointwise,
    Reduction,
    Scatter,
)
from gyrator_ir.loop.uses import collective_of, inner_of, stores_after
from gyrator_testing.interp.body import Frame, blocks
from gyrator_testing.interp.calls import Machine, bind_constants, bind_inputs, find_program
from gyrator_testing.interp.dtypes import Array
from gyrator_testing.interp.externs import DEFAULT, Externs
from gyrator_testing.interp.memory import created

__all__ = ["run_loop"]

NO_CONSTANTS: Mapping[str, Array] = MappingProxyType({})


def run_loop(
    program: LoopProgram,
    inputs: Sequence[object],
    constants: Mapping[str, Array] = NO_CONSTANTS,
    externs: Externs = DEFAULT,
) -> list[Any]:
    """Run a program and return its outputs.

    Args:
        program: one that verifies.
        inputs: for each input an array with exactly its dtype, shape and strides (mutations are
            visible
            to the caller), an int, or any object for an `OpaqueInput`.
        constants: an array for each key.
        externs: a function for each target that is called.

    Returns:
        For each output an array that shares the storage of its buffer, an int, or a constant.

    Raises:
        InterpreterError: when the program or its arguments break a rule.
        IndexError: a checked index is out of range.
        RuntimeError: an assertion fails.
    """

    def run_named(name: str, operands: Sequence[object]) -> list[Any]:
        return run_loop(find_program(program.subprograms, name), operands, constants, externs)

    machine = Machine({b.name: b for b in program.all_buffers}, externs, run_named)
    bind_inputs(machine, program.inputs, inputs)
    bind_constants(machine, program.constants, constants)
    pending = {b.name: b for b in program.buffers}
    for op in program.operations:
        known = [n for n, b in pending.items() if _bound(b.shape + b.strides, machine)]
        for name in known:
            buffer = pending.pop(name)
            if name not in machine.storage:
                machine.storage[name] = created(buffer, machine.symbols)
        _operation(op, machine)
    return [machine.output(o) for o in program.outputs]


def _bound(exprs: Sequence[Any], machine: Machine) -> bool:
    return all(s in machine.symbols for e in exprs for s in e.free_symbols)


def _operation(op: Operation, machine: Machine) -> None:
    if not isinstance(op, LoopOperation):
        machine.run(op)
        return
    inner, cells = inner_of(op), machine.cells()
    for block in blocks(op.axes, inner, machine.symbols):
        frame = Frame(block.points + block.line, cells, machine.symbols | block.symbols)
        frame.run(op.body)
        if not isinstance(op, Pointwise | Scatter):
            frame.collect(collective_of(op), len(op.axes))
        if isinstance(op, Reduction):
            frame.space = block.points + (1,) * len(inner)
        frame.run(stores_after(op))
