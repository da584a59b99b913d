"""Walks over bodies that lowering passes and schedulers share."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from attrs import evolve

from gyrator_ir.expr import Expr, Sym, subs
from gyrator_ir.loop.body import (
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ScanStep,
    SortStep,
    Statement,
    Store,
)

AnyStatement = Statement | Reduce | ScanStep | SortStep
S = TypeVar("S", bound=AnyStatement)


def defined(statement: AnyStatement) -> tuple[str, ...]:
    """Return the value names that a statement binds."""
    match statement:
        case Load(name) | Let(name) | Const(name) | IndexValue(name):
            return (name,)
        case Reduce(names) | ScanStep(names) | SortStep(names):
            return names
        case _:
            return ()


def used(statement: AnyStatement) -> tuple[str, ...]:
    """Return the value names that a statement reads, masks included."""
    match statement:
        case Let(args=args) | Reduce(args=args) | ScanStep(args=args) | SortStep(args=args):
            return args
        case Load(mask=str(mask)):
            return (mask,)
        case Bind(value=value, mask=mask) | Store(value=value, mask=mask):
            return (value,) if mask is None else (value, mask)
        case _:
            return ()


def expressions(statement: AnyStatement) -> tuple[Expr, ...]:
    """Return the index expressions in a statement."""
    match statement:
        case Load(index=index) | Store(index=index):
            return (index,)
        case IndexValue(expr=expr):
            return (expr,)
        case Bind(size=size):
            return (size,)
        case _:
            return ()


def reads(body: Iterable[AnyStatement]) -> tuple[str, ...]:
    """Return the buffers loaded from, in order of first use."""
    return tuple(dict.fromkeys(s.buffer for s in body if isinstance(s, Load)))


def writes(body: Iterable[AnyStatement]) -> tuple[str, ...]:
    """Return the buffers stored to, in order of first use."""
    return tuple(dict.fromkeys(s.buffer for s in body if isinstance(s, Store)))


def renamed(
    statement: S,
    names: Mapping[str, str],
    symbols: Mapping[Sym, Expr],
    simplify: Callable[[Expr], Expr] | None = None,
) -> S:
    """Return the statement with value names and index symbols replaced, simultaneously.

    A `Bind`'s own symbol is replaced too if `symbols` maps it to a symbol. `simplify` is applied to
    each changed address. The same object comes back when nothing changes.
    """

    def name(n: str) -> str:
        return names.get(n, n)

    def maybe(n: str | None) -> str | None:
        return None if n is None else names.get(n, n)

    def expr(e: Expr) -> Expr:
        new = subs(e, symbols) if symbols else e
        return new if new is e or simplify is None else simplify(new)

    def many(ns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(n, n) for n in ns)

    new: AnyStatement
    match statement:
        case Load(n, buffer, index, mask):
            new = Load(name(n), buffer, expr(index), maybe(mask))
        case Let(n, op, args, dtype):
            new = Let(name(n), op, many(args), dtype)
        case Const(n, value, dtype):
            new = Const(name(n), value, dtype)
        case IndexValue(n, e, dtype):
            new = IndexValue(name(n), expr(e), dtype)
        case Bind(symbol, value, size, wrap, check, mask):
            target = symbols.get(symbol, symbol)
            if not isinstance(target, Sym):
                raise TypeError(f"a bound symbol can only be renamed, got {target!r}")
            new = Bind(target, name(value), expr(size), wrap, check, maybe(mask))
        case Store(buffer, index, value, mode, mask):
            new = Store(buffer, expr(index), name(value), mode, maybe(mask))
        case _:
            new = evolve(statement, names=many(statement.names), args=many(statement.args))
    return new  # type: ignore[return-value]  # each branch keeps the class


def named(statement: S, names: tuple[str, ...]) -> S:
    """Return the statement binding these value names in place of its own."""
    match statement:
        case Load() | Let() | Const() | IndexValue():
            return evolve(statement, name=names[0])
        case Reduce() | ScanStep() | SortStep():
            return evolve(statement, names=names)
        case _:
            return statement


def live(body: Iterable[S], results: Iterable[str] = ()) -> tuple[S, ...]:
    """Drop statements whose values nobody needs: all but stores, checks, and what feeds them or
    `results`."""
    needed = set(results)
    symbols: set[Sym] = set()
    kept: list[S] = []
    for s in reversed(tuple(body)):
        names = defined(s)
        if names and needed.isdisjoint(names):
            continue
        if isinstance(s, Bind) and not s.check and s.symbol not in symbols:
            continue
        needed.update(used(s))
        for e in expressions(s):
            symbols |= e.free_symbols
        kept.append(s)
    return tuple(reversed(kept))
