"""`wrap-borders`: what slices of a tensor, wrapped around, were copied together to is a slice of
the tensor's repetitions."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from attrs import evolve
from torch._prims_common import is_contiguous_or_false
from torch.fx import GraphModule, Node

from gyrator_ir.define import frozen
from gyrator_lowering.fx_passes.insert import contiguous, insert, replace
from gyrator_lowering.torch_bridge.schema import writes

aten = torch.ops.aten

Run = tuple[int | None, int]
"""Consecutive elements along a dimension: the position in the source of the first, None if they are
undefined, and how many they are."""

_MOST_RUNS = 16
"""Maximum number of runs in a dimension that wraps around."""


@frozen
class _Origin:
    """Where the elements of a tensor come from, dimension by dimension."""

    source: Node | None
    """The tensor that they are copies of; None if all are undefined."""
    runs: tuple[tuple[Run, ...] | None, ...]
    """For each dimension; None for one of symbolic size, which is as in the source."""


@frozen
class WrapBorders:
    """Recognise tensors that copies of slices, as of circular padding, fill piece by piece. Each
    piece would otherwise select among its own elements and all earlier ones."""

    name: ClassVar[str] = "wrap-borders"

    def run(self, gm: GraphModule) -> bool:
        """Apply the pass in place; return whether the graph changed."""
        if not gm.graph.find_nodes(op="call_function", target=aten.slice_scatter.default):
            return False
        origins: dict[Node, _Origin] = {}
        changed = False
        for node in list(gm.graph.nodes):
            if writes(node):
                origins.clear()  # copies made before do not have the elements written
                continue
            if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
                continue
            origin = _origin(node, origins)
            if origin is None:
                continue
            origins[node] = origin
            if node.target is aten.slice_scatter.default and (wrapped := _wrapped(node, origin)):
                source, starts = wrapped
                value = _repeated(gm, node, source, starts)
                origins[value] = origins.pop(node)
                replace(gm, node, value)
                changed = True
        if changed:
            gm.graph.eliminate_dead_code()
        return changed


def _origin(node: Node, origins: dict[Node, _Origin]) -> _Origin | None:
    """Return the origin of a tensor's elements; None if it is the tensor itself."""
    match node.target, node.args:
        case ((aten.new_empty.default | aten.empty.memory_format), _):
            return _Origin(None, tuple(map(_whole, node.meta["val"].shape)))
        case aten.slice.Tensor, (Node() as x, *span):
            cut = _cut(x, *span)
            origin = _of(x, origins)
            if cut is None or (runs := origin.runs[cut[0]]) is None:
                return None
            return _with(origin, cut[0], _part(runs, *cut[1:]))
        case aten.copy.default, (Node() as to, Node() as x, *_):
            a, b = to.meta["val"], x.meta["val"]
            same = a.dtype == b.dtype and a.device == b.device and a.dim() == b.dim()
            return _of(x, origins) if same and a.shape == b.shape else None
        case aten.slice_scatter.default, (Node() as to, Node() as x, *span):
            cut = _cut(to, *span)
            return None if cut is None else _joined(_of(to, origins), _of(x, origins), *cut)
    return None


def _of(x: Node, origins: dict[Node, _Origin]) -> _Origin:
    return origins.get(x) or _Origin(x, tuple(map(_whole, x.meta["val"].shape)))


def _whole(size: Any) -> tuple[Run, ...] | None:
    return ((0, size),) if isinstance(size, int) else None


def _with(origin: _Origin, dim: int, runs: Sequence[Run]) -> _Origin:
    return evolve(origin, runs=(*origin.runs[:dim], tuple(runs), *origin.runs[dim + 1 :]))


def _cut(
    x: Node, dim: Any = 0, start: Any = None, end: Any = None, step: Any = 1
) -> tuple[int, int, int] | None:
    """Return the dimension, the first position and the end of a slice; None if they are not known,
    or not all elements between them belong to it."""
    shape = x.meta["val"].shape
    size = shape[dim]
    if not isinstance(size, int) or step != 1:
        return None
    if not all(isinstance(at, int | None) for at in (start, end)):
        return None
    low, high, _ = slice(start, end).indices(size)
    return dim % len(shape), low, max(low, high)


def _part(runs: Iterable[Run], low: int, high: int) -> list[Run]:
    """Return the runs of the positions from `low` to `high`."""
    part: list[Run] = []
    at = 0
    for start, length in runs:
        first, end = max(at, low), min(at + length, high)
        if first < end:
            part.append((None if start is None else start + first - at, end - first))
        at += length
    return part


def _merged(runs: Iterable[Run]) -> list[Run]:
    """Return the fewest runs."""
    merged: list[Run] = []
    for start, length in runs:
        if merged:
            before, count = merged[-1]
            if start == (None if before is None else before + count):
                merged[-1] = (before, count + length)
                continue
        merged.append((start, length))
    return merged


def _joined(to: _Origin, x: _Origin, dim: int, low: int, high: int) -> _Origin | None:
    """Return the origin of `to` with `x` written from `low` to `high` of a dimension; None if it
    differs among the positions of another dimension."""
    old, new = to.runs[dim], x.runs[dim]
    if old is None or new is None or x.source is None or len(old) + len(new) > _MOST_RUNS:
        return None
    size = sum(length for _, length in old)
    if to.source is None:
        old, others = ((None, size),), x
    elif to.source is x.source and _with(to, dim, ()) == _with(x, dim, ()):
        others = to
    else:
        return None
    return _with(others, dim, _merged([*_part(old, 0, low), *new, *_part(old, high, size)]))


def _wrapped(node: Node, origin: _Origin) -> tuple[Node, list[int]] | None:
    """Return the source, and the position there of the first element along each dimension, of a
    contiguous tensor whose elements all follow one another in the source, wrapped around."""
    fake = node.meta["val"]
    if origin.source is None or not is_contiguous_or_false(fake):
        return None
    source = origin.source.meta["val"]
    starts: list[int] = []
    for runs, size in zip(origin.runs, source.shape, strict=True):
        start = 0 if runs is None else _first(runs, size)
        if start is None:
            return None
        starts.append(start)
    return origin.source, starts


def _first(runs: Sequence[Run], size: int) -> int | None:
    """Return the first position of runs that wrap around, None if they do not."""
    start = at = runs[0][0] if runs and size else None
    for first, length in runs:
        if first is None or first != at:
            return None
        at = (first + length) % size
    return start


def _repeated(gm: GraphModule, node: Node, source: Node, starts: Sequence[int]) -> Node:
    """Insert the value of `node` as a slice of its repeated source."""
    call = partial(insert, gm, node)
    sizes = node.meta["val"].shape
    extents = source.meta["val"].shape
    counts = [
        1 if isinstance(n, torch.SymInt) else -(-(start + size) // n)
        for start, size, n in zip(starts, sizes, extents, strict=True)
    ]
    value = source
    if any(count > 1 for count in counts):
        value = call(aten.repeat.default, source, counts)
    for dim, (start, size, n) in enumerate(zip(starts, sizes, extents, strict=True)):
        if isinstance(n, int) and (start, size) != (0, value.meta["val"].shape[dim]):
            value = call(aten.slice.Tensor, value, dim, start, start + size)
    return contiguous(call, value)
