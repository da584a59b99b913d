"""What an ATen graph is made of, as bytes: equal bytes compile to the same program."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node


def graph_bytes(gm: GraphModule) -> bytes:
    """Return a canonical form of a graph: nodes, arguments, and what is known of each value.

    Names of nodes are replaced by positions; where in the user's source a node came from does not
    count. Symbolic sizes count with their names, ranges and hints.
    """
    number: dict[Node, int] = {}
    lines: list[str] = []
    symbols: dict[str, str] = {}
    for node in gm.graph.nodes:
        number[node] = len(number)
        args = _argument(node.args, number)
        kwargs = _argument(node.kwargs, number)
        target = node.target if isinstance(node.target, str) else _name(node.target)
        name = "" if node.op in ("placeholder", "output", "call_function") else target
        op = target if node.op == "call_function" else node.op
        lines.append(f"{op} {name} {args} {kwargs} : {_value(node.meta.get('val'), symbols)}")
    for nested in gm.graph.nodes:
        if nested.op == "get_attr":
            lines.append(_attribute(gm, str(nested.target)))
    lines.extend(f"{name}: {facts}" for name, facts in sorted(symbols.items()))
    return "\n".join(lines).encode()


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"


def _argument(value: Any, number: Mapping[Node, int]) -> str:
    match value:
        case Node():
            return f"%{number[value]}"
        case tuple() | list():
            return f"[{', '.join(_argument(v, number) for v in value)}]"
        case dict():
            return f"{{{', '.join(f'{k}: {_argument(v, number)}' for k, v in value.items())}}}"
        case slice():
            return f"slice({_argument((value.start, value.stop, value.step), number)})"
        case _:
            return f"{type(value).__name__} {value!r}"


def _value(value: Any, symbols: dict[str, str]) -> str:
    match value:
        case torch.Tensor():
            shape = _ints(value.shape, symbols)
            if value.layout is not torch.strided:
                return f"{value.layout} {value.dtype} {shape}"
            layout = f"{shape} {_ints(value.stride(), symbols)}"
            flags = f"{value.is_conj()} {value.is_neg()}"
            return f"{value.dtype} {value.device} {layout} {flags}"
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return _symbolic(value, symbols)
        case tuple() | list():
            return f"({', '.join(_value(v, symbols) for v in value)})"
        case _:
            return f"{type(value).__name__} {value!r}"


def _ints(sizes: Iterable[Any], symbols: dict[str, str]) -> str:
    return f"({', '.join(str(s) if isinstance(s, int) else _symbolic(s, symbols) for s in sizes)})"


def _symbolic(value: Any, symbols: dict[str, str]) -> str:
    node = value.node
    env = node.shape_env
    for symbol in node.expr.free_symbols:
        if symbol.name not in symbols:
            hint = env.backed_var_to_val.get(symbol) if hasattr(env, "backed_var_to_val") else env.var_to_val.get(symbol)
            symbols[symbol.name] = f"{env.var_to_range.get(symbol)} hint {hint}"
    return str(node.expr)


def _attribute(gm: GraphModule, path: str) -> str:
    found: Any = gm
    for part in path.split("."):
        found = getattr(found, part)
    if isinstance(found, GraphModule):
        return f"{path} = {graph_bytes(found).decode()}"
    return f"{path} = {_value(found, {})}"
