"""Expressions and statements as Halide's Python text."""

from collections.abc import Callable, Sequence

from gyrator_codegen_halide.ops import call, constant
from gyrator_codegen_halide.values import Values
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Reduce, ScanStep, Store
from gyrator_ir.expr import (
    Expr,
    Fragment,
    Max,
    Min,
    Node,
    Prec,
    PythonPrinter,
    Sym,
    Where,
    linear,
)
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.types import DType


class IndexPrinter(PythonPrinter):
    """Writes index expressions over Halide's: `//` and `%` of theirs mean what ours mean for
    positive divisors.

    Args:
        sizes: the kernel's parameters.
        wide: the arithmetic has 64 bits.
    """

    word_and = "&"
    word_or = "|"

    def __init__(self, sizes: Sequence[Sym], wide: bool) -> None:
        given = {s: f"{s.name}_given" for s in sizes}
        super().__init__(lambda s: given.get(s, f"wide({s.name})") if wide else s.name)
        self._wide = wide

    def at(self, node: Node, prec: Prec) -> str:
        """Return the text of `node`, relations in parentheses beside `&` and `|`."""
        text = super().at(node, prec)
        return f"({text})" if prec is Prec.RELATION else text

    def integer(self, value: int) -> str:
        """Return a literal of the width."""
        return f"hl.i64({value})" if self._wide else str(value)

    def power(self, atom: Node, power: int) -> Fragment:
        """Return a repeated product."""
        return Fragment("*".join([self.at(atom, Prec.ATOM)] * power), Prec.PRODUCT)

    def extremum(self, node: Min | Max) -> Fragment:
        """Return nested calls of two arguments."""
        word = "hl.min" if isinstance(node, Min) else "hl.max"
        text = self(node.args[-1])
        for arg in reversed(node.args[:-1]):
            text = f"{word}({self(arg)}, {text})"
        return Fragment(text, Prec.ATOM)

    def select(self, node: Where) -> Fragment:
        """Return a selection; both branches are evaluated, and divisions by 0 give 0."""
        return Fragment(f"hl.select({self(node.cond)}, {self(node.a)}, {self(node.b)})", Prec.ATOM)


class Printer:
    """Writes what a kernel's values are.

    Args:
        narrow: all indices fit into 32 bits.
        name: the identifier for a value, a buffer or a symbol.
    """

    def __init__(self, values: Values, narrow: bool, name: Callable[[str], str]) -> None:
        self._values = values
        self._narrow = narrow
        self.name = name
        self._short, self._long = (
            IndexPrinter(values.kernel.sizes, wide) for wide in (False, True)
        )

    def index(self, e: Expr) -> str:
        """Return an address or an extent, of 32 bits.

        What is linear is computed in 32 bits: its parts are no larger than the address itself.
        """
        if self._narrow or linear(e, e.free_symbols) is not None:
            return self._short(e)
        return f"short({self._long(e)})"

    def wide(self, e: Expr) -> str:
        """Return an index expression as an `i64` value."""
        return f"wide({self._long(e)})"

    def body(self, results: Sequence[str], symbols: Sequence[Sym] = ()) -> list[str]:
        """Return the lines that compute values and bound symbols."""
        return [self._line(s) for s in self._values.slice([*results, *symbols])]

    def _line(self, s: KernelStatement) -> str:
        n, types = self.name, self._values.types
        match s:
            case Load(name) if name in self._values.forwarded:
                value = n(self._values.forwarded[name])
                if s.mask is not None:
                    value = f"where({n(s.mask)}, {value}, {constant(0, types[name])})"
                return f"{n(name)} = {value}"
            case Load(name, buffer, index, mask):
                place = f'{n(buffer)}, {self.index(index)}, "{types[name].value}"'
                text = f"load({place})" if mask is None else f"load_if({n(mask)}, {place})"
                return f"{n(name)} = {text}"
            case Let(name, op, args, dtype):
                text = call(op, [n(a) for a in args], [types[a] for a in args], dtype)
                return f"{n(name)} = {text}"
            case Const(name, value, dtype):
                return f"{n(name)} = {constant(value, dtype)}"
            case IndexValue(name, e, dtype):
                text = self.wide(e)
                if dtype is not DType.I64:
                    text = call("cast", [text], [DType.I64], dtype)
                return f"{n(name)} = {text}"
            case Bind(symbol, value, size, wrap, _, mask):
                only = "None" if mask is None else n(mask)
                text = f"bound_index({n(value)}, {self.wide(size)}, {wrap}, {only})"
                return f"{symbol.name}, {symbol.name}_inside = {text}"
            case Reduce(names):
                points = ", ".join(self.points)
                results = ", ".join(n(x) for x in names)
                return f"({results},) = {n(names[0] + '_fold')}({points})"
            case ScanStep(names):
                where = ", ".join((*self.points, *self.inner))
                return f"{n(names[0])} = {n(names[0] + '_scan')}.result({where})"
            case _:
                raise AssertionError(f"{type(s).__name__} is refused")

    @property
    def points(self) -> list[str]:
        """The coordinates of a point; one without axes has one all the same."""
        return [a.symbol.name for a in self._values.kernel.axes] or ["point"]

    @property
    def inner(self) -> list[str]:
        """The coordinates inside of a point."""
        return [a.symbol.name for a in self._values.kernel.inner]

    def stored(self, s: Store, dtype: DType) -> str:
        """Return what a store puts into memory."""
        return f'stored({self.name(s.value)}, "{dtype.value}")'
