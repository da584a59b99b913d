"""The conditions that `torch.export` found for the sizes of a program's arguments."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_METHODS = ("size", "stride", "storage_offset")


def conditions(program: ExportedProgram) -> dict[str, torch.SymBool]:
    """Return the conditions between sizes for which an exported program is valid, by their text.

    The ranges of single sizes are not among them. torch keeps the conditions as Python expressions
    over the arguments, such as `L['x'].size()[0] <= L['y'].size()[0]`.

    Raises:
        ValueError: for an expression that is not made of sizes, integers, arithmetic, comparisons
            of two values, `and`, `or` and `not`. The message is the expression.
    """
    texts = program._guards_code
    arguments = _arguments(program) if texts else {}
    values = {text: _value(ast.parse(text, mode="eval").body, arguments) for text in texts}
    return {text: value for text, value in values.items() if isinstance(value, torch.SymBool)}


def _arguments(program: ExportedProgram) -> dict[str, Any]:
    """Return the example arguments by the names that conditions use."""
    values = {n.name: n.meta.get("val") for n in program.graph.find_nodes(op="placeholder")}
    specs = program.graph_signature.input_specs
    flat = [values.get(s.arg.name) for s in specs if s.kind is InputKind.USER_INPUT]
    in_spec = program.call_spec.in_spec
    assert in_spec is not None
    positional, keywords = pytree.tree_unflatten(flat, in_spec)
    signature = program.module_call_graph[0].signature
    names = () if signature is None else signature.forward_arg_names or ()
    return {"flat_args": flat, **dict(zip(names, positional, strict=False)), **keywords}


def _value(node: ast.expr, arguments: Mapping[str, Any]) -> Any:
    """Evaluate an expression. It may come from a file, so nothing else is evaluated."""

    def value(part: ast.expr) -> Any:
        return _value(part, arguments)

    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str(name))):
            return arguments[name] if name in arguments else _variadic(name, arguments)
        case ast.Subscript(value=container, slice=ast.Constant(value=str() | int() as key)):
            return value(container)[key]
        case ast.Call(func=ast.Attribute(value=tensor, attr=attr), args=[], keywords=[]):
            owner = value(tensor)
            if attr in _METHODS and isinstance(owner, torch.Tensor):
                return getattr(owner, attr)()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return torch.sym_not(value(operand))  # type: ignore[no-untyped-call]
        case ast.BoolOp(op=op, values=parts):
            return _joined(isinstance(op, ast.Or), [value(part) for part in parts])
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](value(left), value(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](value(left), value(right))
    raise ValueError(ast.unparse(node))


def _joined(is_or: bool, values: Sequence[Any]) -> Any:
    symbolic = [v for v in values if isinstance(v, torch.SymBool)]
    known = [bool(v) for v in values if not isinstance(v, torch.SymBool)]
    if not symbolic or (any(known) if is_or else not all(known)):
        return any(known) if is_or else all(known)
    return reduce(operator.or_ if is_or else operator.and_, symbolic)


def _variadic(name: str, arguments: Mapping[str, Any]) -> Sequence[Any]:
    """Return the values of `*name`, which the signature calls `name_0`, `name_1` and so on."""
    numbered = takewhile(arguments.__contains__, (f"{name}_{k}" for k in count()))
    return [arguments[each] for each in numbered]
