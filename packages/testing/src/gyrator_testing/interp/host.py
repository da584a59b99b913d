"""The reference meaning of Wrapper IR."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, field

from gyrator_ir.expr import Cond, Expr, Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.kernel.nodes import Kernel, KernelGroup
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_ir.types import DType
from gyrator_testing.interp.calls import find_program, paired
from gyrator_testing.interp.dtypes import DTYPES, NUMPY, POISON_BYTE, Array, cast, poisoned
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.externs import DEFAULT, Externs, function_of
from gyrator_testing.interp.index import Number, integer, truth_of
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.interp.loop import NO_CONSTANTS
from gyrator_testing.interp.memory import Layout, flat, span_of, view
from gyrator_testing.interp.template import run_template


def run_host(
    program: h.HostProgram,
    inputs: Sequence[object],
    constants: Mapping[str, Array] = NO_CONSTANTS,
    externs: Externs = DEFAULT,
) -> list[Any]:
    """Run a host program and return what it returns.

    Args:
        program: one that verifies.
        inputs: an argument for each parameter: an array for a tensor, an int for a size.
        constants: an array for each key.
        externs: a function for each target that is called.

    Returns:
        An array (sharing storage with the tensor returned), int or constant for each value.

    Raises:
        InterpreterError: when the program or its arguments break a rule.
        AssertionError: a tensor violates an assertion of the program.
        IndexError: a checked index is out of range.
        Exception: the `error` of an `AssertTrue` that fails.
    """
    if len(inputs) != len(program.parameters):
        raise InterpreterError.of(
            "GY-INTERP-002",
            f"{len(program.parameters)} parameters are declared, {len(inputs)} were given",
        )
    host = _Host(program, constants, externs)
    host.names.update(zip((p.name for p in program.parameters), map(_tensor, inputs), strict=True))
    host.run(program.instructions)
    return [_array(v) for v in host.returned]


@define
class _Tensor:
    """A strided tensor in a flat storage of bytes or elements."""

    storage: Array
    layout: Layout

    @property
    def array(self) -> Array:
        return view(self.storage, self.layout, "tensor")

    def flat(self) -> Array:
        """Return the memory from the first element to the end of the storage."""
        size = self.layout.dtype.size
        raw = self.storage.view(np.uint8)[self.layout.offset * size :]
        return raw[: raw.size // size * size].view(NUMPY[self.layout.dtype])

    def reshaped(
        self, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> "_Tensor":
        """Return a view from `offset` elements of `dtype` after the first element of this one."""
        start = self.layout.offset * self.layout.dtype.size + offset * dtype.size
        raw = self.storage.view(np.uint8)
        if not 0 <= start <= raw.size:
            raise InterpreterError.of(
                "GY-INTERP-003", f"a view starts at byte {start} of {raw.size}"
            )
        tail = raw[start:]
        whole = tail[: tail.size // dtype.size * dtype.size].view(NUMPY[dtype])
        view = _Tensor(whole, Layout(dtype, tuple(shape), tuple(strides)))
        if span_of(shape, strides) > whole.size:
            raise InterpreterError.of(
                "GY-INTERP-003",
                f"a view spans {span_of(shape, strides)} elements of the {whole.size} there are",
            )
        return view


def _tensor(value: object) -> object:
    if not isinstance(value, np.ndarray):
        return int(value) if isinstance(value, np.integer) else value
    steps = tuple(s // value.itemsize for s in value.strides)
    dense = tuple(s if n > 1 else max(s, 0) for n, s in zip(value.shape, steps, strict=True))
    return _Tensor(flat(value, "argument"), Layout(DTYPES[value.dtype], value.shape, dense))


def _array(value: object) -> Any:
    return value.array if isinstance(value, _Tensor) else value


def _has_layout(where: Layout, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the sizes match, and the strides of dimensions longer than 1."""
    return shape == where.shape and (
        0 in shape
        or all(n < 2 or a == b for n, a, b in zip(shape, strides, where.strides, strict=True))
    )


