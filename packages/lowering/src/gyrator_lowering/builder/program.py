"""The builder of a Loop IR program that lowering rules write to."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from attrs import astuple, evolve, field

from gyrator_ir.body.nodes import (
    Axis,
    Reduce,
    ReduceKind,
    ScanKind,
    ScanStep,
    SortStep,
    Statement,
    Store,
)
from gyrator_ir.body.rewrite import reads, rewritten, writes
from gyrator_ir.define import define
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, SymKind, contiguous_strides, sum_of
from gyrator_ir.loop.nodes import (
    Buffer,
    CallOperation,
    DeviceCopy,
    ListArg,
    Operation,
    Output,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    TensorRef,
)
from gyrator_ir.target import Target
from gyrator_ir.types import Device, DType
from gyrator_lowering.builder.capabilities import written_buffers
from gyrator_lowering.builder.node import CurrentNode
from gyrator_lowering.builder.trace import Index, Tracer, Value, address
from gyrator_lowering.builder.values import Spec, TensorValue

__all__ = ["LoopBuilder", "each"]

Body = Callable[[Tracer, tuple[Expr, ...]], Value]
ManyBody = Callable[[Tracer, tuple[Expr, ...]], Sequence[Value]]
ReductionBody = Callable[[Tracer, tuple[Expr, ...], tuple[Expr, ...]], Value | tuple[Value, ...]]
Effect = Callable[[Tracer, tuple[Expr, ...]], None]


@define
class LoopBuilder(CurrentNode):
    """Builds one program. Names are numbered per builder, so its output is deterministic."""

    targets: dict[str, Target]
    buffers: dict[str, Buffer] = field(factory=dict)
    """The buffers that the program allocates, in order of creation."""
    operations: list[Operation] = field(factory=list)
    external: dict[str, TensorValue] = field(factory=dict)
    """Tensors that exist before the program runs, by buffer name."""
    planar: dict[str, TensorValue] = field(factory=dict)
    """Complex tensors stored only as separate planes, by the names reserved for their buffers."""
    devices: dict[str, Device] = field(factory=dict)
    """The device of each buffer."""
    reads_empty_view: bool = False
    """Whether an operation reads an element of an empty view. The code that checks it also resets
    it."""
    bound_symbols: set[Sym] = field(factory=set)
    """Unbacked symbols that inputs or operations of the program define."""
    scalar_tensors: dict[str, TensorValue] = field(factory=dict)
    """0-d tensors that hold symbolic scalars, by buffer name."""
    _moves: dict[tuple[TensorRef, Device], tuple[int, TensorValue]] = field(factory=dict)
    """Copies to other devices: the index of the operation, and the copy."""
    _names: set[str] = field(factory=set)
    _count: int = 0

    def mark(self) -> tuple[int, int]:
        """Return the current position, for `rewind`."""
        return len(self.buffers), len(self.operations)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Drop everything emitted since `mark`."""
        buffers, operations = mark
        for name in list(self.buffers)[buffers:]:
            self._names.discard(name)
            del self.buffers[name]
        del self.operations[operations:]

    # Buffers ------------------------------------------------------------------------------

    def reserve(self, name: str) -> str:
        """Return a name that is unique in the program: `name` itself if it is free."""
        free, k = name, 0
        while free in self._names:
            k += 1
            free = f"{name}_{k}"
        self._names.add(free)
        return free

    def buffer(self, spec: Spec) -> TensorValue:
        """Create a buffer, and return the view of all of it."""
        name = f"buf{self._count}"
        self._count += 1
        if name in self._names:
            name = self.reserve(name)
        self.buffers[name] = Buffer(name, spec.dtype, spec.device, spec.shape, spec.strides)
        self.devices[name] = spec.device
        return TensorValue(
            name, spec.dtype, spec.device, spec.shape, spec.strides, ZERO, spec.dtype.part
        )

    def existing(self, name: str, spec: Spec) -> tuple[Buffer, TensorValue]:
        """Return the buffer and the view of a tensor that exists before the program runs."""
        for size in (*spec.shape, *spec.strides):
            self.bound_symbols |= size.free_symbols
        self.devices[name] = spec.device
        view = self.external[name] = TensorValue(
            name, spec.dtype, spec.device, spec.shape, spec.strides, ZERO, spec.dtype.part
        )
        return Buffer(name, spec.dtype, spec.device, spec.shape, spec.strides), view

    def join(self, begin: int, outputs: Iterable[Output] = ()) -> None:
        """Interleave planar complex tensors that operations from index `begin` on, or outputs,
        refer to: write each to a buffer of its own, before those operations."""
        if not self.planar:
            return
        later = self.operations[begin:]
        names = dict.fromkeys(ref.buffer for item in (*later, *outputs) for ref in _refs(item))
        tensors = [self.planar.pop(name) for name in names if name in self.planar]
        if not tensors:
            return
        del self.operations[begin:]
        for tensor in tensors:
            spec = Spec(tensor.dtype, tensor.device, tensor.shape, tensor.strides)
            self.buffers[tensor.buffer] = Buffer(tensor.buffer, *astuple(spec, recurse=False))
            self.copy_into(tensor.in_memory, tensor)
        for operation in later:
            self.operations.append(evolve(operation, name=self.op_name()))

    def temp(self, shape: Sequence[Expr], dtype: DType, like: TensorValue | Spec) -> TensorValue:
        """Create a contiguous buffer on the device of `like`."""
        shape = tuple(shape)
        return self.buffer(Spec(dtype, like.device, shape, contiguous_strides(shape)))

    def op_name(self) -> str:
        """Return the name of the next operation."""
        return f"op{len(self.operations)}"

    # Devices ------------------------------------------------------------------------------

    def to_device(self, value: TensorValue, device: Device) -> TensorValue:
        """Return a copy of a view on a device; reused until the view or the copy is written."""
        if value.device == device:
            return value
        key = value.ref, device
        index, cached = self._moves.get(key, (0, None))
        if cached is not None and _is_valid(self.operations[index:], value.buffer, cached.buffer):
            return cached
        source = value
        if value.strides != contiguous_strides(value.shape):
            source = self.copy(value)
        spec = Spec(value.dtype, device, value.shape, contiguous_strides(value.shape))
        result = self.buffer(spec)
        self._moves[key] = len(self.operations), result
        self.operations.append(
            DeviceCopy(self.op_name(), source.ref, result.buffer, origins=self.origin)
        )
        return result

    def _body(self, ops: Tracer, axes: Sequence[Axis], device: Device) -> tuple[Statement, ...]:
        """Return the statements of a body traced over `axes`. Symbolic scalars on other devices are
        copied to `device` first."""
        body = ops.body
        if ops.reads_empty_view and not any(axis.extent is ZERO for axis in axes):
            self.reads_empty_view = True
        if not self.scalar_tensors:
            return tuple(body)
        names = {
            name: self.to_device(scalar, device).buffer
            for name in reads(body)
            if (scalar := self.scalar_tensors.get(name)) is not None and scalar.device != device
        }
        return tuple([rewritten(s, buffers=names) for s in body]) if names else tuple(body)

    # Loop operations ----------------------------------------------------------------------

    def pointwise(self, fn: Body, out: Spec | None = None) -> TensorValue:
        """Store `fn(ops, index)` at every index of a new buffer (by default, the node's result)."""
        result = self.buffer(self.out if out is None else out)
        self.pointwise_into(result, fn)
        return result

    def pointwise_into(self, into: TensorValue, fn: Body) -> None:
        """Store `fn(ops, index)` at every index of an existing view."""
        self.many_into((into,), lambda ops, index: (fn(ops, index),))

    def pointwise_many(self, fn: ManyBody, outs: Sequence[Spec]) -> tuple[TensorValue, ...]:
        """Like `pointwise` for several results of one shape, in a single operation."""
        results = tuple(self.buffer(out) for out in outs)
        self.many_into(results, fn)
        return results

    def many_into(self, into: Sequence[TensorValue], fn: ManyBody) -> None:
        """Store the values of `fn(ops, index)` at every index of existing views of one shape."""
        axes, index = axes_of(into[0].shape)
        ops = Tracer()
        for view, value in zip(into, fn(ops, index), strict=True):
            ops.store(view, index, value)
        body = self._body(ops, axes, into[0].device)
        self.operations.append(Pointwise(self.op_name(), axes, body, self.origin))

    def scatter(self, shape: Sequence[Expr], fn: Effect) -> None:
        """Run `fn(ops, index)`, which stores to existing buffers, for every index of `shape`."""
        axes, index = axes_of(tuple(shape))
        ops = Tracer()
        fn(ops, index)
        device = next(self.devices[name] for name in writes(ops.body))
        body = self._body(ops, axes, device)
        self.operations.append(Scatter(self.op_name(), axes, body, self.origin))

    def reduction(
        self,
        kind: ReduceKind,
        fn: ReductionBody,
        shape: Sequence[Expr],
        inner: Sequence[Expr],
        into: Sequence[TensorValue | None],
        dtype: DType,
    ) -> None:
        """Reduce `fn(ops, index, rindex)` over `inner` for every index of `shape`.

        The k-th result of the reduction is stored to `into[k]`, a view of shape `shape`, unless
        that is None. Values are cast to `dtype`, the accumulator type.
        """
        axes, index = axes_of(tuple(shape))
        inner_loops, rindex = inner_axes(tuple(inner))
        ops = Tracer()
        values = fn(ops, index, rindex)
        args = values if isinstance(values, tuple) else (values,)
        names = tuple(ops.cast(v, dtype).name for v in args)
        results = tuple(f"r{k}" for k in range(len(into)))
        stores = _stores(results, into, index)
        step = Reduce(results, kind, names, dtype)
        body = self._body(ops, (*axes, *inner_loops), _device_of(into))
        self.operations.append(
            Reduction(self.op_name(), axes, inner_loops, body, step, stores, self.origin)
        )

    def scan(
        self,
        kind: ScanKind,
        fn: Body,
        shape: Sequence[Expr],
        dim: int,
        into: Sequence[TensorValue],
        dtype: DType,
        reverse: bool = False,
    ) -> None:
        """Store the running reduction of `fn(ops, index)` along dimension `dim` of `shape`."""
        axes, axis, index = _split_axis(tuple(shape), dim)
        ops = Tracer()
        value = ops.cast(fn(ops, index), dtype)
        results = tuple(f"r{k}" for k in range(len(into)))
        stores = _stores(results, into, index)
        step = ScanStep(results, kind, (value.name,), dtype, reverse)
        body = self._body(ops, (*axes, axis), _device_of(into))
        self.operations.append(Scan(self.op_name(), axes, axis, body, step, stores, self.origin))

    def sort(
        self,
        fn: Body,
        shape: Sequence[Expr],
        dim: int,
        into: Sequence[TensorValue | None],
        descending: bool,
        stable: bool,
    ) -> None:
        """Sort `fn(ops, index)` along `dim`: values to `into[0]`, `i64` indices to `into[1]`."""
        axes, axis, index = _split_axis(tuple(shape), dim)
        ops = Tracer()
        value = fn(ops, index)
        names = tuple(f"r{k}" for k in range(2))
        stores = _stores(names, into, index)
        step = SortStep(names, (value.name,), value.dtype, descending, stable)
        body = self._body(ops, (*axes, axis), _device_of(into))
        self.operations.append(Sort(self.op_name(), axes, axis, body, step, stores, self.origin))

    def copy(self, value: TensorValue, out: Spec | None = None) -> TensorValue:
        """Copy a view to a new buffer with the spec `out` (by default contiguous), casting its
        elements."""
        if out is None:
            out = Spec(value.dtype, value.device, value.shape, contiguous_strides(value.shape))
        result = self.buffer(out)
        self.copy_into(result, value)
        return result

    def copy_into(self, into: TensorValue, value: TensorValue) -> None:
        """Copy a view to an existing one; both parts of a complex tensor in one operation."""
        if not into.dtype.is_complex:
            self.pointwise_into(into, lambda ops, index: ops.get(value, index))
            return
        destinations, sources = (tuple(map(t.part, range(2))) for t in (into, value))
        self.many_into(destinations, lambda ops, index: [ops.get(part, index) for part in sources])


