"""The builder that lowering rules write to: one growing Loop IR program."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from attrs import astuple, define, evolve, field

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
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, SymKind, sum_of
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
from gyrator_lowering.builder.capabilities import written
from gyrator_lowering.builder.node import CurrentNode
from gyrator_lowering.builder.trace import Index, Tracer, Value, address
from gyrator_lowering.builder.values import Spec, TensorValue, contiguous_strides

__all__ = ["LoopBuilder", "each"]

Body = Callable[[Tracer, tuple[Expr, ...]], Value]
ManyBody = Callable[[Tracer, tuple[Expr, ...]], Sequence[Value]]
FoldBody = Callable[[Tracer, tuple[Expr, ...], tuple[Expr, ...]], Value | tuple[Value, ...]]
Effect = Callable[[Tracer, tuple[Expr, ...]], None]


@define
class LoopBuilder(CurrentNode):
    """Grows one program. Names are numbered per builder, so output never depends on history."""

    targets: dict[str, Target]
    buffers: dict[str, Buffer] = field(factory=dict)
    """What the program creates, by name and in order."""
    operations: list[Operation] = field(factory=list)
    given: dict[str, TensorValue] = field(factory=dict)
    """Tensors that exist before the program runs, by the names of their buffers."""
    apart: dict[str, TensorValue] = field(factory=dict)
    """Complex tensors that lie in planes alone, by the names that their buffers will have."""
    devices: dict[str, Device] = field(factory=dict)
    """Where each buffer lies."""
    of_empty: bool = False
    """Whether an operation reads an element of a view that has none; who looks, resets it."""
    known: set[Sym] = field(factory=set)
    """Unbacked symbols that the program's inputs or operations have bound."""
    numbers: dict[str, TensorValue] = field(factory=dict)
    """0-d tensors that hold run-time numbers, by the names of their buffers."""
    _moves: dict[tuple[TensorRef, Device], tuple[int, TensorValue]] = field(factory=dict)
    """Copies to other devices: the numbers of their operations, and what they made."""
    _taken: set[str] = field(factory=set)
    _count: int = 0

    def mark(self) -> tuple[int, int]:
        """Return how much has been emitted, for `rewind`."""
        return len(self.buffers), len(self.operations)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forget what was emitted since `mark`."""
        buffers, operations = mark
        for name in list(self.buffers)[buffers:]:
            self._taken.discard(name)
            del self.buffers[name]
        del self.operations[operations:]

    # Buffers ------------------------------------------------------------------------------

    def reserve(self, name: str) -> str:
        """Return a name that nothing else in the program has, `name` itself if it is free."""
        free, k = name, 0
        while free in self._taken:
            k += 1
            free = f"{name}_{k}"
        self._taken.add(free)
        return free

    def buffer(self, spec: Spec) -> TensorValue:
        """Create a buffer, and return the view that covers it."""
        name = f"buf{self._count}"
        self._count += 1
        if name in self._taken:
            name = self.reserve(name)
        self.buffers[name] = Buffer(name, spec.dtype, spec.device, spec.shape, spec.strides)
        self.devices[name] = spec.device
        return TensorValue(
            name, spec.dtype, spec.device, spec.shape, spec.strides, ZERO, spec.dtype.part
        )

    def existing(self, name: str, spec: Spec) -> tuple[Buffer, TensorValue]:
        """Return the buffer and the view of a tensor that exists before the program runs."""
        for size in (*spec.shape, *spec.strides):
            self.known |= size.free_symbols
        self.devices[name] = spec.device
        view = self.given[name] = TensorValue(
            name, spec.dtype, spec.device, spec.shape, spec.strides, ZERO, spec.dtype.part
        )
        return Buffer(name, spec.dtype, spec.device, spec.shape, spec.strides), view

    def join(self, begin: int, outputs: Iterable[Output] = ()) -> None:
        """Write each complex tensor that lies in planes to a buffer of its own, if operations from
        number `begin` on, or outputs, refer to it; do so before them."""
        if not self.apart:
            return
        later = self.operations[begin:]
        named = dict.fromkeys(ref.buffer for item in (*later, *outputs) for ref in _refs(item))
        found = [self.apart.pop(name) for name in named if name in self.apart]
        if not found:
            return
        del self.operations[begin:]
        for whole in found:
            spec = Spec(whole.dtype, whole.device, whole.shape, whole.strides)
            self.buffers[whole.buffer] = Buffer(whole.buffer, *astuple(spec, recurse=False))
            self.copy_into(whole.in_memory, whole)
        for operation in later:
            self.operations.append(evolve(operation, name=self.op_name()))

    def temp(self, shape: Sequence[Expr], dtype: DType, like: TensorValue | Spec) -> TensorValue:
        """Create a contiguous buffer on the device of `like`."""
        shape = tuple(shape)
        return self.buffer(Spec(dtype, like.device, shape, contiguous_strides(shape)))

    def op_name(self) -> str:
        """Return a fresh name for an operation of the current node."""
        return f"op{len(self.operations)}"

    # Devices ------------------------------------------------------------------------------

    def moved(self, value: TensorValue, device: Device) -> TensorValue:
        """Return a view's elements on a device: copied there once, as long as nobody writes."""
        if value.device == device:
            return value
        key = value.ref, device
        place, found = self._moves.get(key, (0, None))
        if found is not None and _stands(self.operations[place:], value.buffer, found.buffer):
            return found
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
        """Return a body traced over `axes` that reads the run-time numbers of other devices from
        `device`."""
        body = ops.body
        if ops.of_empty and not any(axis.extent is ZERO for axis in axes):
            self.of_empty = True
        if not self.numbers:
            return tuple(body)
        names = {
            name: self.moved(number, device).buffer
            for name in reads(body)
            if (number := self.numbers.get(name)) is not None and number.device != device
        }
        return tuple([rewritten(s, buffers=names) for s in body]) if names else tuple(body)

    # Loop operations ----------------------------------------------------------------------

    def pointwise(self, fn: Body, out: Spec | None = None) -> TensorValue:
        """Store `fn(ops, index)` at every point of a new buffer (by default, the node's result)."""
        result = self.buffer(self.out if out is None else out)
        self.pointwise_into(result, fn)
        return result

    def pointwise_into(self, into: TensorValue, fn: Body) -> None:
        """Store `fn(ops, index)` at every point of an existing view."""
        self.many_into((into,), lambda ops, index: (fn(ops, index),))

    def pointwise_many(self, fn: ManyBody, outs: Sequence[Spec]) -> tuple[TensorValue, ...]:
        """Like `pointwise` for several results of one shape, in one operation."""
        results = tuple(self.buffer(out) for out in outs)
        self.many_into(results, fn)
        return results

    def many_into(self, into: Sequence[TensorValue], fn: ManyBody) -> None:
        """Store each of `fn(ops, index)` at every point of an existing view; they have one
        shape."""
        axes, index = axes_of(into[0].shape)
        ops = Tracer()
        for view, value in zip(into, fn(ops, index), strict=True):
            ops.store(view, index, value)
        body = self._body(ops, axes, into[0].device)
        self.operations.append(Pointwise(self.op_name(), axes, body, self.origin))

    def scatter(self, shape: Sequence[Expr], fn: Effect) -> None:
        """Run `fn(ops, index)`, which stores to existing buffers, at every point of `shape`."""
        axes, index = axes_of(tuple(shape))
        ops = Tracer()
        fn(ops, index)
        device = next(self.devices[name] for name in writes(ops.body))
        body = self._body(ops, axes, device)
        self.operations.append(Scatter(self.op_name(), axes, body, self.origin))

    def reduction(
        self,
        kind: ReduceKind,
        fn: FoldBody,
        shape: Sequence[Expr],
        inner: Sequence[Expr],
        into: Sequence[TensorValue | None],
        dtype: DType,
    ) -> None:
        """Fold `fn(ops, index, rindex)` over `inner` at every point of `shape`.

        The k-th result of the fold goes to `into[k]`, a view of the shape `shape`, if any. Values
        are cast to `dtype`, in which the fold is done.
        """
        axes, index = axes_of(tuple(shape))
        folded, rindex = inner_axes(tuple(inner))
        ops = Tracer()
        values = fn(ops, index, rindex)
        args = values if isinstance(values, tuple) else (values,)
        names = tuple(ops.cast(v, dtype).name for v in args)
        results = tuple(f"r{k}" for k in range(len(into)))
        stores = tuple(
            Store(t.buffer, address(t, index), name)
            for name, t in zip(results, into, strict=True)
            if t is not None
        )
        step = Reduce(results, kind, names, dtype)
        body = self._body(ops, (*axes, *folded), _device_of(into))
        self.operations.append(
            Reduction(self.op_name(), axes, folded, body, step, stores, self.origin)
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
        """Store the running fold of `fn(ops, index)` along dimension `dim` of `shape`."""
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
        """Sort `fn(ops, index)` along `dim`: values to `into[0]`, `i64` positions to `into[1]`."""
        axes, axis, index = _split_axis(tuple(shape), dim)
        ops = Tracer()
        value = fn(ops, index)
        names = tuple(f"r{k}" for k in range(2))
        stores = _stores(names, into, index)
        step = SortStep(names, (value.name,), value.dtype, descending, stable)
        body = self._body(ops, (*axes, axis), _device_of(into))
        self.operations.append(Sort(self.op_name(), axes, axis, body, step, stores, self.origin))

    def copy(self, value: TensorValue, out: Spec | None = None) -> TensorValue:
        """Copy a view to a new buffer of `out` (by default contiguous), converting its type."""
        if out is None:
            out = Spec(value.dtype, value.device, value.shape, contiguous_strides(value.shape))
        result = self.buffer(out)
        self.copy_into(result, value)
        return result

    def copy_into(self, into: TensorValue, value: TensorValue) -> None:
        """Copy a view to an existing one, of complex tensors both parts at once."""
        if not into.dtype.is_complex:
            self.pointwise_into(into, lambda ops, index: ops.get(value, index))
            return
        parts, given = (tuple(map(t.part, range(2))) for t in (into, value))
        self.many_into(parts, lambda ops, index: [ops.get(part, index) for part in given])


def _refs(item: object) -> Iterator[TensorRef]:
    """Iterate over the tensors that a call, an argument or a result names."""
    if isinstance(item, TensorRef):
        yield item
    elif isinstance(item, tuple):
        for part in item:
            yield from _refs(part)
    elif isinstance(item, CallOperation | ListArg):
        yield from _refs(astuple(item, recurse=False))


def _stands(since: Sequence[Operation], source: str, destination: str) -> bool:
    """Whether a copy, the first of operations, was not taken back, and its source not written
    since."""
    if not since or not isinstance(since[0], DeviceCopy) or since[0].destination != destination:
        return False
    return not any(source in written(o) for o in since)


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
    """Return loops over `shape`, and the index; a dimension of size 1 has no loop and index 0."""
    axes, index = _walked(shape, SymKind.ITER)
    return tuple(axes), tuple(index)


def inner_axes(shape: tuple[Expr, ...]) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """Like `axes_of` for reduced dimensions; there is at least one loop."""
    axes, index = _walked(shape, SymKind.REDUCE)
    if not axes:
        axes.append(Axis(_AXES[SymKind.REDUCE][0], ONE))
    return tuple(axes), tuple(index)


def _walked(shape: tuple[Expr, ...], kind: SymKind) -> tuple[list[Axis], list[Expr]]:
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
    """Return loops over all dimensions but `dim`, the loop over `dim`, and the whole index."""
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
        place = flat // step
        index.append(place if d == 0 else place % shape[d])
        step = step * shape[d]
    return tuple(reversed(index))


def dims_of(dims: Any, ndim: int) -> tuple[int, ...]:
    """Return non-negative dimensions in order; None, or an empty list, means all of them."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(ndim))
    given: list[int] = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    return tuple(sorted(d % ndim for d in given)) if ndim else ()


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
