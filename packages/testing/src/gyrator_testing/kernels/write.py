"""Helpers for writing kernels concisely."""

from collections.abc import Mapping, Sequence

from gyrator_ir.body.nodes import Axis, IndexValue, Load, Store
from gyrator_ir.body.rewrite import AnyStatement, expressions
from gyrator_ir.expr import Expr, Sym, expr, sorted_symbols
from gyrator_ir.kernel.nodes import Kernel, Level, Local, Stage
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.types import Device, DType

CPU = Device("cpu")
F32, F64, I64, I32, BOOL = DType.F32, DType.F64, DType.I64, DType.I32, DType.BOOL
I0, I1, I2, R0, R1, S0, S1, S2 = (Sym(n) for n in ("i0", "i1", "i2", "r0", "r1", "s0", "s1", "s2"))
UNKNOWN = Sym("u0")
"""The length of a buffer that the kernel does not know."""


def buffer(name: str, dtype: DType, span: Expr | int, device: Device) -> Buffer:
    """Return a flat buffer of `span` elements."""
    return Buffer(name, dtype, device, (expr(span),), (expr(1),))


def outer(*body: AnyStatement) -> Stage:
    """Return an outer stage, whose statements run once per point."""
    return Stage(Level.OUTER, body)


def inner(*body: AnyStatement) -> Stage:
    """Return an inner stage, whose statements run for all points of the inner axes."""
    return Stage(Level.INNER, body)


def kernel(
    name: str,
    axes: Sequence[tuple[Sym, Expr | int]],
    inner_axes: Sequence[tuple[Sym, Expr | int]],
    stages: Sequence[Stage],
    types: Mapping[str, DType] | None = None,
    spans: Mapping[str, Expr | int] | None = None,
    locals_: Sequence[Local] = (),
    device: Device = CPU,
) -> Kernel:
    """Return a kernel whose parameters and sizes are derived from its statements.

    A parameter is `f32` unless `types` has its dtype, and of unknown length unless `spans` has its
    length.
    """
    types, spans = types or {}, spans or {}
    local = {t.name for t in locals_}
    points = tuple(Axis(s, expr(e)) for s, e in axes)
    inside = tuple(Axis(s, expr(e)) for s, e in inner_axes)
    body = [s for stage in stages for s in stage.body]
    loads = [s.buffer for s in body if isinstance(s, Load)]
    stores = [s.buffer for s in body if isinstance(s, Store)]
    names = [n for n in dict.fromkeys(loads + stores) if n not in local]
    exprs = [e for s in body for e in expressions(s)] + [a.extent for a in points + inside]
    exprs += [t.extent for t in locals_]
    sizes = (s for s in sorted_symbols(exprs) if s.name[0] in "su")
    return Kernel(
        name, device, points, inside, tuple(stages), tuple(locals_),
        tuple(buffer(n, types.get(n, F32), spans.get(n, UNKNOWN), device) for n in names),
        tuple(sorted(sizes, key=lambda s: s.name)),
    )  # fmt: skip


def divided(name: str) -> Kernel:
    """Return a kernel that stores the quotient and the remainder of its sizes, of any sign, in the
    pairs of `y`."""
    dividend, divisor = Sym("u0"), Sym("u1")
    values = (IndexValue("q", dividend // divisor, I64), IndexValue("r", dividend % divisor, I64))
    stores = (Store("y", 2 * I0, "q"), Store("y", 2 * I0 + 1, "r"))
    return kernel(name, [(I0, 2)], [], [outer(*values, *stores)], {"y": I64}, {"y": 4})


QUOTIENTS = tuple(
    (a, b, (a // b + 2**63) % 2**64 - 2**63, a % b)
    for a, b in ((-(2**63), -1), (-(2**63), 3), (-7, -1), (7, -2), (-7, 2), (0, -1))
)
"""Dividends, divisors, quotients that wrap to 64 bits, and remainders."""
