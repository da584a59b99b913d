"""Compilation of expressions and conditions to the postfix programs of plans."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gyrator_ir import expr as x
from gyrator_ir.expr import Node, Sym

Code: TypeAlias = tuple[tuple[str, int], ...]
"""The code of a `SizeProgram`."""

_BEYOND = 1 << 63
"""The smallest number that does not fit in a word."""
_BINARY = {x.FloorDiv: "floordiv", x.Mod: "mod", x.Eq: "eq", x.Ne: "ne", x.Lt: "lt", x.Le: "le"}


def size_code(node: Node, symbol: Callable[[Sym], Code]) -> Code:
    """Return the program that computes an expression, or a condition as 1 or 0.

    Only the selected side of a `Where` is evaluated, because the other may divide by zero.
    """
    match node:
        case Sym():
            return symbol(node)
        case x.Const(value=value):
            return (("const", value),)
        case x.Bool(value=value):
            return (("const", int(value)),)
        case x.Add():
            return _sum(node, symbol)
        case x.Mul():
            atoms = [a for a, power in node.factors for _ in range(power)]
            return _chained("mul", [size_code(a, symbol) for a in atoms])
        case x.Min() | x.Max():
            op = "min" if isinstance(node, x.Min) else "max"
            return _chained(op, [size_code(a, symbol) for a in node.args])
        case x.Where():
            return _choice(*(size_code(n, symbol) for n in (node.cond, node.a, node.b)))
        case x.And() | x.Or():
            *first, code = (size_code(a, symbol) for a in node.args)
            for condition in reversed(first):
                sides = (code, _FALSE) if isinstance(node, x.And) else (_TRUE, code)
                code = _choice(condition, *sides)
            return code
        case x.Lt(a=a, b=x.Const(value=value)) if (
            value == _BEYOND
        ):  # canonical for `a <= 2**63 - 1`
            return _chained("le", (size_code(a, symbol), (("const", _BEYOND - 1),)))
        case x.FloorDiv() | x.Mod() | x.Eq() | x.Ne() | x.Lt() | x.Le():
            both = size_code(node.a, symbol), size_code(node.b, symbol)
            return _chained(_BINARY[type(node)], both)
    raise TypeError(f"not an expression: {node!r}")


_TRUE, _FALSE = (("const", 1),), (("const", 0),)


def _sum(node: x.Add, symbol: Callable[[Sym], Code]) -> Code:
    code: Code = ()
    for term, coefficient in node.terms:
        term_code = size_code(term, symbol)
        if not code and coefficient == 1:
            code = term_code
        elif not code:
            code = (*term_code, ("const", coefficient), ("mul", 0))
        elif coefficient in (1, -1):
            code = (*code, *term_code, ("add" if coefficient == 1 else "sub", 0))
        else:
            code = (*code, *term_code, ("const", coefficient), ("mul", 0), ("add", 0))
    return (*code, ("const", node.const), ("add", 0)) if node.const else code


def _chained(op: str, codes: Sequence[Code]) -> Code:
    code = codes[0]
    for other in codes[1:]:
        code = (*code, *other, (op, 0))
    return code


def _choice(condition: Code, a: Code, b: Code) -> Code:
    return (*condition, ("unless", len(a) + 1), *a, ("skip", len(b)), *b)
