"""Shapes of programs in the order of a model."""

from collections.abc import Sequence

from attrs import frozen


@frozen
class Ranked:
    """Values of choices, as models rank them."""

    names: tuple[str, ...]
    """The choices."""
    shapes: Sequence[tuple[int, ...]]
    """All values that make sense together."""
    best: Sequence[tuple[int, ...]]
    """Those worth measuring, the best guess first."""