def _refs(item: object) -> Iterator[TensorRef]:
    """Iterate over the tensors that a call, an argument or a result refers to."""
    if isinstance(item, TensorRef):
        yield item
    elif isinstance(item, tuple):
        for part in item:
            yield from _refs(part)
    elif isinstance(item, CallOperation | ListArg):
        yield from _refs(astuple(item, recurse=False))


def _is_valid(since: Sequence[Operation], source: str, destination: str) -> bool:
    """Return whether a copy, the first of `since`, was not rewound and its source is unchanged."""
    if not since or not isinstance(since[0], DeviceCopy) or since[0].destination != destination:
        return False
    return not any(source in written_buffers(o) for o in since)


def _device_of(results: Sequence[TensorValue | None]) -> Device:
    return next(t.device for t in results if t is not None)


def _stores(
    names: Sequence[str], into: Sequence[TensorValue | None], index: Index
) -> tuple[Store, ...]:
    return tuple(
        Store(t.buffer, address(t, index), name)
        for name, t in zip(names, into, strict=True)
        if t is not None
    )


_AXES = {kind: tuple(Sym(f"{kind.value}{d}", kind) for d in range(32)) for kind in SymKind}


def axes_of(shape: tuple[Expr, ...]) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """Return loops over `shape` and the index. A dimension of size 1 has no loop and index 0."""
    axes, index = _axes_and_index(shape, SymKind.ITER)
    return tuple(axes), tuple(index)


