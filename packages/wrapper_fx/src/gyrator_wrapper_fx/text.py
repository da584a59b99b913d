"""A graph module as Python text that rebuilds it: names, metadata and nested modules included."""

import cmath
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from gyrator_ir.loop.nodes import UserKernel
from gyrator_wrapper_fx import ops

RESERVED = frozenset({"g", "t", "rt", "torch", "ops", "operator", "UserKernel", "children"})
NOTES = ("reads", "writes", "origins", "comment", "capture")
"""Metadata that the text keeps."""

_HEADER = '''"""Host program {name} as an FX graph. `build(rt)` makes it ready to run."""

import operator

import torch
from gyrator_ir.loop.nodes import UserKernel
from gyrator_wrapper_fx import ops
from gyrator_wrapper_fx.load import load, tables
'''


def program_text(
    module: torch.fx.GraphModule,
    launches: Mapping[str, tuple[int, int]],
    integers: tuple[bool, ...],
) -> tuple[str, tuple[str, ...]]:
    """Return the text of a graph module of `to_graph`, and the keys of its constants.

    `launches` gives for each kernel how many tensors and sizes it takes; `integers` says which
    results are integers.
    """
    modules = list(dict.fromkeys(_modules(module)))
    numbers = {m: k for k, m in enumerate(modules)}
    lines = [_HEADER.format(name=_name(module))]
    for m, number in numbers.items():
        lines += ["", *_graph_lines(m, number), ""]
    constants = tuple(
        dict.fromkeys(
            n.meta["constant"] for m in modules for n in m.graph.nodes if "constant" in n.meta
        )
    )
    lines += ["", "def build(rt):"]
    lines.append(f"    t = tables(rt, {dict(launches)!r}, {constants!r})")
    for m, number in numbers.items():
        children = ", ".join(f"{name!r}: m{numbers[c]}" for name, c in _children(m))
        passed = f", {{{children}}}" if children else ""
        lines.append(f"    m{number} = graph_{number}(t{passed})")
    lines.append(f"    return load(rt, m{numbers[module]}, {integers!r})")
    return "\n".join(lines) + "\n", constants


def _name(module: torch.fx.GraphModule) -> str:
    return type(module).__name__


def _children(module: torch.fx.GraphModule) -> Iterator[tuple[str, torch.fx.GraphModule]]:
    for name, child in module._modules.items():
        if isinstance(child, torch.fx.GraphModule):
            yield name, child


def _modules(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    for _, child in _children(module):
        yield from _modules(child)
    yield module


def _graph_lines(module: torch.fx.GraphModule, number: int) -> Iterator[str]:
    nested = any(_children(module))
    yield f"def graph_{number}(t{', children' if nested else ''}):"
    yield f"    g = t.builder({_name(module)!r}{', children' if nested else ''})"
    names: dict[torch.fx.Node, str] = {}
    taken = {n.name for n in module.graph.nodes} | RESERVED
    for node in module.graph.nodes:
        name = node.name
        while name in RESERVED or (name != node.name and name in taken):
            name += "_"
        names[node] = name
        if node.op == "output":
            yield f"    return g.output({literal(node.args[0], names)})"
            return
        yield f"    {name} = {_node_text(node, names)}"
        notes = [f"{k}={literal(node.meta[k], names)}" for k in NOTES if k in node.meta]
        if notes:
            yield f"    g.note({name}, {', '.join(notes)})"


def _node_text(node: torch.fx.Node, names: Mapping[torch.fx.Node, str]) -> str:
    args = [literal(a, names) for a in node.args]
    args += [f"{k}={literal(v, names)}" for k, v in node.kwargs.items()]
    name = repr(node.name)
    if "triton" in node.meta:
        kernel, constants = node.meta["triton"]
        parts = (node.kwargs["grid"], node.kwargs["kwargs"], dict(constants))
        given = [literal(p, names) for p in (*parts, node.kwargs["tma_descriptor_metadata"])]
        return f"g.triton({name}, {user_kernel(kernel)}, {', '.join(given)})"
    match node.op:
        case "placeholder":
            return f"g.input({name})"
        case "get_attr" if "constant" in node.meta:
            return f"g.constant({name}, {node.target!r}, {node.meta['constant']!r})"
        case "get_attr":
            return f"g.attribute({name}, {node.target!r})"
        case "call_module":
            return f"g.run({', '.join((name, repr(node.target), *args))})"
    assert callable(node.target)  # a graph of `to_graph` has no call of a method
    return f"g.call({', '.join((name, target_text(node.target), *args))})"


def target_text(target: Callable[..., Any]) -> str:
    """Return what names a function in the text."""
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    name = target.__name__
    if getattr(ops, name, None) is target:
        return f"ops.{name}"
    return f"torch.{name}" if getattr(torch, name, None) is target else f"operator.{name}"


def user_kernel(kernel: UserKernel) -> str:
    """Return the text that makes a user's kernel."""
    fields = (kernel.key, kernel.source, kernel.parameters, kernel.settings)
    return f"UserKernel({', '.join(map(repr, fields))})"


def literal(value: Any, names: Mapping[torch.fx.Node, str]) -> str:
    """Return the text of an argument."""
    match value:
        case torch.fx.Node():
            return names[value]
        case torch.device():
            return f"torch.device({str(value)!r})"
        case torch.dtype() | torch.layout() | torch.memory_format():
            return str(value)
        case float() if not math.isfinite(value):
            return f"float({str(value)!r})"
        case complex() if not cmath.isfinite(value):
            return f"complex({literal(value.real, names)}, {literal(value.imag, names)})"
        case tuple():
            return f"({''.join(f'{literal(v, names)}, ' for v in value)})"
        case list():
            return f"[{', '.join(literal(v, names) for v in value)}]"
        case dict():
            items = (f"{literal(k, names)}: {literal(v, names)}" for k, v in value.items())
            return f"{{{', '.join(items)}}}"
    return repr(value)
