"""Choices that IR nodes share with targets and with generated text.

They stand apart from the nodes because whoever only loads stored programs needs no IR, and a new
process that finds everything in the cache spends a good part of its time on imports.
"""

from enum import StrEnum


class StoreMode(StrEnum):
    """How a store meets what is already there. All but `set` are atomic across points."""

    SET = "set"
    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"


class Numerics(StrEnum):
    """What a kernel's results promise."""

    EAGER = "eager"
    """Each ATen op's result is rounded to its dtype, as eager rounds it."""
    FAST = "fast"
    """Intermediate roundings may be skipped."""
    BITWISE = "bitwise"
    """Eager's bits."""
    BATCH_INVARIANT = "batch_invariant"
    """A point's result does not depend on how many points there are: its sums are taken in `f64`,
    one term after another in the order of the inner axes."""
