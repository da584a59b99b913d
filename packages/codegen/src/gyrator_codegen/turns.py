"""How a loop over a stretch of elements goes: several steps a turn, and what is left at its end."""

from enum import Enum, auto

from attrs import frozen


class Rest(Enum):
    """What may be left behind whole turns."""

    NOTHING = auto()
    STEPS = auto()
    """Whole steps."""
    PART = auto()
    """Less than a step."""
    MIXED = auto()
    """Whole steps, and less than one."""


@frozen
class Turns:
    """The parts of a loop."""

    whole: bool
    """There may be turns of all steps."""
    rest: Rest


def turns_of(exact: int | None, multiple: int, width: int, copies: int) -> Turns:
    """Return the parts of a loop over a stretch in steps of `width` elements, `copies` a turn.

    Args:
        exact: how long the stretch is, None where that is not known.
        multiple: a number that divides its length.
    """
    turn = width * copies
    whole = exact is None or exact >= turn
    if whole and multiple % turn == 0:
        return Turns(whole, Rest.NOTHING)
    if multiple % width == 0:
        return Turns(whole, Rest.STEPS)
    if copies > 1 and (exact is None or exact % turn > width):
        return Turns(whole, Rest.MIXED)
    return Turns(whole, Rest.PART)
