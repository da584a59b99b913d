"""Helpers for splitting reductions and scans into parts."""

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve

from gyrator_ir.body.nodes import (
    Axis,
    Bind,
    IndexValue,
    Let,
    Load,
    ReduceKind,
    Statement,
    identity_of,
)
from gyrator_ir.body.nodes import Const as ConstValue
from gyrator_ir.body.rewrite import renamed
from gyrator_ir.expr import Expr, Sym, contiguous_strides, sum_of
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.types import DType
from gyrator_scheduler.naming import fresh

WORK_PER_CORE = 4
"""Number of parts per core, for load balance."""


class PartBuffers:
    """The buffers of a program, including those created for the results of parts.

    Args:
        buffers: the existing buffers.
    """

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self.buffers = {b.name: b for b in buffers}
        """All buffers by name."""
        self.new: list[Buffer] = []
        self._used_names = set(self.buffers)

    def make(self, stem: str, dtype: DType, like: str, axes: Sequence[Axis]) -> Buffer:
        """Return a new buffer on the device of `like` with one element per iteration of `axes`."""
        name = fresh(stem, self._used_names)
        shape = tuple(a.extent for a in axes)
        buffer = Buffer(name, dtype, self.buffers[like].device, shape, contiguous_strides(shape))
        self.new.append(buffer)
        self.buffers[name] = buffer
        return buffer


def row_major_address(axes: tuple[Axis, ...], b: Buffer) -> Expr:
    """Return the address in buffer `b` of the iteration of `axes`."""
    return sum_of(a.symbol * s for a, s in zip(axes, b.strides, strict=True))


def masked_body(
    body: Iterable[Statement],
    moved: Mapping[Sym, Expr],
    index: Expr,
    extent: Expr,
    used_names: set[str],
) -> tuple[list[Statement], str]:
    """Substitute `moved` in the statements, mask their loads where `index` is not below `extent`,
    and return them with the name of the mask."""
    position, end, inside = (fresh(n, used_names) for n in ("here", "end", "inside"))
    result: list[Statement] = [
        IndexValue(position, index, DType.I64),
        IndexValue(end, extent, DType.I64),
        Let(inside, "lt", (position, end), DType.BOOL),
    ]
    for s in body:
        if isinstance(s, (Load, Bind)):
            mask = inside
            if s.mask is not None:
                mask = fresh("both", used_names)
                result.append(Let(mask, "bit_and", (inside, s.mask), DType.BOOL))
            s = evolve(s, mask=mask)
        result.append(renamed(s, {}, moved))
    return result, inside


def with_identity(
    body: list[Statement],
    values: Iterable[str],
    inside: str,
    kind: ReduceKind,
    dtype: DType,
    used_names: set[str],
) -> tuple[str, ...]:
    """Append statements that replace the values by the reduction's identity where `inside` is
    false, and return the names of the results."""
    identity = fresh("nothing", used_names)
    body.append(ConstValue(identity, identity_of(kind, dtype), dtype))
    selected: list[str] = []
    for value in values:
        selected.append(fresh("part", used_names))
        body.append(Let(selected[-1], "where", (inside, value, identity), dtype))
    return tuple(selected)
