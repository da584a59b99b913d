"""Base class of programs, whose `str` is their text form."""

from importlib import import_module
from typing import Any


class Shown:
    """A program of a level that is a folder with `nodes.py` and `print.py`."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the text form, which the level's `parse` accepts."""
        # Imported by name, because printers import the nodes.
        printer: Any = import_module(type(self).__module__.rpartition(".")[0] + ".print")
        return str(printer.show(self))
