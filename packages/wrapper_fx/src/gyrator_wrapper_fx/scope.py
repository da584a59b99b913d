"""A graph under construction, and the nodes of the program's names in it."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from attrs import field

from gyrator_ir.define import define, frozen
from gyrator_ir.expr import Expr, expr
from gyrator_ir.host import nodes as h
from gyrator_ir.kernel.nodes import Launchable
from gyrator_ir.loop.nodes import Literal, TypeArg, UserKernel
from gyrator_ir.types import Device, DType
from gyrator_wrapper_fx.errors import fx_error
from gyrator_wrapper_fx.kernels import KernelTable
from gyrator_wrapper_fx.sizes import SizeBuilder

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {dtype: getattr(torch, dtype.full_name) for dtype in DType}
)
"""torch's dtypes by IR dtype."""

Writer = Callable[["Scope", Iterable[h.Instruction]], None]


@frozen(eq=False)
class Context:
    """The shared context of all graphs of one program."""

    program: h.HostProgram
    kernels: KernelTable
    constants: Mapping[str, torch.Tensor]
    subprograms: Mapping[str, torch.fx.GraphModule]
    write: Writer
    """Translates instructions in a scope."""

    _kernels: Mapping[str, Launchable] = field(init=False)

    @_kernels.default
    def _by_name(self) -> Mapping[str, Launchable]:
        return {k.name: k for k in self.program.kernels}

    def kernel(self, name: str) -> Launchable:
        """Return a kernel of the program."""
        return self._kernels[name]

    def user_kernel(self, key: str) -> UserKernel:
        """Return a user's Triton kernel."""
        return next(k for k in self.program.user_kernels if k.key == key)


@frozen
class Start:
    """The static facts of a tensor: its dtype, and its offset in its storage."""

    dtype: DType
    offset: Expr = field(factory=lambda: expr(0))


