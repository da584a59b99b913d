"""`merge-repeats`: kernels that differ only in names, as the layers of a model do, are one."""

from typing import ClassVar

from attrs import evolve, frozen

from gyrator_ir.body.nodes import (
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ScanStep,
    SortStep,
    Store,
)
from gyrator_ir.body.rewrite import defined
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.tile.nodes import Repeat, Tiled, TiledGroup, TiledKernel, TileProgram

Shape = tuple[object, ...]


@frozen
class MergeRepeats:
    """Keep the first of kernels that differ only in names. It goes before what makes decisions."""

    name: ClassVar[str] = "merge-repeats"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program whose kernels all differ."""
        first: dict[Shape, str] = {}
        kernels: list[Tiled] = []
        for k in program.kernels:
            if isinstance(k, TiledGroup):
                k = _merged(k)
            elif isinstance(k, TiledKernel):
                own = k.kernel.name
                known = first.setdefault(_shape(k.kernel), own)
                k = k if known == own else Repeat(own, known)
            kernels.append(k)
        if all(new is old for new, old in zip(kernels, program.kernels, strict=True)):
            return program
        return evolve(program, kernels=tuple(kernels))


def _merged(group: TiledGroup) -> TiledGroup:
    places: dict[Shape, int] = {}
    kept: list[TiledKernel] = []
    new: list[int] = []
    for k in group.kernels:
        place = places.setdefault(_shape(k.kernel), len(kept))
        if place == len(kept):
            kept.append(k)
        new.append(place)
    if len(kept) == len(group.kernels):
        return group
    return evolve(group, kernels=tuple(kept), members=tuple(new[n] for n in group.members))


def _shape(kernel: Kernel) -> Shape:
    """Return what makes the kernel's text: all but the names of values and buffers."""
    buffers = {b.name: k for k, b in enumerate(kernel.parameters)}
    buffers |= {t.name: -1 - k for k, t in enumerate(kernel.locals)}
    values: dict[str, int] = {}
    stages: list[object] = []
    for stage in kernel.stages:
        body: list[Shape] = []
        for s in stage.body:
            body.append(_statement(s, values, buffers))
            for name in defined(s):
                values[name] = len(values)
        stages.append((stage.level, tuple(body)))
    return (
        kernel.axes,
        kernel.inner,
        kernel.sizes,
        kernel.numerics,
        tuple(b.dtype for b in kernel.parameters),
        tuple((t.dtype, t.extent) for t in kernel.locals),
        tuple(stages),
    )


def _statement(s: KernelStatement, values: dict[str, int], buffers: dict[str, int]) -> Shape:
    def maybe(name: str | None) -> int | None:
        return None if name is None else values[name]

    match s:
        case Load(_, buffer, index, mask):
            return (Load, buffers[buffer], index, maybe(mask))
        case Let(_, op, args, dtype):
            return (Let, op, dtype, *(values[a] for a in args))
        case Const(_, value, dtype):
            return (Const, repr(value), dtype)
        case IndexValue(_, e, dtype):
            return (IndexValue, e, dtype)
        case Bind(symbol, value, size, wrap, check, mask):
            return (Bind, symbol, values[value], size, wrap, check, maybe(mask))
        case Store(buffer, index, value, mode, mask):
            return (Store, buffers[buffer], index, values[value], mode, maybe(mask))
        case Reduce(_, kind, args, dtype):
            return (Reduce, kind, dtype, *(values[a] for a in args))
        case ScanStep(_, kind, args, dtype, reverse):
            return (ScanStep, kind, dtype, reverse, *(values[a] for a in args))
        case SortStep(_, args, dtype, descending, stable):
            return (SortStep, dtype, descending, stable, *(values[a] for a in args))
