"""The axes and steps of the loops of a tiled kernel."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from gyrator_ir.body.nodes import Axis, Bind, Const, Store
from gyrator_ir.body.rewrite import defined
from gyrator_ir.expr import Const as Number
from gyrator_ir.expr import Expr, ShapeFacts, Sym, product_of
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.tile.nodes import Loop, TiledKernel


def axes_of(kernel: Kernel, loop: Loop) -> tuple[Axis, ...]:
    """Return the axes of a loop, in its order."""
    axes = {a.symbol: a for a in (*kernel.axes, *kernel.inner)}
    return tuple(axes[s] for s in loop.axes)


def extent_of(axes: Iterable[Axis]) -> Expr:
    """Return the product of the extents of axes."""
    return product_of(a.extent for a in axes)


def steps_of(tiled: TiledKernel, loop: Loop) -> tuple[int, ...]:
    """Return the possible values of a loop's step."""
    if isinstance(loop.step, int):
        return (loop.step,)
    return next(c.values for c in tiled.choices if c.name == loop.step)


def in_one_step(tiled: TiledKernel) -> bool:
    """Return whether one step covers all inner elements of a point."""
    inner = {a.symbol for a in tiled.kernel.inner}
    for loop in tiled.loops:
        if inner.isdisjoint(loop.axes):
            continue
        extent = extent_of(axes_of(tiled.kernel, loop))
        if not isinstance(extent, Number) or extent.value > min(steps_of(tiled, loop)):
            return False
    return True


def in_loop(tiled: TiledKernel, body: Iterable[KernelStatement]) -> list[KernelStatement]:
    """Return the statements of a body in its vector loop: neither constants nor hoisted values, nor
    stores to buffers that are cleared."""
    return [
        s
        for s in body
        if not (
            isinstance(s, Const)
            or (isinstance(s, Store) and s.buffer in tiled.cleared)
            or {*((s.symbol.name,) if isinstance(s, Bind) else defined(s))} & {*tiled.ahead}
        )
    ]


def kernel_facts(
    kernel: Kernel, facts: ShapeFacts, others: Mapping[Sym, Expr] = MappingProxyType({})
) -> ShapeFacts:
    """Return the facts extended by the ranges, from 0 to an extent, of the kernel's axes, of its
    bound symbols, and of `others`."""
    extents = {a.symbol: a.extent for a in (*kernel.axes, *kernel.inner)} | dict(others)
    for s in kernel.statements:
        if isinstance(s, Bind):
            extents[s.symbol] = s.size
    return facts.with_ranges(extents)