@define
class _Host:
    """The names and symbols of a running program: the only mutable state of this module."""

    program: h.HostProgram
    constants: Mapping[str, Array]
    externs: Externs
    names: dict[str, Any] = field(factory=dict)
    symbols: dict[Sym, Number] = field(factory=dict)
    returned: list[Any] = field(factory=list)

    def run(self, instructions: Sequence[h.Instruction]) -> None:
        """Execute instructions in order."""
        for i in instructions:
            if not (self._sizes(i) or self._memory(i) or self._work(i) or self._structure(i)):
                raise TypeError(f"no meaning is given for {type(i).__name__}")

    def _get(self, name: str) -> Any:
        if name not in self.names:
            raise InterpreterError.of("GY-INTERP-001", f"{name!r} is not bound (any more)")
        return self.names[name]

    def _get_tensor(self, name: str) -> _Tensor:
        value = self._get(name)
        if not isinstance(value, _Tensor):
            raise InterpreterError.of(
                "GY-INTERP-002", f"{name!r} wants a tensor, got {type(value).__name__}"
            )
        return value

    def _ints(self, exprs: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(integer(e, self.symbols) for e in exprs)

    def _value(self, value: h.Value) -> Any:
        match value:
            case h.Ref(name):
                return _array(self._get(name))
            case Literal(constant):
                return constant
            case h.ListValue(items):
                return [self._value(item) for item in items]
            case TypeArg():
                return value
        return integer(value, self.symbols)

    def _sizes(self, i: h.Instruction) -> bool:
        match i:
            case h.BindSize(symbol, tensor, dim, stride):
                where = self._get_tensor(tensor).layout
                self.symbols[symbol] = (where.strides if stride else where.shape)[dim]
            case h.BindParameter(symbol, name):
                self.symbols[symbol] = int(self._get(name))
            case h.DefineSymbol(symbol, expr):
                self.symbols[symbol] = integer(expr, self.symbols)
            case h.BindConstant(name, key):
                if key not in self.constants:
                    raise InterpreterError.of(
                        "GY-INTERP-002", f"no array was given for constant {key!r}"
                    )
                self.names[name] = _tensor(self.constants[key])
            case h.Conform():
                self._conform(i)
            case h.Separate(tensors, others):
                self._separate(tensors, others)
            case h.AssertNoNan(tensor, what):
                array = self._get_tensor(tensor).array
                wide = cast(array, DTYPES[array.dtype].compute)
                if DTYPES[array.dtype].is_float and not np.all(np.isfinite(wide)):
                    raise AssertionError(f"{tensor} holds NaN or infinity: {what}")
            case h.AssertTrue(condition, message, error):
                if not truth_of(condition, self.symbols):
                    raise error.exception(message)
            case _:
                return False
        return True

    def _conform(self, i: h.Conform) -> None:
        tensor = self._get_tensor(i.tensor)
        shape, strides = self._ints(i.shape), self._ints(i.strides)
        if tensor.layout.dtype is i.dtype and _has_layout(tensor.layout, shape, strides):
            return
        if i.mend is not h.Mend.ALL or tensor.layout.shape != shape:
            raise AssertionError(f"{i.what or i.tensor} is not laid out as {shape}, {strides}")
        copy = _Tensor(poisoned(i.dtype, span_of(shape, strides)), Layout(i.dtype, shape, strides))
        copy.array[...] = cast(tensor.array, i.dtype)
        self.names[i.tensor] = copy

    def _separate(self, tensors: Sequence[str], others: Sequence[str]) -> None:
        seen = [self._get_tensor(name).storage for name in others]
        for name in dict.fromkeys(tensors):
            tensor = self._get_tensor(name)
            if any(np.may_share_memory(tensor.storage, known) for known in seen):
                self.names[name] = tensor = evolve(tensor, storage=tensor.storage.copy())
            seen.append(tensor.storage)

    def _memory(self, i: h.Instruction) -> bool:
        match i:
            case h.Allocate(name, dtype, _, shape, strides):
                sizes, steps = self._ints(shape), self._ints(strides)
                storage = poisoned(dtype, span_of(sizes, steps))
                self.names[name] = _Tensor(storage, Layout(dtype, sizes, steps))
            case h.AllocatePool(name, count):
                storage = np.full(integer(count, self.symbols), POISON_BYTE, np.uint8)
                self.names[name] = _Tensor(storage, Layout(DType.U8, (storage.size,), (1,)))
            case h.AllocateFromPool(name, pool, offset, dtype, shape, strides):
                start = self._get_tensor(pool).reshaped(
                    DType.U8, (0,), (1,), integer(offset, self.symbols)
                )
                tensor = start.reshaped(dtype, self._ints(shape), self._ints(strides), 0)
                self.names[name] = tensor
            case h.Free(name):
                self._get(name)
                del self.names[name]
            case h.Reuse(name, source, dtype, shape, strides):
                old = self._get_tensor(source)
                tensor = old.reshaped(dtype, self._ints(shape), self._ints(strides), 0)
                del self.names[source]
                self.names[name] = tensor
            case h.View(name, source, dtype, shape, strides, offset):
                self.names[name] = self._get_tensor(source).reshaped(
                    dtype, self._ints(shape), self._ints(strides), integer(offset, self.symbols)
                )
            case _:
                return False
        return True

    def _work(self, i: h.Instruction) -> bool:
        match i:
            case h.Launch(kernel, tensors, sizes):
                self._launch(kernel, tensors, sizes)
            case h.ExternCall():
                self._extern(i)
            case h.TmaDescriptor(name, tensor):
                self.names[name] = self._get(tensor)
            case h.TritonLaunch(kernel, _, args, constants):
                keywords = {k: self._value(v) for k, v in (*args, *constants)}
                function_of(self.externs, kernel)(**keywords)
            case h.Copy(destination, source):
                self._get_tensor(destination).array[...] = self._get_tensor(source).array
            case h.ReadScalar(symbol, tensor):
                self.symbols[symbol] = int(self._get_tensor(tensor).array.item())
            case h.CollectiveStart(target, args, results):
                self._bind(results, function_of(self.externs, target)(*map(self._value, args)))
            case h.CollectiveFinish(tensor):
                self._get(tensor)
            case _:
                return False
        return True

    def _launch(self, name: str, tensors: Sequence[str], sizes: Sequence[Expr]) -> None:
        kernel = next((k for k in self.program.kernels if k.name == name), None)
        if kernel is None:
            raise InterpreterError.of("GY-INTERP-001", f"there is no kernel {name!r}")
        arrays = [self._get_tensor(t).flat() for t in tensors]
        values = dict(zip((s.name for s in kernel.sizes), self._ints(sizes), strict=True))
        if isinstance(kernel, KernelGroup):
            left = iter(arrays)
            for number in kernel.members:
                member = kernel.kernels[number]
                run_kernel(member, {p.name: next(left) for p in member.parameters}, values)
            return
        buffers = dict(zip((p.name for p in kernel.parameters), arrays, strict=True))
        if isinstance(kernel, Kernel):
            run_kernel(kernel, buffers, values)
        else:
            run_template(kernel, buffers, values)

    def _extern(self, i: h.ExternCall) -> None:
        keywords = {k: self._value(v) for k, v in i.kwargs}
        values = function_of(self.externs, i.target)(*map(self._value, i.args), **keywords)
        if i.out is None:
            if i.results:
                self._bind(i.results, values)
            return
        many = values if isinstance(values, tuple | list) else (values,)
        for name, value in zip(i.results, many, strict=True):
            if isinstance(name, str):
                target = self._get_tensor(name).array
                if target.dtype != value.dtype or target.shape != value.shape:
                    raise InterpreterError.of(
                        "GY-INTERP-005",
                        f"{name!r} is {target.dtype}{list(target.shape)}, "
                        f"the call gave {value.dtype}{list(value.shape)}",
                    )
                target[...] = value

    def _bind(self, results: Sequence[str | tuple[str, ...] | Sym | None], values: Any) -> None:
        for result, value in paired(results, values):
            if isinstance(result, Sym):
                self.symbols[result] = int(value)
            else:
                self.names[result] = _tensor(value)

    def _structure(self, i: h.Instruction) -> bool:
        match i:
            case h.WithDevice(_, body) | h.ProfileRange(_, body):
                self.run(body)
            case h.Branch():
                chosen = self._decide(i.condition)
                self.run(i.then if chosen else i.otherwise)
                values = i.then_values if chosen else i.otherwise_values
                elements = [self._get(v) for v in values]
                self.names.update(zip(i.results, elements, strict=True))
            case h.Loop():
                self._loop(i)
            case h.Repeat():
                self._repeat(i)
            case h.CallProgram(name, args, results) | h.CallPartition(name, args, results):
                self._bind(results, self._call(name, [self._value(a) for a in args]))
            case h.Comment():
                pass
            case h.Return(values):
                self.returned = [self._returned(v) for v in values]
            case _:
                return False
        return True

    def _returned(self, value: h.Value) -> Any:
        return self._get(value.name) if isinstance(value, h.Ref) else self._value(value)

    def _decide(self, condition: h.Ref | Cond) -> bool:
        if isinstance(condition, h.Ref):
            return bool(self._get_tensor(condition.name).array.item())
        return bool(truth_of(condition, self.symbols))

    def _loop(self, i: h.Loop) -> None:
        values = [self._get(name) for name in i.initial]
        rows: list[list[Any]] = []
        while True:
            self.names.update(zip(i.carried, values, strict=True))
            self.run(i.condition)
            if not bool(self._get_tensor(i.test).array.item()):
                break
            self.run(i.body)
            values = [self._get(name) for name in i.next]
            rows.append(values)
        if i.stacked:
            columns = zip(*(rows or [values]), strict=True)
            values = [_tensor(np.stack([t.array for t in column])) for column in columns]
        self.names.update(zip(i.results, values, strict=True))

    def _repeat(self, i: h.Repeat) -> None:
        values = [self._get(name) for name in i.initial]
        for step in range(integer(i.count, self.symbols)):
            self.symbols[i.symbol] = step
            self.names.update(zip(i.carried, values, strict=True))
            self.run(i.body)
            values = [self._get(name) for name in i.next]
        self.names.update(zip(i.results, values, strict=True))

    def _call(self, name: str, args: Sequence[object]) -> list[Any]:
        program = find_program(self.program.subprograms, name)
        return run_host(program, args, self.constants, self.externs)
