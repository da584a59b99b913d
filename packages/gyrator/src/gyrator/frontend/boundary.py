"""What a graph takes or returns and programs do not: run-time floats, and tensors that are to be
conjugated or negated when they are read."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gyrator.engine.compiled import Boxed
from gyrator.engine.nan import written
from gyrator_ir.types import HOST

_Finish = tuple[int, Callable[[Any], Any]]
"""A result's place, and what makes the caller's result of the program's."""

_PENDING: tuple[tuple[Callable[[Any], Any], Callable[[torch.Tensor], bool]], ...] = (
    (torch._conj, torch.Tensor.is_conj),
    (torch._neg_view, torch.Tensor.is_neg),
)
"""What views a tensor so, and what tells that it is to be done when the tensor is read."""


def plain_boundary(gm: torch.fx.GraphModule) -> Callable[[Boxed], Boxed] | None:
    """Let a graph take and return tensors as they are in memory, in place.

    Run-time floats and conditions become 0-d tensors; integers stay, for programs take and return
    those. Inputs that are written to and are to be conjugated or negated when they are read become
    plain copies, which are copied back. Returns what makes a callable of the former graph out of
    one of the new; None where nothing changed.
    """
    (given,) = gm.graph.output_node().args
    results = given if isinstance(given, tuple | list) else ()
    placeholders = gm.graph.find_nodes(op="placeholder")
    inputs, numbers = _numbers(placeholders), _numbers(results)
    copied = tuple(k for k, n in enumerate(placeholders) if _is_pending(_value(n)) and written(n))
    pending = tuple(
        (place, view)
        for place, result in enumerate(results)
        for view, is_pending in _PENDING
        if isinstance(val := _value(result), torch.Tensor) and is_pending(val)
    )
    if not inputs and not numbers and not pending and not copied:
        return None
    for place in copied:
        meta = placeholders[place].meta
        with meta["val"].fake_mode:
            meta["val"] = _uncopied(meta["val"])
    from gyrator_lowering.fx_passes import (  # a warm start hardly ever needs it
        hold_inputs,
        hold_results,
        resolve_results,
    )

    hold_inputs(gm, inputs)
    hold_results(gm, numbers)
    resolve_results(gm, pending)
    finished = (*((place, torch.Tensor.item) for place in numbers), *pending)
    return lambda run: _adapted(run, inputs, copied, finished)


def _is_pending(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(told(value) for _, told in _PENDING)


def _uncopied(t: torch.Tensor) -> torch.Tensor:
    """Return fresh memory that lies as a tensor does."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)


def _value(node: Any) -> Any:
    return getattr(node, "meta", {}).get("val")


def _numbers(nodes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(
        place
        for place, node in enumerate(nodes)
        if isinstance(_value(node), (torch.SymFloat, torch.SymBool))
    )


def _adapted(
    run: Boxed, inputs: tuple[int, ...], copied: tuple[int, ...], finished: Sequence[_Finish]
) -> Boxed:
    def call(args: list[Any]) -> Sequence[Any]:
        given = [args[place] for place in copied]
        for place, t in zip(copied, given, strict=True):
            args[place] = _uncopied(t).copy_(t)
        plain = [args[place] for place in copied]
        for place in inputs:
            number = args[place]
            dtype = torch.bool if isinstance(number, bool) else torch.float64
            args[place] = torch.tensor(number, dtype=dtype, device=HOST)
        results = list(run(args))
        for t, made in zip(given, plain, strict=True):
            t.copy_(made)
        for place, finish in finished:
            results[place] = finish(results[place])
        return results

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
    return call
