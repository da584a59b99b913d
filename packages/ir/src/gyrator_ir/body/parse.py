"""Parser of statements, the inverse of `gyrator_ir.body.print`."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from gyrator_ir.body import nodes
from gyrator_ir.body.nodes import Check, ReduceKind, ScanKind, StoreMode
from gyrator_ir.body.rewrite import AnyStatement
from gyrator_ir.text.forms import build
from gyrator_ir.text.lines import Line
from gyrator_ir.text.scanner import Scanner, symbol_named


def read_statement(line: Line) -> AnyStatement:
    """Parse the output of `show_statement`."""
    s = Scanner(line.leaf())
    first = s.name()
    statement: AnyStatement
    if first == "store" and not (s.looks("=") or s.looks(":") or s.looks(",")):
        statement = _store(s)
    elif s.take("="):
        statement = _load_or_bind(s, first)
    else:
        statement = _typed(s, first)
    s.end()
    return statement


def _mask(s: Scanner) -> str | None:
    return s.name() if s.take("if") else None


def _address(s: Scanner) -> dict[str, Any]:
    buffer = s.name()
    s.expect("[")
    index = s.expr()
    s.expect("]")
    return {"buffer": buffer, "index": index}


def _names(s: Scanner) -> tuple[str, ...]:
    names = [s.name()]
    while s.take(","):
        names.append(s.name())
    return tuple(names)


def _member(s: Scanner, words: type[StrEnum], description: str) -> Any:
    word = s.name()
    if word not in words.__members__.values():
        s.line.fail(f"expected {description} ({', '.join(words)}), got {word!r}")
    return words(word)


def _store(s: Scanner) -> nodes.Store:
    mode = _member(s, StoreMode, "a store mode") if s.take(".") else StoreMode.SET
    address = _address(s)
    s.expect(",")
    return build(s.line, nodes.Store, address | {"value": s.name(), "mode": mode, "mask": _mask(s)})


def _load_or_bind(s: Scanner, name: str) -> nodes.Load | nodes.Bind:
    if s.take("load"):
        return build(s.line, nodes.Load, {"name": name, **_address(s), "mask": _mask(s)})
    if not s.take("bind"):
        s.fail("`load` or `bind`; a computed value states its type, `c: f32 = add a, b`")
    value = s.name()
    s.expect("below")
    values = {
        "symbol": symbol_named(s, name),
        "value": value,
        "size": s.expr(),
        "wrap": s.take("wrap"),
        "check": _check(s),
        "mask": _mask(s),
    }
    return build(s.line, nodes.Bind, values)


def _check(s: Scanner) -> Check:
    if not s.take("check"):
        return Check.NONE
    if not s.take("."):
        return Check.INDEX
    if s.take("division"):
        return Check.DIVISION
    s.expect("runtime")
    return Check.RUNTIME


def _typed(s: Scanner, first: str) -> AnyStatement:
    names = (first, *_names(s)) if s.take(",") else (first,)
    s.expect(":")
    dtype = s.dtype()
    s.expect("=")
    values: dict[str, Any] = {"dtype": dtype}
    cls: Callable[..., AnyStatement]
    if s.take("reduce"):
        s.expect(".")
        cls, values["names"] = nodes.Reduce, names
        values["kind"] = _member(s, ReduceKind, "a reduction")
        values["args"] = _names(s)
    elif s.take("scan"):
        s.expect(".")
        cls, values["names"] = nodes.ScanStep, names
        values["kind"] = _member(s, ScanKind, "a scan")
        values |= {"args": _names(s), "reverse": s.take("reverse")}
    elif s.take("sort"):
        cls, values["names"] = nodes.SortStep, names
        values["args"] = _names(s)
        values |= {"descending": s.take("descending"), "stable": s.take("stable")}
    else:
        if len(names) != 1:
            s.fail("`reduce`, `scan` or `sort`, the statements with several results")
        cls, values["name"] = _single(s, values), first
    return build(s.line, cls, values)


def _single(s: Scanner, values: dict[str, Any]) -> Callable[..., AnyStatement]:
    """Parse `const 0.5`, `index i0` or `add a, b` into `values`, and return the class."""
    if s.take("const"):
        values["value"] = s.number()
        return nodes.Const
    if s.take("index"):
        values["expr"] = s.expr()
        return nodes.IndexValue
    values["op"] = s.name()
    values["args"] = _names(s)
    return nodes.Let
