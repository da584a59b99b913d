"""Operations executed by the host, shared by Loop IR and Kernel IR."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from attrs import define, field

from gyrator_ir.expr import Cond, Expr, Sym
from gyrator_ir.loop import nodes
from gyrator_ir.loop.nodes import Buffer, TensorRef
from gyrator_testing.interp import template
from gyrator_testing.interp.body import Cell
from gyrator_testing.interp.dtypes import Array
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.externs import Externs, function_of
from gyrator_testing.interp.index import Number, integer, truth_of
from gyrator_testing.interp.memory import Layout, bound, created, layout, parts, span, view

Subprogram = Callable[[str, Sequence[object]], list[Any]]
"""Runs the named subprogram with the given operands."""


class Named(Protocol):
    """A nested program."""

    @property
    def name(self) -> str:
        """The name in calls."""
        ...


Program = TypeVar("Program", bound=Named)


def find_program(programs: Iterable[Program], name: str) -> Program:
    """Return the program of this name. InterpreterError: there is none."""
    for program in programs:
        if program.name == name:
            return program
    raise InterpreterError.of("GY-INTERP-001", f"there is no subprogram {name!r}")


@define
class Machine:
    """The storages and symbols of a running program: the only mutable state of this module."""

    buffers: Mapping[str, Buffer]
    externs: Externs
    subprogram: Subprogram
    storage: dict[str, Array] = field(factory=dict)
    symbols: dict[Sym, Number] = field(factory=dict)

    def cells(self) -> dict[str, Cell]:
        """Return the storages in the form addressed by bodies."""
        return {
            name: Cell(parts(flat), span(self.buffers[name].parts, self.symbols))
            for name, flat in self.storage.items()
        }

    def tensor(self, ref: TensorRef) -> Array:
        """Return the strided view that a reference describes; it shares the buffer's memory."""
        return view(self._flat(ref.buffer), layout(ref, self.symbols), ref.buffer)

    def whole(self, name: str) -> Array:
        """Return a buffer as a strided array, sharing its memory."""
        declared = self.buffers[name]
        shape = tuple(integer(n, self.symbols) for n in declared.shape)
        strides = tuple(integer(s, self.symbols) for s in declared.strides)
        return view(self._flat(name), Layout(declared.dtype, shape, strides), name)

    def argument(self, arg: nodes.Arg) -> Any:
        """Return an argument in the form expected by the functions in `externs`."""
        match arg:
            case TensorRef():
                return self.tensor(arg)
            case nodes.Literal(value):
                return value
            case nodes.ListArg(items):
                return [self.argument(item) for item in items]
            case nodes.TypeArg():
                return arg
        return integer(arg, self.symbols)

    def output(self, value: nodes.Output) -> Any:
        """Return a result of the program."""
        match value:
            case TensorRef():
                return self.tensor(value)
            case nodes.Literal(constant):
                return constant
        return integer(value, self.symbols)

    def run(self, op: nodes.CallOperation) -> None:
        """Execute one operation."""
        match op:
            case nodes.Extern():
                self._extern(op)
            case nodes.Template():
                self._template(op)
            case nodes.UserTritonKernel(_, kernel, _, args, constants):
                keywords = {k: self.argument(a) for k, a in (*args, *constants)}
                function_of(self.externs, kernel)(**keywords)
            case nodes.CollectiveCall(_, target, args, results):
                values = function_of(self.externs, target)(*map(self.argument, args))
                self.assign(results, values)
            case nodes.CollectiveWait():
                pass
            case nodes.DeviceCopy(_, source, destination):
                self.fill(destination, self.tensor(source))
            case nodes.ScalarRead(_, source, symbol):
                self.symbols[symbol] = int(self.tensor(source).item())
            case nodes.AssertCond(_, condition, message):
                if not truth_of(condition, self.symbols):
                    raise op.error.exception(message)
            case nodes.CondOp():
                chosen = op.then if self._decide(op.predicate) else op.otherwise
                operands = [self.argument(a) for a in op.operands]
                self.assign(op.results, self.subprogram(chosen, operands))
            case nodes.WhileOp():
                self._while(op)
            case nodes.RepeatOp():
                self._repeat(op)
            case nodes.CallOp(_, program, operands, results):
                self.assign(results, self.subprogram(program, [self.argument(a) for a in operands]))

    def fill(self, name: str, value: Any) -> None:
        """Copy an array to a buffer of the same dtype and shape (a 0-d array fits one element).

        Unbound size symbols of the buffer are bound to the sizes of the array.
        """
        array = np.asarray(value)
        declared = self.buffers[name]
        for size, n in zip(declared.shape, array.shape, strict=False):
            if isinstance(size, Sym):
                self.symbols.setdefault(size, n)
        if name not in self.storage:
            self.storage[name] = created(declared, self.symbols)
        target = self.whole(name)
        fits = array.shape == target.shape or array.size == target.size == 1
        if array.dtype != target.dtype or not fits:
            raise InterpreterError.of(
                "GY-INTERP-005",
                f"{name!r} is {target.dtype}{list(target.shape)}, "
                f"the call gave {array.dtype}{list(array.shape)}",
            )
        target[...] = array.reshape(target.shape)

    def assign(self, results: Sequence[str | tuple[str, ...] | Sym | None], values: Any) -> None:
        """Bind the results of a call: fill buffers and set symbols."""
        for result, value in paired(results, values):
            if isinstance(result, Sym):
                self.symbols[result] = int(value)
            else:
                self.fill(result, value)

    def _flat(self, name: str) -> Array:
        if name not in self.storage:
            raise InterpreterError.of("GY-INTERP-001", f"buffer {name!r} has no storage")
        return self.storage[name]

    def _extern(self, op: nodes.Extern) -> None:
        args = [self.argument(a) for a in op.args]
        keywords = {k: self.argument(a) for k, a in op.kwargs}
        values = function_of(self.externs, op.target)(*args, **keywords)
        if op.results:
            self.assign(op.results, values)

    def _template(self, op: nodes.Template) -> None:
        for out in op.outputs:
            if out.buffer not in self.storage:
                self.storage[out.buffer] = created(self.buffers[out.buffer], self.symbols)
        inputs, outputs = ([self.tensor(t) for t in part] for part in (op.inputs, op.outputs))
        declared = tuple(self.buffers.values())
        formulas = template.evaluators(op.formulas, declared, self.storage, self.symbols)
        template.compute(op.kind, inputs, outputs, op.attributes, formulas)

    def _decide(self, predicate: TensorRef | Cond) -> bool:
        if isinstance(predicate, TensorRef):
            return bool(self.tensor(predicate).item())
        return bool(truth_of(predicate, self.symbols))

    def _while(self, op: nodes.WhileOp) -> None:
        carried: list[Any] = [self.argument(a) for a in op.carried]
        invariants = [self.argument(a) for a in op.invariants]
        rows: list[list[Any]] = []
        while bool(np.asarray(self.subprogram(op.condition, [*carried, *invariants])[0]).item()):
            results = self.subprogram(op.body, [*carried, *invariants])
            carried = _own(results)
            rows.append(carried)
        if op.stacked:
            carried = [np.stack(column) for column in zip(*(rows or [carried]), strict=True)]
        self.assign(op.results, carried)

    def _repeat(self, op: nodes.RepeatOp) -> None:
        carried: list[Any] = [self.argument(a) for a in op.carried]
        for name in op.stacks:
            self.storage[name] = created(self.buffers[name], self.symbols)
        operands = [*map(self.argument, op.operands), *map(self.whole, op.stacks)]
        for step in range(integer(op.count, self.symbols)):
            carried = _own(self.subprogram(op.body, [step, *carried, *operands]))
        self.assign(op.results, carried)


