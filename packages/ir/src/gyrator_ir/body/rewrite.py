"""The names that statements define and use, and rewriting of names, addresses and buffers."""

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
from gyrator_ir.types import DType

AnyStatement = Statement | Reduce | ScanStep | SortStep
S = TypeVar("S", bound=AnyStatement)

_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_NO_SYMBOLS: Mapping[Sym, Expr] = MappingProxyType({})


def defined(statement: AnyStatement) -> tuple[str, ...]:
    """Return the value names that a statement defines."""
    cls = type(statement)
    if cls is Let or cls is Load or cls is Const or cls is IndexValue:
        return (statement.name,)  # type: ignore[union-attr]
    if cls is Store or cls is Bind:
        return ()
    return statement.names  # type: ignore[union-attr]


def types_of(statement: AnyStatement, storage: Mapping[str, DType]) -> dict[str, DType]:
    """Return the types of the values that a statement defines; `storage` has those of buffers."""
    match statement:
        case Load(name, buffer):
            return {name: storage[buffer]}
        case Let() | Const() | IndexValue():
            return {statement.name: statement.dtype}
        case Reduce() | ScanStep() | SortStep():
            return dict(zip(statement.names, statement.types, strict=True))
        case _:
            return {}


def used(statement: AnyStatement) -> tuple[str, ...]:
    """Return the value names that a statement uses, including its mask."""
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
    """Return a value-numbering key of a statement, or None if it does not define a single value or
    symbol.

    Statements with equal keys compute equal values, as long as memory they load is unchanged.
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

    The symbol that a `Bind` defines is replaced too, if `symbols` maps it to a symbol. `simplify`
    is applied to each changed address. If nothing changes, the statement itself is returned.
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
    expression, and the symbol that a `Bind` defines replaced.

    If nothing changes, the statement itself is returned.

    Raises:
        TypeError: if `symbols` maps the symbol of a `Bind` to an expression that is not a symbol.
    """
    match statement:
        case Let(n, op, args, dtype):
            if not names:
                return statement
            name, operands = names.get(n, n), tuple([names.get(a, a) for a in args])
            if name == n and operands == args:
                return statement
            return Let(name, op, operands, dtype)  # type: ignore[return-value]
        case Load(n, buffer, index, mask):
            name, condition = names.get(n, n), mask and names.get(mask, mask)
            memory, address = buffers.get(buffer, buffer), change(index) if change else index
            if name == n and address is index and condition == mask and memory == buffer:
                return statement
            return Load(name, memory, address, condition)  # type: ignore[return-value]
        case Store(buffer, index, value, mode, mask):
            name, condition = names.get(value, value), mask and names.get(mask, mask)
            memory, address = buffers.get(buffer, buffer), change(index) if change else index
            if name == value and address is index and condition == mask and memory == buffer:
                return statement
            return Store(memory, address, name, mode, condition)  # type: ignore[return-value]
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
            name, condition = names.get(value, value), mask and names.get(mask, mask)
            new = change(size) if change else size
            if target is symbol and name == value and new is size and condition == mask:
                return statement
            return Bind(target, name, new, wrap, check, condition)  # type: ignore[return-value]
        case _:
            results = tuple([names.get(n, n) for n in statement.names])
            operands = tuple([names.get(a, a) for a in statement.args])
            if results == statement.names and operands == statement.args:
                return statement
            return evolve(statement, names=results, args=operands)


def named(statement: S, names: tuple[str, ...]) -> S:
    """Return the statement with its results renamed to `names`; its operands keep their names."""
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
    """Remove dead statements: all but stores, index checks, and those that contribute to them or to
    `results`."""
    needed = set(results)
    symbols: set[Sym] = set()
    statements: list[S] = []
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
        statements.append(s)
    return tuple(reversed(statements))
