"""What a tensor that comes from autograd may be, other than plain memory."""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from gyrator.engine.compiled import Boxed


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether the memory is not yet what the tensor stands for: conjugated, negated or all zero."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def is_batched(value: Any) -> bool:
    """Whether `vmap`, or another transform of functions, wraps a tensor."""
    if not isinstance(value, torch.Tensor):
        return False
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(value) or functorch.is_functorch_wrapped_tensor(value)


def compiles_autograd() -> bool:
    """Whether compiled autograd will take the backward passes of what is called here."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    enabled = module is not None and module.compiled_autograd_enabled
    return bool(enabled or torch._dynamo.config.compiled_autograd)


def with_flags(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return an equal tensor, with the same strides, that is conjugated and negated where `like`
    is."""
    plain = tensor.resolve_conj().resolve_neg()
    if tensor._is_zerotensor():
        plain = plain.clone()
    if like.is_neg():
        plain = plain.neg()
    if like.is_conj():
        plain = plain.conj_physical()
    if plain.stride() != tensor.stride() and 0 not in tensor.stride():
        plain = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=plain.dtype, device=plain.device
        ).copy_(plain)
    plain = torch._neg_view(plain) if like.is_neg() else plain
    return plain.conj() if like.is_conj() else plain


def resolving(run: Boxed, graph: torch.fx.GraphModule) -> Boxed:
    """Give a backward program its tangents with the flags that it was compiled for."""
    tangents = [
        (place, node.meta["val"])
        for place, node in enumerate(graph.graph.find_nodes(op="placeholder"))
        if "tangents" in str(node.target) and isinstance(node.meta.get("val"), torch.Tensor)
    ]

    def call(args: list[Any]) -> Sequence[Any]:
        for place, val in tangents:
            given = args[place]  # None for the token that keeps ops with effects in order
            if given is not None and (is_lazy(given) or is_lazy(val)):
                args[place] = with_flags(given, val)
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's sign of the convention
    return call
