"""Random well-formed kernels, with arrays to run them on."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from attrs import define, field, frozen

from gyrator_ir.body import nodes
from gyrator_ir.body.nodes import ReduceKind, ScanKind, StoreMode
from gyrator_ir.body.rewrite import AnyStatement
from gyrator_ir.expr import Expr, Sym, expr, to_python
from gyrator_ir.kernel.nodes import Kernel, Local, Stage
from gyrator_ir.types import Device, DType
from gyrator_testing.interp.dtypes import NUMPY, Array
from gyrator_testing.kernels.write import CPU, inner, kernel, outer

FLOATS = (DType.F32, DType.F32, DType.F64, DType.BF16, DType.F16)
INTS = (DType.I64, DType.I32, DType.I16, DType.U8)
REDUCTIONS = tuple(ReduceKind)
FORMS = ("pointwise", "reduction", "scan", "sort")
"""The kinds of kernels that `random_case` generates."""

T = TypeVar("T")
Typed = tuple[str, DType]
"""The name and dtype of a value."""
Body = list[AnyStatement]
Space = Mapping[Sym, int]
"""The axes of a stage with their lengths."""


@frozen
class Limits:
    """How large random kernels are."""

    extents: tuple[int, ...] = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 48, 70)
    """Lengths of axes; 0 and 2 also occur."""
    long: tuple[int, ...] = (1000, 2500, 5000)
    """Lengths of some reduced axes."""
    points: int = 40_000
    """The maximum number of points, not counting long axes: scalar execution is slow."""


@frozen
class Case:
    """A kernel, its flat arrays by name, and its sizes."""

    kernel: Kernel
    arrays: dict[str, Array]
    sizes: dict[str, int]


@define
class _Maker:
    """Generates one kernel."""

    rng: np.random.Generator
    device: Device
    points: dict[Sym, int]
    inner: dict[Sym, int]
    extents: dict[Sym, Expr]
    sizes: dict[Sym, int]
    arrays: dict[str, Array] = field(factory=dict)
    types: dict[str, DType] = field(factory=dict)
    count: int = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.rng.integers(len(items)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def address(self, symbols: Space, injective: bool = False) -> Expr:
        """An index over the symbols: permuted, broadcast, strided, reshaped or reversed."""
        order = list(symbols)
        if self.chance(0.3):
            self.rng.shuffle(order)
        e, step = expr(0), expr(1)
        for s in reversed(order):
            if not injective and self.chance(0.15):
                continue
            e = e + (self.extents[s] - 1 - s if self.chance(0.08) else s) * step
            step = step * (self.extents[s] + (1 if self.chance(0.1) else 0))
        if self.chance(0.1):
            e = e * int(self.rng.integers(2, 4))
        if self.chance(0.15):
            width = self.pick((4, 7, 16, 32))
            e = (e // width) * (width + 3) + e % width
        if self.chance(0.2):
            e = e + int(self.rng.integers(1, 5))
        return e

    def array(self, stem: str, dtype: DType, e: Expr, symbols: Space) -> str:
        where = _values(self, e, symbols)
        name = self.name(stem)
        size = int(where.max()) + 1 if where.size else 1
        self.arrays[name] = _data(self.rng, dtype, size)
        self.types[name] = dtype
        return name

    # Statements

    def load(self, symbols: Space, body: Body, dtype: DType, mask: str | None = None) -> str:
        e = self.address(symbols)
        name = self.name("a")
        body.append(nodes.Load(name, self.array("x", dtype, e, symbols), e, mask))
        return name

    def cast(self, name: str, source: DType, dtype: DType, body: Body) -> str:
        if source is dtype:
            return name
        new = self.name("c")
        body.append(nodes.Let(new, "cast", (name,), dtype))
        return new

    def mask(self, symbols: Space, body: Body) -> str:
        at, bound, name = self.name("n"), self.name("k"), self.name("m")
        s = self.pick(list(symbols))
        body.append(nodes.IndexValue(at, s + int(self.rng.integers(0, 3)), DType.I64))
        body.append(nodes.Const(bound, int(self.rng.integers(0, symbols[s] + 2)), DType.I64))
        body.append(nodes.Let(name, self.pick(("lt", "ge")), (at, bound), DType.BOOL))
        return name

    def position(self, symbols: Space, body: Body, low: int, high: int) -> str:
        """A loaded integer in [low, high)."""
        e = self.address(symbols)
        name = self.name("a")
        source = self.array("x", DType.I64, e, symbols)
        self.arrays[source] = self.rng.integers(low, high, self.arrays[source].size)
        body.append(nodes.Load(name, source, e))
        return name

    def gathered(self, symbols: Space, body: Body, dtype: DType) -> str:
        """A load at an address that is itself loaded."""
        n = int(self.rng.integers(1, 40))
        at = self.position(symbols, body, -n, n)
        t = Sym(self.name("t"))
        body.append(nodes.Bind(t, at, expr(n), wrap=True))
        table = self.name("x")
        self.types[table], name = dtype, self.name("a")
        s = self.pick(list(symbols))
        self.arrays[table] = _data(self.rng, dtype, n * symbols[s])
        body.append(nodes.Load(name, table, t * self.extents[s] + s))
        return name

    def value(self, symbols: Space, body: Body, operands: Sequence[Typed] = ()) -> Typed:
        """A float or integer value of the body's points, with its type."""
        dtype = self.pick(FLOATS) if self.chance(0.8) else self.pick(INTS)
        compute = dtype.compute
        mask = self.mask(symbols, body) if symbols and self.chance(0.2) else None
        if symbols and self.chance(0.15):
            a = self.gathered(symbols, body, dtype)
        else:
            a = self.load(symbols, body, dtype, mask)
        a = self.cast(a, dtype, compute, body)
        for name, other in operands:
            b = self.cast(name, other, compute, body)
            a = self.binary("sub", a, b, compute, body)
        for _ in range(int(self.rng.integers(0, 4))):
            a = self.step(a, compute, symbols, body)
        return a, compute

    def binary(self, op: str, a: str, b: str, dtype: DType, body: Body) -> str:
        name = self.name("v")
        body.append(nodes.Let(name, op, (a, b), dtype))
        return name

    def step(self, a: str, dtype: DType, symbols: Space, body: Body) -> str:
        choice = int(self.rng.integers(6))
        if choice == 0:
            other = self.pick(FLOATS) if dtype.is_float else dtype
            b = self.cast(self.load(symbols, body, other), other, dtype, body)
            return self.binary(self.pick(("add", "mul", "maximum", "minimum")), a, b, dtype, body)
        if choice == 1:
            k = self.name("k")
            body.append(nodes.Const(k, 3 if dtype.is_int else 0.37, dtype))
            return self.binary("mul", a, k, dtype, body)
        if choice == 2 and dtype.is_float:
            name = self.name("v")
            body.append(nodes.Let(name, self.pick(("tanh", "sigmoid", "abs")), (a,), dtype))
            return name
        if choice == 3 and symbols:
            m, k, name = self.mask(symbols, body), self.name("k"), self.name("v")
            body.append(nodes.Const(k, 2 if dtype.is_int else 2.0, dtype))
            body.append(nodes.Let(name, "where", (m, a, k), dtype))
            return name
        if choice == 4 and symbols:
            at, name = self.name("n"), self.name("v")
            body.append(nodes.IndexValue(at, self.address(symbols), DType.I32))
            body.append(nodes.Let(name, "cast", (at,), dtype))
            return self.binary("add", a, name, dtype, body)
        return self.binary("add", a, a, dtype, body)

    def store(self, a: str, dtype: DType, symbols: Space, body: Body) -> None:
        out = dtype
        if dtype is DType.F32 and self.chance(0.2):
            out = self.pick((DType.F16, DType.BF16))
        a = self.cast(a, dtype, out, body)
        e = self.address(symbols, injective=True)
        mask = self.mask(symbols, body) if symbols and self.chance(0.15) else None
        body.append(nodes.Store(self.array("y", out, e, symbols), e, a, mask=mask))

    def scatter(self, symbols: Space, body: Body) -> None:
        """An atomic sum of integers at loaded addresses: the same for every order."""
        n = int(self.rng.integers(1, 30))
        at = self.position(symbols, body, 0, n)
        t = Sym(self.name("t"))
        body.append(nodes.Bind(t, at, expr(n), check=self.chance(0.5)))
        dtype = self.pick((DType.I64, DType.I32))
        a = self.load(symbols, body, dtype)
        out = self.name("y")
        self.types[out], self.arrays[out] = dtype, _data(self.rng, dtype, n)
        mode = self.pick((StoreMode.ADD, StoreMode.MIN, StoreMode.MAX))
        body.append(nodes.Store(out, t, a, mode))

    # Stages

    def reduce(self, symbols: Space, body: Body) -> list[Typed]:
        kind = self.pick(REDUCTIONS)
        if kind in (ReduceKind.ANY, ReduceKind.ALL):
            return self._fold(kind, (self.mask(symbols, body),), DType.BOOL, body)
        if kind is ReduceKind.XOR:
            a = self.load(symbols, body, DType.I32)
            return self._fold(kind, (a,), DType.I32, body)
        a, dtype = self.value(symbols, body)
        if kind in (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX) and not dtype.is_float:
            a, dtype = self.cast(a, dtype, DType.F32, body), DType.F32
        if kind is ReduceKind.PROD:
            k, name = self.name("k"), self.name("v")
            body.append(nodes.Const(k, 1 if dtype.is_int else 1.0, dtype))
            body.append(nodes.Let(name, "where", (self.mask(symbols, body), k, a), dtype))
            a = name
        args: tuple[str, ...] = (a,)
        if kind is ReduceKind.DOT:
            args = (a, self.cast(self.load(symbols, body, DType.F32), DType.F32, dtype, body))
        return self._fold(kind, args, dtype, body)

    def _fold(
        self, kind: ReduceKind, args: tuple[str, ...], dtype: DType, body: Body
    ) -> list[Typed]:
        many = {ReduceKind.WELFORD: 3, ReduceKind.ONLINE_SOFTMAX: 2}.get(kind, 1)
        names = tuple(self.name("f") for _ in range(many))
        s = nodes.Reduce(names, kind, args, dtype)
        body.append(s)
        return list(zip(names, s.types, strict=True))

    def make(self, name: str, form: str) -> Kernel:
        everything = self.points | self.inner
        stages: list[Stage] = []
        locals_: list[Local] = []
        if form == "pointwise":
            body: Body = []
            for _ in range(int(self.rng.integers(1, 3))):
                self.store(*self.value(everything, body), everything, body)
            if self.chance(0.2) and everything:
                self.scatter(everything, body)
            stages.append(outer(*body))
        elif form == "reduction":
            stages, locals_ = self._reduction(everything)
        else:
            stages.append(inner(*self._ordered(form, everything)))
        spans = {name: array.size for name, array in self.arrays.items()}
        return kernel(
            name, [(s, self.extents[s]) for s in self.points],
            [(s, self.extents[s]) for s in self.inner], stages, self.types, spans, locals_,
            self.device,
        )  # fmt: skip

    def _reduction(self, everything: Space) -> tuple[list[Stage], list[Local]]:
        body: Body = []
        locals_: list[Local] = []
        results: list[Typed] = []
        position = expr(0)
        for _ in range(int(self.rng.integers(1, 3))):
            results += self.reduce(everything, body)
        for s in self.inner:
            position = position * self.extents[s] + s
        if self.chance(0.3):
            extent = expr(1)
            for s in self.inner:
                extent = extent * self.extents[s]
            locals_.append(Local("row", DType.F32, extent))
            a, dtype = self.value(everything, body)
            body.append(nodes.Store("row", position, self.cast(a, dtype, DType.F32, body)))
        stages = [inner(*body)]
        after: Body = []
        for n, d in results:
            if self.chance(0.7) or not locals_:
                self.store(n, d, self.points, after)
        a, dtype = self.value(self.points, after)
        stages.append(outer(*after))
        if locals_ or self.chance(0.5):
            last: Body = []
            numbers = [f for f in results if f[1] is not DType.BOOL]
            b, other = self.value(everything, last, operands=[(a, dtype), *numbers[:1]])
            if locals_:
                row = self.name("a")
                last.append(nodes.Load(row, "row", position))
                b = self.binary("add", self.cast(b, other, DType.F32, last), row, DType.F32, last)
                other = DType.F32
            self.store(b, other, everything, last)
            stages.append(inner(*last))
        return stages, locals_

    def _ordered(self, form: str, everything: Space) -> Body:
        body: Body = []
        a, dtype = self.value(everything, body)
        if form == "scan":
            kind, name = self.pick(tuple(ScanKind)), self.name("f")
            if kind is ScanKind.LOGSUMEXP and not dtype.is_float:
                kind = ScanKind.SUM
            if kind is ScanKind.PROD:
                kind = ScanKind.MAX
            both = (self.name("f"),) if kind in nodes.POSITIONS and self.chance(0.5) else ()
            s = nodes.ScanStep((name, *both), kind, (a,), dtype, self.chance(0.4))
            body.append(s)
            for result, real in zip(s.names, s.types, strict=True):
                self.store(result, real, everything, body)
            return body
        names = self.name("f"), self.name("f")
        body.append(nodes.SortStep(names, (a,), dtype, self.chance(0.5)))
        self.store(names[0], dtype, everything, body)
        self.store(names[1], DType.I64, everything, body)
        if self.chance(0.5):
            self.store(a, dtype, everything, body)
        return body


