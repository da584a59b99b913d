"""Gradients of gradients: what a compiled graph computes is computed once more in eager mode.

A backward program has no derivative. Where autograd wants one (`create_graph=True`), or brings
gradients that no program can read (those of `vmap`), Dynamo's graph runs again on the same inputs,
and its own derivative, which autograd can follow, takes the place of the program's results.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from weakref import ref

import torch
from attrs import frozen
from torch.autograd import forward_ad

from gyrator.engine.compiled import untraced
from gyrator.frontend.gradients import compiles_autograd
from gyrator_ir.diagnostics import GyratorError

Held = Sequence[tuple[Any, int | None]]
"""A graph's inputs and their versions: tensors weakly, anything else as it is."""


class DoubleBackwardError(GyratorError, RuntimeError):
    """Gradients of gradients of a compiled graph that cannot be had."""


@frozen(eq=False)
class Replay:
    """How to run a user's function once more."""

    function: Callable[..., Sequence[Any]]
    refusal: str
    """Why it would not compute the same again; empty if it would."""
    autocast: tuple[tuple[str, torch.dtype, bool], ...]
    """By type of device: the dtype of autocast, and whether it is on."""

    @classmethod
    def of(
        cls, function: Callable[..., Sequence[Any]], inputs: Sequence[Any], refusal: str
    ) -> "Replay":
        """Return how to run the function as it would run here and now."""
        types = sorted({x.device.type for x in inputs if isinstance(x, torch.Tensor)})
        return cls(
            function,
            refusal,
            tuple(
                (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
                for kind in types
                if torch.amp.is_autocast_available(kind)
            ),
        )

    def hold(self, inputs: Sequence[Any]) -> Held:
        """Remember the inputs of a call without keeping them alive."""
        if self.refusal:
            return ()
        try:
            return [(ref(x), x._version) for x in inputs]
        except (AttributeError, RuntimeError, TypeError):  # numbers, and tensors of inference mode
            return [_held(x) for x in inputs]

    def gradients(
        self, held: Held, given: Sequence[torch.Tensor | None], wanted: Sequence[bool]
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the wanted inputs, which depend on the inputs as in eager mode.

        Args:
            held: the inputs, as `hold` gave them.
            given: the gradients of the function's results.
            wanted: for each input, whether it gets a gradient.
        """
        if self.refusal:
            raise _error(self.refusal, provenance=_lines(self.function))
        create = torch.is_grad_enabled()
        inputs = [_taken(place, *one) for place, one in enumerate(held)]
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for kind, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
            # A view of each, since one input may depend on another: partial derivatives are wanted.
            parts = [x.view_as(x) if w else x for x, w in zip(inputs, wanted, strict=True)]
            results = self.function(*parts)
        pairs = [
            (r, g)
            for r, g in zip(results, given, strict=True)
            if g is not None and isinstance(r, torch.Tensor) and r.requires_grad
        ]
        if not pairs:
            return tuple(None for _ in wanted)
        chosen = [part for part, w in zip(parts, wanted, strict=True) if w]
        found = iter(
            torch.autograd.grad(
                [r for r, _ in pairs],
                chosen,
                [g for _, g in pairs],
                create_graph=create,
                allow_unused=True,
            )
        )
        return tuple(next(found) if w else None for w in wanted)


def forward_mode(compiled: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Call the function itself where forward-mode AD may carry tangents, which programs do not."""

    def call(*inputs: Any) -> Any:
        return function(*inputs) if forward_ad._current_level >= 0 else compiled(*inputs)

    return call


def watched(compiled: Callable[..., Any], replay: Replay) -> Callable[..., Any]:
    """Let AOTAutograd's callable of a training graph have gradients of gradients."""

    def call(*inputs: Any) -> Any:
        if compiles_autograd():
            return compiled(*inputs)
        held = replay.hold(inputs)
        results = compiled(*inputs)
        node = _node(results)
        if node is not None:
            needed = [x.requires_grad if isinstance(x, torch.Tensor) else None for x in inputs]
            node.register_hook(partial(_follow, replay, held, needed))
        return results

    return forward_mode(call, replay.function)


@untraced  # autograd may call it where Dynamo is on
def _follow(
    replay: Replay,
    held: Held,
    needed: Sequence[bool | None],
    found: Sequence[torch.Tensor | None],
    given: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...] | None:
    """Replace a node's gradients where autograd will differentiate them, or brought it none.

    Args:
        replay: how to run the function again.
        held: its inputs.
        needed: for each input, whether it requires gradients; None for one that is no tensor.
        found: the gradients of the tensors among the inputs, from the compiled program.
        given: the gradients of the function's results.
    """
    if all(gradient is None for gradient in given):
        return (None,) * len(found)
    if not torch.is_grad_enabled():
        return None
    places = [k for k, need in enumerate(needed) if need is not None]
    if len(found) != len(places):
        raise _error("its inputs share memory")
    flow = {k for k, gradient in zip(places, found, strict=True) if gradient is not None}
    wanted = [bool(need) and k in flow for k, need in enumerate(needed)]
    gradients = replay.gradients(held, given, wanted)
    return tuple(gradients[k] for k in places)


def _node(results: Any) -> Any:
    """Return AOTAutograd's node in the autograd graph of some results, one view away at most."""
    for result in results if isinstance(results, tuple | list) else (results,):
        above = result.grad_fn if isinstance(result, torch.Tensor) else None
        if above is None:
            continue
        for node in (above, *(n for n, _ in above.next_functions)):
            if node is not None and node.name() == "CompiledFunctionBackward":
                return node
    return None


def _held(value: Any) -> tuple[Any, int | None]:
    if not isinstance(value, torch.Tensor):
        return value, None
    return ref(value), 0 if value.is_inference() else value._version


def _taken(place: int, value: Any, version: int | None) -> Any:
    if version is None:
        return value
    tensor = value()
    if tensor is None:
        raise _error(
            f"input {place} of the graph no longer exists",
            help="keep a reference to the tensor for as long as its gradients are differentiated",
        )
    if hasattr(tensor, "_fix_weakref"):
        tensor._fix_weakref()
    if not tensor.is_inference() and tensor._version != version:
        raise _error(
            f"input {place} of the graph has been modified by an inplace operation",
            help="modify a copy of it",
        )
    return tensor


def _lines(graph: Any) -> tuple[str, ...]:
    """Return the user's last line in a graph of Dynamo's."""
    from gyrator_lowering.torch_bridge.origins import innermost  # hardly ever needed

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
        f"gradients of gradients of a compiled graph cannot be computed: {why}",
        provenance=provenance,
        help=help,
    )
