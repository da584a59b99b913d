"""Calling compiled graphs without AOTAutograd's own wrappers, where a graph is simple enough.

Simple: static sizes, plain tensors, no result that shares memory with an input or another result,
no mutation that autograd would have to see. Then a training graph is one `autograd.Function`, an
inference graph is the compiled program itself, and what AOTAutograd found out fits into a few
numbers that are stored with the programs, so that a warm start need not trace again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import asdict, frozen
from torch.autograd.function import once_differentiable

from gyrator.compiled import Boxed, untraced


@frozen
class Tangent:
    """A gradient that the backward graph takes: of which result, and with which layout."""

    output: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@frozen
class GraphFacts:
    """How the programs of a simple graph are called."""

    outputs: int
    """Results that the user sees; a forward program's others are saved for the backward pass."""
    constant: tuple[int, ...]
    """Results that do not require gradients."""
    mutated: tuple[int, ...]
    """Inputs written in place, whose version counters must rise."""
    autocast: bool
    """Autocast was on; the programs already contain its casts."""
    tangents: tuple[Tangent, ...] | None = None
    """None for an inference graph."""

    def as_json(self) -> dict[str, Any]:
        """Return the facts as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "GraphFacts":
        """Read what `as_json` gave."""
        tangents = data["tangents"]
        return cls(
            data["outputs"],
            tuple(data["constant"]),
            tuple(data["mutated"]),
            data["autocast"],
            None
            if tangents is None
            else tuple(
                Tangent(t["output"], tuple(t["shape"]), tuple(t["strides"])) for t in tangents
            ),
        )


def facts_of(
    metadata: Any,
    inputs: int,
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule | None,
) -> GraphFacts | None:
    """Return how to call the graphs, or None where only AOTAutograd's wrapper does it right.

    Args:
        metadata: what AOTAutograd found out about the user's function (`ViewAndMutationMeta`).
        inputs: number of the function's inputs.
        forward: the inference or forward graph.
        backward: the backward graph of a training step.
    """
    if metadata is None or not _simple(metadata) or torch.are_deterministic_algorithms_enabled():
        return None
    infos = metadata.output_info
    saved = len(_results(forward)) - len(infos)
    if len(_placeholders(forward)) != inputs:
        return None
    tangents: tuple[Tangent, ...] | None = None
    if backward is None:
        if saved:
            return None
    else:
        found = _tangents(infos, saved, inputs, backward)
        if found is None:
            return None
        tangents = found
    return GraphFacts(
        outputs=len(infos),
        constant=tuple(k for k, info in enumerate(infos) if not info.requires_grad),
        mutated=tuple(metadata.mutated_graph_handled_indices_seen_by_autograd),
        autocast=torch._C._is_any_autocast_enabled(),
        tangents=tangents,
    )


def callable_for(
    facts: GraphFacts, forward: Boxed, backward: Boxed | None
) -> Callable[..., Sequence[Any]]:
    """Return a function of the graph's inputs, one argument each."""
    run = _without_autocast(forward) if facts.autocast else forward
    if facts.tangents is None:
        call = _inference(run)
    else:
        if backward is None:
            raise ValueError("a training graph needs its backward program")
        back = _without_autocast(backward) if facts.autocast else backward
        call = _training(facts, facts.tangents, run, back)
    return _bumping(call, facts.mutated) if facts.mutated else call


def _inference(run: Boxed) -> Callable[..., Sequence[Any]]:
    def call(*args: Any) -> Sequence[Any]:
        return run(list(args))

    return call


def _training(
    facts: GraphFacts, tangents: tuple[Tangent, ...], run: Boxed, back: Boxed
) -> Callable[..., Sequence[Any]]:
    outputs, constant = facts.outputs, facts.constant

    class CompiledGraph(torch.autograd.Function):
        """One compiled training graph as a node of the autograd graph."""

        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            results = run(list(args))
            ctx.save_for_backward(*results[outputs:])
            ctx.mark_non_differentiable(
                *(results[k] for k in constant if isinstance(results[k], torch.Tensor))
            )
            return tuple(results[:outputs])

        @staticmethod
        @untraced  # autograd may call it where Dynamo is on
        @once_differentiable
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            args = list(ctx.saved_tensors)
            # Saved activations may die while the program runs, unless the graph is retained.
            ctx.maybe_clear_saved_tensors()
            args.extend(_laid_out(gradients[t.output], t) for t in tangents)
            return tuple(back(args))

    apply: Callable[..., Sequence[Any]] = CompiledGraph.apply
    return apply


def _laid_out(gradient: torch.Tensor, tangent: Tangent) -> torch.Tensor:
    """Return the gradient with the strides that the backward program was compiled for."""
    if gradient.stride() == tangent.strides:
        return gradient
    copy = torch.empty_strided(
        tangent.shape, tangent.strides, dtype=gradient.dtype, device=gradient.device
    )
    return copy.copy_(gradient)


def _bumping(
    call: Callable[..., Sequence[Any]], mutated: tuple[int, ...]
) -> Callable[..., Sequence[Any]]:
    """Let autograd notice that the program writes some of its inputs."""

    def bump(*args: Any) -> Sequence[Any]:
        torch.autograd.graph.increment_version(tuple(args[k] for k in mutated))
        return call(*args)

    return bump


def _without_autocast(run: Boxed) -> Boxed:
    def call(args: list[Any]) -> Sequence[Any]:
        with torch._C._DisableAutocast():
            return run(args)

    return call


def _simple(metadata: Any) -> bool:
    plain = {"non_alias", "unsafe_view_alias"}
    return (
        metadata.num_intermediate_bases == 0
        and metadata.grad_enabled_mutation is None
        and not metadata.tokens
        and not metadata.num_graphsafe_rng_states
        and not metadata.num_symints_saved_for_bw
        and not metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw
        and not getattr(metadata, "num_tensors_saved_with_no_vc_check", 0)
        and not getattr(metadata, "num_opaque_objects_saved_for_bw", 0)
        and not getattr(metadata, "act_input_indices", ())
        and all(i.mutation_type.name != "MUTATED_OUT_GRAPH" for i in metadata.input_info)
        and all(
            o.output_type.name in plain and issubclass(o.raw_type, torch.Tensor)
            for o in metadata.output_info
        )
        and all(type(m).__name__ == "PlainTensorMeta" for m in metadata.subclass_inp_meta)
        and all(type(m).__name__ == "PlainTensorMeta" for m in metadata.subclass_fw_graph_out_meta)
    )


def _tangents(
    infos: Sequence[Any], saved: int, inputs: int, backward: torch.fx.GraphModule
) -> tuple[Tangent, ...] | None:
    flow = [
        k for k, o in enumerate(infos) if getattr(o, "requires_grad_for_backward", o.requires_grad)
    ]
    given = _placeholders(backward)
    if len(given) != saved + len(flow) or len(_results(backward)) != inputs:
        return None
    values: list[Any] = [node.meta.get("val") for node in given[saved:]]
    if not all(isinstance(v, torch.Tensor) for v in values):
        return None
    return tuple(
        Tangent(k, tuple(v.shape), tuple(v.stride())) for k, v in zip(flow, values, strict=True)
    )


def _placeholders(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in gm.graph.nodes if n.op == "placeholder"]


def _results(gm: torch.fx.GraphModule) -> Sequence[Any]:
    (results,) = gm.graph.output_node().args
    return results if isinstance(results, tuple | list) else (results,)