def _values(maker: _Maker, e: Expr, symbols: Space) -> Array:
    """Return the values of an index over all points."""
    grid = np.meshgrid(*(np.arange(n) for n in symbols.values()), indexing="ij")
    names: dict[str, Any] = dict(zip((s.name for s in symbols), grid, strict=True))
    names |= {s.name: v for s, v in maker.sizes.items()}
    names |= {"min": np.minimum, "max": np.maximum}
    return np.broadcast_to(eval(to_python(e), names), tuple(symbols.values()) or (1,))


def _data(rng: np.random.Generator, dtype: DType, n: int) -> Array:
    n = max(n, 1)
    if dtype is DType.BOOL:
        return rng.random(n) < 0.5
    if dtype.is_int:
        return rng.integers(0, 100, n).astype(NUMPY[dtype])
    return rng.standard_normal(n).astype(NUMPY[dtype])


def random_case(seed: int, form: str, device: Device = CPU, limits: Limits | None = None) -> Case:
    """Generate a kernel of one of the `FORMS`, with its data."""
    limits = limits or Limits()
    rng = np.random.default_rng(seed)
    dynamic = rng.random() < 0.5
    count = int(rng.integers(1, 4))
    inside = 0
    if form != "pointwise":
        inside = 1 if form in ("scan", "sort") else int(rng.integers(1, 3))
        count = int(rng.integers(0, 3))
    points: dict[Sym, int] = {}
    inner: dict[Sym, int] = {}
    extents: dict[Sym, Expr] = {}
    sizes: dict[Sym, int] = {}
    total = 1
    for k in range(count + inside):
        s = Sym(f"i{k}") if k < count else Sym(f"r{k - count}")
        n = limits.extents[int(rng.integers(len(limits.extents)))]
        if total * n > limits.points:
            n = 2
        if rng.random() < 0.1 and form == "reduction" and k >= count and total < 20:
            n = int(rng.choice(limits.long))
        if rng.random() < 0.02:
            n = 0
        total *= max(n, 1)
        (points if k < count else inner)[s] = n
        if dynamic and rng.random() < 0.6:
            size = Sym(f"s{k}")
            sizes[size], extents[s] = n, size
        else:
            extents[s] = expr(n)
    maker = _Maker(rng, device, points, inner, extents, sizes)
    case = maker.make(f"{form}_{seed}", form)
    return Case(case, maker.arrays, {s.name: n for s, n in sizes.items()})
