"""Splitting an unrolled loop over a range of elements into a main loop and a remainder."""

from gyrator_ir.define import frozen


@frozen
class Part:
    """One of the consecutive loops over a range."""

    steps: int
    """Steps per iteration (the unroll factor)."""
    whole: bool = False
    """Whether it only runs complete iterations, or as long as any elements are left."""
    once: bool = False
    """Whether it has at most one iteration and needs no loop."""
    live: bool = False
    """Whether its last step may be partial."""


def parts_of(exact: int | None, multiple: int, width: int, copies: int) -> tuple[Part, ...]:
    """Return the loops over a range in steps of `width` elements, unrolled by `copies`.

    Args:
        exact: the length of the range, or None if it is not constant.
        multiple: a number that divides the length.
        width: elements per step.
        copies: the unroll factor.
    """
    iteration = width * copies
    fills_iteration = exact is None or exact >= iteration
    if fills_iteration and multiple % iteration == 0:
        return (Part(copies),)
    if multiple % width == 0:
        rest = Part(1)
    else:
        many = copies > 1 and (exact is None or exact % iteration > width)
        rest = Part(1, once=not many, live=True)
    return (Part(copies, whole=True), rest) if fills_iteration else (rest,)
