"""Conversion from and to sympy, for the expressions of torch's SymInts and for test oracles.

The functions of `torch.utils._sympy.functions` are recognised by class name, so that torch need not
be imported. This is the only module of the package that imports sympy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import lcm
from typing import Any

import sympy as _untyped_sympy

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import nodes as x
from gyrator_ir.expr.build import absolute, maximum, minimum, product_of, sum_of, where
from gyrator_ir.expr.conditions import all_of, any_of, both, either, negate, relation
from gyrator_ir.expr.division import ceildiv, floordiv, mod
from gyrator_ir.expr.nodes import FALSE, TRUE, Cond, Const, Expr, Node, Sym, expr

sympy: Any = _untyped_sympy  # its functions carry no annotations


_RELATIONS = {
    "Equality": "==",
    "Eq": "==",
    "Unequality": "!=",
    "Ne": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
}


def _unsupported(value: object, reason: str) -> UnsupportedError:
    return UnsupportedError.of(
        "GY-EXPR-006", f"sympy expression cannot be converted: {reason}", where=str(value)
    )


def from_sympy(value: Any) -> Expr:
    """Convert a sympy expression, or an `int`, to an expression over symbols of the same names
    (`s0`, `u0`, ...).

    Raises:
        UnsupportedError: GY-EXPR-006, if it is not integer arithmetic (floats, true division).
        ExprError: GY-EXPR-001, if the name of a symbol is not valid for `Sym`.
    """
    return _Importer().expr(value)


def cond_from_sympy(value: Any) -> Cond:
    """Convert a sympy boolean to a condition; errors as for `from_sympy`."""
    return _Importer().cond(value)


class _Importer:
    """One conversion, in which each subexpression is converted once."""

    def __init__(self) -> None:
        self._memo: dict[Any, Expr] = {}

    def expr(self, value: Any) -> Expr:
        if value.__class__ is int:
            return Const(value)
        result = self._memo.get(value)
        if result is None:
            result = self._memo[value] = self._convert(value)
        return result

    def _convert(self, value: Any) -> Expr:
        if isinstance(value, sympy.Symbol):
            return Sym(value.name)
        if isinstance(value, sympy.Integer):
            return Const(int(value))
        if isinstance(value, sympy.Add):
            return self._sum(value)
        if isinstance(value, sympy.Mul):
            return self._product(value)
        handler = _HANDLERS.get(type(value).__name__)
        if handler is None:
            raise _unsupported(value, f"{type(value).__name__} is not integer arithmetic")
        return handler(self, value)

    def _sum(self, value: Any) -> Expr:
        """Convert a sum. One with rational coefficients is converted as a whole, because rounding
        each term separately would change the sum."""
        scale = _denominator(value)
        if scale != 1:
            return self._exact(sympy.expand(value * scale), scale)
        return sum_of([self.expr(arg) for arg in value.args])

    def _product(self, value: Any) -> Expr:
        scale = _denominator(value)
        if scale != 1:
            return self._exact(sympy.expand(value * scale), scale)
        return product_of([self.expr(arg) for arg in value.args])

    def _exact(self, scaled: Any, scale: int) -> Expr:
        # The value is an integer for all sizes that occur, so floor does not change it.
        return floordiv(self.expr(scaled), Const(scale))

    def power(self, value: Any) -> Expr:
        base, exponent = value.args
        power = self.expr(exponent)
        if not isinstance(power, Const) or power.value < 0:
            raise _unsupported(value, "the exponent is not a nonnegative integer")
        return self.expr(base) ** power.value

    def floor(self, value: Any) -> Expr:
        """Convert `floor(a / n)`, which sympy represents as the floor of a rational product."""
        inner, scale = _integral(value.args[0])
        return floordiv(self.expr(inner), self.expr(scale))

    def ceiling(self, value: Any) -> Expr:
        inner, scale = _integral(value.args[0])
        return ceildiv(self.expr(inner), self.expr(scale))

    def rounded(self, value: Any) -> Expr:
        """Convert `FloorToInt`, `CeilToInt` or `TruncToInt` of a quotient or a scaled integer.

        The rounded quotient of doubles is exact while both are below 2**53. A product with a short
        factor is exact while the integer is below 2**32; for other factors see `_near`.
        """
        (inner,) = value.args
        if type(inner).__name__ == "IntTrueDiv":
            numbers, factor = inner.args, Fraction(1)
        else:
            numbers, factor = _scaled(inner)
            if len(numbers) == 1 and abs(factor.numerator) >= 1 << 21 and numbers[0].is_nonnegative:
                factor = _near(factor)
            if len(numbers) != 1 or abs(factor.numerator) >= 1 << 21:
                raise _unsupported(value, f"{type(inner).__name__} is not integer arithmetic")
        kind = type(value).__name__
        if kind == "TruncToInt" and not (factor >= 0 and all(n.is_nonnegative for n in numbers)):
            raise _unsupported(value, "the truncated number may be negative")
        over, *under = map(self.expr, numbers)
        build = ceildiv if kind == "CeilToInt" else floordiv
        return build(factor.numerator * over, *(under or (Const(factor.denominator),)))

    def select(self, value: Any) -> Expr:
        cond, a, b = value.args
        return where(self.cond(cond), self.expr(a), self.expr(b))

    def piecewise(self, value: Any) -> Expr:
        *cases, last = value.args
        if self.cond(last.args[1]) is not TRUE:
            raise _unsupported(value, "there is no default case")
        result = self.expr(last.args[0])
        for case in reversed(cases):
            result = where(self.cond(case.args[1]), self.expr(case.args[0]), result)
        return result

    def cond(self, value: Any) -> Cond:
        if value is True or value is sympy.true:
            return TRUE
        if value is False or value is sympy.false:
            return FALSE
        name = type(value).__name__
        if name in _RELATIONS:
            a, b = value.args
            return relation(_RELATIONS[name], self.expr(a), self.expr(b))
        if name == "And":
            return all_of(map(self.cond, value.args))
        if name == "Or":
            return any_of(map(self.cond, value.args))
        if name == "Not":
            return negate(self.cond(value.args[0]))
        if name == "ITE":
            test, a, b = map(self.cond, value.args)
            return either(both(test, a), both(negate(test), b))
        raise _unsupported(value, f"{name} is not a condition on integers")


def _denominator(value: Any) -> int:
    """Return the least common denominator of the coefficients of a sum or product."""
    if isinstance(value, sympy.Rational):
        return int(value.q)
    if isinstance(value, sympy.Add):
        return lcm(*map(_denominator, value.args))
    if isinstance(value, sympy.Mul):
        product = 1
        for arg in value.args:
            product *= _denominator(arg)
        return product
    return 1


def _integral(value: Any) -> tuple[Any, Any]:
    """Return the numerator and denominator of a quotient, both without fractions."""
    numerator, denominator = sympy.fraction(sympy.together(value))
    return numerator, denominator


def _scaled(value: Any) -> tuple[tuple[Any, ...], Fraction]:
    """Return the integers and the factor of `factor * ToFloat(integer) * ...`; no integers if the
    expression does not have this form."""
    factor, numbers = Fraction(1), []
    for arg in value.args if isinstance(value, sympy.Mul) else (value,):
        if isinstance(arg, sympy.Float):
            factor *= Fraction(float(arg))
        elif type(arg).__name__ == "ToFloat":
            numbers.append(arg.args[0])
        else:
            return (), factor
    return tuple(numbers), factor


def _near(factor: Fraction) -> Fraction:
    """Return the simple fraction p/q that a double approximates, if rounding makes them equivalent.

    With c = p/q * (1 + d), the double of c*s is so close to p*s/q that both have the same floor and
    the same ceiling, unless p*s/q is an integer n. Then c*s = n + n*d, which rounds to n if
    abs(n*d) is at most half of the distance to the next double, hence if abs(d) is at most 2**-54.
    This holds while p*s is below 2**52. Other factors are returned unchanged.
    """
    short = factor.limit_denominator(1000)
    if not 0 < short.numerator < 1 << 12:
        return factor
    return short if abs(factor / short - 1) <= Fraction(1, 1 << 54) else factor


def _pair(build: Callable[[Expr, Expr], Expr]) -> Callable[[_Importer, Any], Expr]:
    def convert(importer: _Importer, value: Any) -> Expr:
        a, b = value.args
        return build(importer.expr(a), importer.expr(b))

    return convert


def _many(build: Callable[..., Expr]) -> Callable[[_Importer, Any], Expr]:
    return lambda importer, value: build(*map(importer.expr, value.args))


def _shift_left(a: Expr, b: Expr) -> Expr:
    if not isinstance(b, Const) or b.value < 0:
        raise _unsupported(f"{a} << {b}", "the shift is not a nonnegative integer")
    return a * (1 << b.value)


def _shift_right(a: Expr, b: Expr) -> Expr:
    if not isinstance(b, Const) or b.value < 0:
        raise _unsupported(f"{a} >> {b}", "the shift is not a nonnegative integer")
    return floordiv(a, Const(1 << b.value))


# Converters of the functions of sympy and of torch.utils._sympy.functions, by class name.
_HANDLERS: dict[str, Callable[[_Importer, Any], Expr]] = {
    "FloorDiv": _pair(floordiv),
    "_FloorDiv": _pair(floordiv),
    "CleanDiv": _pair(floordiv),
    "CeilDiv": _pair(ceildiv),
    "Mod": _pair(mod),
    "PythonMod": _pair(mod),
    "ModularIndexing": _many(lambda base, divisor, modulus: mod(floordiv(base, divisor), modulus)),
    "Min": _many(minimum),
    "Max": _many(maximum),
    "Abs": _many(absolute),
    "Identity": _many(expr),
    "LShift": _pair(_shift_left),
    "RShift": _pair(_shift_right),
    "FloorToInt": _Importer.rounded,
    "CeilToInt": _Importer.rounded,
    "TruncToInt": _Importer.rounded,
    "Pow": _Importer.power,
    "PowByNatural": _Importer.power,
    "floor": _Importer.floor,
    "ceiling": _Importer.ceiling,
    "Where": _Importer.select,
    "_Where": _Importer.select,
    "Piecewise": _Importer.piecewise,
}


class _FloorDiv(sympy.Function):  # type: ignore[misc]
    """`floor(a / b)` as an opaque function, since sympy would distribute `1/b` over `a`."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        """Return the value for two integers (undefined for a divisor of zero), else None."""
        if a.is_Integer and b.is_Integer:
            return sympy.nan if b == 0 else sympy.Integer(int(a) // int(b))
        return None


class _Where(sympy.Function):  # type: ignore[misc]
    """`a` if a condition holds, else `b`, as an opaque function. sympy would move the surrounding
    arithmetic into a `Piecewise`, and evaluate quotients that its conditions exclude."""

    nargs = (3,)
    is_integer = True

    @classmethod
    def eval(cls, cond: Any, a: Any, b: Any) -> Any:
        """Return a branch if the condition is constant, else None."""
        return {sympy.true: a, sympy.false: b}.get(cond)


def to_sympy(node: Node, symbols: Mapping[Sym, Any] | None = None) -> Any:
    """Convert a node to a sympy expression or boolean.

    Quotients and selections become the integer functions `_FloorDiv` and `_Where`, and remainders
    sympy's `Mod`. Symbols without an entry in `symbols` become integer symbols of the same name.
    """
    by_symbol = symbols or {}
    memo: dict[Node, Any] = {}

    def convert(current: Node) -> Any:
        result = memo.get(current)
        if result is None:
            result = memo[current] = _export(current, convert, by_symbol)
        return result

    return convert(node)


def _export(node: Node, f: Callable[[Node], Any], symbols: Mapping[Sym, Any]) -> Any:
    if isinstance(node, Sym):
        return symbols.get(node, sympy.Symbol(node.name, integer=True))
    if isinstance(node, Const):
        return sympy.Integer(node.value)
    if isinstance(node, x.Add):
        return sympy.Add(*(c * f(term) for term, c in node.terms), node.const)
    if isinstance(node, x.Mul):
        return sympy.Mul(*(f(atom) ** power for atom, power in node.factors))
    if isinstance(node, x.FloorDiv):
        return _FloorDiv(f(node.a), f(node.b))
    if isinstance(node, x.Mod):
        return sympy.Mod(f(node.a), f(node.b))
    if isinstance(node, x.Min | x.Max):
        return (sympy.Min if isinstance(node, x.Min) else sympy.Max)(*map(f, node.args))
    if isinstance(node, x.Where):
        return _Where(f(node.cond), f(node.a), f(node.b))
    if isinstance(node, x.Bool):
        return sympy.true if node.value else sympy.false
    if isinstance(node, x.Eq | x.Ne | x.Lt | x.Le):
        relations = {x.Eq: sympy.Eq, x.Ne: sympy.Ne, x.Lt: sympy.Lt, x.Le: sympy.Le}
        return relations[type(node)](f(node.a), f(node.b))
    join = sympy.And if isinstance(node, x.And) else sympy.Or
    return join(*map(f, node.args))  # type: ignore[attr-defined]