def paired(
    results: Sequence[str | tuple[str, ...] | Sym | None], values: Any
) -> Iterator[tuple[str | Sym, Any]]:
    """Yield the names and symbols of a call's results with their values, those of lists one by one.

    Raises:
        InterpreterError: GY-INTERP-005, if the call returned fewer results.
    """
    if not isinstance(values, tuple | list):
        values = (values,)
    if len(results) > len(values):
        raise InterpreterError.of(
            "GY-INTERP-005", f"the call gave {len(values)} results, not {len(results)}"
        )
    for result, value in zip(results, values, strict=False):
        if isinstance(result, tuple):
            yield from paired(result, value)
        elif result is not None:
            yield result, value


def _own(values: Sequence[Any]) -> list[Any]:
    """Return a copy of a program's results."""
    return [v.copy() if isinstance(v, np.ndarray) else v for v in values]


def bind_inputs(
    machine: Machine, inputs: Sequence[nodes.Input], arguments: Sequence[object]
) -> None:
    """Bind inputs to storages (shared with the caller's arrays) and symbols to values.

    Symbols without a `SizeInput` are bound by the sizes, then by the strides, that consist of them.

    Raises:
        InterpreterError: GY-INTERP-002, if the arguments do not match the declared inputs.
    """
    if len(inputs) != len(arguments):
        raise InterpreterError.of(
            "GY-INTERP-002", f"{len(inputs)} inputs are declared, {len(arguments)} were given"
        )
    pairs = list(zip(inputs, arguments, strict=True))
    for i, value in pairs:
        if isinstance(i, nodes.SizeInput) and isinstance(i.expr, Sym):
            _bind_symbol(machine.symbols, i.expr, _size(i, value))
    for i, value in pairs:
        if isinstance(i, nodes.TensorInput) and isinstance(value, np.ndarray):
            _bind_layout(machine.symbols, i.buffer, value)
    for i, value in pairs:
        match i:
            case nodes.TensorInput(buffer):
                machine.storage[buffer.name] = bound(value, buffer, machine.symbols)
            case nodes.SizeInput(expr, name):
                if integer(expr, machine.symbols) != (got := _size(i, value)):
                    raise InterpreterError.of("GY-INTERP-002", f"{name!r} is {expr!r}, got {got}")
            case nodes.OpaqueInput():
                pass


def bind_constants(
    machine: Machine, constants: Sequence[nodes.Constant], arrays: Mapping[str, Array]
) -> None:
    """Bind constants to the storages of the arrays under their keys."""
    for c in constants:
        if c.key not in arrays:
            raise InterpreterError.of("GY-INTERP-002", f"no array was given for constant {c.key!r}")
        machine.storage[c.buffer.name] = bound(arrays[c.key], c.buffer, machine.symbols)


def _size(i: nodes.SizeInput, value: object) -> int:
    if not isinstance(value, int | np.integer):
        raise InterpreterError.of(
            "GY-INTERP-002", f"{i.name!r} wants an integer, got {type(value).__name__}"
        )
    return int(value)


def _bind_symbol(symbols: dict[Sym, Number], symbol: Sym, value: int) -> None:
    if symbols.setdefault(symbol, value) != value:
        raise InterpreterError.of(
            "GY-INTERP-002", f"{symbol.name!r} is both {symbols[symbol]} and {value}"
        )


def _bind_layout(symbols: dict[Sym, Number], buffer: Buffer, array: Array) -> None:
    dims: list[tuple[Expr, int]] = list(zip(buffer.shape, array.shape, strict=False))
    steps = [s // array.itemsize for s in array.strides]
    for expr, value in (*dims, *zip(buffer.strides, steps, strict=False)):
        if isinstance(expr, Sym) and expr not in symbols:
            symbols[expr] = value
