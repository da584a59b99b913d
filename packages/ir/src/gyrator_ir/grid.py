"""How many programs of a kernel run, given its sizes and a configuration."""

from collections.abc import Mapping, Sequence

from gyrator_ir.expr import Sym, evaluate
from gyrator_ir.source import KernelSource


def size_symbols(source: KernelSource, count: int) -> tuple[Sym, ...]:
    """Return what stands in a kernel's grid for its sizes, of which it has so many."""
    first = len(source.arguments) - count
    return tuple(Sym(a.name) for a in source.arguments[first:])


def grid_of(
    source: KernelSource, sizes: Sequence[int], values: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the number of programs along each dimension.

    Args:
        source: a kernel that is launched as a grid.
        sizes: its sizes, in the order of the calling convention.
        values: of a configuration.
    """
    symbols = dict(zip(size_symbols(source, len(sizes)), sizes, strict=True))
    used = {s for e in source.grid for s in e.free_symbols}
    env = symbols | {s: values[s.name] for s in used if s not in symbols}
    return tuple(evaluate(e, env) for e in source.grid)
