"""Small helpers for writing Python text."""

from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field

from gyrator_ir.expr import (
    Cond,
    Const,
    Expr,
    FloorDiv,
    Fragment,
    Max,
    Min,
    Mod,
    Node,
    Prec,
    Printer,
    Where,
    children,
    to_python,
)
from gyrator_ir.types import Device


class SizePrinter(Printer):
    """Writes size expressions in Python, on the sizes of a recorder."""

    def __init__(self, recorder: str) -> None:
        super().__init__()
        self.recorder = recorder

    def extremum(self, node: Min | Max) -> Fragment:
        """`p.minimum(a, b)`: Python's own `min` would compare, which a recorded size can't."""
        name = "minimum" if isinstance(node, Min) else "maximum"
        args = ", ".join(map(self, node.args))
        return Fragment(f"{self.recorder}.{name}({args})", Prec.ATOM)

    def select(self, node: Where) -> Fragment:
        """`p.select(lambda s0: s0 < 4, (s0,), a, b)`; sides that may divide by zero are lambdas."""
        lazy = [side for side in (node.a, node.b) if _may_fail(side)]
        free = {s.name for part in (node.cond, *lazy) for s in part.free_symbols}
        symbols = tuple(sorted(free))
        head = f"lambda {', '.join(symbols)}: "
        sides = (
            head + to_python(side) if side in lazy else self(side) for side in (node.a, node.b)
        )
        args = ", ".join((head + to_python(node.cond), names(symbols), *sides))
        return Fragment(f"{self.recorder}.select({args})", Prec.ATOM)

    def tuple(self, exprs: tuple[Expr, ...]) -> str:
        """Write a tuple of sizes."""
        return f"({''.join(f'{self(e)}, ' for e in exprs)})"


def condition(cond: Cond) -> str:
    """Write a condition as two arguments: a function of the symbols in it, and the symbols."""
    symbols = tuple(sorted(s.name for s in cond.free_symbols))
    return f"lambda {', '.join(symbols)}: {to_python(cond)}, {names(symbols)}"


def _may_fail(node: Node) -> bool:
    """Tell whether a divisor in `node` may be zero."""
    divides = isinstance(node, FloorDiv | Mod) and not isinstance(node.b, Const)
    return divides or any(map(_may_fail, children(node)))


@define
class Lines:
    """Lines with the current indentation."""

    _lines: list[str] = field(factory=list)
    _depth: int = 0

    def add(self, line: str) -> None:
        """Append one line."""
        self._lines.append("    " * self._depth + line if line else "")

    @contextmanager
    def indent(self) -> Iterator[None]:
        """Write the lines of the `with` block one level deeper."""
        self._depth += 1
        yield
        self._depth -= 1

    def text(self) -> str:
        """Return everything written, ending in a newline."""
        return "\n".join(self._lines) + "\n"


def string(value: object) -> str:
    """Quote a string, a `DType`, or a `Device`."""
    if isinstance(value, Device):
        return repr(str(value))
    if not isinstance(value, str):
        raise TypeError(f"not a string: {value!r}")
    return repr(str.__str__(value))


def names(items: tuple[str, ...]) -> str:
    """Write a tuple of names."""
    return f"({''.join(f'{n}, ' for n in items)})"
