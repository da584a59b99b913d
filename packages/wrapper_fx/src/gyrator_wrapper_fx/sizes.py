"""Size expressions as arithmetic nodes of a graph."""

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from attrs import field

from gyrator_ir import expr as x
from gyrator_ir.define import define
from gyrator_ir.expr import Cond, Expr, Node
from gyrator_wrapper_fx import ops

Value = torch.fx.Node | int | bool

_RELATIONS: Mapping[type, Callable[..., Any]] = MappingProxyType(
    {x.Eq: operator.eq, x.Ne: operator.ne, x.Lt: operator.lt, x.Le: operator.le}
)

_PLAIN: Mapping[type, Callable[..., Any]] = MappingProxyType(
    {x.FloorDiv: operator.floordiv, x.Mod: operator.mod}
)
_GUARDED: Mapping[type, Callable[..., Any]] = MappingProxyType(
    {x.FloorDiv: ops.floordiv_or_zero, x.Mod: ops.mod_or_zero}
)


@define(eq=False)
class SizeBuilder:
    """Adds expressions to one graph; equal expressions share a node.

    The nodes accept Python integers and symbolic ones. FX evaluates every node, so quotients in
    either operand of a `where` return 0 for a zero divisor.
    """

    graph: torch.fx.Graph
    symbol: Callable[[str], Any]
    """Returns the value of a symbol by its name."""
    _memo: dict[tuple[Node, bool], Value] = field(factory=dict)

    def __call__(self, node: Expr | Cond, guarded: bool = False) -> Any:
        """Return the node (or the integer) of an expression."""
        if isinstance(node, x.Const | x.Bool):
            return node.value
        if isinstance(node, x.Sym):
            return self.symbol(node.name)
        key = (node, guarded)
        if key not in self._memo:
            self._memo[key] = self._write(node, guarded)
        return self._memo[key]

    def all(self, exprs: tuple[Expr, ...]) -> tuple[Any, ...]:
        """Return the nodes of some expressions."""
        return tuple(self(e) for e in exprs)

    def _call(self, function: Callable[..., Any], *args: Value) -> Value:
        return self.graph.call_function(function, args)

    def _write(self, node: Expr | Cond, guarded: bool) -> Value:
        match node:
            case x.Add():
                return self._sum(node, guarded)
            case x.Mul():
                return self._product(node, guarded)
            case x.FloorDiv(a=a, b=b) | x.Mod(a=a, b=b):
                pair = _GUARDED if guarded and not isinstance(b, x.Const) else _PLAIN
                return self._call(pair[type(node)], self(a, guarded), self(b, guarded))
            case x.Min(args=args) | x.Max(args=args):
                function = torch.sym_min if isinstance(node, x.Min) else torch.sym_max
                return self._chain(function, [self(a, guarded) for a in args])
            case x.Where(cond=cond, a=a, b=b):
                return self._call(ops.select, self(cond, guarded), self(a, True), self(b, True))
            case x.And(args=conditions) | x.Or(args=conditions):
                function = operator.and_ if isinstance(node, x.And) else operator.or_
                return self._chain(function, [self(c, guarded) for c in conditions])
            case x.Eq(a=a, b=b) | x.Ne(a=a, b=b) | x.Lt(a=a, b=b) | x.Le(a=a, b=b):
                return self._call(_RELATIONS[type(node)], self(a, guarded), self(b, guarded))
        raise TypeError(f"no translation for {type(node).__name__}")

    def _chain(self, function: Callable[..., Any], values: list[Value]) -> Value:
        result = values[0]
        for value in values[1:]:
            result = self._call(function, result, value)
        return result

    def _product(self, node: x.Mul, guarded: bool) -> Value:
        factors = [self(atom, guarded) for atom, power in node.factors for _ in range(power)]
        return self._chain(operator.mul, factors)

    def _sum(self, node: x.Add, guarded: bool) -> Value:
        result: Value | None = None
        for term, coefficient in node.terms:
            value = self(term, guarded)
            if result is None:
                result = value if coefficient == 1 else self._call(operator.mul, value, coefficient)
                continue
            size = abs(coefficient)
            scaled = value if size == 1 else self._call(operator.mul, value, size)
            function = operator.add if coefficient > 0 else operator.sub
            result = self._call(function, result, scaled)
        assert result is not None  # an Add has a term
        return self._call(operator.add, result, node.const) if node.const else result
