"""Printing FX graphs. Every graph can be printed; `parse` refuses objects that text cannot
express."""

import operator
from typing import Any

import torch
from attrs import field
from torch.fx import GraphModule, Node

from gyrator_ir.define import define
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.expr import ZERO, contiguous_strides
from gyrator_ir.host.nodes import ListValue, Ref
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_ir.text.lines import indented
from gyrator_ir.text.program import show_facts
from gyrator_ir.text.scanner import Writer, show_device, show_string, show_word
from gyrator_ir.text.values import RETURNED, VALUE, VALUES, VALUES_BY_NAME
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH, device_of, type_arg
from gyrator_lowering.torch_bridge.facts import facts_of
from gyrator_lowering.torch_bridge.origins import Locator
from gyrator_lowering.torch_bridge.symbols import Symbols

VERSION = 1
KIND = "fx.graph"
OPAQUE = "python"
"""The kind of an argument that text cannot express."""


def show(gm: GraphModule) -> str:
    """Print a graph; the same graph always prints the same bytes."""
    printer = _Printer()
    head, *lines = printer.graph(gm, type(gm).__name__)
    facts = indented(show_facts(facts_of(printer.symbols)))
    return "\n".join([head, *facts, *lines]) + "\n"


class _Inexpressible(Exception):
    """A type that text cannot express."""


@define
class _Printer:
    symbols: Symbols = field(factory=Symbols)
    writer: Writer = field(factory=Writer)
    locate: Locator = field(factory=Locator)

    def graph(self, gm: GraphModule, name: str) -> list[str]:
        lines = [self.node(gm, node) for node in gm.graph.nodes]
        regions: dict[str, GraphModule] = {}
        for node in gm.graph.find_nodes(op="get_attr"):
            region = operator.attrgetter(node.target)(gm)
            if isinstance(region, GraphModule):
                regions[node.target] = region
        for key, region in regions.items():
            lines += self.graph(region, key)
        return [f"{KIND} {VERSION} @{name if name.isidentifier() else 'main'}", *indented(lines)]

    def node(self, gm: GraphModule, node: Node) -> str:
        name = VALUE.show(Ref(node.name), self.writer)
        match node.op:
            case "placeholder":
                return f"in {name}: {self.input(node.meta.get('val'))}"
            case "get_attr":
                key = show_word(str(node.target))
                value = operator.attrgetter(str(node.target))(gm)
                if isinstance(value, GraphModule):
                    return f"graph {name} key {key}"
                return f"constant {name}: {self.input(value)} key {key}"
            case "output":
                (returned,) = node.args
                results = returned if isinstance(returned, (list, tuple)) else (returned,)
                return f"return {RETURNED.show(map(value_of, results), self.writer)}".rstrip()
        try:
            head = f"{name}: {self.type(node.meta['val'])}"
        except (KeyError, _Inexpressible, GyratorError):
            head = name
        return f"{head} = {self.call(node)}{self.origin(node)}"

    def call(self, node: Node) -> str:
        if node.target is operator.getitem and isinstance(node.args[1], int):
            return f"{VALUE.show(value_of(node.args[0]), self.writer)}[{node.args[1]}]"
        text = f"{show_word(name_of(node))} {VALUES.show(map(value_of, node.args), self.writer)}"
        if not node.kwargs:
            return text
        named = [(key, value_of(value)) for key, value in node.kwargs.items()]
        return f"{text} {VALUES_BY_NAME.show(named, self.writer)}"

    def origin(self, node: Node) -> str:
        origin = self.locate.origin(node)
        line = f" from {show_string(origin.location)} {show_string(origin.code)}"
        module = f" of {show_string(origin.module)}"
        return line * bool(origin.location) + module * bool(origin.module)

    def input(self, value: Any) -> str:
        try:
            return self.type(value)
        except (_Inexpressible, GyratorError):
            return VALUE.show(TypeArg(OPAQUE, type(value).__name__), self.writer)

    def type(self, value: Any) -> str:
        match value:
            case None:
                return "none"
            case torch.Tensor():
                return self.tensor(value)
            case bool():
                raise _Inexpressible
            case int() | torch.SymInt():
                return f"size {self.writer.expr(self.symbols.size(value))}"
            case list():
                return f"[{', '.join(map(self.type, value))}]"
            case tuple():
                return f"({', '.join(map(self.type, value))})"
        raise _Inexpressible

    def tensor(self, value: torch.Tensor) -> str:
        if value.dtype not in FROM_TORCH or value.layout is not torch.strided:
            raise _Inexpressible
        shape, strides = self.symbols.sizes(value.shape), self.symbols.sizes(value.stride())
        text = f"{FROM_TORCH[value.dtype]}{self.writer.exprs(shape)}"
        if strides != contiguous_strides(shape):
            text += f" strides {self.writer.exprs(strides)}"
        text += f" on {show_device(device_of(value.device))}"
        offset = self.symbols.size(value.storage_offset())
        return text if offset is ZERO else f"{text} offset {self.writer.expr(offset)}"


def name_of(node: Node) -> str:
    """Return `aten.mul.Tensor`, `higher_order.cond` or `operator.add`."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.__name__}"
    module = getattr(target, "__module__", None) or ""
    return f"{module.removeprefix('_')}.{getattr(target, '__name__', target)}"


def value_of(argument: Any) -> Any:
    """Return an argument of a node as a value of the text format."""
    if isinstance(argument, Node):
        return Ref(argument.name)
    if argument is None or isinstance(argument, (bool, int, float, complex, str)):
        return Literal(argument)
    if isinstance(argument, (list, tuple)):
        return ListValue(tuple(map(value_of, argument)))
    if isinstance(argument, torch._ops.OpOverload):
        return TypeArg("op", str(argument))
    return type_arg(argument) or TypeArg(OPAQUE, repr(argument))
