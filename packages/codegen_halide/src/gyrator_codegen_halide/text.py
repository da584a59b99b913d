"""Expressions and statements as Halide's Python source."""

from collections.abc import Iterable, Sequence

from gyrator_codegen.array_text import ArrayPrinter
from gyrator_codegen_halide.ops import call, constant
from gyrator_codegen_halide.values import Values
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Reduce, ScanStep
from gyrator_ir.expr import Expr, Sym, linear
from gyrator_ir.kernel.nodes import KernelStatement, Level
from gyrator_ir.types import DType


class IndexPrinter(ArrayPrinter):
    """Prints index expressions for Halide, whose `//` and `%` agree with ours for positive divisors
    and return 0 for a divisor of 0.

    Args:
        sizes: the kernel's parameters.
        wide: whether arithmetic has 64 bits.
    """

    minimum, maximum, where = "hl.min", "hl.max", "hl.select"

    def __init__(self, sizes: Sequence[Sym], wide: bool) -> None:
        names_of_sizes = {s: f"{s.name}_given" for s in sizes}
        super().__init__(lambda s: names_of_sizes.get(s, f"wide({s.name})") if wide else s.name)
        self._wide = wide

    def integer(self, value: int) -> str:
        """Return a literal of the arithmetic's width."""
        return f"hl.i64({value})" if self._wide else str(value)


class Printer:
    """Prints the definitions of a kernel's values.

    Args:
        values: the kernel's values.
        narrow: whether all indices fit in 32 bits.
    """

    def __init__(self, values: Values, narrow: bool) -> None:
        self._values, self._narrow = values, narrow
        self._short, self._long = (
            IndexPrinter(values.kernel.sizes, wide) for wide in (False, True)
        )

    def index(self, e: Expr) -> str:
        """Return a 32-bit address or extent.

        Linear expressions are computed in 32 bits, because their terms are no larger than the
        address.
        """
        if self._narrow or linear(e, e.free_symbols) is not None:
            return self._short(e)
        return f"short({self._long(e)})"

    def body(self, results: Sequence[str | Sym]) -> list[str]:
        """Return the lines that compute values and bound symbols."""
        return [self._line(s) for s in self._values.slice(results)]

    def _line(self, s: KernelStatement) -> str:
        types, forwarded = self._values.types, self._values.forwarded
        match s:
            case Load(name, _, _, None) if name in forwarded:
                return f"{name} = {forwarded[name]}"
            case Load(name, _, _, mask) if name in forwarded:
                return f"{name} = where({mask}, {forwarded[name]}, {constant(0, types[name])})"
            case Load(name, buffer, index, mask):
                location = f'{buffer}, {self.index(index)}, "{types[name].value}"'
                return f"{name} = " + (
                    f"load_if({mask}, {location})" if mask else f"load({location})"
                )
            case Let(name, op, args, dtype):
                return f"{name} = {call(op, args, [types[a] for a in args], dtype)}"
            case Const(name, value, dtype):
                return f"{name} = {constant(value, dtype)}"
            case IndexValue(name, e, dtype):
                text = f"wide({self._long(e)})"
                if dtype is not DType.I64:
                    text = call("cast", [text], [DType.I64], dtype)
                return f"{name} = {text}"
            case Bind(x, value, size, wrap, _, mask):
                end = f"wide({self._long(size)}), {wrap}, {mask}"
                return f"{x.name}, {x.name}_inside = bound_index({value}, {end})"
            case Reduce() | ScanStep():
                level = Level.OUTER if isinstance(s, Reduce) else Level.INNER
                at = listed(self._values.coordinates(level))
                return f"[{', '.join(s.names)}] = {s.names[0]}_fold({at})"
            case _:
                raise AssertionError(f"{type(s).__name__} is refused")


def listed(symbols: Iterable[Sym]) -> str:
    """Return the names of symbols, separated by commas."""
    return ", ".join(s.name for s in symbols)
