"""Enumerations shared by IR nodes, targets and generated text.

They are separate from the nodes so that a process that only loads cached programs need not import
the IR: imports take a large part of its startup time.
"""

import builtins
from enum import StrEnum


class Failure(StrEnum):
    """The exception that a failed check raises."""

    INDEX = "IndexError"
    OVERFLOW = "OverflowError"
    RUNTIME = "RuntimeError"
    VALUE = "ValueError"

    @property
    def exception(self) -> type[Exception]:
        """The class of the exception."""
        exception: type[Exception] = getattr(builtins, self.value)
        return exception


class StoreMode(StrEnum):
    """How a store combines with the stored value. `add`, `mul`, `min` and `max` are atomic across
    points."""

    SET = "set"
    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"
    TOTAL = "total"
    """In kernels: each element becomes the sum of all values that the store stores there."""


ATOMIC_MODES = frozenset(StoreMode) - {StoreMode.SET, StoreMode.TOTAL}


class Numerics(StrEnum):
    """The numerical guarantee of a kernel's results."""

    EAGER = "eager"
    """The result of each ATen op is rounded to its dtype, as in eager mode."""
    FAST = "fast"
    """Intermediate rounding may be skipped."""
    BITWISE = "bitwise"
    """The same bits as in eager mode."""
    BATCH_INVARIANT = "batch_invariant"
    """The result of a point does not depend on the number of points: sums are accumulated in `f64`,
    sequentially in the order of the inner axes."""


EXACT_NUMERICS = frozenset((Numerics.BITWISE, Numerics.BATCH_INVARIANT))
"""The guarantees of particular bits."""
