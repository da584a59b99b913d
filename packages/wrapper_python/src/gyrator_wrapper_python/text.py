"""Helpers for formatting Python text."""

from collections.abc import Iterator
from contextlib import contextmanager

from attrs import field

from gyrator_ir.define import define
from gyrator_ir.expr import Expr, Fragment, Max, Min, Prec, PythonPrinter
from gyrator_ir.types import Device


class SizePrinter(PythonPrinter):
    """Formats size expressions in Python."""

    def __init__(self, rt: str) -> None:
        super().__init__()
        self.rt = rt

    def extremum(self, node: Min | Max) -> Fragment:
        """`rt.minimum(a, b)`, since a tensor of the program may be named `min`."""
        name = "minimum" if isinstance(node, Min) else "maximum"
        args = ", ".join(map(self, node.args))
        return Fragment(f"{self.rt}.{name}({args})", Prec.ATOM)

    def tuple(self, exprs: tuple[Expr, ...]) -> str:
        """Format a tuple of sizes."""
        return names(tuple(map(self, exprs)))


@define
class Lines:
    """Lines of text with the current indentation."""

    _lines: list[str] = field(factory=list)
    _depth: int = 0

    @property
    def count(self) -> int:
        """Number of lines that are not comments."""
        return sum(not line.lstrip().startswith("#") for line in self._lines)

    def add(self, *lines: str) -> None:
        """Append lines."""
        self._lines += ("    " * self._depth + line if line else "" for line in lines)

    @contextmanager
    def indent(self) -> Iterator[None]:
        """Indent the lines of the `with` block by one level."""
        self._depth += 1
        yield
        self._depth -= 1

    def text(self) -> str:
        """Return the text, ending in a newline."""
        return "\n".join(self._lines) + "\n"


def string(value: object) -> str:
    """Quote a string, a `DType`, or a `Device`."""
    if isinstance(value, Device):
        return repr(str(value))
    if not isinstance(value, str):
        raise TypeError(f"not a string: {value!r}")
    return repr(str.__str__(value))


def names(items: tuple[str, ...]) -> str:
    """Format a tuple of formatted items."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
