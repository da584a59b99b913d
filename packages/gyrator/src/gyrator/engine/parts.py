"""Parts of graphs that another compiler takes as ATen graphs."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen

from gyrator_ir.content import value_hash
from gyrator_ir.diagnostics import GyratorError

if TYPE_CHECKING:
    from gyrator.engine.compiled import Boxed
    from gyrator.engine.pieces import Piece


_PROCESS = uuid.uuid4().hex


class PartError(GyratorError):
    """Another compiler failed on its part of a graph."""


@frozen
class PartCompiler:
    """Another compiler, and which nodes of ATen graphs it takes.

    What it takes is given to it in as few parts as there can be: graphs of ATen ops with fake
    tensors in `meta["val"]`. Gyrator compiles everything else. Where it fails on a part, Gyrator
    compiles that, too, with a warning (GY-PARTS-001); with the option `strict` that is an error.
    """

    supports: Callable[[torch.fx.Node], bool]
    """Whether the compiler takes a `call_function` node. Views and sizes that only it reads become
    part of its graphs where it supports them."""
    compile: Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]
    """From a graph and fake inputs to a callable of the inputs that returns all results, as a
    backend of `torch.compile` is."""

    @property
    def name(self) -> str:
        """How messages call it."""
        module, name = (getattr(self.compile, a, "") for a in ("__module__", "__qualname__"))
        return f"{module}.{name}" if name else type(self.compile).__qualname__

    @property
    def identity(self) -> str:
        """What tells programs of sessions with such a compiler from those of others."""
        try:
            return value_hash(self.supports, self.compile)
        except ValueError:  # an object, whose programs are those of this process alone
            return f"{id(self)} {_PROCESS}"

    def refused(self, gm: torch.fx.GraphModule) -> frozenset[str]:
        """Return the names of the calls that it does not take."""
        calls = [n for n in gm.graph.nodes if n.op == "call_function"]
        return frozenset(n.name for n in calls if not self._takes(n))

    def _takes(self, node: torch.fx.Node) -> bool:
        """Whether it takes a call; of several results, what takes them apart goes with the call."""
        if node.target is operator.getitem:
            return self._takes(node.all_input_nodes[0])
        return node.op == "call_function" and self.supports(node)

    def call(self, piece: Piece) -> Boxed:
        """Return what the compiler makes of a part.

        Raises:
            PartError: GY-PARTS-001 where it fails.
        """
        inputs = [node.meta.get("val") for node in piece.arguments]
        try:
            made = self.compile(piece.module, inputs)
        except Exception as error:
            said = f"the compiler {self.name} failed on a part: {type(error).__name__}: {error}"
            count = sum(n.op == "call_function" for n in piece.module.graph.nodes)
            help = f"the part has {count} calls; have `supports` leave out what it cannot compile"
            raise PartError.of("GY-PARTS-001", said, help=help) from error

        def run(args: list[Any]) -> Sequence[Any]:
            given = tuple(args)
            args.clear()
            return made(*given)

        return run
