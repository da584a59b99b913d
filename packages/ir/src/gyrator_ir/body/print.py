"""Statements to text."""

from gyrator_ir.body.nodes import (
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ScanStep,
    SortStep,
    Store,
    StoreMode,
)
from gyrator_ir.body.rewrite import AnyStatement
from gyrator_ir.text.scanner import Writer, show_number


def show_statement(s: AnyStatement, writer: Writer | None = None) -> str:
    """Print one statement, as error messages quote it."""
    w = writer or Writer()
    match s:
        case Load(name, buffer, index, mask):
            return f"{name} = load {buffer}[{w.expr(index)}]{_if(mask)}"
        case Let(name, op, args, dtype):
            return f"{name}: {dtype.value} = {op} {', '.join(args)}"
        case Const(name, value, dtype):
            return f"{name}: {dtype.value} = const {show_number(value)}"
        case IndexValue(name, expr, dtype):
            return f"{name}: {dtype.value} = index {w.expr(expr)}"
        case Bind(symbol, value, size, wrap, check, mask):
            wraps, checks = " wrap" if wrap else "", f" {check}" if check else ""
            return f"{symbol.name} = bind {value} below {w.expr(size)}{wraps}{checks}{_if(mask)}"
        case Store(buffer, index, value, mode, mask):
            verb = "store" if mode is StoreMode.SET else f"store.{mode.value}"
            return f"{verb} {buffer}[{w.expr(index)}], {value}{_if(mask)}"
        case Reduce(names, kind, args, dtype):
            return f"{', '.join(names)}: {dtype.value} = reduce.{kind.value} {', '.join(args)}"
        case ScanStep(names, kind, args, dtype, reverse):
            back = " reverse" if reverse else ""
            return f"{', '.join(names)}: {dtype.value} = scan.{kind.value} {', '.join(args)}{back}"
        case SortStep(names, args, dtype, descending, stable):
            down, keep = " descending" if descending else "", " stable" if stable else ""
            return f"{', '.join(names)}: {dtype.value} = sort {', '.join(args)}{down}{keep}"


def _if(mask: str | None) -> str:
    return "" if mask is None else f" if {mask}"
