"""Loading host programs through their graphs, and the hook for graph compilers."""

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import torch
from torch.fx.graph import _BoxedCodeGen

from gyrator_ir.define import frozen
from gyrator_ir.host.nodes import HostProgram
from gyrator_wrapper_fx.errors import FxWrapperError, fx_error
from gyrator_wrapper_fx.kernels import KernelFunction
from gyrator_wrapper_fx.stage import to_graph

__all__ = ["GraphCompiler", "LoadedProgram", "find_compiler", "load"]

GraphCompiler = Callable[[torch.fx.GraphModule], Callable[..., Sequence[Any]]]
"""`compile_graph(gm)` takes the graph module of a host program, and returns a callable that
replaces it, with the same arguments and results."""

ENTRY_POINTS = "gyrator.fx_compilers"
"""The entry point group in which other distributions register a `GraphCompiler`."""


@frozen(eq=False)
class LoadedProgram:
    """A host program, ready to run."""

    module: torch.fx.GraphModule
    plan: Callable[[list[Any]], tuple[Any, ...]]
    """Takes a list of arguments, which it clears."""


def load(
    program: HostProgram,
    kernels: Mapping[str, KernelFunction],
    constants: Mapping[str, torch.Tensor],
    compiler: GraphCompiler | None = None,
) -> LoadedProgram:
    """Return a callable for a program: the code of its graph, or the compiled graph.

    Raises FxWrapperError like `to_graph`, and GY-FX-005 if `compiler` fails.
    """
    module = to_graph(program, kernels, constants)
    if compiler is not None:
        return LoadedProgram(module, _boxed(_compiled(compiler, module)))
    # A copy of the graph takes the arguments in a list and releases each after its last use.
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

    return LoadedProgram(module, plan)


def _compiled(compiler: GraphCompiler, module: torch.fx.GraphModule) -> Callable[..., Any]:
    try:
        function = compiler(module)
    except Exception as error:
        raise _failed(compiler, f"raised {type(error).__name__}: {error}") from error
    if not callable(function):
        raise _failed(compiler, f"returned {function!r}, which cannot be called")
    return function


def _failed(compiler: GraphCompiler, what: str) -> FxWrapperError:
    name = getattr(compiler, "__qualname__", repr(compiler))
    help = "mend it: it takes a GraphModule and returns a callable, such as its argument"
    return fx_error(5, f"the graph compiler {name} {what}", help=help)


def _boxed(function: Callable[..., Sequence[Any]]) -> Callable[[list[Any]], tuple[Any, ...]]:
    def plan(args: list[Any]) -> tuple[Any, ...]:
        arguments = tuple(args)
        args.clear()
        with torch.no_grad():
            return tuple(function(*arguments))

    return plan


def find_compiler(chosen: str | GraphCompiler) -> GraphCompiler | None:
    """Return a graph compiler: `chosen` itself, `module:attribute`, or an entry point by name.

    Returns None for the empty string. Raises FxWrapperError (GY-FX-004) for an unknown name, or
    one of something that cannot be called.
    """
    if not isinstance(chosen, str):
        return chosen
    if not chosen:
        return None
    installed = entry_points(group=ENTRY_POINTS)
    if chosen in installed.names:
        loaded: GraphCompiler = installed[chosen].load()
        return loaded
    path, _, name = chosen.partition(":")
    try:
        compiler: Any = getattr(importlib.import_module(path), name)
    except (ImportError, AttributeError, ValueError) as error:
        why = f": {error}" if path and name else ""
        raise _unknown(chosen, why, installed.names) from error
    if not callable(compiler):
        why = f": it is a {type(compiler).__name__}, not a function"
        raise _unknown(chosen, why, installed.names)
    named: GraphCompiler = compiler
    return named


def _unknown(chosen: str, why: str, installed: Collection[str]) -> FxWrapperError:
    names = ", ".join(sorted(installed)) or "none"
    help = f"use `module:function`, or the name of an installed one ({names})"
    return fx_error(4, f"there is no graph compiler {chosen!r}{why}", help=help)
