"""`merge-repeats`: merge kernels that differ only in names, such as those of a model's layers."""

from itertools import count
from typing import ClassVar

from attrs import evolve

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
from gyrator_ir.define import frozen
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.tile.nodes import Repeat, Tiled, TiledGroup, TiledKernel, TileProgram

Shape = tuple[object, ...]


@frozen
class MergeRepeats:
    """Keep the first of kernels that differ only in names. This pass runs before any decisions."""

    name: ClassVar[str] = "merge-repeats"

    def run(self, program: TileProgram) -> TileProgram:
        """Return the program with duplicates replaced by `Repeat`."""
        first: dict[Shape, str] = {}
        kernels: list[Tiled] = []
        for k in program.kernels:
            if isinstance(k, TiledGroup):
                k = _merged(k)
            elif isinstance(k, TiledKernel):
                own = k.kernel.name
                original = first.setdefault(_shape(k.kernel), own)
                k = k if original == own else Repeat(own, original)
            kernels.append(k)
        if all(new is old for new, old in zip(kernels, program.kernels, strict=True)):
            return program
        return evolve(program, kernels=tuple(kernels))


def _merged(group: TiledGroup) -> TiledGroup:
    indices: dict[Shape, int] = {}
    kernels: list[TiledKernel] = []
    new: list[int] = []
    for k in group.kernels:
        index = indices.setdefault(_shape(k.kernel), len(kernels))
        if index == len(kernels):
            kernels.append(k)
        new.append(index)
    if len(kernels) == len(group.kernels):
        return group
    return evolve(group, kernels=tuple(kernels), members=tuple(new[n] for n in group.members))


def _shape(kernel: Kernel) -> Shape:
    """Return a key of the kernel that does not depend on the names of values and buffers."""
    buffers = {b.name: k for k, b in enumerate(kernel.parameters)}
    buffers |= {t.name: -1 - k for k, t in enumerate(kernel.locals)}
    # Stages that do not see each other's values may use the same names for them.
    numbers = count()
    values: dict[str, int] = {}
    stages: list[object] = []
    for stage in kernel.stages:
        body: list[Shape] = []
        for s in stage.body:
            body.append(_statement(s, values, buffers))
            for name in defined(s):
                values[name] = next(numbers)
        stages.append((stage.level, tuple(body)))
    return (
        kernel.axes,
        kernel.inner,
        kernel.sizes,
        kernel.numerics,
        tuple(b.dtype for b in kernel.parameters),
        tuple((t.dtype, t.extent) for t in kernel.locals),
        None if kernel.overlap is None else tuple(buffers[name] for name in kernel.overlap),
        tuple(stages),
    )


def _statement(s: KernelStatement, values: dict[str, int], buffers: dict[str, int]) -> Shape:
    def number(name: str | None) -> int | None:
        return None if name is None else values[name]

    match s:
        case Load(_, buffer, index, mask):
            return (Load, buffers[buffer], index, number(mask))
        case Let(_, op, args, dtype):
            return (Let, op, dtype, *(values[a] for a in args))
        case Const(_, value, dtype):
            return (Const, repr(value), dtype)
        case IndexValue(_, e, dtype):
            return (IndexValue, e, dtype)
        case Bind(symbol, value, size, wrap, check, mask):
            return (Bind, symbol, values[value], size, wrap, check, number(mask))
        case Store(buffer, index, value, mode, mask):
            return (Store, buffers[buffer], index, values[value], mode, number(mask))
        case Reduce(_, kind, args, dtype):
            return (Reduce, kind, dtype, *(values[a] for a in args))
        case ScanStep(names, kind, args, dtype, reverse):
            return (ScanStep, len(names), kind, dtype, reverse, *(values[a] for a in args))
        case SortStep(_, args, dtype, descending, stable):
            return (SortStep, dtype, descending, stable, *(values[a] for a in args))
