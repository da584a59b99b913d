"""Parser of the text form of expressions and conditions.

The text form is a subset of Python's expression grammar, so this module converts the tree that
Python's own parser returns. Nothing is evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from gyrator_ir.diagnostics import ParseError
from gyrator_ir.expr.build import absolute, maximum, minimum, product_of, sum_of, where
from gyrator_ir.expr.conditions import all_of, any_of, negate, relation
from gyrator_ir.expr.division import ceildiv, floordiv, mod
from gyrator_ir.expr.nodes import FALSE, TRUE, Cond, Const, Expr, ExprError, Sym

_FUNCTIONS: dict[str, tuple[Callable[..., Expr], int]] = {
    "min": (minimum, 0),
    "max": (maximum, 0),
    "ceildiv": (ceildiv, 2),
    "abs": (absolute, 1),
}

_RELATIONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def parse_expr(text: str) -> Expr:
    """Parse an expression; `parse_expr(to_text(e)) is e`.

    Grammar: integers, symbols, `+ - * // % **`, `min(..)`, `max(..)`, `abs(a)`, `ceildiv(a, b)`,
    `where(cond, a, b)`.

    Raises:
        ParseError: GY-EXPR-004, if `text` is not an expression.
        ExprError: if the expression cannot be built, such as a division by zero.
    """
    return _Reader(text).expr(_tree(text))


def parse_cond(text: str) -> Cond:
    """Parse a condition; `parse_cond(to_text(c)) is c`.

    Grammar: `true`, `false`, comparisons of expressions (possibly chained, `0 <= i0 < s0`), `and`,
    `or`, `not`. Errors as for `parse_expr`.
    """
    return _Reader(text).cond(_tree(text))


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _error(f"{getattr(error, 'msg', None) or error}", text) from None


def _error(message: str, text: str) -> ParseError:
    return ParseError.of(
        "GY-EXPR-004", message, where=text, help="see gyrator_ir.expr.parse for the grammar"
    )


class _Reader:
    """Converts Python's syntax tree to nodes; `text` is for messages."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _refuse(self, node: ast.AST, expected: str) -> ParseError:
        return _error(f"{ast.unparse(node)!r} is not {expected}", self._text)

    def expr(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Const(node.value)
        if isinstance(node, ast.Name):
            try:
                return Sym(node.id)
            except ExprError:
                raise self._refuse(node, "an expression") from None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.expr(node.operand)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node, node.func.id)
        raise self._refuse(node, "an expression")

    def _binary(self, node: ast.BinOp) -> Expr:
        op = node.op
        if isinstance(op, ast.Add | ast.Sub):
            return self._sum(node)
        if isinstance(op, ast.Mult):
            return product_of((self.expr(node.left), self.expr(node.right)))
        if isinstance(op, ast.FloorDiv):
            return floordiv(self.expr(node.left), self.expr(node.right))
        if isinstance(op, ast.Mod):
            return mod(self.expr(node.left), self.expr(node.right))
        if isinstance(op, ast.Pow):
            power = node.right
            if isinstance(power, ast.Constant) and type(power.value) is int:
                return self.expr(node.left) ** power.value
        raise self._refuse(node, "an expression")

    def _sum(self, node: ast.expr) -> Expr:
        """Convert a whole chain of `+` and `-` at once, since sums may be long."""
        parts: list[Expr] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            right = self.expr(node.right)
            parts.append(right if isinstance(node.op, ast.Add) else -right)
            node = node.left
        parts.append(self.expr(node))
        return sum_of(parts)

    def _call(self, node: ast.Call, name: str) -> Expr:
        if name == "where" and len(node.args) == 3:
            cond, a, b = node.args
            return where(self.cond(cond), self.expr(a), self.expr(b))
        function, arity = _FUNCTIONS.get(name, (None, 0))
        if function is None or not node.args or (arity and len(node.args) != arity):
            raise self._refuse(node, "an expression")
        return function(*map(self.expr, node.args))

    def cond(self, node: ast.expr) -> Cond:
        if isinstance(node, ast.Name) and node.id in ("true", "false"):
            return TRUE if node.id == "true" else FALSE
        if isinstance(node, ast.BoolOp):
            join = all_of if isinstance(node.op, ast.And) else any_of
            return join(self.cond(value) for value in node.values)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return negate(self.cond(node.operand))
        if isinstance(node, ast.Compare):
            sides = [self.expr(side) for side in (node.left, *node.comparators)]
            parts = []
            for op, a, b in zip(node.ops, sides, sides[1:], strict=False):
                word = _RELATIONS.get(type(op))
                if word is None:
                    raise self._refuse(node, "a condition")
                parts.append(relation(word, a, b))
            return all_of(parts)
        raise self._refuse(node, "a condition")
