"""Random valid tilings of a kernel."""

import numpy as np
from attrs import evolve

from gyrator_ir.body.nodes import Axis, Reduce, ReduceKind
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.tile.nodes import Loop, LoopKind, Method, Reduction, Threads, TiledKernel
from gyrator_ir.tile.plain import untiled

_STEPS = (1, 2, 4, 8, 32)


def random_tiling(kernel: Kernel, rng: np.random.Generator) -> TiledKernel:
    """Return a kernel with randomly tiled and ordered loops."""
    tiled = untiled(kernel)
    assert isinstance(tiled, TiledKernel)
    points, inner = _groups(kernel.axes, rng), _groups(kernel.inner, rng)
    order = rng.permutation(len(points))
    grid: list[Loop] = []
    own: list[Loop] = []
    for n in order:
        step = int(rng.choice(_STEPS))
        grid.append(Loop(LoopKind.GRID, points[n], step))
        within = [s for s in _STEPS if step % s == 0 and s < step]
        if within and rng.random() < 0.5:
            own.append(Loop(LoopKind.LOOP, points[n], int(rng.choice(within))))
    own += [Loop(LoopKind.LOOP, group, int(rng.choice(_STEPS))) for group in inner]
    loops = tuple(own[n] for n in rng.permutation(len(own)))
    reductions = tuple(_reduction(r, kernel, rng) for r in tiled.reductions)
    threads = Threads(int(rng.integers(0, len(grid) + 1))) if rng.random() < 0.5 else None
    return evolve(tiled, loops=(*grid, *loops), reductions=reductions, threads=threads)


def _groups(axes: tuple[Axis, ...], rng: np.random.Generator) -> list[tuple[Sym, ...]]:
    groups: list[list[Sym]] = []
    for axis in axes:
        if groups and rng.random() < 0.5:
            groups[-1].append(axis.symbol)
        else:
            groups.append([axis.symbol])
    return [tuple(g) for g in groups]


def _reduction(r: Reduction, kernel: Kernel, rng: np.random.Generator) -> Reduction:
    reduction = next(
        s for s in kernel.statements if isinstance(s, Reduce) and s.names[0] == r.result
    )
    if reduction.kind in (ReduceKind.WELFORD, ReduceKind.ONLINE_SOFTMAX):
        return Reduction(r.result, Method.TWO_PASS, block=int(rng.choice((16, 2048))))
    if reduction.kind in (ReduceKind.SUM, ReduceKind.DOT) and reduction.dtype.is_float:
        chain = int(rng.choice((0, 4, 64)))
        return evolve(r, chain=chain, wide=not chain and bool(rng.random() < 0.5))
    return r