def inner_axes(shape: tuple[Expr, ...]) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """Like `axes_of` for reduced dimensions; there is at least one loop."""
    axes, index = _axes_and_index(shape, SymKind.REDUCE)
    if not axes:
        axes.append(Axis(_AXES[SymKind.REDUCE][0], ONE))
    return tuple(axes), tuple(index)


def _axes_and_index(shape: tuple[Expr, ...], kind: SymKind) -> tuple[list[Axis], list[Expr]]:
    axes: list[Axis] = []
    index: list[Expr] = []
    for size in shape:
        if size is ONE:
            index.append(ZERO)
        else:
            symbol = _AXES[kind][len(axes)]
            axes.append(Axis(symbol, size))
            index.append(symbol)
    return axes, index


def _split_axis(
    shape: tuple[Expr, ...], dim: int
) -> tuple[tuple[Axis, ...], Axis, tuple[Expr, ...]]:
    """Return loops over all dimensions but `dim`, the loop over `dim`, and the full index."""
    axes, index = axes_of((*shape[:dim], ONE, *shape[dim + 1 :]))
    symbol = _AXES[SymKind.REDUCE][0]
    inner: Expr = ZERO if shape[dim] is ONE else symbol
    return axes, Axis(symbol, shape[dim]), (*index[:dim], inner, *index[dim + 1 :])


def flat_index(index: Index, strides: Sequence[Expr]) -> Expr:
    """Return `sum(index[d] * strides[d])`."""
    return sum_of([i * s for i, s in zip(index, strides, strict=True)])


def unravel(flat: Expr, shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the row-major index of a linear position in `shape`."""
    index: list[Expr] = []
    step: Expr = ONE
    for d in range(len(shape) - 1, -1, -1):
        if shape[d] is ONE:
            index.append(ZERO)
            continue
        quotient = flat // step
        index.append(quotient if d == 0 else quotient % shape[d])
        step = step * shape[d]
    return tuple(reversed(index))


def dims_of(dims: Any, ndim: int) -> tuple[int, ...]:
    """Return sorted non-negative dimensions; None or an empty list stands for all of them."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(ndim))
    requested: list[int] = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    return tuple(sorted(d % ndim for d in requested)) if ndim else ()


def each(value: Any) -> Iterator[Any]:
    """Iterate over the leaves of nested lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from each(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from each(item)
    else:
        yield value
