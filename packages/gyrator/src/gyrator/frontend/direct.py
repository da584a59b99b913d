"""Calling compiled graphs without AOTAutograd's wrappers, if a graph is simple enough.

A graph is simple if it has plain tensors, saves no sizes for its backward pass, and has no result
that shares memory with an input or another result, and no mutation that autograd has to see. A
training graph is then a single `autograd.Function`, an inference graph is the compiled program
itself, and AOTAutograd's analysis fits into a few numbers that are stored with the programs, so
that a warm start need not trace again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from gyrator.frontend.double_backward import Replay, WeakInputs
from gyrator.frontend.gradients import is_batched, is_lazy
from gyrator.graphs.compiled import Boxed, untraced
from gyrator_ir.define import frozen
from gyrator_lowering.torch_bridge.graphs import graph_results
from gyrator_runtime.host.outside import copy_with_strides, without_grad


@frozen
class Tangent:
    """A gradient that the backward graph takes: the result that it belongs to, and its layout."""

    output: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    reaches: tuple[int, ...]
    """Indices of the inputs whose gradients depend on it."""


@frozen
class GraphFacts:
    """The calling convention of the programs of a simple graph."""

    outputs: int
    """Number of results for the user; a forward program's others are saved for the backward
    pass."""
    constant: tuple[int, ...]
    """Indices of results that do not require gradients."""
    mutated: tuple[int, ...]
    """Indices of inputs written in place, whose version counters must be incremented."""
    autocast: bool
    """Whether autocast was enabled; the programs already contain its casts."""
    tangents: tuple[Tangent, ...] | None = None
    """None for an inference graph."""
    detached: tuple[int, ...] = ()
    """Indices of inputs that require gradients but never get one: eager mode omits them from its
    graph."""
    refusal: str = ""
    """Why second-order gradients are unavailable; empty if they are available."""
    dynamic: tuple[tuple[int, ...], ...] = ()
    """For each result, the dimensions whose sizes are symbolic; empty if all sizes are static."""


def facts_of(
    metadata: Any,
    inputs: int,
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule | None,
    refusal: str,
) -> GraphFacts | None:
    """Return the calling convention of the graphs, or None if they need AOTAutograd's wrapper.

    Args:
        metadata: AOTAutograd's analysis of the user's function (`ViewAndMutationMeta`).
        inputs: number of the function's inputs.
        forward: the inference or forward graph.
        backward: the backward graph of a training step.
        refusal: why second-order gradients are unavailable; empty if they are available.
    """
    if metadata is None or not _simple(metadata) or torch.are_deterministic_algorithms_enabled():
        return None
    infos = metadata.output_info
    saved = len(graph_results(forward)) - len(infos)
    if len(_placeholders(forward)) != inputs:
        return None
    tangents: tuple[Tangent, ...] | None = None
    detached: tuple[int, ...] = ()
    if backward is None:
        if saved:
            return None
    else:
        tangents = _tangents(infos, saved, inputs, backward)
        if tangents is None:
            return None
        detached = tuple(
            k
            for k, (info, result) in enumerate(
                zip(metadata.input_info, graph_results(backward), strict=True)
            )
            if info.requires_grad and result is None
        )
    return GraphFacts(
        outputs=len(infos),
        constant=tuple(k for k, info in enumerate(infos) if not info.requires_grad),
        mutated=tuple(metadata.mutated_graph_handled_indices_seen_by_autograd),
        autocast=torch._C._is_any_autocast_enabled(),
        tangents=tangents,
        detached=detached,
        refusal=refusal,
        dynamic=_dynamic(infos),
    )


def callable_for(
    facts: GraphFacts, forward: Boxed, backward: Boxed | None, replay: Replay, inputs: Sequence[Any]
) -> Callable[..., Sequence[Any]]:
    """Return a function that takes the graph's inputs as separate arguments.

    `inputs` are those that the graph is compiled for; empty if they are unknown.
    """
    run = _without_autocast(forward) if facts.autocast else forward
    if facts.tangents is None:
        call = _inference(run, replay.function, inputs)
    else:
        if backward is None:
            raise ValueError("a training graph needs its backward program")
        back = _without_autocast(backward) if facts.autocast else backward
        call = _training(facts, facts.tangents, run, back, replay)
    if facts.dynamic:
        call = _marking(call, facts.dynamic)
    if not facts.mutated:
        return call
    return protecting(_bumping(call, facts.mutated), facts.mutated, inputs)


def protecting(
    call: Callable[..., Any], mutated: Sequence[int], inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Return a function that raises eager's error for writes to inference tensors outside
    inference mode.

    Args:
        call: the compiled graph.
        mutated: indices of the inputs that it writes.
        inputs: the inputs that it is compiled for; empty if they are unknown. Dynamo's guards
            separate normal tensors outside inference mode, which need no check at every call.
    """
    written = [k for k in mutated if not inputs or inputs[k].is_inference()]
    if not written:
        return call

    def check(*args: Any) -> Any:
        if not torch.is_inference_mode_enabled() and any(args[k].is_inference() for k in written):
            raise RuntimeError(
                "Inplace update to inference tensor outside InferenceMode is not allowed: clone "
                "the tensor to get a normal one"
            )
        return call(*args)

    return check


def _inference(
    run: Boxed, function: Callable[..., Any], inputs: Sequence[Any]
) -> Callable[..., Sequence[Any]]:
    # Autograd records the program's ATen calls only if an input requires gradients, which Dynamo
    # guards.
    recording = not inputs or any(getattr(x, "requires_grad", False) for x in inputs)
    unrecorded = partial(without_grad, run) if recording else run

    def call(*args: Any) -> Sequence[Any]:
        # Checked here rather than by `forward_mode` to save a call in small graphs.
        return function(*args) if forward_ad._current_level >= 0 else unrecorded(list(args))

    return call


