"""Parts of graphs that another compiler compiles from ATen graphs."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gyrator_ir.content import value_hash
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError

if TYPE_CHECKING:
    from gyrator.graphs.compiled import Boxed
    from gyrator.graphs.pieces import Piece


_PROCESS = uuid.uuid4().hex


class PartError(GyratorError):
    """Another compiler failed on its part of a graph."""


@frozen
class PartCompiler:
    """Another compiler, and the nodes of ATen graphs that it supports.

    The supported nodes are passed to it in as few parts as possible: graphs of ATen ops with fake
    tensors in `meta["val"]`. Gyrator compiles everything else. If the other compiler fails on a
    part, Gyrator compiles that, too, with a warning (GY-PARTS-001); with the option `strict`, this
    is an error.
    """

    supports: Callable[[torch.fx.Node], bool]
    """Return whether the compiler supports a `call_function` node. Views and sizes used only by its
    nodes become part of its graphs if it supports them."""
    compile: Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]
    """Compile a graph for fake inputs, and return a callable that takes the inputs and returns all
    results, like a backend of `torch.compile`."""

    @property
    def name(self) -> str:
        """The name of the compiler in messages."""
        module, name = (getattr(self.compile, a, "") for a in ("__module__", "__qualname__"))
        return f"{module}.{name}" if name else type(self.compile).__qualname__

    @property
    def identity(self) -> str:
        """Distinguishes the cached programs of sessions with different part compilers."""
        try:
            return value_hash(self.supports, self.compile)
        except ValueError:  # an object without a hash: its programs are specific to this process
            return f"{id(self)} {_PROCESS}"

    def refused(self, gm: torch.fx.GraphModule) -> frozenset[str]:
        """Return the names of the calls that the compiler does not support."""
        calls = [n for n in gm.graph.nodes if n.op == "call_function"]
        return frozenset(n.name for n in calls if not self._takes(n))

    def _takes(self, node: torch.fx.Node) -> bool:
        """Return whether a call is supported; `getitem` of a call with several results follows
        the call."""
        if node.target is operator.getitem:
            return self._takes(node.all_input_nodes[0])
        return node.op == "call_function" and self.supports(node)

    def call(self, piece: Piece) -> Boxed:
        """Compile a part, and return its callable.

        Raises:
            PartError: GY-PARTS-001 if the compiler fails.
        """
        inputs = [node.meta.get("val") for node in piece.arguments]
        try:
            compiled = self.compile(piece.module, inputs)
        except Exception as error:
            message = f"the compiler {self.name} failed on a part: {type(error).__name__}: {error}"
            count = sum(n.op == "call_function" for n in piece.module.graph.nodes)
            help = f"the part has {count} calls; make `supports` return False for unsupported ones"
            raise PartError.of("GY-PARTS-001", message, help=help) from error

        def run(args: list[Any]) -> Sequence[Any]:
            operands = tuple(args)
            args.clear()
            return compiled(*operands)

        return run
