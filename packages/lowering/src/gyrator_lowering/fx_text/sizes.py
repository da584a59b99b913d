"""The sizes of a text as PyTorch's symbolic integers."""

from typing import Any

import sympy
import torch
from attrs import field
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from gyrator_ir.define import define
from gyrator_ir.expr import Add, Const, Expr, FloorDiv, Max, Min, Mod, Mul, ShapeFacts, Sym, SymKind

_DEFAULT_HINT = 8
"""The example value of a size without a hint."""


@define
class Sizes:
    """Creates symbolic integers for expressions, in a `ShapeEnv` with the text's facts."""

    facts: ShapeFacts
    environment: Any = field(factory=ShapeEnv)
    _symbols: dict[Sym, Any] = field(factory=dict)

    def value(self, expression: Expr) -> Any:
        """Return an expression as an `int` or a `torch.SymInt`.

        Raises:
            ValueError: for an expression that cannot be a PyTorch size.
        """
        match expression:
            case Const(value=value):
                return value
            case Sym():
                if expression not in self._symbols:
                    self._symbols[expression] = self._symbol(expression)
                return self._symbols[expression]
            case Add(terms=terms, const=const):
                return sum([c * self.value(t) for t, c in terms], start=const)
            case Mul(factors=factors):
                product: Any = 1
                for factor, power in factors:
                    for _ in range(power):
                        product = product * self.value(factor)
                return product
            case FloorDiv(a=a, b=b):
                return self.value(a) // self.value(b)
            case Mod(a=a, b=b):
                return self.value(a) % self.value(b)
            case Min(args=args) | Max(args=args):
                least: Any = torch.sym_min if isinstance(expression, Min) else torch.sym_max
                first, *rest = map(self.value, args)
                for other in rest:
                    first = least(first, other)
                return first
        raise ValueError(f"{expression!r} cannot be a PyTorch size")

    def _symbol(self, symbol: Sym) -> Any:
        if symbol.kind not in (SymKind.SIZE, SymKind.UNBACKED):
            raise ValueError(f"{symbol.name} is neither a size nor an unbacked size")
        backed = symbol.kind is SymKind.SIZE
        low, high = self.facts.bounds(symbol)
        kind = {"positive": True} if backed else {}
        sympy_symbol: Any = sympy.Symbol(symbol.name, integer=True, **kind)  # type: ignore[no-untyped-call]
        least = (2 if backed else -int_oo) if low is None else low
        environment = self.environment
        environment.var_to_range[sympy_symbol] = ValueRanges(
            least, int_oo if high is None else high
        )
        if not backed:
            environment.pending_fresh_unbacked_symbols.append(sympy_symbol)
            return environment.create_symintnode(sympy_symbol, hint=None)
        hint = self.facts.hint(symbol)
        if hint is None:
            hint = (
                max(_DEFAULT_HINT, low or 0)
                if high is None
                else min(max(_DEFAULT_HINT, low or 0), high)
            )
        environment.backed_var_to_val[sympy_symbol] = sympy.Integer(hint)
        return environment.create_symintnode(sympy_symbol, hint=hint)
