"""How much of a buffer a kernel may access."""

from gyrator_ir.body.nodes import Load, Store
from gyrator_ir.expr import ONE, ZERO, Const, Expr, linear, maximum, sum_of
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.loop.nodes import Buffer


def accessed_extent(kernel: Kernel, buffer: Buffer) -> Expr | None:
    """Return the number of elements of a buffer that a kernel may access: its span, or if the
    kernel lacks its sizes, a bound from the addresses. None if neither is known."""
    sizes = set(kernel.sizes)
    if all(e.free_symbols <= sizes for e in (*buffer.shape, *buffer.strides)):
        return sum_of(
            [ONE, *((n - 1) * d for n, d in zip(buffer.shape, buffer.strides, strict=True))]
        )
    axes = {a.symbol: a.extent for a in (*kernel.axes, *kernel.inner)}
    ends: list[Expr] = []
    for s in kernel.statements:
        if isinstance(s, Load | Store) and s.buffer == buffer.name:
            split = linear(s.index, axes)
            if split is None or not split[1].free_symbols <= sizes:
                return None
            steps = (_farthest(c, axes[a]) for a, c in split[0].items())
            ends.append(sum_of([split[1], ONE, *steps]))
    return maximum(*ends) if ends else None


def _farthest(factor: Expr, extent: Expr) -> Expr:
    """Return how much an axis adds at most to an address: nothing if it is read backwards."""
    last = factor * (extent - 1)
    grows = isinstance(factor, Const) and factor.value > 0
    return last if grows else maximum(last, ZERO)
