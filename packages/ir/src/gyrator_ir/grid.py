"""The launch grid of a kernel, from its sizes and a configuration."""

from collections.abc import Mapping, Sequence

from gyrator_ir.expr import Sym, evaluate
from gyrator_ir.source import KernelSource


def size_symbols(source: KernelSource, count: int) -> tuple[Sym, ...]:
    """Return the symbols by which the grid of a kernel with `count` sizes refers to them."""
    first = len(source.arguments) - count
    return tuple(Sym(a.name) for a in source.arguments[first:])


def grid_of(
    source: KernelSource, sizes: Sequence[int], values: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the number of programs along each grid dimension.

    Args:
        source: a kernel that is launched as a grid.
        sizes: its sizes, in the order of the calling convention.
        values: the values of a configuration.
    """
    symbols = dict(zip(size_symbols(source, len(sizes)), sizes, strict=True))
    used = {s for e in source.grid for s in e.free_symbols}
    env = symbols | {s: values[s.name] for s in used if s not in symbols}
    return tuple(evaluate(e, env) for e in source.grid)
