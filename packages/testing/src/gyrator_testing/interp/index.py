"""Index expressions evaluated on whole arrays of points at once."""

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from gyrator_ir import expr as x
from gyrator_ir.expr import Cond, Expr, Sym
from gyrator_testing.interp.dtypes import Array
from gyrator_testing.interp.errors import InterpreterError

Number = int | Array
Environment = Mapping[Sym, Number]


def value_of(node: Expr, env: Environment) -> Number:
    """Return the value of an expression: a Python int if none of its symbols is an array.

    Raises:
        InterpreterError: GY-INTERP-001, if `env` lacks a symbol.
    """
    match node:
        case x.Const():
            return node.value
        case Sym():
            if node not in env:
                raise InterpreterError.of("GY-INTERP-001", f"symbol {node.name!r} has no value")
            return env[node]
        case x.Add():
            total: Number = node.const
            for term, coefficient in node.terms:
                total = total + coefficient * value_of(term, env)
            return total
        case x.Mul():
            product: Number = 1
            for atom, power in node.factors:
                product = product * value_of(atom, env) ** power
            return product
        case x.FloorDiv() | x.Mod():
            return _divided(node, value_of(node.a, env), value_of(node.b, env))
        case x.Min():
            return _extremum([value_of(a, env) for a in node.args], min, np.minimum)
        case x.Max():
            return _extremum([value_of(a, env) for a in node.args], max, np.maximum)
        case x.Where():
            return _selected(node, env)
    raise TypeError(f"not an expression: {node!r}")


def truth_of(node: Cond, env: Environment) -> bool | Array:
    """Return the truth of a condition, like `value_of`."""
    match node:
        case x.Bool():
            return node.value
        case x.Eq():
            return value_of(node.a, env) == value_of(node.b, env)
        case x.Ne():
            return value_of(node.a, env) != value_of(node.b, env)
        case x.Lt():
            return value_of(node.a, env) < value_of(node.b, env)
        case x.Le():
            return value_of(node.a, env) <= value_of(node.b, env)
        case x.And():
            return reduce(lambda a, b: a & b, [truth_of(a, env) for a in node.args])
        case x.Or():
            return reduce(lambda a, b: a | b, [truth_of(a, env) for a in node.args])
    raise TypeError(f"not a condition: {node!r}")


def integer(node: Expr, env: Environment) -> int:
    """Return the value of an expression over sizes only."""
    value = value_of(node, env)
    if isinstance(value, np.ndarray):
        raise InterpreterError.of("GY-INTERP-001", f"{node!r} is not one number here")
    return int(value)


def _divided(node: x.FloorDiv | x.Mod, a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a // b if isinstance(node, x.FloorDiv) else a % b
    with np.errstate(divide="ignore"):
        quotient: Array = np.floor_divide(a, b) if isinstance(node, x.FloorDiv) else np.mod(a, b)
    return quotient


def _extremum(values: list[Number], scalar: Any, ufunc: Any) -> Number:
    if all(isinstance(v, int) for v in values):
        chosen: int = scalar(values)
        return chosen
    return np.asarray(reduce(ufunc, values))


def _selected(node: x.Where, env: Environment) -> Number:
    chosen = truth_of(node.cond, env)
    if not isinstance(chosen, np.ndarray):
        return value_of(node.a if chosen else node.b, env)
    return np.where(chosen, value_of(node.a, env), value_of(node.b, env))
