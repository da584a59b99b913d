"""Values at the boundary of a graph that programs do not support: symbolic floats, tensors with the
conjugate or negative bit, and inputs of other types that are results, such as the mesh of a
distributed tensor."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gyrator.graphs.compiled import Boxed, boxed
from gyrator.graphs.nan import written
from gyrator_ir.types import HOST
from gyrator_runtime.host.outside import empty_like

_Finish = tuple[int, Callable[[Any], Any]]
"""The index of a result, and a function from the program's result to the caller's."""

_BITS: tuple[tuple[Callable[[Any], Any], Callable[[torch.Tensor], bool]], ...] = (
    (torch._conj, torch.Tensor.is_conj),
    (torch._neg_view, torch.Tensor.is_neg),
)
"""The view that sets a lazy bit of a tensor, and the predicate that reads the bit."""
_HELD = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float, type(None))
"""Types of inputs that a program can return."""


def plain_boundary(gm: torch.fx.GraphModule) -> Callable[[Boxed], Boxed] | None:
    """Make a graph take and return tensors without lazy bits, and no symbolic floats, in place.

    Symbolic floats and booleans become 0-d tensors; programs support symbolic integers. Inputs with
    a lazy bit that the graph writes to become plain copies, which are copied back. Results that are
    inputs of other types become None.

    Returns:
        A function from a callable of the new graph to one of the original graph; None if the graph
        did not change.
    """
    (output,) = gm.graph.output_node().args
    results = output if isinstance(output, tuple | list) else ()
    placeholders = gm.graph.find_nodes(op="placeholder")
    inputs, numbers = _numbers(placeholders), _numbers(results)
    copied = tuple(k for k, n in enumerate(placeholders) if _is_lazy(_value(n)) and written(n))
    pending = tuple(
        (index, view)
        for index, result in enumerate(results)
        for view, is_set in _BITS
        if isinstance(val := _value(result), torch.Tensor) and is_set(val)
    )
    passed = tuple(
        (index, placeholders.index(result))
        for index, result in enumerate(results)
        if getattr(result, "op", "") == "placeholder" and not isinstance(_value(result), _HELD)
    )
    if not inputs and not numbers and not pending and not copied and not passed:
        return None
    for index in copied:
        meta = placeholders[index].meta
        with meta["val"].fake_mode:
            meta["val"] = empty_like(meta["val"])
    from gyrator_lowering.fx_passes import (  # a warm start rarely needs it
        hold_inputs,
        hold_results,
        resolve_results,
    )

    hold_inputs(gm, inputs)
    hold_results(gm, numbers)
    resolve_results(gm, pending)
    if passed:
        dropped = dict(passed)
        returned: Any = gm.graph.output_node().args[0]
        plain = tuple(None if k in dropped else r for k, r in enumerate(returned))
        gm.graph.output_node().args = (plain,)
        gm.recompile()
    finished = (*((index, torch.Tensor.item) for index in numbers), *pending)
    return lambda run: _adapted(run, inputs, copied, finished, passed)


def _is_lazy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(is_set(value) for _, is_set in _BITS)


def _value(node: Any) -> Any:
    return getattr(node, "meta", {}).get("val")


def _numbers(nodes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(
        index
        for index, node in enumerate(nodes)
        if isinstance(_value(node), (torch.SymFloat, torch.SymBool))
    )


def _adapted(
    run: Boxed,
    inputs: tuple[int, ...],
    copied: tuple[int, ...],
    finished: Sequence[_Finish],
    passed: Sequence[tuple[int, int]],
) -> Boxed:
    @boxed
    def call(args: list[Any]) -> Sequence[Any]:
        returned = [(index, args[k]) for index, k in passed]
        originals = [args[index] for index in copied]
        for index, t in zip(copied, originals, strict=True):
            args[index] = empty_like(t).copy_(t)
        plain = [args[index] for index in copied]
        for index in inputs:
            number = args[index]
            dtype = torch.bool if isinstance(number, bool) else torch.float64
            args[index] = torch.tensor(number, dtype=dtype, device=HOST)
        results = list(run(args))
        for t, copy in zip(originals, plain, strict=True):
            t.copy_(copy)
        for index, finish in finished:
            results[index] = finish(results[index])
        for index, value in returned:
            results[index] = value
        return results

    return call
