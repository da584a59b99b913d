"""Statements: the straight-line bodies shared by Loop IR and Kernel IR.

A body is a flat tuple of statements in execution order, for one point of an iteration space.
Values are named, defined once, and used after their definition. An address is a flat element
offset from the start of a buffer's storage, with strides already multiplied in. Views are therefore
free, and equal addresses are the same object.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from attrs import field

from gyrator_ir.body.ops import OPS
from gyrator_ir.checks import a_tuple, bits, exactly, instance_of, one_of
from gyrator_ir.define import frozen
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.modes import StoreMode as StoreMode
from gyrator_ir.types import DType


class ReduceKind(StrEnum):
    """How values are reduced over the inner axes, and the results."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    """Propagates NaN."""
    MAX = "max"
    """Propagates NaN."""
    ARGMIN = "argmin"
    """One argument; the row-major linear index (`i64`) over the inner axes of the first smallest
    value, where a NaN counts as smallest."""
    ARGMAX = "argmax"
    """Like `argmin`, for the first largest value, where a NaN counts as largest."""
    ANY = "any"
    """Logical or of `bool` values."""
    ALL = "all"
    """Logical and of `bool` values."""
    XOR = "xor"
    WELFORD = "welford"
    """One argument; three results: mean, sum of squared deviations from it, and count, all of the
    argument's float type (Welford 1962; partial results are merged as in Chan et al. 1979)."""
    ONLINE_SOFTMAX = "online_softmax"
    """One argument x; two results: m = max x, and sum of exp(x - m) (Milakov, Gimelshein 2018)."""
    DOT = "dot"
    """Two arguments; the sum of their products."""


REDUCE_ARITY: dict[ReduceKind, tuple[int, int]] = dict.fromkeys(ReduceKind, (1, 1)) | {
    ReduceKind.WELFORD: (1, 3),
    ReduceKind.ONLINE_SOFTMAX: (1, 2),
    ReduceKind.DOT: (2, 1),
}
"""Number of arguments and number of results of each kind."""


def identity_of(kind: ReduceKind, dtype: DType) -> bool | int | float:
    """Return the identity of a reduction, of type `dtype`; for `argmin` and `argmax`, that of the
    value."""
    low, high = dtype.limits
    match kind:
        case ReduceKind.MIN | ReduceKind.ARGMIN:
            return high
        case ReduceKind.MAX | ReduceKind.ARGMAX | ReduceKind.ONLINE_SOFTMAX:
            return low
    number = kind in (ReduceKind.PROD, ReduceKind.ALL)
    return number if dtype is DType.BOOL else float(number) if dtype.is_float else int(number)


class ScanKind(StrEnum):
    """The operation of a scan, whose result is the inclusive prefix at every index."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    ARGMIN = "argmin"
    """Index (`i64`) of the running minimum, the last one on ties; a NaN counts as smallest."""
    ARGMAX = "argmax"
    LOGSUMEXP = "logsumexp"


POSITIONS: frozenset[ReduceKind | ScanKind] = frozenset(
    (ReduceKind.ARGMIN, ReduceKind.ARGMAX, ScanKind.ARGMIN, ScanKind.ARGMAX)
)
"""The kinds whose results are indices, of type `i64`."""
EXTREMES: Mapping[ReduceKind, ReduceKind] = MappingProxyType(
    {ReduceKind.ARGMIN: ReduceKind.MIN, ReduceKind.ARGMAX: ReduceKind.MAX}
)
"""The reduction to the value whose position another is."""


@frozen
class Load:
    """`a = load x[4*i0 + i1]`, or `a = load x[i0] if m`: if `m` is false, the value is 0 and
    memory is not accessed."""

    name: str
    buffer: str
    index: Expr = field(validator=instance_of(Expr))
    mask: str | None = None


@frozen
class Let:
    """`c: f32 = add a, b`: an op of `gyrator_ir.body.ops.OPS` applied to values."""

    name: str
    op: str = field(validator=one_of(OPS))
    args: tuple[str, ...] = field(validator=a_tuple)
    dtype: DType = field(validator=exactly(DType))


@frozen
class Const:
    """`c: f32 = const 0.5`. Floats are printed so that they parse back to the same bits."""

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
    """The behaviour of a bound index that is out of range. Only `NONE` is falsy."""

    NONE = ""
    """The index is guaranteed to be in range."""
    INDEX = "check"
    """Raise IndexError, as indexing and embedding do in eager mode."""
    RUNTIME = "check.runtime"
    """Raise RuntimeError, as gather and scatter do in eager mode."""
    DIVISION = "check.division"
    """Raise RuntimeError, as the division of integers by zero does in eager mode on CPUs. The bound
    value is 1 where a divisor is zero."""


def _as_check(value: bool | Check) -> Check:
    return value if isinstance(value, Check) else Check.INDEX if value else Check.NONE


@frozen
class Bind:
    """`t0 = bind a below s0 wrap check`: use an integer value as an index symbol.

    The symbol is in [0, `size`). `wrap` first adds `size` to negative values. `check` defines the
    error for a value out of range, or guarantees that there is none. If `mask` is false, the symbol
    is 0 and nothing is checked.
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
    """`m, n: f32 = reduce.online_softmax a`: a reduction over the enclosing operation's inner axes.

    The results have one value for each point of the other axes.
    """

    names: tuple[str, ...] = field(validator=a_tuple)
    kind: ReduceKind = field(validator=exactly(ReduceKind))
    args: tuple[str, ...] = field(validator=a_tuple)
    dtype: DType = field(validator=exactly(DType))
    """Type of the arguments and of the accumulation; the results of arg-reductions are `i64`."""

    @property
    def types(self) -> tuple[DType, ...]:
        """Types of the results."""
        return (DType.I64 if self.kind in POSITIONS else self.dtype,) * len(self.names)


@frozen
class ScanStep:
    """`b: f32 = scan.sum a reverse`: an inclusive scan along the scan axis.

    `p: f32 = scan.argmax a` gives the position of the running maximum, the last of equal ones;
    `v, p: f32 = scan.argmax a` the maximum itself too.
    """

    names: tuple[str, ...] = field(validator=a_tuple)
    kind: ScanKind = field(validator=exactly(ScanKind))
    args: tuple[str, ...] = field(validator=a_tuple)
    dtype: DType = field(validator=exactly(DType))
    reverse: bool = False

    @property
    def types(self) -> tuple[DType, ...]:
        """Types of the results."""
        if self.kind in POSITIONS:
            return (self.dtype, DType.I64)[-len(self.names) :]
        return (self.dtype,)


@frozen
class SortStep:
    """`v, p: f32 = sort a descending stable`: the values sorted along the sort axis, and their
    original indices (`i64`). NaN sorts as the largest value."""

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
"""Statements of pointwise bodies."""

Collective = Reduce | ScanStep | SortStep
"""Statements that combine the values along a whole axis."""


@frozen
class Axis:
    """`i0 < 8`: one loop, from 0 up to but not including `extent`."""

    symbol: Sym = field(validator=exactly(Sym))
    extent: Expr = field(validator=instance_of(Expr))
