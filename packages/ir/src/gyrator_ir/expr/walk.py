"""Traversals of expressions: children, rebuilding, substitution, evaluation, linear parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, cast

from gyrator_ir.expr.build import (
    accumulate,
    maximum,
    minimum,
    mul_monomials,
    product_of,
    sum_of_terms,
    terms_of,
    where,
)
from gyrator_ir.expr.conditions import all_of, any_of, relation
from gyrator_ir.expr.division import floordiv, mod
from gyrator_ir.expr.nodes import (
    ONE,
    ZERO,
    Add,
    And,
    Bool,
    Cond,
    Const,
    Eq,
    Expr,
    ExprError,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Node,
    Or,
    Sym,
    Where,
    expr,
    expr_error,
)

AnyNode = TypeVar("AnyNode", Expr, Cond)

RELATIONS: dict[type[Node], str] = {Eq: "==", Ne: "!=", Lt: "<", Le: "<="}


def children(node: Node) -> tuple[Node, ...]:
    """Return the children of `node` in order, without coefficients and powers."""
    if isinstance(node, Add):
        return tuple(term for term, _ in node.terms)
    if isinstance(node, Mul):
        return tuple(atom for atom, _ in node.factors)
    if isinstance(node, FloorDiv | Mod | Eq | Ne | Lt | Le):
        return node.a, node.b
    if isinstance(node, Min | Max | And | Or):
        return node.args
    if isinstance(node, Where):
        return node.cond, node.a, node.b
    return ()


def iter_nodes(node: Node) -> Iterator[Node]:
    """Yield each distinct node of the graph below `node` once, in postorder."""
    visited: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        current, expanded = stack.pop()
        if expanded:
            yield current
        elif current not in visited:
            visited.add(current)
            below = children(current)
            if not below:
                yield current
                continue
            stack.append((current, True))
            stack.extend([(child, False) for child in reversed(below)])


def sorted_symbols(nodes: Iterable[Node]) -> tuple[Sym, ...]:
    """Return the free symbols of all `nodes`, in structural order."""
    return tuple(
        sorted({sym for node in nodes for sym in node.free_symbols}, key=lambda s: s.sort_key)
    )


def rebuild(node: Node, f: Callable[[Node], Node]) -> Node:
    """Return `node` with `f` applied to each child, rebuilt by the normalising constructors."""
    if isinstance(node, Add):
        terms: dict[Expr, int] = {}
        const = node.const
        for term, c in node.terms:
            const += accumulate(terms, cast(Expr, f(term)), c)
        return sum_of_terms(terms, const)
    if isinstance(node, Mul):
        return product_of(cast(Expr, f(atom)) ** power for atom, power in node.factors)
    if isinstance(node, FloorDiv):
        return floordiv(cast(Expr, f(node.a)), cast(Expr, f(node.b)))
    if isinstance(node, Mod):
        return mod(cast(Expr, f(node.a)), cast(Expr, f(node.b)))
    if isinstance(node, Min):
        return minimum(*(cast(Expr, f(arg)) for arg in node.args))
    if isinstance(node, Max):
        return maximum(*(cast(Expr, f(arg)) for arg in node.args))
    if isinstance(node, Where):
        cond = cast(Cond, f(node.cond))
        if isinstance(cond, Bool):
            return f(node.a) if cond.value else f(node.b)
        return where(cond, cast(Expr, f(node.a)), cast(Expr, f(node.b)))
    if isinstance(node, Eq | Ne | Lt | Le):
        return relation(RELATIONS[type(node)], cast(Expr, f(node.a)), cast(Expr, f(node.b)))
    if isinstance(node, And):
        return all_of(cast(Cond, f(arg)) for arg in node.args)
    if isinstance(node, Or):
        return any_of(cast(Cond, f(arg)) for arg in node.args)
    return node


def subs(node: AnyNode, mapping: Mapping[Sym, Expr | int]) -> AnyNode:
    """Return `node` with all symbols of `mapping` replaced simultaneously.

    Each shared node is visited once, and nodes without such symbols are reused.

    Raises:
        ExprError: GY-EXPR-002, if a divisor becomes the constant zero.
    """
    if node._free.isdisjoint(mapping):
        return node
    simple = _subs_in_sum(node, mapping)
    if simple is not None:
        return simple  # type: ignore[return-value]  # a condition has no simple form
    memo: dict[Node, Node | ExprError] = {sym: expr(value) for sym, value in mapping.items()}

    def replaced(current: Node) -> Node:
        replacement = memo.get(current, current)
        if isinstance(replacement, ExprError):
            raise replacement
        return replacement

    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:  # not recursive, since graphs may be deep
        current, ready = stack.pop()
        if ready:
            try:
                memo[current] = rebuild(current, replaced)
            except ExprError as error:
                memo[current] = error  # raised only if the node is used
        elif current not in memo and not current.free_symbols.isdisjoint(mapping):
            stack.append((current, True))
            stack.extend((child, False) for child in children(current))
    return cast(AnyNode, replaced(node))


def _subs_in_sum(node: Node, mapping: Mapping[Sym, Expr | int]) -> Expr | None:
    """Fast path of `subs`, for a symbol or a sum whose replaced symbols are terms of their own."""
    cls = type(node)
    if cls is Sym:
        return expr(mapping[node])  # type: ignore[index]
    if cls is not Add:
        return None
    terms: dict[Expr, int] = {}
    const: int = node.const  # type: ignore[attr-defined]
    for term, c in node.terms:  # type: ignore[attr-defined]
        if type(term) is Sym:
            const += accumulate(terms, expr(mapping.get(term, term)), c)
        elif term._free.isdisjoint(mapping):
            terms[term] = terms.get(term, 0) + c
        else:
            return None
    return sum_of_terms(terms, const)


def evaluate(node: Expr, env: Mapping[Sym, int]) -> int:
    """Return the value of `node` for the values of symbols in `env`.

    Raises:
        ExprError: GY-EXPR-003, if `env` lacks a symbol.
        ZeroDivisionError: if a divisor is zero.
    """
    try:
        return _value(node, env)
    except KeyError as error:
        raise expr_error(
            "GY-EXPR-003", f"symbol {error.args[0]!r} has no value", where=repr(node)
        ) from None


def holds(cond: Cond, env: Mapping[Sym, int]) -> bool:
    """Return whether `cond` holds for the values of symbols in `env`; errors as for `evaluate`."""
    try:
        return _truth(cond, env)
    except KeyError as error:
        raise expr_error(
            "GY-EXPR-003", f"symbol {error.args[0]!r} has no value", where=repr(cond)
        ) from None


def _value(node: Expr, env: Mapping[Sym, int]) -> int:
    if isinstance(node, Sym):
        return env[node]
    if isinstance(node, Const):
        return node.value
    if isinstance(node, Add):
        total = node.const
        for term, c in node.terms:
            total += c * _value(term, env)
        return total
    if isinstance(node, Mul):
        product = 1
        for atom, power in node.factors:
            product *= _value(atom, env) ** power
        return product
    if isinstance(node, FloorDiv):
        return _value(node.a, env) // _value(node.b, env)
    if isinstance(node, Mod):
        return _value(node.a, env) % _value(node.b, env)
    if isinstance(node, Min):
        return min(_value(arg, env) for arg in node.args)
    if isinstance(node, Max):
        return max(_value(arg, env) for arg in node.args)
    assert isinstance(node, Where)
    return _value(node.a if _truth(node.cond, env) else node.b, env)


def _truth(cond: Cond, env: Mapping[Sym, int]) -> bool:
    if isinstance(cond, Bool):
        return cond.value
    if isinstance(cond, Lt):
        return _value(cond.a, env) < _value(cond.b, env)
    if isinstance(cond, Le):
        return _value(cond.a, env) <= _value(cond.b, env)
    if isinstance(cond, Eq):
        return _value(cond.a, env) == _value(cond.b, env)
    if isinstance(cond, Ne):
        return _value(cond.a, env) != _value(cond.b, env)
    if isinstance(cond, And):
        return all(_truth(arg, env) for arg in cond.args)
    assert isinstance(cond, Or)
    return any(_truth(arg, env) for arg in cond.args)


def linear(node: Expr, syms: Iterable[Sym]) -> tuple[dict[Sym, Expr], Expr] | None:
    """Return (coefficients, rest) with `node == sum(coefficients[s] * s) + rest`, or None if `node`
    is not linear in `syms`.

    Every symbol of `syms` has a coefficient, which may be zero. Neither the coefficients nor the
    rest contain any of these symbols.
    """
    variables = tuple(syms)
    names = frozenset(variables)
    if names.isdisjoint(node.free_symbols):
        return dict.fromkeys(variables, ZERO), node
    coefficients: dict[Sym, dict[Expr, int]] = {}
    integers: dict[Sym, int] = {}
    rest: dict[Expr, int] = {}
    terms, const = terms_of(node)
    for term, c in terms:
        if isinstance(term, Sym):
            if term in names:
                integers[term] = c
            else:
                rest[term] = c
        elif names.isdisjoint(term.free_symbols):
            rest[term] = c
        else:
            split = _split_monomial(term, names)
            if split is None:
                return None
            coefficients.setdefault(split[0], {})[split[1]] = c
    result: dict[Sym, Expr] = {}
    for sym in variables:
        integer = integers.get(sym, 0)
        terms_of_sym = coefficients.get(sym)
        result[sym] = (
            Const(integer) if terms_of_sym is None else sum_of_terms(terms_of_sym, integer)
        )
    return result, sum_of_terms(rest, const)


def _split_monomial(monomial: Expr, names: frozenset[Sym]) -> tuple[Sym, Expr] | None:
    """Return the only symbol of `names` in a product, and the other factors."""
    if not isinstance(monomial, Mul):
        return None
    symbol: Sym | None = None
    others: Expr | None = None
    for atom, power in monomial.factors:
        if names.isdisjoint(atom.free_symbols):
            for _ in range(power):
                others = atom if others is None else mul_monomials(others, atom)
        elif symbol is None and power == 1 and isinstance(atom, Sym):
            symbol = atom
        else:
            return None
    if symbol is None or others is None:
        return None
    return symbol, others


def stride_of(node: Expr, sym: Sym) -> Expr | None:
    """Return by how much `node` grows if `sym` grows by one, or None if that depends on `sym`.

    The stride does not contain `sym`, and is zero if `node` does not contain it either.
    """
    if sym not in node.free_symbols:
        return ZERO
    if node is sym:
        return ONE
    split = linear(node, (sym,))
    return None if split is None else split[0][sym]
