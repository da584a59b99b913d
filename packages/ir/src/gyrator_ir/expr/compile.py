"""Compilation of expressions to a Python function."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from gyrator_ir.expr.nodes import Const, Expr, FloorDiv, Mod, Node, Sym, expr_error
from gyrator_ir.expr.printer import Fragment, Prec, PythonPrinter
from gyrator_ir.expr.walk import children, iter_nodes


class _SharingPrinter(PythonPrinter):
    """Prints the name of a local variable for nodes that are stored in one."""

    def __init__(self, params: Sequence[Sym]) -> None:
        super().__init__()
        self._params = frozenset(params)

    def symbol(self, sym: Sym) -> str:
        if sym not in self._params:
            raise expr_error(
                "GY-EXPR-003", f"symbol {sym.name!r} has no value", help="add it to the parameters"
            )
        return sym.name

    def give_name(self, node: Node, name: str) -> None:
        self._memo[node] = Fragment(name, Prec.ATOM)


def _shared(exprs: Sequence[Expr]) -> list[Node]:
    """Return the nodes that are used more than once and safe to compute first, in postorder.

    A node that may divide by zero is not hoisted, since a `where` may guard it.
    """
    uses: Counter[Node] = Counter(exprs)
    order: dict[Node, bool] = {}
    for root in exprs:
        for node in iter_nodes(root):
            if node in order:
                continue
            below = children(node)
            uses.update(below)
            divides = isinstance(node, FloorDiv | Mod) and not isinstance(node.b, Const)
            order[node] = not divides and all(order[child] for child in below)
    return [
        node
        for node, safe in order.items()
        if safe and uses[node] > 1 and not isinstance(node, Sym | Const)
    ]


def compile_python(exprs: Sequence[Expr], params: Sequence[Sym]) -> Callable[..., tuple[int, ...]]:
    """Return a function of the integers `params` that returns the tuple of values of `exprs`.

    Common subexpressions are computed once. The function raises ZeroDivisionError if a divisor is
    zero.

    Raises:
        ExprError: GY-EXPR-003, if a symbol of `exprs` is not in `params`.
    """
    printer = _SharingPrinter(params)
    lines = []
    for number, node in enumerate(_shared(exprs)):
        name = f"v{number}"
        lines.append(f"    {name} = {printer(node)}")
        printer.give_name(node, name)
    values = "".join(f"{printer(value)}, " for value in exprs)
    names = ", ".join(sym.name for sym in params)
    text = "\n".join([f"def values({names}):", *lines, f"    return ({values})"])
    scope: dict[str, object] = {}
    exec(compile(ast.parse(text), "<gyrator expressions>", "exec"), scope)
    return cast("Callable[..., tuple[int, ...]]", scope["values"])
