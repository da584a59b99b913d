"""A cluster: operations that become one kernel, summarised by their accesses."""

from collections.abc import Mapping

from attrs import field

from gyrator_ir.body.nodes import Axis, Bind, Load, ReduceKind, Store, StoreMode
from gyrator_ir.define import define, frozen
from gyrator_ir.expr import ONE, ZERO, Expr, Sym, subs
from gyrator_ir.loop.nodes import LoopOperation, Operation, Reduction, Scan, Scatter, Sort
from gyrator_ir.loop.uses import inner_of, statements_of
from gyrator_ir.types import DType
from gyrator_scheduler.access import is_indirect
from gyrator_scheduler.ranges import Ranges

ORDERED_KINDS = (ReduceKind.ARGMIN, ReduceKind.ARGMAX)
"""Reductions that return positions, so that the order of their axes is part of their meaning."""


@frozen
class Written:
    """The store of a cluster to a buffer."""

    address: Expr
    inner: bool
    """Stored in every iteration of the inner axes, not once per parallel iteration."""
    plain: bool
    """Every element is set once, unmasked, at an address that depends on the axes only: readers can
    use the value directly."""
    total: bool = False
    """Sums over points: `StoreMode.TOTAL`."""


@define(eq=False)
class Member:
    """One operation of a cluster, with its axes as expressions over the cluster's axes."""

    index: int
    """Position in the program."""
    op: LoopOperation
    axes: dict[Sym, Expr]
    inner: bool
    """Runs in every iteration of the inner axes (always true for reductions, scans and sorts)."""
    total: bool = False
    """Whether this is a reduction over points of the cluster, whose stores are totals."""


@define(eq=False)
class Cluster:
    """Operations in one iteration space of parallel and inner axes. Mutable working state of
    fusion."""

    id: int
    call: Operation | None = None
    """The operation, if it is not a loop. Such a cluster is never joined."""
    points: tuple[Axis, ...] = ()
    inner: tuple[Axis, ...] = ()
    members: list[Member] = field(factory=list)
    loads: dict[str, dict[Expr, bool]] = field(factory=dict)
    """For each buffer, the addresses it is read at, and whether that is at the inner level."""
    stores: dict[str, Written] = field(factory=dict)
    size: int = 0
    reductions: int = 0
    """Number of members that are reductions."""
    sums: bool = False
    """All members are sums, which may become totals of another cluster."""
    ordered: bool = False
    """The result of a member depends on the order of the inner axes."""
    scans: bool = False
    never_fused: bool = False
    """Whether the operation is a reduction, scan or sort over a single element."""
    mutates: bool = False
    """Reads and overwrites one buffer."""
    before: dict[int, None] = field(factory=dict)
    after: dict[int, None] = field(factory=dict)
    refusals: dict[int, str] = field(factory=dict)
    """Reasons for refused fusions, by the position of an operation in the other cluster."""
    form: tuple[int, tuple[str, ...]] | None = None
    """Structure of the cluster as cached by `MatchCache`; None after a change."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Parallel axes, then inner axes."""
        return self.points + self.inner

    @property
    def first(self) -> int:
        """Position of the first member in the program."""
        return min(m.index for m in self.members) if self.members else self.id


def singleton(index: int, op: Operation) -> Cluster:
    """Return a cluster of one operation. Axes of extent 1 are dropped."""
    if not isinstance(op, LoopOperation):
        return Cluster(index, call=op)
    inner_axes = inner_of(op)
    ones = {a.symbol: ZERO for a in (*op.axes, *inner_axes) if a.extent is ONE}
    if isinstance(op, (Scan, Sort)):
        ones.pop(inner_axes[0].symbol, None)
    inner = tuple(a for a in inner_axes if a.symbol not in ones)
    if inner_axes and not inner:
        inner = inner_axes[:1]
        ones.pop(inner[0].symbol)
    own: dict[Sym, Expr] = {a.symbol: a.symbol for a in (*op.axes, *inner_axes)}
    c = Cluster(index, points=tuple(a for a in op.axes if a.symbol not in ones), inner=inner)
    c.members.append(Member(index, op, {**own, **ones}, bool(inner)))
    c.scans = isinstance(op, (Scan, Sort))
    c.never_fused = any(a.extent is ONE for a in inner)
    c.size = len(statements_of(op))
    c.reductions = int(isinstance(op, Reduction))
    c.sums = (
        isinstance(op, Reduction)
        and op.reduce.kind is ReduceKind.SUM
        and op.reduce.dtype in (DType.F32, DType.F64)
    )
    c.ordered = isinstance(op, Reduction) and op.reduce.kind in ORDERED_KINDS
    _add_accesses(c, op, ones)
    c.mutates = any(b in c.loads for b in c.stores)
    return c


def _add_accesses(c: Cluster, op: LoopOperation, ones: Mapping[Sym, Expr]) -> None:
    """Add the loads and stores of an operation, whose axes of extent 1 are `ones`."""
    below, binds = bool(c.inner), False
    for s in statements_of(op):
        match s:
            case Load(_, buffer, address):
                address = subs(address, ones) if ones else address
                c.loads.setdefault(buffer, {})[address] = below
            case Store(buffer, address, _, mode, mask):
                address = subs(address, ones) if ones else address
                plain = (
                    mode is StoreMode.SET and mask is None and not isinstance(op, Scatter)
                    and buffer not in c.stores
                    and not (binds and is_indirect(address))
                )  # fmt: skip
                stored_inner = below and not isinstance(op, Reduction)
                c.stores[buffer] = Written(address, stored_inner, plain)
            case Bind():
                binds = True


def moved(
    c: Cluster, mapping: Mapping[Sym, Expr], axes: tuple[Axis, ...], ranges: Ranges,
    inner: bool = False, totals: bool = False,
) -> None:  # fmt: skip
    """Rewrite a cluster's addresses to new axes. With `inner`, its members move to the inner level;
    with `totals`, its reductions become totals."""
    changed = any(new is not old for old, new in mapping.items())
    cached: dict[Expr, Expr] = {}

    def at(e: Expr) -> Expr:
        if not changed:
            return e
        new = cached.get(e)  # most buffers are accessed at the same few addresses
        if new is None:
            new = cached[e] = ranges.simplify(subs(e, mapping), axes)
        return new

    if changed:
        for m in c.members:
            m.axes = {s: at(e) for s, e in m.axes.items()}
    if not (changed or inner or totals):
        return
    c.form = None
    for m in c.members:
        m.inner = m.inner or inner
        m.total = m.total or totals
    for buffer, addresses in c.loads.items():
        c.loads[buffer] = {at(e): level or inner for e, level in addresses.items()}
    for buffer, w in c.stores.items():
        c.stores[buffer] = Written(
            at(w.address), w.inner or inner or totals, w.plain and not totals, w.total or totals
        )
