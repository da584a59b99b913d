"""Second-order gradients, by rerunning a compiled graph in eager mode.

A backward program is not differentiable. If autograd needs its derivative (`create_graph=True`), or
passes gradients that programs cannot read (those of `vmap`), Dynamo's graph runs again on the same
inputs, and its eager gradients, which autograd can differentiate, replace the program's.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Any
from weakref import ref

import torch
from attrs import field
from torch.autograd import forward_ad

from gyrator.frontend.dynamo.custom_gradients import differentiated_once
from gyrator.frontend.gradients import compiles_autograd, is_batched
from gyrator.graphs.compiled import untraced
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError

WeakInputs = Sequence[tuple[Any, int | None]]
"""A graph's inputs and their version counters: weak references to tensors, other values as they
are."""


class DoubleBackwardError(GyratorError, RuntimeError):
    """Second-order gradients of a compiled graph that cannot be computed."""


@frozen(eq=False)
class Replay:
    """Reruns a user's function in eager mode."""

    function: Callable[..., Sequence[Any]]
    refusal: str
    """Why a rerun would not give the same results; empty if it would."""
    autocast: tuple[tuple[str, torch.dtype, bool], ...]
    """By device type: the autocast dtype, and whether autocast is enabled."""
    bases: tuple[int, ...] = ()
    """For each base that AOTAutograd returns beside the results, a result that is a view of it."""
    reaches: Mapping[int, tuple[int, ...]] = field(factory=dict)
    """For the results and bases, the inputs whose gradients depend on theirs; empty if that is
    unknown, or if the program of the backward pass knows it."""

    @classmethod
    def of(
        cls,
        function: Callable[..., Sequence[Any]],
        inputs: Sequence[Any],
        refusal: str,
        bases: tuple[int, ...] = (),
        reaches: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ) -> "Replay":
        """Capture the function and the current autocast state."""
        types = sorted({x.device.type for x in inputs if isinstance(x, torch.Tensor)})
        return cls(
            function,
            refusal,
            tuple(
                (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
                for kind in types
                if torch.amp.is_autocast_available(kind)
            ),
            bases,
            reaches,
        )

    def weak_inputs(self, inputs: Sequence[Any]) -> WeakInputs:
        """Record the inputs of a call without keeping them alive."""
        if self.refusal:
            return ()
        try:
            return [(ref(x), x._version) for x in inputs]
        except (AttributeError, RuntimeError, TypeError):  # numbers, and tensors of inference mode
            return [_weak(x) for x in inputs]

    def lost(self, tangents: Sequence[torch.Tensor | None]) -> set[int]:
        """Return the inputs whose gradients depend on missing tangents alone: they have none."""
        missing = [k for k, g in enumerate(tangents) if g is None]
        if not missing:
            return set()
        reached = {i for k, to in self.reaches.items() if tangents[k] is not None for i in to}
        return {i for k in missing for i in self.reaches.get(k, ())} - reached

    def gradients(
        self, saved: WeakInputs, tangents: Sequence[torch.Tensor | None], needed: Sequence[bool]
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the inputs that need one, differentiable as in eager mode.

        Args:
            saved: the inputs, as `weak_inputs` returned them.
            tangents: the gradients of the function's results and of the bases. Those of results
                that are views of inputs or bases are None: autograd follows such views by itself.
            needed: for each input, whether it needs a gradient.
        """
        if self.refusal:
            raise _error(self.refusal, provenance=_lines(self.function))
        create = torch.is_grad_enabled()
        function = self.function
        if create:
            why = "it calls a `torch.autograd.Function`, which is differentiated only once"
            function = differentiated_once(function, _error(why, provenance=_lines(function)))
        inputs = [_resolved(index, *entry) for index, entry in enumerate(saved)]
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for kind, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
            # A view of each: one input may depend on another, and partial derivatives are needed.
            parts = [x.view_as(x) if w else x for x, w in zip(inputs, needed, strict=True)]
            results = function(*parts)
        results = [*results, *(results[k]._base for k in self.bases)]
        pairs = [
            (r, g)
            for r, g in zip(results, tangents, strict=True)
            if g is not None and isinstance(r, torch.Tensor) and r.requires_grad
        ]
        if not pairs:
            return tuple(None for _ in needed)
        chosen = [part for part, w in zip(parts, needed, strict=True) if w]
        gradients = iter(
            torch.autograd.grad(
                [r for r, _ in pairs],
                chosen,
                [g for _, g in pairs],
                create_graph=create,
                allow_unused=True,
            )
        )
        return tuple(next(gradients) if w else None for w in needed)


def forward_mode(compiled: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a compiled graph to call the function itself inside forward-mode AD, which programs
    do not support."""

    def call(*inputs: Any) -> Any:
        return function(*inputs) if forward_ad._current_level >= 0 else compiled(*inputs)

    return call


def with_double_backward(compiled: Callable[..., Any], replay: Replay) -> Callable[..., Any]:
    """Add second-order gradients to AOTAutograd's callable of a training graph."""

    def call(*inputs: Any) -> Any:
        if compiles_autograd():
            return compiled(*inputs)
        saved = replay.weak_inputs(inputs)
        before = [x.grad_fn for x in inputs if isinstance(x, torch.Tensor)]
        results = compiled(*inputs)
        node = _node(results, before)
        if node is not None:
            needed = [x.requires_grad if isinstance(x, torch.Tensor) else None for x in inputs]
            batched: list[Sequence[torch.Tensor | None]] = []
            node.register_prehook(partial(_without_batches, batched))
            node.register_hook(partial(_follow, replay, saved, needed, batched))
        return results

    return forward_mode(call, replay.function)


@untraced  # autograd may call it where Dynamo is on
def _follow(
    replay: Replay,
    saved: WeakInputs,
    needed: Sequence[bool | None],
    batched: list[Sequence[torch.Tensor | None]],
    computed: Sequence[torch.Tensor | None],
    tangents: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...] | None:
    """Replace the gradients of a node if autograd will differentiate them, or received none of
    some results.

    Args:
        replay: reruns the function.
        saved: its inputs.
        needed: for each input, whether it requires gradients; None for one that is not a tensor.
        batched: the gradients of the function's results, if `_without_batches` replaced them.
        computed: the gradients of the tensors among the inputs, from the compiled program.
        tangents: the gradients of the function's results.
    """
    if all(gradient is None for gradient in tangents):
        return (None,) * len(computed)
    tensors = [k for k, need in enumerate(needed) if need is not None]
    if batched:
        tangents = batched.pop()
    elif not torch.is_grad_enabled():
        lost = replay.lost(tangents)
        if not lost or len(computed) != len(tensors):
            return None
        pairs = zip(tensors, computed, strict=True)
        return tuple(None if k in lost else gradient for k, gradient in pairs)
    if len(computed) != len(tensors):
        raise _error("its inputs share memory")
    flow = {k for k, gradient in zip(tensors, computed, strict=True) if gradient is not None}
    chosen = [bool(need) and k in flow for k, need in enumerate(needed)]
    gradients = replay.gradients(saved, tangents, chosen)
    return tuple(gradients[k] for k in tensors)


@untraced
def _without_batches(
    batched: list[Sequence[torch.Tensor | None]], tangents: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...] | None:
    """Replace gradients of `vmap`, which no program can read, by zeros, and keep them for
    `_follow`."""
    batched.clear()
    if not any(map(is_batched, tangents)):
        return None
    batched.append(tangents)
    return tuple(
        torch.zeros(g.shape, dtype=g.dtype, device=g.device)
        if g is not None and is_batched(g)
        else g
        for g in tangents
    )


def _node(results: Any, before: Sequence[Any]) -> Any:
    """Return AOTAutograd's autograd node above some results; None if none depends on it.

    Args:
        results: what the compiled graph returned.
        before: the nodes of its inputs, where other graphs begin.
    """
    seen = {node for node in before if node is not None}
    waiting = [
        r.grad_fn
        for r in (results if isinstance(results, tuple | list) else (results,))
        if isinstance(r, torch.Tensor)
    ]
    while waiting:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        if node.name() == "CompiledFunctionBackward":
            return node
        seen.add(node)
        waiting.extend(above for above, _ in node.next_functions)
    return None


def _weak(value: Any) -> tuple[Any, int | None]:
    if not isinstance(value, torch.Tensor):
        return value, None
    return ref(value), 0 if value.is_inference() else value._version


def _resolved(index: int, value: Any, version: int | None) -> Any:
    if version is None:
        return value
    tensor = value()
    if tensor is None:
        raise _error(
            f"input {index} of the graph no longer exists",
            help="keep a reference to the tensor for as long as its gradients are differentiated",
        )
    if hasattr(tensor, "_fix_weakref"):
        tensor._fix_weakref()
    if not tensor.is_inference() and tensor._version != version:
        raise _error(
            f"input {index} of the graph has been modified by an inplace operation",
            help="modify a copy of it",
        )
    return tensor


def _lines(graph: Any) -> tuple[str, ...]:
    """Return the last user line in a Dynamo graph."""
    from gyrator_lowering.torch_bridge.origins import innermost  # rarely used

    for node in reversed(getattr(graph, "graph", torch.fx.Graph()).nodes):
        line, code = innermost(node.meta.get("stack_trace") or "")
        if line:
            return (f"{line}: {code}",)
    return ()


def _error(
    why: str,
    help: str = "run the function with `torch.compiler.disable`",
    provenance: tuple[str, ...] = (),
) -> Exception:
    return DoubleBackwardError.of(
        "GY-COMPILE-010",
        f"second-order gradients of a compiled graph cannot be computed: {why}",
        provenance=provenance,
        help=help,
    )
