"""Between Dynamo and the compiler: AOTAutograd, the joint graph's passes, and the partitioner."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch._dynamo import disable
from torch._dynamo.utils import flatten_graph_inputs
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import (
    default_partition,
    min_cut_rematerialization_partition,
)

from gyrator.options import Options
from gyrator_lowering.decompositions import default_decompositions
from gyrator_lowering.fx_passes import ReplaceRandom

Phase = Literal["inference", "forward", "backward"]
Boxed = Callable[[list[Any]], Sequence[Any]]
"""A compiled graph: takes one list of arguments, which it empties, and gives the results."""


class GraphCompiler(Protocol):
    """Compiles one graph of ATen ops."""

    def __call__(self, gm: torch.fx.GraphModule, phase: Phase) -> Boxed:
        """Return a callable for the graph."""
        ...


def compile_dynamo_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: GraphCompiler,
    options: Options,
) -> Callable[..., Any]:
    """Trace Dynamo's graph to ATen, split it for training, and compile the parts."""

    def inner(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _compile_flat(module, inputs, compile_graph, options)

    if any(isinstance(x, list | tuple | dict) for x in example_inputs):
        return flatten_graph_inputs(gm, example_inputs, inner)
    return inner(gm, example_inputs)


def _compile_flat(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: GraphCompiler,
    options: Options,
) -> Callable[..., Any]:
    random = ReplaceRandom()

    def compiler(phase: Phase) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Boxed]:
        def run(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Boxed:
            if phase == "inference" and not options.fallback_random:
                random.run(graph)
            return compile_graph(graph, phase)

        return run

    def partition(joint: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        # Random ops become pure functions of a saved seed before the cut is chosen, so that a
        # recomputation in the backward pass draws the same numbers.
        if not options.fallback_random:
            random.run(joint)
        cut = min_cut_rematerialization_partition if options.min_cut else default_partition
        return cut(joint, inputs, **kwargs)

    backward = compiler("backward")

    def compile_backward(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        # The autograd engine calls the result from Dynamo's point of view at any time.
        compiled = disable(backward, reason="Gyrator's compiler is not traced")(graph, inputs)
        run: Boxed = disable(compiled, reason="a compiled backward pass is not traced")
        return run

    compiled = aot_module_simplified(
        gm,
        example_inputs,
        fw_compiler=compiler("forward"),
        bw_compiler=compile_backward,
        inference_compiler=compiler("inference"),
        partition_fn=partition,
        decompositions=default_decompositions(),
        keep_inference_input_mutations=True,
    )
    result: Callable[..., Any] = disable(compiled, reason="a compiled graph is not traced")
    return result
