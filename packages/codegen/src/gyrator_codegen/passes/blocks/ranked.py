"""The result of ranking block shapes."""

from collections.abc import Sequence

from gyrator_ir.define import frozen


@frozen
class Ranked:
    """Ranked values of choices."""

    names: tuple[str, ...]
    """The names of the choices."""
    shapes: Sequence[tuple[int, ...]]
    """All sensible combinations of values."""
    best: Sequence[tuple[int, ...]]
    """The combinations worth measuring, best guess first."""
