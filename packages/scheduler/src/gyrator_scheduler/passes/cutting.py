"""What it takes to do a fold, or a running fold, part by part."""

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve

from gyrator_ir.body.nodes import Axis, Bind, IndexValue, Let, Load, ReduceKind, Statement
from gyrator_ir.body.nodes import Const as ConstValue
from gyrator_ir.body.rewrite import renamed
from gyrator_ir.expr import Expr, Sym, sum_of
from gyrator_ir.loop.nodes import Buffer
from gyrator_ir.types import DType
from gyrator_scheduler.fusion.kernels import row_major
from gyrator_scheduler.naming import fresh

WORK_PER_CORE = 4
"""Parts for each thread, so that uneven threads even out."""


class Partial:
    """The buffers of a program, and those made for the results of parts.

    Args:
        buffers: those that exist already.
    """

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self.buffers = {b.name: b for b in buffers}
        """By name, with the new ones."""
        self.new: list[Buffer] = []
        self._taken = set(self.buffers)

    def make(self, stem: str, dtype: DType, like: str, axes: Sequence[Axis]) -> Buffer:
        """Return a new buffer, on the device of `like`, with a place for every point of `axes`."""
        name = fresh(stem, self._taken)
        shape = tuple(a.extent for a in axes)
        made = Buffer(name, dtype, self.buffers[like].device, shape, row_major(shape))
        self.new.append(made)
        self.buffers[name] = made
        return made


def row_major_place(axes: tuple[Axis, ...], b: Buffer) -> Expr:
    """Return the address of the point of `axes` in a buffer."""
    return sum_of(a.symbol * s for a, s in zip(axes, b.strides, strict=True))


def overhanging(
    body: Iterable[Statement],
    moved: Mapping[Sym, Expr],
    place: Expr,
    extent: Expr,
    taken: set[str],
) -> tuple[list[Statement], str]:
    """Return statements with what `moved` has in the place of symbols, that read nothing where
    `place` is beyond `extent`, and the name of the value that says where it is not."""
    here, end, inside = (fresh(n, taken) for n in ("here", "end", "inside"))
    made: list[Statement] = [
        IndexValue(here, place, DType.I64),
        IndexValue(end, extent, DType.I64),
        Let(inside, "lt", (here, end), DType.BOOL),
    ]
    for s in body:
        if isinstance(s, (Load, Bind)):
            mask = inside
            if s.mask is not None:
                mask = fresh("both", taken)
                made.append(Let(mask, "bit_and", (inside, s.mask), DType.BOOL))
            s = evolve(s, mask=mask)
        made.append(renamed(s, {}, moved))
    return made, inside


def neutral_outside(
    body: list[Statement],
    values: Iterable[str],
    inside: str,
    kind: ReduceKind,
    dtype: DType,
    taken: set[str],
) -> tuple[str, ...]:
    """Append statements that put the fold's identity where `inside` is false, and return the names
    of the values with it."""
    nothing = fresh("nothing", taken)
    body.append(ConstValue(nothing, identity_of(kind, dtype), dtype))
    chosen: list[str] = []
    for value in values:
        chosen.append(fresh("part", taken))
        body.append(Let(chosen[-1], "where", (inside, value, nothing), dtype))
    return tuple(chosen)


def identity_of(kind: ReduceKind, dtype: DType) -> bool | int | float:
    """Return the value that a fold ignores."""
    if dtype is DType.BOOL:
        return kind in (ReduceKind.ALL, ReduceKind.MIN, ReduceKind.PROD)
    if kind is ReduceKind.PROD:
        return 1.0 if dtype.is_float else 1
    if kind not in (ReduceKind.MIN, ReduceKind.MAX):
        return 0.0 if dtype.is_float else 0
    low = kind is ReduceKind.MAX
    if dtype.is_float:
        return float("-inf") if low else float("inf")
    bits = dtype.size * 8
    if dtype.is_signed:
        return -(1 << (bits - 1)) if low else (1 << (bits - 1)) - 1
    return 0 if low else (1 << bits) - 1
