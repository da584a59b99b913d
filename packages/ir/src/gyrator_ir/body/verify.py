"""The invariants of statement bodies, in both Loop IR and Kernel IR.

Error codes are prefixed with the area of the level, `GY-LOOP-003` or `GY-KERNEL-003`.

001  every name is an identifier and declared once
002  every referenced buffer is declared
003  every value is defined before it is used, in a scope where it is visible
004  every value and every bound symbol is defined once
005  operands and results have the types required by the op table, or by the kind of the collective;
     masks are `bool`
006  a stored value has the type of its buffer
007  every symbol of an expression is in scope
008  every symbol is of the kind that its context requires
009  no address is certainly outside of its buffer
010  a constant has a value of its type
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from attrs import field

from gyrator_ir.body import nodes
from gyrator_ir.body.nodes import Axis, ReduceKind, ScanKind, StoreMode
from gyrator_ir.body.ops import result_dtype
from gyrator_ir.body.print import show_statement
from gyrator_ir.body.rewrite import AnyStatement
from gyrator_ir.define import define, frozen
from gyrator_ir.diagnostics import VerifyError
from gyrator_ir.expr import Add, Expr, Sym, SymKind
from gyrator_ir.expr import Const as ConstExpr
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.provenance import Origin
from gyrator_ir.types import DType

LOOP_KINDS = frozenset({SymKind.ITER, SymKind.REDUCE})
SIZE_KINDS = frozenset({SymKind.SIZE, SymKind.UNBACKED})
INDIRECT = frozenset({SymKind.INDIRECT})
_BOOL_KINDS = (ReduceKind.ANY, ReduceKind.ALL)

Where = str | Callable[[], str]
"""The offending line, or a function that prints it, since printing is only needed on failure."""

_typing_error = lru_cache(4096)(result_dtype)


@frozen
class Storage:
    """The memory that a body addresses by one name; `span` counts elements, and is None if it is
    not constant."""

    dtype: DType
    span: int | None

    @property
    def size(self) -> int | None:
        """Size in bytes."""
        return None if self.span is None else self.span * self.dtype.size


def storage_of(b: Buffer) -> Storage:
    """Return the storage of a buffer, as bodies address it."""
    b = b.parts
    span = 1
    for size, stride in zip(b.shape, b.strides, strict=False):
        if type(size) is not ConstExpr or type(stride) is not ConstExpr:
            return Storage(b.dtype, None)
        if size.value == 0:
            return Storage(b.dtype, 0)
        span += (size.value - 1) * stride.value
    return Storage(b.dtype, span)


@define
class Scope:
    """The names in scope of a statement; it grows as statements are visited."""

    values: dict[str, DType] = field(factory=dict)
    symbols: set[Sym] = field(factory=set)
    extents: dict[Sym, int] = field(factory=dict)
    """Constant extents of the loop variables in scope."""
    empty: bool = False
    """Some loop has no iterations, so that the statements certainly never run."""

    def copy(self) -> "Scope":
        """Return an independent copy."""
        return Scope(dict(self.values), set(self.symbols), dict(self.extents), self.empty)


class Checker:
    """Checks bodies, and raises a VerifyError for the first violation."""

    def __init__(
        self, area: str, storages: Mapping[str, Storage], origins: Sequence[Origin]
    ) -> None:
        self.area = area
        self.storages = dict(storages)
        self.origins = origins
        self.rows: tuple[int, ...] = ()
        """Origins of the operation that is being checked."""
        self._check: Mapping[type, Callable[[Any, Scope], None]] = {
            nodes.Load: self._load,
            nodes.Let: self._let,
            nodes.Const: self._const,
            nodes.IndexValue: self._index_value,
            nodes.Bind: self._bind,
            nodes.Store: self._store,
            nodes.Reduce: self._reduce,
            nodes.ScanStep: self._scan,
            nodes.SortStep: self._sort,
        }

    def fail(self, number: int, message: str, where: Where = "", help: str = "") -> NoReturn:
        """Raise the error of invariant `number`."""
        line = where if isinstance(where, str) else where()
        steps: list[str] = []
        for row in self.rows:
            if 0 <= row < len(self.origins):
                origin = self.origins[row]
                steps.append(f"%{origin.node} = {origin.target}")
                if origin.location or origin.code:
                    steps.append(": ".join(p for p in (origin.location, origin.code) if p))
        code = f"GY-{self.area}-{number:03}"
        raise VerifyError.of(code, message, line, tuple(steps), help)

    def statements(self, body: Iterable[AnyStatement], scope: Scope) -> None:
        """Check statements in order, adding their definitions to `scope`."""
        check = self._check
        for s in body:
            step = check.get(type(s))
            if step is None:
                self.fail(5, f"{s!r} is not a statement")
            step(s, scope)

    def axes(self, axes: Sequence[Axis], scope: Scope, where: Where) -> None:
        """Check loop variables and add them to `scope`. Extents may refer to sizes only."""
        symbols: set[Sym] = set()
        for axis in axes:
            if type(axis) is not Axis:
                self.fail(8, f"{axis!r} is not an axis", where)
            if axis.symbol.kind not in LOOP_KINDS:
                self.fail(8, f"{axis.symbol.name!r} is not a loop variable (i.. or r..)", where)
            if axis.symbol in scope.symbols or axis.symbol in symbols:
                self.fail(4, f"axis {axis.symbol.name!r} is defined twice", where)
            symbols.add(axis.symbol)
            self.sizes((axis.extent,), scope.symbols, where)
        for axis in axes:
            scope.symbols.add(axis.symbol)
            if type(axis.extent) is ConstExpr:
                scope.extents[axis.symbol] = axis.extent.value
                scope.empty = scope.empty or axis.extent.value <= 0

    def sizes(self, exprs: Iterable[Expr], symbols: set[Sym], where: Where) -> None:
        """Check that expressions refer to sizes in `symbols` only."""
        for expr in exprs:
            if not isinstance(expr, Expr):
                self.fail(8, f"{expr!r} is not an expression", where)
            for symbol in expr.free_symbols:
                if symbol.kind not in SIZE_KINDS:
                    self.fail(8, f"{symbol.name!r} is not a size (s.. or u..)", where)
                if symbol not in symbols:
                    self.fail(7, f"symbol {symbol.name!r} is not in scope", where)

    # Statements -------------------------------------------------------------------------------

    def _define(self, name: str, dtype: DType, s: AnyStatement, scope: Scope) -> None:
        if name in scope.values:
            self.fail(4, f"value {name!r} is defined twice", show_statement(s))
        if type(name) is not str or not name.isidentifier():
            self.fail(1, f"{name!r} is not an identifier", show_statement(s))
        scope.values[name] = dtype

    def _use(self, name: str, s: AnyStatement, scope: Scope) -> DType:
        dtype = scope.values.get(name)
        if dtype is None:
            self.fail(3, f"value {name!r} is not defined here", show_statement(s))
        return dtype

    def _mask(self, mask: str, s: AnyStatement, scope: Scope) -> None:
        dtype = self._use(mask, s, scope)
        if dtype is not DType.BOOL:
            self.fail(5, f"mask {mask!r} must be bool, got {dtype}", show_statement(s))

    def _in_scope(self, expr: Expr, s: AnyStatement, scope: Scope) -> None:
        if not expr.free_symbols <= scope.symbols:
            names = sorted(x.name for x in expr.free_symbols - scope.symbols)
            self.fail(7, f"symbol {names[0]!r} is not in scope", show_statement(s))

    def _address(self, s: nodes.Load | nodes.Store, scope: Scope) -> DType:
        storage = self.storages.get(s.buffer)
        if storage is None:
            self.fail(2, f"buffer {s.buffer!r} is not declared", show_statement(s))
        self._in_scope(s.index, s, scope)
        if s.mask is not None:
            self._mask(s.mask, s, scope)
        elif storage.span is not None and not scope.empty:
            low, high = certain_range(s.index, scope.extents)
            if low is not None and high is not None and (low < 0 or high >= storage.span):
                self.fail(
                    9,
                    f"address {low if low < 0 else high} is outside of {s.buffer!r}, "
                    f"which spans {storage.span} elements",
                    show_statement(s),
                )
        return storage.dtype

    def _load(self, s: nodes.Load, scope: Scope) -> None:
        self._define(s.name, self._address(s, scope), s, scope)

    def _let(self, s: nodes.Let, scope: Scope) -> None:
        values = scope.values
        try:
            dtypes = tuple([values[a] for a in s.args])
        except KeyError:
            dtypes = tuple([self._use(a, s, scope) for a in s.args])
        wrong = _typing_error(s.op, dtypes, s.dtype)
        if wrong is not None:
            self.fail(5, wrong, show_statement(s))
        self._define(s.name, s.dtype, s, scope)

    def _const(self, s: nodes.Const, scope: Scope) -> None:
        kind, dtype = type(s.value), s.dtype
        fits = (
            kind is bool
            if dtype is DType.BOOL
            else kind is float
            if dtype.is_float
            else kind is int and dtype.is_int and _in_range(int(s.value), dtype)
        )
        if not fits:
            self.fail(10, f"{s.value!r} is not a constant of type {dtype}", show_statement(s))
        self._define(s.name, dtype, s, scope)

    def _index_value(self, s: nodes.IndexValue, scope: Scope) -> None:
        self._in_scope(s.expr, s, scope)
        if not s.dtype.is_int:
            self.fail(5, f"an index must be of an integer type, not {s.dtype}", show_statement(s))
        self._define(s.name, s.dtype, s, scope)

    def _bind(self, s: nodes.Bind, scope: Scope) -> None:
        dtype = self._use(s.value, s, scope)
        if not dtype.is_int:
            self.fail(5, f"{s.value!r} must be of an integer type, got {dtype}", show_statement(s))
        if s.mask is not None:
            self._mask(s.mask, s, scope)
        if s.symbol.kind not in INDIRECT:
            self.fail(8, f"{s.symbol.name!r} is not a loaded index (t..)", show_statement(s))
        if s.symbol in scope.symbols:
            self.fail(4, f"symbol {s.symbol.name!r} is defined twice", show_statement(s))
        self._in_scope(s.size, s, scope)
        scope.symbols.add(s.symbol)

    def _store(self, s: nodes.Store, scope: Scope) -> None:
        dtype = self._use(s.value, s, scope)
        expected = self._address(s, scope)
        if dtype is not expected:
            self.fail(6, f"{s.buffer!r} is {expected}, {s.value!r} is {dtype}", show_statement(s))
        if s.mode is StoreMode.TOTAL and self.area == "LOOP":
            self.fail(5, "only kernels store totals", show_statement(s))
        if s.mode is not StoreMode.SET and dtype.is_complex:
            self.fail(5, f"store.{s.mode} does not support {dtype}", show_statement(s))

    # Collectives ------------------------------------------------------------------------------

    def _collective(
        self,
        s: nodes.Reduce | nodes.ScanStep | nodes.SortStep,
        args: int,
        results: int,
        scope: Scope,
    ) -> None:
        if len(s.args) != args or len(s.names) != results:
            self.fail(
                5,
                f"expected {args} argument(s) and {results} result(s), "
                f"got {len(s.args)} and {len(s.names)}",
                show_statement(s),
            )
        if s.dtype.is_narrow_float or s.dtype.is_complex:
            message = f"reductions, scans and sorts do not support {s.dtype}"
            self.fail(5, message, show_statement(s), "cast to f32 first")
        for arg in s.args:
            dtype = self._use(arg, s, scope)
            if dtype is not s.dtype:
                self.fail(5, f"{arg!r} must be {s.dtype}, got {dtype}", show_statement(s))
        for name, dtype in zip(s.names, s.types, strict=True):
            self._define(name, dtype, s, scope)

    def _reduce(self, s: nodes.Reduce, scope: Scope) -> None:
        args, results = nodes.REDUCE_ARITY[s.kind]
        floats = s.kind in (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX)
        bits = s.kind is ReduceKind.XOR
        numbers = s.kind in (ReduceKind.SUM, ReduceKind.PROD, ReduceKind.DOT)
        if (
            (floats and not s.dtype.is_float)
            or (s.kind in _BOOL_KINDS and s.dtype is not DType.BOOL)
            or (bits and s.dtype.is_float)
            or (numbers and s.dtype is DType.BOOL)
        ):
            self.fail(5, f"reduce.{s.kind} does not support {s.dtype}", show_statement(s))
        self._collective(s, args, results, scope)

    def _scan(self, s: nodes.ScanStep, scope: Scope) -> None:
        if (s.kind is ScanKind.LOGSUMEXP and not s.dtype.is_float) or s.dtype is DType.BOOL:
            self.fail(5, f"scan.{s.kind} does not support {s.dtype}", show_statement(s))
        self._collective(s, 1, 2 if s.kind in nodes.POSITIONS and len(s.names) > 1 else 1, scope)

    def _sort(self, s: nodes.SortStep, scope: Scope) -> None:
        self._collective(s, 1, 2, scope)


def certain_range(index: Expr, extents: Mapping[Sym, int]) -> tuple[int | None, int | None]:
    """Return the least and the greatest value that an address certainly takes.

    (None, None) unless it is affine in loop variables with constant, positive extents.
    """
    kind = type(index)
    if kind is ConstExpr:
        return index.value, index.value  # type: ignore[attr-defined]  # narrowed by kind
    if kind is Sym:
        extent = extents.get(index)  # type: ignore[call-overload]  # narrowed by kind
        return (None, None) if extent is None else (0, extent - 1)
    if kind is not Add:
        return None, None
    low = high = index.const  # type: ignore[attr-defined]  # narrowed by kind
    for term, coefficient in index.terms:  # type: ignore[attr-defined]  # narrowed by kind
        extent = extents.get(term)
        if extent is None:
            return None, None
        if coefficient > 0:
            high += coefficient * (extent - 1)
        else:
            low += coefficient * (extent - 1)
    return low, high


def _in_range(value: int, dtype: DType) -> bool:
    low, high = dtype.limits
    return low <= value <= high
