"""What statements name, and statements with other names, addresses or buffers."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from attrs import evolve

from gyrator_ir.body.nodes import (
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
from gyrator_ir.expr import Expr, Sym, subs

AnyStatement = Statement | Reduce | ScanStep | SortStep
S = TypeVar("S", bound=AnyStatement)

_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_NO_SYMBOLS: Mapping[Sym, Expr] = MappingProxyType({})


def defined(statement: AnyStatement) -> tuple[str, ...]:
    """Return the value names that a statement binds."""
    cls = type(statement)
    if cls is Let or cls is Load or cls is Const or cls is IndexValue:
        return (statement.name,)  # type: ignore[union-attr]
    if cls is Store or cls is Bind:
        return ()
    return statement.names  # type: ignore[union-attr]


def used(statement: AnyStatement) -> tuple[str, ...]:
    """Return the value names that a statement reads, masks included."""
    match statement:
        case Let(args=args):
            return args
        case Load(mask=mask):
            return () if mask is None else (mask,)
        case Const() | IndexValue():
            return ()
        case Bind(value=value, mask=mask) | Store(value=value, mask=mask):
            return (value,) if mask is None else (value, mask)
        case Reduce(args=args) | ScanStep(args=args) | SortStep(args=args):
            return args


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
    return tuple(dict.fromkeys([s.buffer for s in body if type(s) is Load]))


def writes(body: Iterable[AnyStatement]) -> tuple[str, ...]:
    """Return the buffers stored to, in order of first use."""
    return tuple(dict.fromkeys([s.buffer for s in body if type(s) is Store]))


def value_key(statement: AnyStatement) -> tuple[object, ...] | None:
    """Return what the value or symbol of a statement is made of, None where it has not just one.

    Statements with equal keys give the same, as long as what they load is the same.
    """
    match statement:
        case Load(_, buffer, index, mask):
            return (Load, buffer, index, mask)
        case Let(_, op, args, dtype):
            return (Let, op, args, dtype)
        case Const(_, value, dtype):
            return (Const, repr(value), dtype)
        case IndexValue(_, e, dtype):
            return (IndexValue, e, dtype)
        case Bind(_, value, size, wrap, check, mask):
            return (Bind, value, size, wrap, check, mask)
        case _:
            return None


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
    if not symbols:
        return rewritten(statement, names)

    def change(e: Expr) -> Expr:
        new = subs(e, symbols)
        return new if new is e or simplify is None else simplify(new)

    return rewritten(statement, names, change, symbols=symbols)


def rewritten(
    statement: S,
    names: Mapping[str, str] = _NO_NAMES,
    change: Callable[[Expr], Expr] | None = None,
    buffers: Mapping[str, str] = _NO_NAMES,
    symbols: Mapping[Sym, Expr] = _NO_SYMBOLS,
) -> S:
    """Return the statement with value names and buffers replaced, `change` applied to its index
    expression, and a `Bind`'s own symbol replaced. The same object comes back when nothing changes.

    Raises:
        TypeError: when `symbols` maps a bound symbol to an expression that is none.
    """
    match statement:
        case Let(n, op, args, dtype):
            if not names:
                return statement
            name, many = names.get(n, n), tuple([names.get(a, a) for a in args])
            if name == n and many == args:
                return statement
            return Let(name, op, many, dtype)  # type: ignore[return-value]
        case Load(n, buffer, index, mask):
            name, masked = names.get(n, n), mask and names.get(mask, mask)
            place, address = buffers.get(buffer, buffer), change(index) if change else index
            if name == n and address is index and masked == mask and place == buffer:
                return statement
            return Load(name, place, address, masked)  # type: ignore[return-value]
        case Store(buffer, index, value, mode, mask):
            name, masked = names.get(value, value), mask and names.get(mask, mask)
            place, address = buffers.get(buffer, buffer), change(index) if change else index
            if name == value and address is index and masked == mask and place == buffer:
                return statement
            return Store(place, address, name, mode, masked)  # type: ignore[return-value]
        case Const(n, constant, dtype):
            name = names.get(n, n)
            if name == n:
                return statement
            return Const(name, constant, dtype)  # type: ignore[return-value]
        case IndexValue(n, e, dtype):
            name, new = names.get(n, n), change(e) if change else e
            if name == n and new is e:
                return statement
            return IndexValue(name, new, dtype)  # type: ignore[return-value]
        case Bind(symbol, value, size, wrap, check, mask):
            target = symbols.get(symbol, symbol)
            if not isinstance(target, Sym):
                raise TypeError(f"a bound symbol can only be renamed, got {target!r}")
            name, masked = names.get(value, value), mask and names.get(mask, mask)
            new = change(size) if change else size
            if target is symbol and name == value and new is size and masked == mask:
                return statement
            return Bind(target, name, new, wrap, check, masked)  # type: ignore[return-value]
        case _:
            bound = tuple([names.get(n, n) for n in statement.names])
            many = tuple([names.get(a, a) for a in statement.args])
            if bound == statement.names and many == statement.args:
                return statement
            return evolve(statement, names=bound, args=many)


def named(statement: S, names: tuple[str, ...]) -> S:
    """Return the statement binding these value names in place of its own.

    What it reads keeps its name, which may be the one that the statement had.
    """
    match statement:
        case Let(_, op, args, dtype):
            return Let(names[0], op, args, dtype)  # type: ignore[return-value]
        case Load(_, buffer, index, mask):
            return Load(names[0], buffer, index, mask)  # type: ignore[return-value]
        case Const(_, value, dtype):
            return Const(names[0], value, dtype)  # type: ignore[return-value]
        case IndexValue(_, expr, dtype):
            return IndexValue(names[0], expr, dtype)  # type: ignore[return-value]
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
        match s:
            case Let(name, _, args):
                if name not in needed:
                    continue
                needed.update(args)
            case Bind(symbol, check=check):
                if not check and symbol not in symbols:
                    continue
                needed.update(used(s))
                symbols |= s.size.free_symbols
            case _:
                names = defined(s)
                if names and needed.isdisjoint(names):
                    continue
                needed.update(used(s))
                for e in expressions(s):
                    symbols |= e.free_symbols
        kept.append(s)
    return tuple(reversed(kept))