def _training(
    facts: GraphFacts, tangents: tuple[Tangent, ...], run: Boxed, back: Boxed, replay: Replay
) -> Callable[..., Sequence[Any]]:
    outputs, constant = facts.outputs, facts.constant

    class CompiledGraph(torch.autograd.Function):
        """One compiled training graph as a node of the autograd graph."""

        @staticmethod
        def forward(ctx: Any, inputs: WeakInputs, *args: Any) -> tuple[Any, ...]:
            ctx.set_materialize_grads(False)
            ctx.inputs = inputs
            results = run(list(args))
            ctx.save_for_backward(*results[outputs:])
            ctx.mark_non_differentiable(
                *(results[k] for k in constant if isinstance(results[k], torch.Tensor))
            )
            return tuple(results[:outputs])

        @staticmethod
        @untraced  # autograd may call it while Dynamo is tracing
        def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
            present = tuple(t for t in tangents if gradients[t.output] is not None)
            needed = ctx.needs_input_grad[1:]
            if not present:
                return None, *(None for _ in needed)
            args = list(ctx.saved_tensors)
            if torch.is_grad_enabled() or any(map(is_batched, gradients)):
                return None, *replay.gradients(ctx.inputs, gradients, needed)
            # Saved activations may die while the program runs, unless the graph is retained.
            ctx.maybe_clear_saved_tensors()
            args.extend(_as_compiled(gradients[t.output], t) for t in tangents)
            results = back(args)
            return None, *(
                results if len(present) == len(tangents) else _reached(results, tangents, present)
            )

    apply: Callable[..., Sequence[Any]] = CompiledGraph.apply

    def call(*args: Any) -> Sequence[Any]:
        if forward_ad._current_level >= 0:
            return replay.function(*args)
        inputs = list(args)
        for k in facts.detached:
            inputs[k] = inputs[k].detach()
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return apply(replay.weak_inputs(args), *inputs)
        with torch.enable_grad():  # as the function itself did, under `no_grad`
            return apply(replay.weak_inputs(args), *inputs)

    return call


def _as_compiled(gradient: torch.Tensor | None, tangent: Tangent) -> torch.Tensor:
    """Return the gradient as plain memory in the layout that the program was compiled for."""
    if gradient is None:
        dtype = getattr(torch, tangent.dtype)
        zeros = torch.empty_strided(
            tangent.shape, tangent.strides, dtype=dtype, device=tangent.device
        )
        return zeros.zero_()
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if gradient.stride() == tangent.strides and not is_lazy(gradient):
        return gradient
    return copy_with_strides(gradient, tangent.strides)


def _reached(
    results: Sequence[Any], tangents: Sequence[Tangent], present: Sequence[Tangent]
) -> list[Any]:
    """Replace gradients that depend on missing tangents alone by None."""
    lost = {k for t in tangents for k in t.reaches} - {k for t in present for k in t.reaches}
    return [None if k in lost else result for k, result in enumerate(results)]


def _dynamic(infos: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    dims = tuple(tuple(sorted(info.dynamic_dims or ())) for info in infos)
    return dims if any(dims) else ()


def _marking(
    call: Callable[..., Sequence[Any]], dynamic: tuple[tuple[int, ...], ...]
) -> Callable[..., Sequence[Any]]:
    """Mark the symbolic dimensions of the results, as AOTAutograd's wrapper does.

    In a graph that follows a break, Dynamo gives marked dimensions symbols of their own rather
    than those of other inputs that happen to have the same sizes.
    """
    from torch._functorch._aot_autograd import runtime_wrappers

    # Torch 2.11 has one attribute for these marks and for those of users.
    own = hasattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices")
    name = "_dynamo_propagated_dynamic_indices" if own else "_dynamo_weak_dynamic_indices"

    def mark(*args: Any) -> Sequence[Any]:
        results = call(*args)
        for result, dims in zip(results, dynamic, strict=False):
            if dims:
                setattr(result, name, set(dims))
        return results

    return mark


def _bumping(
    call: Callable[..., Sequence[Any]], mutated: tuple[int, ...]
) -> Callable[..., Sequence[Any]]:
    """Increment the version counters of the inputs that the program writes."""

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
    placeholders = _placeholders(backward)
    if len(placeholders) != saved + len(flow) or len(graph_results(backward)) != inputs:
        return None
    values: list[Any] = [node.meta.get("val") for node in placeholders[saved:]]
    if not all(isinstance(v, torch.Tensor) and not is_lazy(v) for v in values):
        return None
    return tuple(
        Tangent(
            output=k,
            shape=tuple(v.shape),
            strides=tuple(v.stride()),
            dtype=str(v.dtype).removeprefix("torch."),
            device=str(v.device),
            reaches=reached,
        )
        for k, reached, v in zip(
            flow, dependents(placeholders[saved:], backward), values, strict=True
        )
    )


def dependents(
    tangents: Sequence[torch.fx.Node], backward: torch.fx.GraphModule
) -> list[tuple[int, ...]]:
    """Return the indices of the results that depend on each tangent."""
    sources = {tangent: 1 << k for k, tangent in enumerate(tangents)}
    masks: dict[Any, int] = {}
    for node in backward.graph.nodes:
        mask = sources.get(node, 0)
        for operand in node.all_input_nodes:
            mask |= masks[operand]
        masks[node] = mask
    results = [masks.get(result, 0) for result in graph_results(backward)]
    return [
        tuple(index for index, mask in enumerate(results) if mask >> k & 1)
        for k in range(len(tangents))
    ]


def _placeholders(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in gm.graph.nodes if n.op == "placeholder"]
