"""hypothesis strategies for well-formed programs of every level.

A random loop program has a few inputs (dense, transposed or padded; static or symbolic sizes), and
operations that load them through views: transposed, broadcast, reversed, sliced, reshaped, gathered
and padded addresses. Every generated program verifies and can be interpreted on `feeds.feed`.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from attrs import define, field, frozen
from hypothesis import strategies as st

from gyrator_ir.body.nodes import (
    Axis,
    Bind,
    Check,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanKind,
    ScanStep,
    SortStep,
    Statement,
    Store,
    StoreMode,
)
from gyrator_ir.body.ops import OPS, Numerics, Typing, result_dtype
from gyrator_ir.expr import (
    ONE,
    ZERO,
    Expr,
    ShapeFacts,
    Sym,
    contiguous_strides,
    expr,
    minimum,
    product_of,
)
from gyrator_ir.expr import Const as ConstExpr
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Schedule
from gyrator_ir.loop import nodes
from gyrator_ir.loop.nodes import Buffer, LoopProgram, TensorRef
from gyrator_ir.provenance import Origin
from gyrator_ir.types import Device, DType
from gyrator_testing.baseline import baseline_host, baseline_schedule

CPU = Device("cpu")
DTYPES = (
    DType.F32, DType.F32, DType.F32, DType.F64, DType.F16, DType.BF16,
    DType.I64, DType.I32, DType.I8, DType.U8, DType.BOOL,
)  # fmt: skip
"""Dtypes of buffers, with `f32` more frequent than the others."""

EXACT_OPS = frozenset(
    row.name for row in OPS.values() if row.numerics in (Numerics.EXACT, Numerics.ROUNDED)
)
"""Ops with the same bits on every backend."""
ALL_OPS = frozenset(OPS)
KINDS = ("pointwise", "reduction", "scan", "sort", "scatter", "extern", "mutation")
"""The kinds of generated operations."""

_DIVISIONS = frozenset({"floordiv", "truncdiv", "mod", "rem"})
_FOLDS = {
    "float": (
        ReduceKind.SUM, ReduceKind.PROD, ReduceKind.MIN, ReduceKind.MAX, ReduceKind.ARGMIN,
        ReduceKind.ARGMAX, ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX, ReduceKind.DOT,
    ),
    "int": (
        ReduceKind.SUM, ReduceKind.PROD, ReduceKind.MIN, ReduceKind.MAX, ReduceKind.ARGMIN,
        ReduceKind.ARGMAX, ReduceKind.XOR, ReduceKind.DOT,
    ),
    "bool": (ReduceKind.ANY, ReduceKind.ALL, ReduceKind.XOR),
}  # fmt: skip


@frozen
class _Tensor:
    """A buffer that holds values, and which may be written in place."""

    buffer: Buffer
    mutable: bool


@define
class _Body:
    """Statements so far, and the values they define."""

    axes: tuple[Axis, ...]
    statements: list[Statement] = field(factory=list)
    values: dict[str, DType] = field(factory=dict)
    binds: int = 0

    def fresh(self, dtype: DType) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = dtype
        return name


@st.composite
def loop_programs(
    draw: st.DrawFn,
    *,
    dynamic: bool | None = None,
    max_operations: int = 4,
    dtypes: Sequence[DType] = DTYPES,
    ops: Collection[str] = EXACT_OPS,
    kinds: Sequence[str] = KINDS,
) -> LoopProgram:
    """Draw a loop program.

    Args:
        draw: supplied by hypothesis.
        dynamic: whether some sizes are symbols; None for either.
        max_operations: the most operations.
        dtypes: element types of inputs.
        ops: the rows of the op table used in bodies.
        kinds: kinds of operations, of `KINDS`.
    """
    return _Generator(draw, dtypes, sorted(ops), kinds).program(dynamic, max_operations)


@st.composite
def schedules(draw: st.DrawFn, /, **options: Any) -> Schedule:
    """Draw a schedule: a drawn loop program, scheduled without fusion."""
    return baseline_schedule(draw(loop_programs(**options)))


@st.composite
def host_programs(draw: st.DrawFn, /, **options: Any) -> HostProgram:
    """Draw a host program: that of a drawn schedule."""
    return baseline_host(draw(schedules(**options)))


class _Bodies:
    """Generates bodies that load the existing tensors."""

    def __init__(
        self, draw: st.DrawFn, dtypes: Sequence[DType], ops: Sequence[str], kinds: Sequence[str]
    ) -> None:
        self.draw = draw
        self.dtypes = dtypes
        self.ops = ops
        self.kinds = kinds
        self.sizes: list[Expr] = []
        self.tensors: list[_Tensor] = []
        self.created: list[Buffer] = []
        self.operations: list[nodes.Operation] = []
        self.facts = ShapeFacts()

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    # Addresses --------------------------------------------------------------------------------

    def _index(self, size: Expr, axes: Sequence[Axis]) -> Expr | None:
        """Return an index into a dimension, over the loop variables, that is always in bounds."""
        choices: list[Expr] = []
        for a in axes:
            if a.extent is size:
                choices += [a.symbol, a.symbol, size - 1 - a.symbol]
            elif size is not ZERO:
                choices += [a.symbol % size, minimum(a.symbol, size - 1)]
        if size is not ZERO:
            choices.append(ZERO if not isinstance(size, ConstExpr) else expr(size.value // 2))
        return self.pick(choices) if choices else None

    def _address(self, b: Buffer, axes: Sequence[Axis]) -> Expr | None:
        """Return an address into a buffer over the loop variables, or None if none exists."""
        extents = tuple(a.extent for a in axes)
        steps = contiguous_strides(extents)
        linear = sum((a.symbol * s for a, s in zip(axes, steps, strict=True)), ZERO)
        count, have = product_of(b.shape), product_of(extents)
        if count is have and count is not ZERO and self.draw(st.integers(0, 3)) == 0:
            parts = zip(b.shape, contiguous_strides(b.shape), b.strides, strict=True)
            return sum((linear // step % size * s for size, step, s in parts), ZERO)
        total: Expr = ZERO
        for size, stride in zip(b.shape, b.strides, strict=True):
            index = self._index(size, axes)
            if index is None:
                return None
            total = total + index * stride
        return total

    # Bodies -----------------------------------------------------------------------------------

    def _body(self, axes: tuple[Axis, ...], avoid: str = "") -> _Body:
        body = _Body(axes)
        usable = [t.buffer for t in self.tensors if t.buffer.name != avoid]
        for _ in range(self.draw(st.integers(1, 3)) if usable else 0):
            self._load(body, self.pick(usable))
        if self.draw(st.booleans()) or not body.values:
            self._leaf(body)
        for _ in range(self.draw(st.integers(0, 5))):
            self._let(body)
        return body

    def _load(self, body: _Body, b: Buffer) -> None:
        how = self.pick(("plain", "plain", "masked", "gathered"))
        address = self._address(b, body.axes)
        if address is None:
            return
        mask = None
        if how == "masked" and body.axes:
            mask = self._half(body)
            # Where the mask is false the address may be anything.
            address = address + body.axes[0].symbol // 2 * self.pick((0, 1000))
        elif how == "gathered" and len(b.shape) == 1 and b.shape[0] is not ZERO:
            address = self._bind(body, b.shape[0]) * b.strides[0]
        name = body.fresh(b.dtype)
        body.statements.append(Load(name, b.name, address, mask))
        if b.dtype.is_narrow_float:
            wide = body.fresh(DType.F32)
            body.statements.append(Let(wide, "cast", (name,), DType.F32))

    def _half(self, body: _Body) -> str:
        """Return a mask that is true if the first loop variable is below 2."""
        position, two, mask = body.fresh(DType.I64), body.fresh(DType.I64), body.fresh(DType.BOOL)
        body.statements += [
            IndexValue(position, body.axes[0].symbol, DType.I64),
            Const(two, 2, DType.I64),
            Let(mask, "lt", (position, two), DType.BOOL),
        ]
        return mask

    def _bind(self, body: _Body, size: Expr) -> Sym:
        """Return a loaded index in [0, size), sometimes counted from the end."""
        inside = sum((a.symbol * (k + 2) for k, a in enumerate(body.axes)), ZERO) % size
        wrap = self.draw(st.booleans())
        value = body.fresh(DType.I64)
        body.statements.append(IndexValue(value, inside - size if wrap else inside, DType.I64))
        symbol = Sym(f"t{body.binds}")
        body.binds += 1
        check = self.draw(st.sampled_from(Check))
        body.statements.append(Bind(symbol, value, size, wrap, check))
        return symbol

    def _leaf(self, body: _Body) -> None:
        if self.draw(st.booleans()) and body.axes:
            total = sum((a.symbol for a in body.axes), ZERO)
            name = body.fresh(DType.I64)
            body.statements.append(IndexValue(name, total, DType.I64))
            return
        dtype = self.pick((DType.F32, DType.F64, DType.I64, DType.BOOL))
        self._const(body, dtype)

    def _const(self, body: _Body, dtype: DType, nonzero: bool = False) -> str:
        value: bool | int | float
        if dtype is DType.BOOL:
            value = self.draw(st.booleans())
        elif dtype.is_float:
            value = self.pick((0.5, -2.0, 3.0, -0.0, 1e-3))
        else:
            value = self.draw(st.integers(1 if nonzero else 0, 5))
        name = body.fresh(dtype)
        body.statements.append(Const(name, value, dtype))
        return name

    def _let(self, body: _Body) -> None:
        name = self.pick(sorted(body.values))
        dtype = body.values[name]
        fitting = [op for op in self.ops if _fits(op, dtype)]
        if not fitting:
            return
        op = self.pick(fitting)
        row = OPS[op]
        if row.typing is Typing.CAST:
            self._cast(body, name, self.pick(self.dtypes))
            return
        if row.typing is Typing.SELECT:
            condition = self._another(body, DType.BOOL)
            args: tuple[str, ...] = (condition, name, self._another(body, dtype))
        elif row.typing is Typing.EXPONENT:
            args = (name, self._const(body, DType.I32))
        elif op in _DIVISIONS:
            args = (name, self._const(body, dtype, nonzero=True))
        elif op == "randint":
            args = (name, self._another(body, dtype), self._const(body, dtype), self._top(body))
        else:
            args = (name, *(self._another(body, dtype) for _ in range(row.arity - 1)))
        result = _result(op, dtype)
        body.statements.append(Let(body.fresh(result), op, args, result))

    def _top(self, body: _Body) -> str:
        name = body.fresh(DType.I64)
        body.statements.append(Const(name, 100, DType.I64))
        return name

    def _another(self, body: _Body, dtype: DType) -> str:
        same = [n for n, d in body.values.items() if d is dtype]
        if self.draw(st.integers(0, 3)) and same:
            chosen: str = self.pick(same)
            return chosen
        if dtype.is_narrow_float:
            chosen = self.pick(same)
            return chosen
        return self._const(body, dtype)

    def _cast(self, body: _Body, name: str, dtype: DType) -> str:
        # By way of small integers, so that no float is out of the range of an integer type.
        source = body.values[name]
        if source is dtype:
            return name
        if source.is_float and dtype.is_int:
            name = self._cast(body, name, DType.BOOL)
        result = body.fresh(dtype)
        body.statements.append(Let(result, "cast", (name,), dtype))
        return result


class _Generator(_Bodies):
    """Generates one program."""

    def program(self, dynamic: bool | None, max_operations: int) -> LoopProgram:
        symbols = self._symbols(self.draw(st.booleans()) if dynamic is None else dynamic)
        inputs: list[Any] = [nodes.SizeInput(s, f"n_{s.name}") for s in symbols]
        for k in range(self.draw(st.integers(1, 3))):
            buffer = self._input(f"x{k}")
            self.tensors.append(_Tensor(buffer, mutable=True))
            inputs.append(nodes.TensorInput(buffer))
        makers: dict[str, Callable[[str], None]] = {
            "pointwise": self._pointwise,
            "reduction": self._reduction,
            "scan": self._scan_or_sort,
            "sort": self._scan_or_sort,
            "scatter": self._scatter,
            "extern": self._extern,
            "mutation": self._mutation,
        }
        for _ in range(self.draw(st.integers(1, max_operations))):
            kind = self.pick(self.kinds)
            makers[kind](kind)
        count = len(self.operations)
        return LoopProgram(
            "main",
            tuple(inputs),
            (),
            tuple(self.created),
            tuple(self.operations),
            self._outputs(symbols),
            facts=self.facts,
            origins=tuple(Origin(f"n{k}", "aten.op") for k in range(count)),
        )

    def _symbols(self, dynamic: bool) -> list[Sym]:
        symbols = [Sym(f"s{k}") for k in range(self.draw(st.integers(1, 2)) if dynamic else 0)]
        for s in symbols:
            self.facts = self.facts.with_range(s, 1, 64).with_hint(s, self.draw(st.integers(1, 5)))
        static = self.draw(st.lists(st.sampled_from((1, 2, 3, 4, 6, 8, 0)), min_size=1, max_size=2))
        self.sizes = [*symbols, *map(expr, static)]
        return symbols

    def _shape(self, rank: int | None = None) -> tuple[Expr, ...]:
        count = self.draw(st.integers(0, 3)) if rank is None else rank
        return tuple(self.pick(self.sizes) for _ in range(count))

    def _input(self, name: str) -> Buffer:
        shape, layout = self._shape(), self.pick(("dense", "dense", "transposed", "padded"))
        strides = contiguous_strides(shape)
        if layout == "transposed":
            strides = tuple(reversed(contiguous_strides(tuple(reversed(shape)))))
        elif layout == "padded" and shape:
            strides = contiguous_strides((*shape[:-1], shape[-1] + 3))
        return Buffer(name, self.pick(self.dtypes), CPU, shape, strides)

    def _outputs(self, symbols: Sequence[Sym]) -> tuple[nodes.Output, ...]:
        outputs: list[nodes.Output] = []
        for b in self.created:
            if self.draw(st.integers(0, 2)) or b is self.created[-1]:
                order = self.draw(st.permutations(range(len(b.shape))))
                shape = tuple(b.shape[k] for k in order)
                strides = tuple(b.strides[k] for k in order)
                outputs.append(TensorRef(b.name, b.dtype, shape, strides, ZERO))
        outputs += [s + 1 for s in symbols[:1]]
        if self.draw(st.booleans()):
            outputs.append(nodes.Literal(self.pick((None, 3, -0.0, True))))
        return tuple(outputs)

    # Operations -------------------------------------------------------------------------------

    def _axes(self, shape: Sequence[Expr], letter: str = "i") -> tuple[Axis, ...]:
        return tuple(Axis(Sym(f"{letter}{k}"), size) for k, size in enumerate(shape))

    def _create(self, dtype: DType, shape: tuple[Expr, ...]) -> Buffer:
        strides = contiguous_strides(shape)
        if len(shape) == 2 and self.draw(st.booleans()):
            strides = (ONE, shape[0])
        b = Buffer(f"b{len(self.created)}", dtype, CPU, shape, strides)
        self.created.append(b)
        return b

    def _add(self, cls: Callable[..., nodes.Operation], *parts: Any) -> None:
        row = len(self.operations)
        self.operations.append(cls(f"op{row}", *parts, origins=(row,)))

    def _written(self, *buffers: Buffer) -> None:
        self.tensors += [_Tensor(b, mutable=False) for b in buffers]

    def _pointwise(self, _: str) -> None:
        shape = self._shape()
        axes = self._axes(shape)
        body = self._body(axes)
        value = self.pick(sorted(body.values))
        if self.draw(st.booleans()):
            value = self._cast(body, value, self.pick(self.dtypes))
        out = self._create(body.values[value], shape)
        store = Store(out.name, _identity(out, axes), value)
        self._add(nodes.Pointwise, axes, (*body.statements, store))
        self._written(out)

    def _value_for_fold(self, body: _Body) -> str:
        value: str = self.pick(sorted(body.values))
        if body.values[value].is_narrow_float:
            value = self._cast(body, value, DType.F32)
        return value

    def _reduction(self, _: str) -> None:
        shape, folded = self._shape(), self._shape(self.draw(st.integers(1, 2)))
        axes, inner = self._axes(shape), self._axes(folded, "r")
        body = self._body((*axes, *inner))
        value = self._value_for_fold(body)
        dtype = body.values[value]
        family = "float" if dtype.is_float else "bool" if dtype is DType.BOOL else "int"
        kind = self.pick(_FOLDS[family])
        results = {ReduceKind.WELFORD: 3, ReduceKind.ONLINE_SOFTMAX: 2}.get(kind, 1)
        args = (value, value) if kind is ReduceKind.DOT else (value,)
        names = tuple(f"f{k}" for k in range(results))
        fold = Reduce(names, kind, args, dtype)
        outs = [self._create(t, shape) for t in fold.types]
        stores = tuple(
            Store(b.name, _identity(b, axes), n) for b, n in zip(outs, names, strict=True)
        )
        self._add(nodes.Reduction, axes, inner, tuple(body.statements), fold, stores)
        self._written(*outs)

    def _scan_or_sort(self, kind: str) -> None:
        shape = self._shape(self.draw(st.integers(1, 2)))
        axes = self._axes(shape)
        body = self._body(axes)
        value = self._value_for_fold(body)
        dtype = body.values[value]
        if kind == "sort":
            step: Any = SortStep(("f0", "f1"), (value,), dtype, self.draw(st.booleans()))
        else:
            if dtype is DType.BOOL:
                value, dtype = self._cast(body, value, DType.I64), DType.I64
            scans = [k for k in ScanKind if dtype.is_float or k is not ScanKind.LOGSUMEXP]
            step = ScanStep(("f0",), self.pick(scans), (value,), dtype, self.draw(st.booleans()))
        outs = [self._create(t, shape) for t in step.types]
        stores = tuple(
            Store(b.name, _identity(b, axes), n) for b, n in zip(outs, step.names, strict=True)
        )
        cls = nodes.Sort if kind == "sort" else nodes.Scan
        self._add(cls, axes[:-1], axes[-1], tuple(body.statements), step, stores)
        self._written(*outs)

    def _scatter(self, _: str) -> None:
        targets = [
            t.buffer
            for t in self.tensors
            if len(t.buffer.shape) == 1
            and t.buffer.shape[0] is not ZERO
            and (t.buffer.dtype.is_int or t.buffer.dtype in (DType.F32, DType.F64))
        ]
        if not targets:
            return
        target = self.pick(targets)
        axes = self._axes(self._shape())
        body = self._body(axes, avoid=target.name)
        value = self._cast(body, self.pick(sorted(body.values)), target.dtype)
        at = self._bind(body, target.shape[0]) * target.strides[0]
        mode = self.pick((StoreMode.ADD, StoreMode.MIN, StoreMode.MAX))
        store = Store(target.name, at, value, mode)
        self._add(nodes.Scatter, axes, (*body.statements, store))

    def _extern(self, _: str) -> None:
        choices = [
            t.buffer
            for t in self.tensors
            if len(t.buffer.shape) == 2 and t.buffer.dtype in (DType.F32, DType.F64)
        ]
        if not choices:
            return
        b = self.pick(choices)
        a = TensorRef(b.name, b.dtype, b.shape, b.strides, ZERO)
        turned = TensorRef(b.name, b.dtype, b.shape[::-1], b.strides[::-1], ZERO)
        out = self._create(b.dtype, (b.shape[0], b.shape[0]))
        variant = ("aten.mm.out", ("out",)) if self.draw(st.booleans()) else (None, ())
        self._add(
            nodes.Extern, "aten.mm.default", (a, turned), (), (out.name,), *variant, (), "library"
        )
        self._written(out)

    def _mutation(self, _: str) -> None:
        target = self.pick([t.buffer for t in self.tensors if t.mutable])
        axes = self._axes(target.shape)
        body = self._body(axes, avoid=target.name)
        value = self._cast(body, self.pick(sorted(body.values)), target.dtype)
        store = Store(target.name, _identity(target, axes), value)
        self._add(nodes.Pointwise, axes, (*body.statements, store))


def _identity(b: Buffer, axes: Sequence[Axis]) -> Expr:
    return sum((a.symbol * s for a, s in zip(axes, b.strides, strict=True)), ZERO)


def _result(op: str, dtype: DType) -> DType:
    if OPS[op].typing in (Typing.COMPARE, Typing.PREDICATE):
        return DType.BOOL
    if op in ("rand", "randn"):
        return DType.F32
    return dtype


def _fits(op: str, dtype: DType) -> bool:
    """Return whether an op takes a value of this type, and operands that are drawn to match it."""
    row = OPS[op]
    if row.typing in (Typing.CAST, Typing.SELECT, Typing.BITCAST):
        return row.typing is not Typing.BITCAST
    second = DType.I32 if row.typing is Typing.EXPONENT else dtype
    operands = (dtype, second, dtype, dtype)[: row.arity]
    return result_dtype(op, operands, _result(op, dtype)) is None
