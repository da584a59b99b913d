"""Constants computed from weights, when a package is compiled or when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from attrs import field
from torch._functorch._aot_autograd.descriptors import PlainAOTInput
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.frontend.aot import Tracing
from gyrator.frontend.freezing import Constants
from gyrator_ir.define import define, frozen
from gyrator_lowering.folding import Folding, Step
from gyrator_lowering.freezing import freeze


def input_index(placeholder: Node) -> int | None:
    """Return the index of a placeholder among the inputs of the exported program; None if it is
    not one of them."""
    descriptor = placeholder.meta.get("desc")
    return descriptor.idx if isinstance(descriptor, PlainAOTInput) else None


@frozen(eq=False)
class Folded:
    """Constants that a program takes after its weights, and their computation."""

    folding: Folding
    """Computes the constants that are not packed, followed by what packed ones are made from."""
    indices: tuple[int, ...]
    """Indices of the weights that they are computed from, among the exported inputs."""
    weights: tuple[torch.Tensor, ...]
    packing: tuple[Step, ...] = ()
    """Make the packed constants when a package is loaded. In their arguments, `{"step": n}` is a
    result of `folding`, and `{"input": n}` an exported input."""
    count: int = 0
    """Number of constants that the program takes, the packed ones last."""

    @classmethod
    def of(
        cls, folding: Folding, sources: Sequence[int | None], weights: Mapping[int, torch.Tensor]
    ) -> Self:
        """Return the constants of a folding.

        Args:
            folding: computes all constants.
            sources: the exported input of each input of the folding.
            weights: the weights that no call writes, by exported input.
        """
        plain, packing = folding.split_packing()
        exported = {k: index for k, index in enumerate(sources) if index is not None}
        indices = tuple(exported[k] for k in plain.sources)
        read = tuple(weights[index] for index in indices)
        steps = tuple(step.with_inputs(exported) for step in packing)
        return cls(plain, indices, read, steps, len(folding.results))

    @property
    def text(self) -> str:
        """Identifies the computation and its weights."""
        return repr((self.folding.steps, self.folding.results, self.packing, self.indices))

    @property
    def packed_weights(self) -> set[int]:
        """Indices of the weights that are packed as they are, among the exported inputs."""
        return {index for step in self.packing for index in step.inputs()}

    def values(self) -> list[torch.Tensor]:
        """Compute the constants."""
        return Constants.of(self.folding, self.weights).values

    def graph(self) -> GraphModule:
        """Return the graph that computes the constants from the weights."""
        with _disable_current_modes(), torch.no_grad():
            mode = FakeTensorMode()
            weights = [mode.from_tensor(t, static_shapes=True) for t in self.weights]
            with mode:
                return make_fx(lambda *each: self.folding.constants(each))(*weights)


@define(eq=False)
class Freezing(Tracing):
    """One run of AOTAutograd for a package, with access to the weights."""

    weights: Mapping[int, torch.Tensor] = field(factory=dict)
    """The weights that no call writes, by input index."""
    count: int = 0
    """Number of weights, which are the first inputs."""
    folded: Folded | None = None

    def split_constants(self, graph: GraphModule) -> None:
        """Make a graph take constants computed from its weights, after the weights that it still
        needs."""
        split = freeze(graph, views=False) if self.frozen else None
        if split is None:
            return
        folding, rest = split
        sources = [input_index(node) for node in graph.graph.find_nodes(op="placeholder")]
        self.folded = Folded.of(folding, sources, self.weights)
        graph.graph = rest.graph
        _move(graph.graph.find_nodes(op="placeholder"), len(folding.results), self.count)


def _move(placeholders: Sequence[Any], constants: int, weights: int) -> None:
    """Move the last placeholders of a graph after its weights."""
    for node in placeholders:
        index = input_index(node)
        if index is not None and index >= weights:
            for constant in placeholders[-constants:]:
                node.prepend(constant)
            return
