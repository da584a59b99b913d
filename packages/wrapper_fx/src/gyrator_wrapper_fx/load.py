"""What the text of a program calls when it is loaded, and the hook for compilers of graphs."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

import torch
from attrs import define, field, frozen
from torch.fx.graph import _BoxedCodeGen

from gyrator_ir.loop.nodes import UserKernel
from gyrator_wrapper_fx.errors import fx_error
from gyrator_wrapper_fx.kernels import KernelFunction, KernelTable
from gyrator_wrapper_fx.triton import higher_order_call

GraphCompiler = Callable[[torch.fx.GraphModule], Callable[..., Sequence[Any]]]
"""`compile_graph(gm)`: takes the graph module of a host program, returns what is called instead of
it, with the same arguments and results."""

ENTRY_POINTS = "gyrator.fx_compilers"
"""The group of entry points by which other distributions offer a `GraphCompiler`."""

NO_CHILDREN: Mapping[str, torch.nn.Module] = MappingProxyType({})


@frozen(eq=False)
class LoadedProgram:
    """A host program, ready to run."""

    module: torch.fx.GraphModule
    plan: Callable[[list[Any]], tuple[Any, ...]]
    """Takes the arguments in a list, which it empties."""
    integers: tuple[bool, ...]
    """Which results are integers."""


@define(eq=False)
class Builder:
    """Makes one graph module; a method for each form of a node."""

    name: str
    tables: "Tables"
    children: Mapping[str, torch.nn.Module]
    _graph: torch.fx.Graph = field(factory=torch.fx.Graph)
    _root: torch.nn.Module = field(factory=torch.nn.Module)

    def input(self, name: str) -> torch.fx.Node:
        """Append a parameter."""
        return self._graph.placeholder(name)

    def call(
        self, name: str, target: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> torch.fx.Node:
        """Append a call of a function."""
        return self._graph.create_node("call_function", target, args, kwargs, name)

    def run(self, name: str, target: str, *args: Any) -> torch.fx.Node:
        """Append a call of a subprogram."""
        self._root.add_module(target, self.children[target])
        return self._graph.create_node("call_module", target, args, {}, name)

    def attribute(self, name: str, target: str) -> torch.fx.Node:
        """Append a nested graph module, or the table of kernels."""
        found = self.tables.kernels if target == "kernels" else self.children[target]
        self._root.add_module(target, found)
        return self._graph.create_node("get_attr", target, (), {}, name)

    def constant(self, name: str, target: str, key: str) -> torch.fx.Node:
        """Append a tensor that the program carries."""
        self._root.register_buffer(target, self.tables.constants[key], persistent=False)
        node = self._graph.create_node("get_attr", target, (), {}, name)
        node.meta["constant"] = key
        return node

    def triton(
        self,
        name: str,
        kernel: UserKernel,
        grid: list[tuple[Any, ...]],
        values: dict[str, Any],
        constants: dict[str, Any],
        tma: dict[str, Any],
    ) -> torch.fx.Node:
        """Append the launch of a user's Triton kernel."""
        return higher_order_call(
            self._graph, kernel, tuple(grid), values, constants, tma, name=name
        )

    def note(self, node: torch.fx.Node, **meta: Any) -> None:
        """Give a node metadata."""
        node.meta.update(meta)

    def output(self, values: tuple[Any, ...]) -> torch.fx.GraphModule:
        """End the graph."""
        self._graph.output(values)
        module = torch.fx.GraphModule(self._root, self._graph, self.name)
        vars(module)["_is_impure"] = True  # or a call of it would go as dead code
        return module


@frozen(eq=False)
class Tables:
    """What graphs refer to and do not say."""

    kernels: KernelTable
    constants: Mapping[str, torch.Tensor]

    def builder(self, name: str, children: Mapping[str, torch.nn.Module] = NO_CHILDREN) -> Builder:
        """Start a graph module with these nested ones."""
        return Builder(name, self, children)


def tables(rt: Any, launches: Mapping[str, tuple[int, int]], constants: Sequence[str]) -> Tables:
    """Return the kernels and constants of a host runtime.

    `launches` says how many tensors and sizes each kernel takes. A launcher is a recorded program
    of one launch: `rt.program(name, parameters)` with the recorder's `launch` and `finish`.
    """
    kernels = {name: _launcher(rt, name, *counts) for name, counts in launches.items()}
    return Tables(KernelTable(kernels), {key: rt.constants[key] for key in constants})


def _launcher(rt: Any, kernel: str, tensors: int, sizes: int) -> KernelFunction:
    p = rt.program(kernel, tuple(f"p{k}" for k in range(tensors + sizes)))
    given = p.parameters
    p.launch(kernel, tuple(given[:tensors]), tuple(p.integer(s) for s in given[tensors:]))
    plan = p.finish(()).plan

    def run(buffers: tuple[torch.Tensor, ...], values: tuple[int, ...]) -> None:
        plan([*buffers, *values])

    return run


def load(rt: Any, module: torch.fx.GraphModule, integers: tuple[bool, ...]) -> LoadedProgram:
    """Return what runs a graph module: the code of FX, or what `rt.fx_compiler` makes of it."""
    compiler: GraphCompiler | None = getattr(rt, "fx_compiler", None)
    if compiler is not None:
        return LoadedProgram(module, _boxed(compiler(module)), integers)
    # Its own copy of the code takes the arguments in a list and drops each after its last use.
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, values))
    graph.set_codegen(_BoxedCodeGen())
    code = torch.fx.GraphModule(module, graph, type(module).__name__)
    forward = code.forward

    count = len(graph.find_nodes(op="placeholder"))

    def plan(args: list[Any]) -> tuple[Any, ...]:
        if len(args) != count:
            raise TypeError(f"a host program takes a list of {count} arguments, not {len(args)}")
        with torch.no_grad():
            return tuple(forward(args))

    return LoadedProgram(module, plan, integers)


def _boxed(function: Callable[..., Sequence[Any]]) -> Callable[[list[Any]], tuple[Any, ...]]:
    def plan(args: list[Any]) -> tuple[Any, ...]:
        given = tuple(args)
        args.clear()
        with torch.no_grad():
            return tuple(function(*given))

    return plan


def find_compiler(chosen: str | GraphCompiler) -> GraphCompiler | None:
    """Return a compiler of graphs: itself, `module:attribute`, or the name of an entry point.

    None for the empty string. FxWrapperError (GY-FX-004) for a name that nothing answers to.
    """
    if not isinstance(chosen, str):
        return chosen
    if not chosen:
        return None
    offered = entry_points(group=ENTRY_POINTS)
    if chosen in offered.names:
        loaded: GraphCompiler = offered[chosen].load()
        return loaded
    path, _, name = chosen.partition(":")
    try:
        found: GraphCompiler = getattr(importlib.import_module(path), name)
    except (ImportError, AttributeError, ValueError) as error:
        names = ", ".join(sorted(offered.names)) or "none"
        raise fx_error(
            4,
            f"there is no compiler of graphs {chosen!r}",
            help=f"give `module:function`, or the name of an installed one ({names})",
        ) from error
    return found