@define(eq=False)
class Scope:
    """One graph, the attributes of its module, and the nodes of names."""

    context: Context
    name: str
    graph: torch.fx.Graph = field(factory=torch.fx.Graph)
    root: torch.nn.Module = field(factory=torch.nn.Module)
    env: dict[str, Any] = field(factory=dict)
    """The values of names and symbols: nodes, or constant integers."""
    starts: dict[str, Start] = field(factory=dict)
    descriptors: dict[str, h.TmaDescriptor] = field(factory=dict)
    size: SizeBuilder = field(init=False)
    constants: dict[str, torch.fx.Node] = field(factory=dict)
    programs: dict[str, str] = field(factory=dict)
    """Attribute names of the subprograms that this graph calls."""
    _attributes: dict[str, torch.fx.Node] = field(factory=dict)
    _comments: list[str] = field(factory=list)

    @size.default
    def _size(self) -> SizeBuilder:
        return SizeBuilder(self.graph, self.env.__getitem__)

    # Nodes

    def parameter(self, name: str) -> None:
        """Append a parameter, and bind its name."""
        self.bind(name, self.graph.placeholder("self_" if name == "self" else name))

    def call(
        self,
        target: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        meta: Mapping[str, Any] = MappingProxyType({}),
        **kwargs: Any,
    ) -> torch.fx.Node:
        """Append a call of a function."""
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        return self.noted(node, meta)

    def noted(self, node: torch.fx.Node, meta: Mapping[str, Any]) -> torch.fx.Node:
        """Set a node's metadata, and attach the pending comments."""
        node.meta.update(meta)
        if self._comments:
            node.meta["comment"] = "\n".join(self._comments)
            self._comments.clear()
        return node

    def comment(self, text: str) -> None:
        """Attach a comment to the next node."""
        self._comments.append(text)

    def attribute(self, name: str, value: torch.nn.Module | torch.Tensor) -> torch.fx.Node:
        """Return the node of an attribute of the graph module, which is added on first use."""
        if name not in self._attributes:
            if isinstance(value, torch.nn.Module):
                self.root.add_module(name, value)
            else:
                self.root.register_buffer(name, value, persistent=False)
            self._attributes[name] = self.graph.create_node("get_attr", name, (), {}, name)
        return self._attributes[name]

    def free_attribute(self, hint: str) -> str:
        """Return an unused attribute name."""
        name, count = hint, 0
        while hasattr(self.root, name) or name == "kernels":
            name, count = f"{hint}_{count}", count + 1
        return name

    # Values

    def value(self, value: h.Value) -> Any:
        """Return an operand: a node, or a constant that graphs support."""
        match value:
            case h.Ref(name):
                return self.env[name]
            case Literal(constant):
                return constant
            case TypeArg(kind, text):
                return type_argument(kind, text)
            case h.ListValue(items):
                return [self.value(item) for item in items]
        return self.size(value)

    def bind(self, name: str, value: Any, start: Start | None = None) -> None:
        """Bind a name to a node."""
        self.env[name] = value
        if start is not None:
            self.starts[name] = start

    def bind_results(self, results: Iterable[Any], output: torch.fx.Node) -> None:
        """Bind the results of a call: one value, or one for each result."""
        results = tuple(results)
        parts = [output]
        if len(results) != 1:
            parts = [self.item(output, k, r) for k, r in enumerate(results)]
        for part, result in zip(parts, results, strict=True):
            if isinstance(result, tuple):
                for k, name in enumerate(result):
                    self.bind(name, self.item(part, k, name))
            elif result is not None:
                self.bind(str(getattr(result, "name", result)), part)

    def unpack(self, names: tuple[str, ...], values: torch.fx.Node) -> None:
        """Bind each name to its entry of a tuple."""
        for k, name in enumerate(names):
            self.bind(name, self.item(values, k, name))

    def item(self, values: torch.fx.Node, index: int, result: Any) -> Any:
        """Return entry `index` of a tuple or list; None for an unused result."""
        if result is None:
            return None
        name = None if isinstance(result, tuple) else str(getattr(result, "name", result))
        return self.graph.create_node("call_function", operator.getitem, (values, index), {}, name)

    # Nested graphs

    def with_sizes(self, captured: Sequence[str]) -> tuple[str, ...]:
        """Return captured names, and the symbols in the sizes of the descriptors among them."""
        names = dict.fromkeys(captured)
        for name in captured:
            if name in self.descriptors:
                d = self.descriptors[name]
                symbols = {s.name for e in (*d.shape, *d.block) for s in e.free_symbols}
                names.update(dict.fromkeys(sorted(symbols)))
        return tuple(names)

    def nested(
        self,
        hint: str,
        parameters: tuple[str, ...],
        body: tuple[h.Instruction, ...],
        values: tuple[str, ...],
    ) -> torch.fx.Node:
        """Translate a body to a separate graph module that returns the tuple of `values`."""
        inner = Scope(self.context, f"{self.name}_{hint}", descriptors=dict(self.descriptors))
        for name in parameters:
            inner.parameter(name)
        self.context.write(inner, body)
        module = inner.finish(tuple(inner.env[v] for v in values))
        return self.attribute(self.free_attribute(hint), module)

    def finish(self, values: tuple[Any, ...]) -> torch.fx.GraphModule:
        """Return the graph module, with `values` as its results."""
        self.noted(self.graph.output(values), {})
        module = torch.fx.GraphModule(self.root, self.graph, self.name)
        # Keeps calls of the module from being removed as dead code.
        vars(module)["_is_impure"] = True
        return module


def type_argument(kind: str, text: str) -> Any:
    """Return a dtype, device, layout or memory format of torch."""
    return torch.device(text) if kind == "device" else getattr(torch, text)


def device_of(device: Device) -> torch.device:
    """Return torch's device, with the ordinal."""
    return torch.device(str(device))


def overload(name: str, where: str = "") -> Any:
    """Return the dispatcher op called `namespace.op.overload`.

    Raises FxWrapperError (GY-FX-001) if this torch has no such op.
    """
    try:
        op = operator.attrgetter(name)(torch.ops)
        if not isinstance(op, torch._ops.OpOverload):
            raise AttributeError("it is not of the form namespace.op.overload")
    except AttributeError as error:
        raise fx_error(
            1,
            f"there is no operator {name}: {error}",
            where,
            "import the library that registers it before the program is loaded",
        ) from error
    return op
