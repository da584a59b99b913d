"""Programs print as their text."""

from importlib import import_module
from typing import Any


class Shown:
    """A program of a level whose folder has `nodes.py` and `print.py`: `str` gives its text."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the text, which `parse` of the level reads back."""
        # By name, since what prints nodes imports them.
        printer: Any = import_module(type(self).__module__.rpartition(".")[0] + ".print")
        return str(printer.show(self))
