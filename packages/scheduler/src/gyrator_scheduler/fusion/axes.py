"""A common iteration space for two operations: axes are split until both sides agree."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod

from gyrator_ir.body.nodes import Axis
from gyrator_ir.define import frozen
from gyrator_ir.expr import ONE, ZERO, Const, Expr, Sym, exact_quotient, linear, sum_of
from gyrator_ir.expr import evaluate as evaluate_expr

CACHE_SIZE = 1 << 12
"""Maximum number of cached refinements."""
FIRST_SPLIT = 1000
"""First number for axes that result from splitting."""
GUESS = 8192
"""Assumed value of a symbol when strides are sorted. It only affects order, and is verified
later."""


def guess(value: Expr) -> int:
    """Return a typical value of a size, for choosing among correct alternatives."""
    if isinstance(value, Const):
        return value.value
    try:
        return evaluate_expr(value, dict.fromkeys(value.free_symbols, GUESS))
    except ZeroDivisionError:
        return GUESS


@frozen
class Refinement:
    """The common axes of two lists, and each original axis as an expression over them."""

    dims: tuple[Axis, ...]
    left: Mapping[Sym, Expr]
    right: Mapping[Sym, Expr]
    left_parts: Mapping[Sym, tuple[Sym, ...]]
    """The common axes that make up each axis of the left list, outermost first."""
    right_parts: Mapping[Sym, tuple[Sym, ...]]


def first_free(axes: Iterable[Axis]) -> int:
    """Return the smallest number such that no axis is named `i<number>` or higher.

    Split axes are numbered from here rather than consecutively through the program, so that
    repeated parts of a program get the same symbols and share cache entries.
    """
    numbers = (int(a.symbol.name[1:]) for a in axes if a.symbol.name[1:].isdecimal())
    return max([FIRST_SPLIT - 1, *numbers]) + 1


@lru_cache(CACHE_SIZE)
def refine(left: tuple[Axis, ...], right: tuple[Axis, ...], free: int) -> Refinement | None:
    """Split the axes of both row-major lists into one common list; None if extents do not divide.

    An axis of `left` that is not split keeps its symbol. Other axes of the result are numbered
    consecutively from `i<free>`.
    """
    dims: list[Axis] = []
    lefts: dict[Sym, list[tuple[Sym, Expr]]] = {a.symbol: [] for a in left}
    rights: dict[Sym, list[tuple[Sym, Expr]]] = {a.symbol: [] for a in right}
    ls = [a for a in left if a.extent is not ONE]
    rs = [a for a in right if a.extent is not ONE]
    left_whole = True
    left_weight: Expr = ONE
    right_weight: Expr = ONE
    left_extent = ls[-1].extent if ls else ONE
    right_extent = rs[-1].extent if rs else ONE
    while ls and rs:
        if left_extent is right_extent:
            extent, more_left, more_right = left_extent, None, None
        elif (q := exact_quotient(left_extent, right_extent)) is not None and q is not ZERO:
            extent, more_left, more_right = right_extent, q, None
        elif (q := exact_quotient(right_extent, left_extent)) is not None and q is not ZERO:
            extent, more_left, more_right = left_extent, None, q
        else:
            return None
        stays = left_whole and more_left is None
        symbol = ls[-1].symbol if stays else Sym(f"i{free + len(dims)}")
        dims.append(Axis(symbol, extent))
        lefts[ls[-1].symbol].append((symbol, left_weight))
        rights[rs[-1].symbol].append((symbol, right_weight))
        if more_left is None:
            ls.pop()
            left_weight, left_extent, left_whole = ONE, (ls[-1].extent if ls else ONE), True
        else:
            left_weight, left_extent, left_whole = left_weight * extent, more_left, False
        if more_right is None:
            rs.pop()
            right_weight, right_extent = ONE, (rs[-1].extent if rs else ONE)
        else:
            right_weight, right_extent = right_weight * extent, more_right
    if ls or rs:
        return None
    dims.reverse()
    return Refinement(
        tuple(dims),
        _substitution(lefts),
        _substitution(rights),
        {s: tuple(p for p, _ in reversed(parts)) for s, parts in lefts.items()},
        {s: tuple(p for p, _ in reversed(parts)) for s, parts in rights.items()},
    )


def _substitution(parts: dict[Sym, list[tuple[Sym, Expr]]]) -> dict[Sym, Expr]:
    return {s: sum_of(d * w for d, w in terms) for s, terms in parts.items()}


def concatenated(first: Refinement, second: Refinement) -> Refinement:
    """Return the concatenation of two refinements of disjoint axes."""
    return Refinement(
        first.dims + second.dims,
        {**first.left, **second.left},
        {**first.right, **second.right},
        {**first.left_parts, **second.left_parts},
        {**first.right_parts, **second.right_parts},
    )


def identity(axes: tuple[Axis, ...]) -> Refinement:
    """Return the refinement of two equal lists of axes."""
    maps: dict[Sym, Expr] = {a.symbol: a.symbol for a in axes}
    parts = {a.symbol: (a.symbol,) for a in axes}
    return Refinement(axes, maps, maps, parts, parts)


NOTHING = Refinement((), {}, {}, {}, {})


def strides_in(address: Expr, axes: Sequence[Axis]) -> dict[Sym, Expr] | None:
    """Return the stride of each axis in an address; None if it is not linear in all of them."""
    split = linear(address, [a.symbol for a in axes])
    return None if split is None else split[0]


def by_stride(
    axes: Sequence[Axis], strides: Mapping[Sym, Expr]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Split axes into those with non-zero stride, largest stride first, and the others."""
    moving = [a for a in axes if strides[a.symbol] is not ZERO]
    rest = tuple([a for a in axes if strides[a.symbol] is ZERO])
    if len(moving) > 1:
        moving.sort(key=lambda a: -abs(guess(strides[a.symbol])))
    return tuple(moving), rest


def space(axes: Sequence[Axis]) -> int:
    """Return the typical number of iterations of a list of axes."""
    return prod(guess(a.extent) for a in axes)
