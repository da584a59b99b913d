"""Short ways to write kernels."""

from collections.abc import Sequence

from gyrator_ir.expr import Expr, Sym, expr, sorted_symbols
from gyrator_ir.kernel.nodes import Kernel, Level, Local, Stage
from gyrator_ir.loop.body import Axis, Load, Store
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.loop.rewrite import expressions
from gyrator_ir.types import Device, DType

CPU = Device("cuda")
F32, F64, I64, I32, BOOL = DType.F32, DType.F64, DType.I64, DType.I32, DType.BOOL
I0, I1, I2, R0, R1, S0, S1, S2 = (Sym(n) for n in ("i0", "i1", "i2", "r0", "r1", "s0", "s1", "s2"))


def buffer(name: str, dtype: DType = F32, span: Expr | int = 1 << 40) -> Buffer:
    """Return a flat buffer; only its type matters to the emitter."""
    return Buffer(name, dtype, CPU, (expr(span),), (expr(1),))


def outer(*body):
    return Stage(Level.OUTER, body)


def inner(*body):
    return Stage(Level.INNER, body)


def kernel(
    name: str,
    axes: Sequence[tuple[Sym, Expr | int]],
    inner_axes: Sequence[tuple[Sym, Expr | int]],
    stages: Sequence[Stage],
    types: dict[str, DType] | None = None,
    spans: dict[str, Expr | int] | None = None,
    locals_: Sequence[Local] = (),
) -> Kernel:
    """Return a kernel; its parameters are what its statements name, `f32` unless `types` says.

    The length of a buffer is a symbol that the kernel does not know, unless `spans` says.
    """
    types, spans = types or {}, spans or {}
    local = {t.name for t in locals_}
    points = tuple(Axis(s, expr(e)) for s, e in axes)
    inside = tuple(Axis(s, expr(e)) for s, e in inner_axes)
    body = [s for stage in stages for s in stage.body]
    loads = [s.buffer for s in body if isinstance(s, Load)]
    stores = [s.buffer for s in body if isinstance(s, Store)]
    names = [n for n in dict.fromkeys(loads + stores) if n not in local]
    found = [e for s in body for e in expressions(s)] + [a.extent for a in points + inside]
    found += [t.extent for t in locals_]
    sizes = tuple(s for s in sorted_symbols(found) if s.name[0] in "su")
    return Kernel(
        name, CPU, points, inside, tuple(stages), tuple(locals_),
        tuple(buffer(n, types.get(n, F32), spans.get(n, Sym("u0"))) for n in names),
        tuple(sorted(sizes, key=lambda s: s.name)),
    )  # fmt: skip
