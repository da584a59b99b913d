"""Parsing FX graphs on fake tensors: the inverse of `gyrator_lowering.fx_text.print`."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from attrs import field
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.experimental.symbolic_shapes import (
    PendingUnbackedSymbolNotFound,
    compute_unbacked_bindings,
)

from gyrator_ir.define import define
from gyrator_ir.expr import ZERO, Expr, contiguous_strides
from gyrator_ir.host.nodes import ListValue, Ref
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_ir.text.forms import EXPRS
from gyrator_ir.text.lines import Line
from gyrator_ir.text.program import read_facts, read_header, sole
from gyrator_ir.text.scanner import Scanner, show_device
from gyrator_ir.text.values import RETURNED, VALUE, VALUES, VALUES_BY_NAME
from gyrator_lowering.fx_text.print import KIND, VERSION
from gyrator_lowering.fx_text.sizes import Sizes
from gyrator_lowering.torch_bridge.dtypes import TO_TORCH, from_type_arg
from gyrator_lowering.torch_bridge.random_ops import register_ops

_MODULES: Mapping[str, ModuleType] = MappingProxyType(
    {"operator": operator, "math": math, "torch": torch}
)
"""Modules of the functions on sizes that nodes may call."""
_LOCATION = re.compile(r"(.*):(\d+) in (.*)")


def parse(text: str) -> GraphModule:
    """Read one graph, whose nodes carry fake tensors as `meta["val"]`.

    Raises:
        ParseError: GY-PARSE-001 to GY-PARSE-003 as for the other levels, GY-LOWER-043 for a
            function that this PyTorch does not have, GY-LOWER-041 for an object that text cannot
            express, GY-LOWER-042 if a node has no type and PyTorch cannot compute it.
    """
    root = sole(text, KIND)
    facts = [line for line in root.children if line.text.startswith("fact ")]
    for line in facts:
        fact = read_facts([line])
        if fact.divisors or fact.equalities or fact.assumed:
            line.fail("expected a range or a hint, the only facts that PyTorch has about a size")
    sizes = Sizes(read_facts(facts))
    numbers = map(int, re.findall(r"\bu(\d+)\b", text))
    sizes.environment.unbacked_symint_counter = max(numbers, default=-1) + 1
    reader = _Reader(sizes, FakeTensorMode(shape_env=sizes.environment))
    return reader.graph(root, [line for line in root.children if line not in facts])


@define
class _Reader:
    """Reads one graph; all graphs of a text share their symbols."""

    sizes: Sizes
    mode: FakeTensorMode
    fx: Graph = field(factory=Graph)
    nodes: dict[str, Node] = field(factory=dict)
    regions: dict[str, GraphModule] = field(factory=dict)
    attributes: dict[str, Any] = field(factory=dict)
    """The tensors and graphs of `get_attr` nodes, by path."""

    def graph(self, head: Line, lines: list[Line]) -> GraphModule:
        name = read_header(head, KIND, VERSION)
        body = []
        for line in lines:
            if line.text.startswith(f"{KIND} "):
                inner = _Reader(self.sizes, self.mode).graph(line, list(line.children))
                self.regions[type(inner).__name__] = inner
            else:
                body.append(line.leaf())
        returns = [line for line in body if line.text.partition(" ")[0] == "return"]
        if len(returns) != 1 or returns[0] is not body[-1]:
            (returns[0] if returns else head).fail("expected one `return`, as the last line")
        for line in body:
            self.line(line)
        return GraphModule(self.attributes, self.fx, class_name=name)

    def line(self, line: Line) -> None:
        word, _, rest = line.text.partition(" ")
        reads = {"in": self.input, "constant": self.constant, "graph": self.region}
        reads["return"] = self.result
        if word not in reads or rest.startswith("= "):
            self.call(line)
            return
        s = Scanner(line)
        s.expect(word)
        reads[word](s)
        s.end()

    def input(self, s: Scanner) -> None:
        name = self.name(s)
        s.expect(":")
        value = self.type(s)
        self.sizes.environment.pending_fresh_unbacked_symbols.clear()  # the caller binds them
        self.add(s, name, value, "placeholder", name)

    def constant(self, s: Scanner) -> None:
        name = self.name(s)
        s.expect(":")
        value = self.type(s)
        s.expect("key")
        key = s.word()
        self.attributes[key] = value
        self.add(s, name, value, "get_attr", key)

    def region(self, s: Scanner) -> None:
        name = self.name(s)
        s.expect("key")
        key = s.word()
        if key not in self.regions:
            s.line.fail(f"expected the name of a graph below this one, got {key!r}")
        self.attributes[key] = self.regions[key]
        self.add(s, name, self.regions[key], "get_attr", key)
        del self.nodes[name].meta["val"]

    def result(self, s: Scanner) -> None:
        self.fx.output(tuple(self.argument(s.line, value) for value in RETURNED.read(s)))

    def call(self, line: Line) -> None:
        before, equals, _ = line.text.partition(" = ")
        if not equals:
            line.fail("expected `name = function (...)`")
        head, s = Scanner(line), Scanner(line)
        head.text, s.at = before, len(before) + len(equals)
        name = self.name(head)
        typed = head.take(":")
        value = self.type(head) if typed else None
        head.end()
        target, args, kwargs = self.called(s)
        trace = self.origin(s)
        module = s.string() if s.take("of") else ""
        s.end()
        if not typed:
            value = self.computed(line, target, args, kwargs)
        node = self.add(s, name, value, "call_function", target, args, kwargs)
        if trace:
            node.meta["stack_trace"] = trace
        if module:
            node.meta["nn_module_stack"] = {"": (module, None)}

    def called(self, s: Scanner) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        escaped = s.take("%")
        word = s.word()
        if s.take("["):
            index = s.integer()
            s.expect("]")
            return operator.getitem, (self.argument(s.line, Ref(word)), index), {}
        target = None if escaped else self.function(s.line, word)
        args = tuple(self.argument(s.line, value) for value in VALUES.read(s))
        pairs = VALUES_BY_NAME.read(s) if s.looks("{") else ()
        return target, args, {key: self.argument(s.line, value) for key, value in pairs}

    def origin(self, s: Scanner) -> str:
        if not s.take("from"):
            return ""
        location = _LOCATION.fullmatch(s.string())
        if location is None:
            s.line.fail("expected `file:line in function`")
        return f'  File "{location[1]}", line {location[2]}, in {location[3]}\n    {s.string()}'

    def add(
        self,
        s: Scanner,
        name: str,
        value: Any,
        op: str,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Node:
        node = self.fx.create_node(op, target, args, kwargs, name)
        if node.name != name:
            s.line.fail(f"expected a name that is neither taken nor reserved by Python: {name!r}")
        self.nodes[name] = node
        node.meta["val"] = value
        try:
            bound = compute_unbacked_bindings(self.sizes.environment, value)
        except PendingUnbackedSymbolNotFound:  # the symbol is only part of a size
            bound = None
        self.sizes.environment.pending_fresh_unbacked_symbols.clear()
        if bound:
            node.meta["unbacked_bindings"] = bound
        return node

    def computed(
        self, line: Line, target: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a call on fake tensors."""

        def value_of(node: Node) -> Any:
            return node.meta["val"] if "val" in node.meta else self.attributes[str(node.target)]

        args, kwargs = map_arg((args, kwargs), value_of)
        try:
            with self.mode:
                return target(*args, **kwargs)
        except Exception as error:
            message = f"PyTorch cannot compute this: {type(error).__name__}: {error}"
            line.fail(
                message.partition("\n")[0],
                code="GY-LOWER-042",
                help="correct the arguments, or write the type of the result before the `=`",
            )

    # Parts of lines -------------------------------------------------------------------------

    def name(self, s: Scanner) -> str:
        s.take("%")
        return s.name()

    def type(self, s: Scanner) -> Any:
        if s.take("none"):
            return None
        if s.take("size"):
            return self.size(s.line, s.expr())
        if s.take("("):
            return tuple(self.types(s, ")"))
        if s.take("["):
            return self.types(s, "]")
        if s.looks("<"):
            self.inexpressible(s.line, VALUE.read(s))
        dtype, shape = TO_TORCH[s.dtype()], EXPRS.read(s)
        strides = EXPRS.read(s) if s.take("strides") else contiguous_strides(shape)
        s.expect("on")
        device = show_device(s.device())
        offset = self.size(s.line, s.expr() if s.take("offset") else ZERO)
        sizes = [self.size(s.line, n) for n in shape]
        steps = [self.size(s.line, n) for n in strides]
        try:
            with self.mode:
                if isinstance(offset, int) and offset == 0:
                    return torch.empty_strided(sizes, steps, dtype=dtype, device=device)
                last = sum((n - 1) * k for n, k in zip(sizes, steps, strict=True))
                span = 0 if ZERO in shape else last + 1
                storage = torch.empty((span + offset,), dtype=dtype, device=device)
                return storage.as_strided(sizes, steps, offset)
        except (RuntimeError, ValueError) as error:
            s.line.fail(str(error).partition("\n")[0], code="GY-PARSE-003")

    def types(self, s: Scanner, closing: str) -> list[Any]:
        types: list[Any] = []
        while not s.take(closing):
            if types:
                s.expect(",")
            types.append(self.type(s))
        return types

    def size(self, line: Line, expression: Expr) -> Any:
        try:
            return self.sizes.value(expression)
        except ValueError as error:
            line.fail(str(error), code="GY-PARSE-003")

    def argument(self, line: Line, value: Any) -> Any:
        match value:
            case Literal(constant):
                return constant
            case ListValue(items):
                return [self.argument(line, item) for item in items]
            case Ref(name):
                if name not in self.nodes:
                    line.fail(f"expected the name of a node above, got {name!r}")
                return self.nodes[name]
            case TypeArg("op", name):
                return self.function(line, name)
            case TypeArg():
                torch_value = from_type_arg(value)
                return self.inexpressible(line, value) if torch_value is None else torch_value
        line.fail("expected the name of a node that computes this size")

    def inexpressible(self, line: Line, value: Any) -> Any:
        line.fail(
            f"this {value.value} cannot be expressed in text",
            code="GY-LOWER-041",
            help="only the process that created the graph can lower it",
        )

    def function(self, line: Line, word: str) -> Any:
        module_name, _, name = word.rpartition(".")
        function: Any = None
        if module_name in _MODULES:
            if module_name != "torch" or name.lstrip("_").startswith("sym_"):
                function = getattr(_MODULES[module_name], name, None)
        elif module_name == "higher_order":
            function = getattr(torch.ops.higher_order, name, None)
        elif module_name.count(".") == 1:
            library, _, packet = module_name.partition(".")
            if library == "gyrator":
                register_ops()
            function = getattr(getattr(getattr(torch.ops, library), packet, None), name, None)
        if function is None:
            line.fail(
                f"this PyTorch has no function {word!r}",
                code="GY-LOWER-043",
                help="import the library that registers it; an op is `namespace.name.overload`",
            )
        return function
