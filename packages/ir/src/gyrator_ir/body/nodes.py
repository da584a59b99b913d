"""Statements: the straight-line bodies shared by Loop IR and Kernel IR.

A body is a flat tuple of statements in order of execution, for one point of an iteration space.
Values are named, defined once, and used after their definition. An address is a flat element
offset from the start of a buffer's storage: strides are already multiplied in, so views cost
nothing and equal addresses are the same object.
"""

from enum import StrEnum

from attrs import field, frozen

from gyrator_ir.body.ops import OPS
from gyrator_ir.checks import a_tuple, bits, exactly, instance_of, one_of
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.modes import StoreMode as StoreMode
from gyrator_ir.types import DType


class ReduceKind(StrEnum):
    """How values are folded over the reduced axes, and what comes out."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    """Propagates NaN."""
    MAX = "max"
    """Propagates NaN."""
    ARGMIN = "argmin"
    """One argument; the `i64` linear position over the reduced axes (row-major) of the first
    smallest value; a NaN counts as smallest."""
    ARGMAX = "argmax"
    """Like `argmin` for the largest value; a NaN counts as largest."""
    ANY = "any"
    """`bool`: or."""
    ALL = "all"
    """`bool`: and."""
    XOR = "xor"
    WELFORD = "welford"
    """One argument; three results: mean, sum of squared deviations from it, and count, all of the
    argument's float type (Welford 1962; parts merge by Chan et al. 1979)."""
    ONLINE_SOFTMAX = "online_softmax"
    """One argument x; two results: m = max x, and sum of exp(x - m) (Milakov, Gimelshein 2018)."""
    DOT = "dot"
    """Two arguments; the sum of their products."""


REDUCE_ARITY: dict[ReduceKind, tuple[int, int]] = dict.fromkeys(ReduceKind, (1, 1)) | {
    ReduceKind.WELFORD: (1, 3),
    ReduceKind.ONLINE_SOFTMAX: (1, 2),
    ReduceKind.DOT: (2, 1),
}
"""Number of arguments and of results of each kind."""


class ScanKind(StrEnum):
    """The running fold of a scan. Each gives the inclusive prefix at every point."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    ARGMIN = "argmin"
    """`i64` position of the running minimum, the last one on ties; a NaN counts as smallest."""
    ARGMAX = "argmax"
    LOGSUMEXP = "logsumexp"


POSITIONS: frozenset[ReduceKind | ScanKind] = frozenset(
    (ReduceKind.ARGMIN, ReduceKind.ARGMAX, ScanKind.ARGMIN, ScanKind.ARGMAX)
)
"""The kinds whose results are positions, in `i64`."""


@frozen
class Load:
    """`a = load x[4*i0 + i1]`, or `a = load x[i0] if m`: nothing is read where `m` is false, and
    the value is 0."""

    name: str
    buffer: str
    index: Expr = field(validator=instance_of(Expr))
    mask: str | None = None


@frozen
class Let:
    """`c: f32 = add a, b`: a row of `gyrator_ir.body.ops.OPS` applied to values."""

    name: str
    op: str = field(validator=one_of(OPS))
    args: tuple[str, ...] = field(validator=a_tuple)
    dtype: DType = field(validator=exactly(DType))


@frozen
class Const:
    """`c: f32 = const 0.5`. Floats print so that they parse back to the same bits."""

    name: str
    value: bool | int | float = field(validator=exactly(bool, int, float), eq=bits)
    dtype: DType = field(validator=exactly(DType))


@frozen
class IndexValue:
    """`c: i64 = index i0 + 3`: an index expression as a value."""

    name: str
    expr: Expr = field(validator=instance_of(Expr))
    dtype: DType = field(validator=exactly(DType))


class Check(StrEnum):
    """What a bound index outside its range does; `NONE` alone is false."""

    NONE = ""
    """The index is promised to lie inside."""
    INDEX = "check"
    """Raises IndexError, as eager's indexing and embedding do."""
    RUNTIME = "check.runtime"
    """Raises RuntimeError, as eager's gather and scatter do."""


def _as_check(given: bool | Check) -> Check:
    return given if isinstance(given, Check) else Check.INDEX if given else Check.NONE


@frozen
class Bind:
    """`t0 = bind a below s0 wrap check`: turn an integer value into an index symbol.

    The symbol lies in [0, `size`). `wrap` adds `size` to negative values first. With `check`, a
    value outside raises eager's IndexError, with `check.runtime` its RuntimeError; without, it is
    promised to lie inside. Where `mask` is false the symbol is 0 and nothing is checked.
    """

    symbol: Sym = field(validator=exactly(Sym))
    value: str
    size: Expr = field(validator=instance_of(Expr))
    wrap: bool = False
    check: Check = field(default=Check.INDEX, converter=_as_check)
    """True stands for `INDEX`, False for `NONE`."""
    mask: str | None = None


@frozen
class Store:
    """`store y[i0], a`, `store.add y[t0], a`, `store y[i0], a if m`."""

    buffer: str
    index: Expr = field(validator=instance_of(Expr))
    value: str
    mode: StoreMode = field(default=StoreMode.SET, validator=exactly(StoreMode))
    mask: str | None = None


@frozen
class Reduce:
    """`m, n: f32 = reduce.online_softmax a`: fold over the reduced axes of the enclosing operation.

    The results have one value for each point of the other axes.
    """

    names: tuple[str, ...] = field(validator=a_tuple)
    kind: ReduceKind = field(validator=exactly(ReduceKind))
    args: tuple[str, ...] = field(validator=a_tuple)
    dtype: DType = field(validator=exactly(DType))
    """Type of the arguments and of the accumulation; arg-reductions give `i64`."""

    @property
    def types(self) -> tuple[DType, ...]:
        """Types of the results."""
        return (DType.I64 if self.kind in POSITIONS else self.dtype,) * len(self.names)


@frozen
class ScanStep:
    """`b: f32 = scan.sum a reverse`: the inclusive running fold along the scan axis."""

    names: tuple[str, ...] = field(validator=a_tuple)
    kind: ScanKind = field(validator=exactly(ScanKind))
    args: tuple[str, ...] = field(validator=a_tuple)
    dtype: DType = field(validator=exactly(DType))
    reverse: bool = False

    @property
    def types(self) -> tuple[DType, ...]:
        """Type of the result."""
        return (DType.I64 if self.kind in POSITIONS else self.dtype,)


@frozen
class SortStep:
    """`v, p: f32 = sort a descending stable`: values in order along the sort axis, and their `i64`
    positions. NaN sorts as the largest value."""

    names: tuple[str, ...] = field(validator=a_tuple)
    args: tuple[str, ...] = field(validator=a_tuple)
    dtype: DType = field(validator=exactly(DType))
    descending: bool = False
    stable: bool = True

    @property
    def types(self) -> tuple[DType, ...]:
        """Types of the results."""
        return self.dtype, DType.I64


Statement = Load | Let | Const | IndexValue | Bind | Store
"""What a pointwise body is made of."""

Collective = Reduce | ScanStep | SortStep
"""What looks along a whole axis."""


@frozen
class Axis:
    """`i0 < 8`: one loop, from 0 to `extent`, the end not included."""

    symbol: Sym = field(validator=exactly(Sym))
    extent: Expr = field(validator=instance_of(Expr))
