"""Statements evaluated at all points of an iteration space at once.

A space is a tuple of extents. Values are arrays that broadcast to it, so values that do not depend
on an axis are computed once.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field, frozen

from gyrator_ir.body import nodes
from gyrator_ir.body.nodes import Axis, Check, Statement, StoreMode
from gyrator_ir.expr import Expr, Sym
from gyrator_testing.interp import folds, ops
from gyrator_testing.interp.dtypes import NUMPY, Array, cast, scalar
from gyrator_testing.interp.errors import InterpreterError
from gyrator_testing.interp.index import Environment, Number, integer, value_of

POINTS_AT_ONCE = 1 << 21
"""The approximate number of points evaluated together, which bounds the memory of intermediates."""

_UFUNC_OF_MODE: dict[StoreMode, Any] = {
    StoreMode.ADD: np.add,
    StoreMode.TOTAL: np.add,
    StoreMode.MUL: np.multiply,
    StoreMode.MIN: np.minimum,
    StoreMode.MAX: np.maximum,
}


def spread(value: Array, space: tuple[int, ...]) -> Array:
    """Return an array broadcast to a shape: itself, unchecked by NumPy, if it has that shape."""
    return value if value.shape == space else np.broadcast_to(value, space)


@frozen
class Cell:
    """A flat storage; addresses into it must be below `span`.

    `base`, the start of each point's part, is added after the check.
    """

    storage: Array
    span: int
    base: Array | None = None


Memory = Mapping[str, Cell]


@define
class Frame:
    """The values and symbols of a running body: the only mutable state of this module."""

    space: tuple[int, ...]
    memory: Memory
    symbols: dict[Sym, Number]
    values: dict[str, Array] = field(factory=dict)

    def run(self, body: Iterable[Statement]) -> None:
        """Evaluate statements in order, each at every point.

        Raises:
            IndexError: a checked `Bind` receives a value out of range.
            InterpreterError: GY-INTERP-003 for an address out of bounds, GY-INTERP-001 for a name
                without a value.
        """
        for statement in body:
            self._statement(statement)

    def value(self, name: str) -> Array:
        """Return the value called `name`."""
        if name not in self.values:
            raise InterpreterError.of(
                "GY-INTERP-001", f"value {name!r} is used before it is defined"
            )
        return self.values[name]

    def full(self, name: str) -> Array:
        """Return the value called `name` at every point of the space."""
        return spread(self.value(name), self.space)

    def address(self, index: Expr) -> Array:
        """Return an index expression as an `int64` array."""
        return np.asarray(value_of(index, self.symbols), np.int64)

    def _statement(self, s: Statement) -> None:
        match s:
            case nodes.Load(name, buffer, index, mask):
                self.values[name] = self._load(buffer, index, mask)
            case nodes.Let(name, op, args, dtype):
                result = ops.apply(op, [self.value(a) for a in args], dtype)
                if result.dtype != NUMPY[dtype]:
                    raise InterpreterError.of(
                        "GY-INTERP-005", f"{op!r} gave {result.dtype}, and {name!r} is {dtype}"
                    )
                self.values[name] = result
            case nodes.Const(name, value, dtype):
                self.values[name] = scalar(value, dtype)
            case nodes.IndexValue(name, index, dtype):
                self.values[name] = cast(self.address(index), dtype)
            case nodes.Bind():
                self.symbols[s.symbol] = self._bind(s)
            case nodes.Store(buffer, index, value, mode, mask):
                self._store(buffer, index, value, mode, mask)

    def _cell(self, buffer: str) -> Cell:
        if buffer not in self.memory:
            raise InterpreterError.of("GY-INTERP-001", f"buffer {buffer!r} has no storage")
        return self.memory[buffer]

    def _within(self, cell: Cell, address: Array, what: str, index: Expr) -> None:
        if address.size == 0 or math.prod(self.space) == 0:
            return
        low, high = int(address.min()), int(address.max())
        if low < 0 or high >= cell.span:
            worst = low if low < 0 else high
            raise InterpreterError.of(
                "GY-INTERP-003",
                f"address {worst} is outside of the {cell.span} elements",
                where=f"{what}[{index!r}]",
            )

    def _load(self, buffer: str, index: Expr, mask: str | None) -> Array:
        cell, address = self._cell(buffer), self.address(index)
        if math.prod(self.space) == 0:
            return np.zeros([min(n, 1) for n in self.space], cell.storage.dtype)
        if mask is None:
            self._within(cell, address, f"load {buffer}", index)
            if cell.base is not None:
                address = address + cell.base
            return np.asarray(cell.storage[address], cell.storage.dtype)
        chosen, address = np.broadcast_arrays(self.value(mask), address)
        self._within(cell, address[chosen], f"load {buffer}", index)
        if cell.base is not None:
            address = address + cell.base
            chosen = np.broadcast_to(chosen, address.shape)
        result = np.zeros(address.shape, cell.storage.dtype)
        result[chosen] = cell.storage[address[chosen]]
        return result

    def _bind(self, s: nodes.Bind) -> Array:
        value = self.value(s.value).astype(np.int64)
        size = np.asarray(value_of(s.size, self.symbols), np.int64)
        if s.wrap:
            value = np.where(value < 0, value + size, value)
        inside = (value >= 0) & (value < size)
        if s.mask is not None:
            inside = inside | ~self.value(s.mask)
        if math.prod(self.space) and not np.all(inside):
            wrong = int(np.broadcast_to(value, inside.shape)[~inside][0])
            message = f"index {wrong} is out of bounds for size {size}"
            if s.check:
                raise (IndexError if s.check is Check.INDEX else RuntimeError)(message)
            raise InterpreterError.of("GY-INTERP-003", message + ", which was promised not to be")
        return value if s.mask is None else np.where(self.value(s.mask), value, 0)

    def _store(
        self, buffer: str, index: Expr, value: str, mode: StoreMode, mask: str | None
    ) -> None:
        cell = self._cell(buffer)
        address = spread(self.address(index), self.space)
        new = self.full(value)
        if new.dtype != cell.storage.dtype:
            raise InterpreterError.of(
                "GY-INTERP-005", f"a {new.dtype} is stored to {buffer!r} of {cell.storage.dtype}"
            )
        placed = address if cell.base is None else address + cell.base
        if mask is not None:
            chosen = self.full(mask)
            address, placed, new = address[chosen], placed[chosen], new[chosen]
        self._within(cell, address, f"store {buffer}", index)
        if mode is StoreMode.SET:
            cell.storage[placed] = new
        elif address.size:
            _UFUNC_OF_MODE[mode].at(cell.storage, placed.ravel(), new.ravel())

    def collect(self, step: nodes.Reduce | nodes.ScanStep | nodes.SortStep, outer: int) -> None:
        """Evaluate a collective over the axes of the space after the first `outer` ones."""
        points, line = self.space[:outer], self.space[outer:]
        length = math.prod(line)
        rows = [np.ascontiguousarray(self.full(a)).reshape(*points, length) for a in step.args]
        match step:
            case nodes.Reduce(names, kind, _, dtype):
                ones = (1,) * len(line)
                columns = [r.reshape(points + ones) for r in folds.reduce(kind, rows, dtype)]
            case nodes.ScanStep(names, kind, _, _, reverse):
                columns = [folds.scan(kind, rows[0], reverse).reshape(self.space)]
                if len(names) > 1:
                    extremes = folds.scan(folds.EXTREME_OF[kind], rows[0], reverse)
                    columns = [extremes.reshape(self.space), *columns]
            case nodes.SortStep(names, _, _, descending):
                columns = [r.reshape(self.space) for r in folds.sort(rows[0], descending)]
        self.values.update(zip(names, columns, strict=True))


@frozen
class Block:
    """A part of an iteration space: the extents of outer and inner axes, and their symbols'
    values, with one dimension for each axis."""

    points: tuple[int, ...]
    line: tuple[int, ...]
    symbols: dict[Sym, Number]


def blocks(axes: Sequence[Axis], inner: Sequence[Axis], env: Environment) -> Iterator[Block]:
    """Split the space `axes` x `inner` along the first long axis of `axes`.

    A space without points is one empty block.
    """
    points = tuple(max(0, integer(a.extent, env)) for a in axes)
    line = tuple(max(0, integer(a.extent, env)) for a in inner)
    extents, rank = points + line, len(axes) + len(inner)
    symbols: dict[Sym, Number] = {
        a.symbol: _along(0, n, k, rank)
        for k, (a, n) in enumerate(zip((*axes, *inner), extents, strict=True))
    }
    cut = next((k for k, n in enumerate(points) if n > 1), None)
    if cut is None:
        yield Block(points, line, symbols)
        return
    rest = math.prod(max(n, 1) for k, n in enumerate(extents) if k != cut)
    step = max(1, POINTS_AT_ONCE // rest)
    for start in range(0, points[cut], step):
        length = min(step, points[cut] - start)
        part = symbols | {axes[cut].symbol: _along(start, length, cut, rank)}
        yield Block((*points[:cut], length, *points[cut + 1 :]), line, part)


def _along(start: int, length: int, position: int, rank: int) -> Array:
    shape = [1] * rank
    shape[position] = length
    return np.arange(start, start + length, dtype=np.int64).reshape(shape)
