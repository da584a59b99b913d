"""Kernels that differ only in names: the layers of a model. One function serves them all."""

from collections.abc import Sequence

from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.loop.body import (
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
from gyrator_ir.loop.rewrite import defined

Shape = tuple[object, ...]


def shape(kernel: Kernel) -> Shape:
    """Return what makes the kernel's function: all but the names of values and buffers."""
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


def firsts(kernels: Sequence[Kernel]) -> list[int]:
    """Return for each kernel the position of the first one that is the same but for names."""
    seen: dict[Shape, int] = {}
    return [seen.setdefault(shape(k), number) for number, k in enumerate(kernels)]
